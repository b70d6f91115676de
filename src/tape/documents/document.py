"""Documents and their problems, each with path, line and remedy.

A validator reads values from `Fields` and always gets a value of the expected type. Problems are recorded, and
`Document.check()` raises all of them at once.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from tape.documents.paths import Path, render
from tape.errors import DocumentTooLarge, InvalidDocument, Problem

T = TypeVar("T")


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Any = _Required()

MAX_PATH = 400
# Size of a document at registration, in bytes of UTF-8.
MAX_BYTES = 256 << 10
# A document with so many problems is reported without a search for more.
MAX_PROBLEMS = 100
_PATH = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)*")


class Document:
    """A document: its text, its value and its problems."""

    def __init__(self, content: str, default_kind: str = "Playbook") -> None:
        from tape.documents.yaml import load  # the YAML library, loaded by the first document

        self.content = _plain(content)
        self.value, self._lines = load(self.content)
        self.problems: list[Problem] = []
        self.root = Node(self, self.value, ())
        if not isinstance(self.value, dict):
            raise InvalidDocument(
                [Problem("", 1, "a document is a mapping with kind, metadata and what the kind needs")]
            )
        kind = self.value.get("kind", default_kind)
        self.kind = kind.lower() if isinstance(kind, str) else ""
        metadata = self.value.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        self.name = str(metadata.get("name") or metadata.get("path") or "")
        self.path = str(metadata.get("path") or metadata.get("name") or "")
        self.labels: Any = metadata.get("labels") or {}

    def fields(self, *known: str) -> Fields:
        """The top-level keys: `apiVersion`, `kind`, `metadata` and these. Checks `metadata`, which all kinds share."""
        fields = self.root.mapping("apiVersion", "kind", "metadata", *known)
        metadata = fields.section("metadata", "name", "path", "labels", "description", "annotations")
        if "metadata" not in fields:
            self.wrong(("metadata",), "Missing 'metadata' section")
        if metadata.is_given:
            for name in ("name", "path", "description"):
                metadata.text(name, "")
            if not self.path:
                self.wrong(
                    ("metadata",),
                    "Missing 'path' or 'name' in metadata; give the document a path like domain/ingest_order",
                )
            elif len(self.path) > MAX_PATH or not _PATH.fullmatch(self.path):
                where = "path" if "path" in metadata else "name"
                metadata.at(where).wrong("must be words of letters, digits, _ . and - with / between them")
        return fields

    def line_of(self, path: Path) -> int:
        """The line of a path, or of its nearest parent that has one."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)

    def wrong(self, path: Path, message: str, value: Any = REQUIRED) -> None:
        """Record a problem."""
        shown = None if value is REQUIRED else value
        self.problems.append(Problem(render(path), self.line_of(path), message, shown))
        if len(self.problems) >= MAX_PROBLEMS:
            self.check()

    def check(self) -> None:
        """Raise InvalidDocument with all recorded problems, sorted by line."""
        if self.problems:
            raise InvalidDocument(sorted(self.problems, key=lambda problem: problem.line))


class Node:
    """A value in a document, with its path."""

    def __init__(self, document: Document, value: Any, path: Path) -> None:
        self.document = document
        self.value = value
        self.path = path

    @property
    def line(self) -> int:
        """Its line in the text."""
        return self.document.line_of(self.path)

    def wrong(self, message: str) -> None:
        """Record that this value is wrong; the message follows its path and value."""
        self.document.wrong(self.path, message, self.value)

    def mapping(self, *known: str) -> Fields:
        """The fields of a mapping. A key that is not in `known` is a problem; without `known` any key is valid."""
        fields = self.value
        if not isinstance(fields, dict):
            self.wrong("must be a mapping")
            return Fields(Node(self.document, {}, self.path), is_given=False)
        for key in fields if known else ():
            if key not in known:
                self.document.wrong((*self.path, key), "is not a known key" + nearest(key, known))
        return Fields(self, is_given=True)

    def items(self) -> list[Node]:
        """The nodes of a list's items."""
        if not isinstance(self.value, list):
            self.wrong("must be a list")
            return []
        return [Node(self.document, item, (*self.path, index)) for index, item in enumerate(self.value)]

    def text(self) -> str:
        """A text that is not empty."""
        return self._typed(lambda value: isinstance(value, str) and value != "", "must be a text", "")

    def choice(self, allowed: Sequence[str]) -> str:
        """One of these texts."""
        if self.value in allowed and isinstance(self.value, str):
            return self.value
        self.wrong(choice_rule(self.value, allowed))
        return allowed[0]

    def whole(self, least: int = 0, most: int | None = None) -> int:
        """A whole number within bounds."""
        good = (
            isinstance(self.value, int)
            and not isinstance(self.value, bool)
            and self.value >= least
            and (most is None or self.value <= most)
        )
        return self._typed(lambda _: good, whole_rule(least, most), least)

    def number(self, least: float = 0.0) -> float:
        """A number of at least so much."""
        good = isinstance(self.value, int | float) and not isinstance(self.value, bool) and self.value >= least
        return float(self._typed(lambda _: good, number_rule(least), least))

    def flag(self) -> bool:
        """true or false."""
        return self._typed(lambda value: isinstance(value, bool), "must be true or false", False)

    def texts(self) -> list[str]:
        """A list of texts."""
        return [item.text() for item in self.items()]

    def _typed(self, is_good: Callable[[Any], bool], message: str, otherwise: T) -> T:
        if is_good(self.value):
            return self.value  # type: ignore[no-any-return]  # `is_good` has just said so
        self.wrong(message)
        return otherwise


