"""YAML 1.2 with the line of every value: `off` and `2026-01-01` are texts, a duplicate key is an error.

libyaml parses the text into events; values are built from them without recursion, so that the cost of a text is linear
in its size with aliases expanded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import yaml
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
)

from tape.documents.paths import Path, render
from tape.errors import InvalidDocument, Problem

# Limits for documents, aliases expanded.
MAX_VALUES = 100_000
MAX_DEPTH = 100
# Digits of a number; Python converts at most 4,300.
MAX_DIGITS = 1_000

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_TEXTS = ("!", "tag:yaml.org,2002:str")
# Tags of YAML's own types; plain scalars with one of them are read by the YAML 1.2 core schema.
_STANDARD = "tag:yaml.org,2002:"
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def load(text: str) -> tuple[Any, Mapping[Path, int]]:
    """The value of a YAML text, and the line of each value by path."""
    try:
        events, targets = _parse(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = " ".join(filter(None, (error.context, error.problem)))
        message = f"Invalid YAML: {reason or 'it cannot be read'}"
        # libyaml counts the end of the text as a line of its own.
        line = min(mark.line + 1, max(len(text.splitlines()), 1)) if mark else 0
        raise InvalidDocument([Problem("", line, message)]) from error
    except (yaml.YAMLError, ValueError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else "it cannot be read"
        raise InvalidDocument([Problem("", 0, f"Invalid YAML: {first}")]) from error
    builder = _ValueBuilder()
    for event in _expand(events, targets):
        builder.add(event)
    return builder.root, builder.lines


def _parse(text: str) -> tuple[list[Event], dict[int, range]]:
    """The events of the nodes of a text, and for the index of each alias the indexes of the events it stands for."""
    events: list[Event] = []
    targets: dict[int, range] = {}
    anchors: dict[str, int] = {}
    ends: dict[int, int] = {}
    begun: list[int] = []
    documents = 0
    for event in yaml.parse(text, Loader=_Loader):
        index = len(events)
        if isinstance(event, DocumentStartEvent):
            documents += 1
            if documents > 1:
                _reject(event, "Invalid YAML: expected a single document in the stream but found another document")
        if isinstance(event, AliasEvent):
            begin = anchors.get(event.anchor, -1)
            if begin < 0:
                _reject(event, f"Invalid YAML: found undefined alias {event.anchor!r}")
            if begin not in ends:
                _reject(event, f"Invalid YAML: the alias {event.anchor!r} is inside the value it stands for")
            targets[index] = range(begin, ends[begin])
        elif isinstance(event, NodeEvent):
            if event.anchor is not None:
                anchors[event.anchor] = index
            if isinstance(event, CollectionStartEvent):
                begun.append(index)
                _check_depth(event, len(begun) - 1)
            else:
                ends[index] = index + 1
        elif isinstance(event, CollectionEndEvent):
            ends[begun.pop()] = index + 1
        else:
            continue
        if index >= 3 * MAX_VALUES:
            _reject_values(event)
        events.append(event)
    return events, targets


def _expand(events: Sequence[Event], targets: Mapping[int, range]) -> Iterator[Event]:
    """The events with every alias replaced by the events it stands for."""
    pending = [iter(range(len(events)))]
    while pending:
        for index in pending[-1]:
            if (target := targets.get(index)) is not None:
                pending.append(iter(target))
                break
            yield events[index]
        else:
            pending.pop()


class _Collection:
    """A list or a mapping that is being built; `key` is the key of a mapping whose value comes next."""

    def __init__(self, value: list[Any] | dict[str, Any], path: Path) -> None:
        self.value = value
        self.path = path
        self.key: str | None = None
        self.key_line = 0


class _ValueBuilder:
    """Builds the value of a document from its events."""

    def __init__(self) -> None:
        self.root: Any = None
        self.lines: dict[Path, int] = {}
        self._open: list[_Collection] = []

    def add(self, event: Event) -> None:
        """Add the next event."""
        if isinstance(event, CollectionEndEvent):
            self._open.pop()
            return
        parent = self._open[-1] if self._open else None
        if parent is not None and isinstance(parent.value, dict) and parent.key is None:
            self._begin_key(parent, parent.value, event)
            return
        path = self._begin_value(parent, event)
        value: Any
        if isinstance(event, ScalarEvent):
            value = _scalar(event, path)
        else:
            value = {} if isinstance(event, MappingStartEvent) else []
            self._open.append(_Collection(value, path))
        if parent is None:
            self.root = value
        elif isinstance(parent.value, list):
            parent.value.append(value)
        else:
            assert parent.key is not None
            parent.value[parent.key] = value
            parent.key = None

    def _begin_key(self, parent: _Collection, found: dict[str, Any], event: Event) -> None:
        line = _line(event)
        if not isinstance(event, ScalarEvent):
            raise InvalidDocument([Problem(render(parent.path), line, "a key must be a plain text")])
        path = (*parent.path, event.value)
        if event.value in found:
            raise InvalidDocument([Problem(render(path), line, f"is given twice, also on line {self.lines[path]}")])
        parent.key, parent.key_line = event.value, line

    def _begin_value(self, parent: _Collection | None, event: Event) -> Path:
        """The path of the value that begins; its line is that of its key, or its own in a list."""
        if parent is None:
            path: Path = ()
        elif isinstance(parent.value, list):
            path = (*parent.path, len(parent.value))
        else:
            assert parent.key is not None
            path = (*parent.path, parent.key)
        self.lines[path] = parent.key_line if parent is not None and parent.key is not None else _line(event)
        _check_depth(event, len(path))
        if len(self.lines) > MAX_VALUES:
            _reject_values(event)
        return path


def _check_depth(event: Event, depth: int) -> None:
    if depth > MAX_DEPTH:
        _reject(event, f"the document has more than {MAX_DEPTH} levels, aliases expanded; make it smaller")


def _reject_values(event: Event) -> NoReturn:
    _reject(event, f"the document has more than {MAX_VALUES} values, aliases expanded; make it smaller")


def _reject(event: Event, message: str) -> NoReturn:
    raise InvalidDocument([Problem("", _line(event), message)])


def _line(event: Event) -> int:
    line: int = event.start_mark.line
    return line + 1


def _scalar(event: ScalarEvent, path: Path) -> Any:
    text: str = event.value
    tag: str | None = event.tag
    if tag is not None and tag != "!" and not tag.startswith(_STANDARD):
        raise InvalidDocument([Problem(render(path), _line(event), f"has the unknown tag {tag}", text)])
    if event.style or tag in _TEXTS:
        return text
    if text in _SPECIAL:
        return _SPECIAL[text]
    is_integer = _INTEGER.fullmatch(text) is not None
    if not is_integer and _FLOAT.fullmatch(text) is None:
        return text
    if len(text) > MAX_DIGITS:
        raise InvalidDocument([Problem(render(path), _line(event), f"is a number of more than {MAX_DIGITS} digits")])
    if is_integer:
        return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
    return float(text)