class Fields:
    """The keys of a mapping. A key whose default is REQUIRED must be given."""

    def __init__(self, node: Node, *, is_given: bool) -> None:
        self.node = node
        self.is_given = is_given

    def __contains__(self, key: str) -> bool:
        return key in self.node.value

    def keys(self) -> list[str]:
        """The given keys."""
        return list(self.node.value)

    def at(self, key: str) -> Node:
        """The node of a key, also of a missing one."""
        return Node(self.node.document, self.node.value.get(key), (*self.node.path, key))

    def value(self, key: str, default: Any = None) -> Any:
        """The value as it is."""
        return self._ask(key, default, lambda node: node.value, None)

    def text(self, key: str, default: str = REQUIRED) -> str:
        """A text that is not empty."""
        return self._ask(key, default, Node.text, "")

    def choice(self, key: str, allowed: Sequence[str], default: str = REQUIRED) -> str:
        """One of these texts."""
        return self._ask(key, default, lambda node: node.choice(allowed), allowed[0])

    def whole(self, key: str, default: int = REQUIRED, *, least: int = 0, most: int | None = None) -> int:
        """A whole number within bounds."""
        return self._ask(key, default, lambda node: node.whole(least, most), least)

    def number(self, key: str, default: float = REQUIRED, *, least: float = 0.0) -> float:
        """A number of at least so much."""
        return self._ask(key, default, lambda node: node.number(least), least)

    def flag(self, key: str, default: bool = REQUIRED) -> bool:
        """true or false."""
        return self._ask(key, default, Node.flag, False)

    def texts(self, key: str, default: list[str] = REQUIRED) -> list[str]:
        """A list of texts."""
        return self._ask(key, default, Node.texts, [])

    def items(self, key: str, *, required: bool = False) -> list[Node]:
        """The nodes of a list's items; none if the key is missing."""
        return self._ask(key, REQUIRED if required else [], Node.items, [])

    def section(self, key: str, *known: str, required: bool = False) -> Fields:
        """A mapping under a key; `is_given` is false if it is missing."""
        absent = Fields(Node(self.node.document, {}, (*self.node.path, key)), is_given=False)
        return self._ask(key, REQUIRED if required else absent, lambda node: node.mapping(*known), absent)

    def _ask(self, key: str, default: T, read: Callable[[Node], T], otherwise: T) -> T:
        if key in self.node.value:
            return read(self.at(key))
        if default is not REQUIRED:
            return default
        if self.is_given:
            self.node.document.wrong((*self.node.path, key), "is missing; it is required")
        return otherwise


# Checks a document of one kind and records its problems.
Check = Callable[[Document], object]


def checked_document(content: str, kinds: Mapping[str, Check], default_kind: str = "Playbook") -> Document:
    """A valid document of one of these kinds. Raises InvalidDocument with all problems."""
    _check_size(_plain(content))
    document = Document(content, default_kind)
    check = kinds.get(document.kind)
    if check is None:
        document.root.mapping().at("kind").choice([kind.capitalize() for kind in kinds])
    else:
        check(document)
    document.check()
    return document


def _check_size(content: str) -> None:
    """Raise DocumentTooLarge for a text of more than 256 KiB."""
    size = len(content.encode(errors="surrogatepass"))
    if size > MAX_BYTES:
        raise DocumentTooLarge(f"the document has {size} bytes; the limit is {MAX_BYTES}. Divide it into several.")


def _plain(content: str) -> str:
    """The YAML text, decoded if it is base64: a YAML mapping has a colon, which base64 has not."""
    packed = "".join(content.split())
    try:
        return base64.b64decode(packed, validate=True).decode() if packed else content
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return content


def nearest(given: Any, known: Sequence[str], *, listed: bool = True) -> str:
    """The remedy for an unknown value: the nearest known one, or all of them."""
    close = difflib.get_close_matches(given, known, n=1, cutoff=0.5) if isinstance(given, str) else []
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known here are {', '.join(known)}" if listed else ""


def choice_rule(value: Any, allowed: Sequence[str]) -> str:
    """The rule of a choice, with the nearest allowed value."""
    return f"must be one of {', '.join(allowed)}" + nearest(value, allowed, listed=False)


def whole_rule(least: int, most: int | None) -> str:
    """The rule of a whole number."""
    return (
        f"must be a whole number of at least {least}"
        if most is None
        else (f"must be a whole number from {least} to {most}")
    )


def number_rule(least: float) -> str:
    """The rule of a number."""
    return f"must be a number of at least {least:g}"


def to_json(value: Any) -> str:
    """A value of a document as JSON."""
    return msgspec.json.encode(value).decode()
