"""A walk over JSON text that finds the spans of secrets and leaves every other byte as it is.

The text must be valid JSON: the walk looks at its structure only, and does not check it.
"""

from __future__ import annotations

import json
from json.decoder import scanstring  # type: ignore[attr-defined]  # not in typeshed
from json.encoder import encode_basestring
from typing import Any

import msgspec

from tape.engine.security.redaction.detectors import is_placeholder
from tape.engine.security.redaction.findings import HIDDEN, Hide, SecretSpan, outermost, replace_spans
from tape.engine.security.redaction.keys import Secrecy, secrecy
from tape.engine.security.redaction.texts import TextSearch
from tape.errors import RedactionFailed

MAX_DEPTH = 64
# A longer text in a list is no name.
MAX_LISTED_NAME_CHARS = 64

_ENCODED_HIDDEN = f'"{HIDDEN}"'
_SPACES = " \t\n\r"
_LITERAL_ENDS = ",]} \t\n\r"
_VALUE_OF = json.JSONDecoder(strict=False, parse_int=float).scan_once  # type: ignore[attr-defined]  # not in typeshed
# The members of `{"name": "token", "value": …}`.
_LABELS = frozenset(
    {"name", "Name", "NAME", "key", "Key", "KEY", "field", "Field", "header", "Header", "parameter", "k"}
)
_LABELLED = frozenset({"value", "Value", "VALUE", "val", "v", "values", "Values"})
# A member with these keys only describes a value: JSON Schema.
_SCHEMA = frozenset(
    {
        *("type", "description", "title", "format", "minLength", "maxLength", "pattern", "writeOnly", "readOnly"),
        *(
            "nullable",
            "items",
            "properties",
            "required",
            "additionalProperties",
            "enum",
            "deprecated",
            "anyOf",
            "oneOf",
        ),
        *("minimum", "maximum", "minItems", "maxItems"),
    }
)
_SCHEMA_TYPES = frozenset({"string", "integer", "number", "boolean", "object", "array", "null"})
_NO_SECRETS = frozenset({"include", "omit", "same-origin"})


class Scanner:
    """One walk. With a `search`, texts are searched by value too; what is under an allowed key is left as it is."""

    def __init__(
        self, text: str, search: TextSearch | None, hide: Hide, allow_keys: frozenset[str], depth: int = 0
    ) -> None:
        self._text = text
        self._hide_secret = hide
        self._allow_keys = allow_keys
        self._texts = search
        self._depth = depth
        # Up to here the text is known to have only numbers, booleans and nulls.
        self._textless_until = 0
        # Characters that may still be decoded to recognize descriptions of secrets, so that time stays linear.
        self._schema_chars_left = 4 * len(text)
        self._next = dict.fromkeys('"{[]', -1)
        self._path: list[str] = []
        self._findings: list[SecretSpan] = []

    def scan(self) -> list[SecretSpan]:
        """Return the findings in the order of the text. Raises RedactionFailed."""
        self._value(_skip_spaces(self._text, 0), "")
        return outermost(self._findings)

    def _value(self, start: int, key: str) -> int:
        char = self._text[start]
        if char == '"':
            value, end = scanstring(self._text, start + 1, False)
            self._search(value, start, end, key)
            return int(end)
        if char == "{" or char == "[":
            if self._text[start + 1] in "]}":
                return start + 2
            self._enter(key)
            end = self._object(start) if char == "{" else self._array(start)
            self._depth -= 1
            self._path.pop()
            return end
        return _end_of_literal(self._text, start)

    def _enter(self, key: str) -> None:
        if self._depth > MAX_DEPTH:
            raise too_deep()
        self._depth += 1
        self._path.append(key)

    def _object(self, start: int) -> int:
        text = self._text
        label = ""
        labelled = -1
        position = _skip_spaces(text, start + 1)
        while text[position] != "}":
            key, position = scanstring(text, position + 1, False)
            position = _skip_spaces(text, _skip_spaces(text, position) + 1)
            if key in _LABELLED:
                labelled = position
            elif key in _LABELS and text[position] == '"':
                label = scanstring(text, position + 1, False)[0]
            if self._is_allowed(key):
                _, end = _VALUE_OF(text, position)
            else:
                kind = secrecy(key)
                end = self._hide(position, kind, key) if kind else 0
            position = _skip_spaces(text, end or self._value(position, key))
            if text[position] == ",":
                position = _skip_spaces(text, position + 1)
        if labelled >= 0 and (kind := secrecy(label)) and not self._is_allowed(label):
            self._hide(labelled, kind, label)
        return position + 1

    def _array(self, start: int) -> int:
        text = self._text
        name = ""
        index = 0
        position = _skip_spaces(text, start + 1)
        while text[position] != "]":
            if text[position] == '"':
                value, end = scanstring(text, position + 1, False)
                if name and _can_follow(name, value) and not self._is_allowed(name):
                    self._add(position, end, self._hidden(value), "key", name)
                else:
                    self._search(value, position, end, str(index))
                name = value if _can_be_name(value) else ""
                position = end
            elif text[position] in "{[":
                name = ""
                position = self._value(position, str(index))
            else:
                name = ""
                end = self._end_of_literals(position)
                index += text.count(",", position, end)
                position = end
                continue
            index += 1
            position = _skip_spaces(text, position)
            if text[position] == ",":
                position = _skip_spaces(text, position + 1)
        return position + 1

    def _end_of_literals(self, position: int) -> int:
        """Return the next quote, brace or bracket: the numbers, booleans and nulls of a list are skipped at once."""
        for char, known in self._next.items():
            if known < position:
                found = self._text.find(char, position)
                self._next[char] = len(self._text) if found < 0 else found
        return min(self._next.values())

    def _hide(self, start: int, kind: Secrecy, key: str) -> int:
        """Hide the value of a secret's key and return its end, or return 0 if there is nothing to hide."""
        text = self._text
        char = text[start]
        if char == '"':
            value, end = scanstring(text, start + 1, False)
            if value in _NO_SECRETS or is_placeholder(value.encode(errors="surrogatepass")):
                return 0
        elif char == "{" or char == "[":
            if start < self._textless_until:
                return 0
            value, end = _VALUE_OF(text, start)
            if not _has_text(value, MAX_DEPTH - self._depth):
                self._textless_until = end
                return 0
            self._schema_chars_left -= end - start
            if self._schema_chars_left > 0 and _is_schema(value):
                return 0
        elif kind is Secrecy.NUMBERS and char not in "tfn":
            end = _end_of_literal(text, start)
        else:
            return 0
        self._add(start, end, self._hidden(value if char == '"' else text[start:end]), "key", key)
        return int(end)

    def _is_allowed(self, key: str) -> bool:
        return bool(self._allow_keys) and key.lower() in self._allow_keys

    def _hidden(self, secret: str) -> str:
        return _encode(self._hide_secret(secret.encode(errors="surrogatepass")).decode())

    def _search(self, value: str, start: int, end: int, key: str) -> None:
        if self._texts is None:
            return
        if value[:1] in ("{", "[") and (inner := self._inner(value)) is not None:
            if inner:
                new = _encode(replace_spans(value, inner))
                self._add(start, end, new, "json:" + ",".join(dict.fromkeys(found.rule for found in inner)), key)
            return
        found = self._texts.redact(value)
        if found is not None and found.text != value:
            self._add(start, end, _encode(found.text), ",".join(found.rules), key)

    def _inner(self, value: str) -> list[SecretSpan] | None:
        """Return the findings inside a text that is JSON itself, or None if it is not."""
        try:
            msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            return None
        return Scanner(value, self._texts, self._hide_secret, self._allow_keys, self._depth + 1).scan()

    def _add(self, start: int, end: int, replacement: str, rule: str, key: str) -> None:
        if self._text[start:end] != replacement:
            self._findings.append(SecretSpan(start, end, replacement, rule, ".".join((*self._path[1:], key))))


def too_deep() -> RedactionFailed:
    """Return the error for a payload that is nested too deep."""
    return RedactionFailed(
        f"redaction failed: the payload is nested deeper than {MAX_DEPTH} levels, so it cannot be searched for secrets"
        " and was not stored. Flatten it, or declare its type safe (safe_types)."
    )


def _skip_spaces(text: str, position: int) -> int:
    while text[position] in _SPACES:
        position += 1
    return position


def _end_of_literal(text: str, position: int) -> int:
    size = len(text)
    while position < size and text[position] not in _LITERAL_ENDS:
        position += 1
    return position


def _can_be_name(value: str) -> bool:
    is_word = 0 < len(value) <= MAX_LISTED_NAME_CHARS and " " not in value and "=" not in value[:-1]
    return is_word and bool(secrecy(value))


def _can_follow(name: str, value: str) -> bool:
    """Return whether a text after a secret's name in a list is its value, as in `["Authorization", "…"]`."""
    if is_placeholder(value.encode(errors="surrogatepass")) or value.startswith("-"):
        return False
    if name.startswith("-") or name.lower().endswith(("cookie", "authorization")):
        return True
    is_word = value.replace("_", "").isalpha() and value.islower()
    return " " not in value and not is_word


def _is_schema(value: Any) -> bool:
    if not isinstance(value, dict) or not _SCHEMA.issuperset(value):
        return False
    kind = value.get("type")
    return (isinstance(kind, str) and kind in _SCHEMA_TYPES) or isinstance(kind, list)


def _has_text(value: Any, depth: int) -> bool:
    """Return whether a list or object has any text; numbers under a secret's key are no secrets by themselves."""
    if depth < 0:
        raise too_deep()
    items = value.values() if isinstance(value, dict) else value
    for item in items:
        if isinstance(item, str):
            if item:
                return True
        elif isinstance(item, dict | list) and _has_text(item, depth - 1):
            return True
    return False


def _encode(text: str) -> str:
    if text == HIDDEN:
        return _ENCODED_HIDDEN
    encoded = str(encode_basestring(text))
    # A lone surrogate can only be written as an escape.
    return encoded if encoded.isascii() or _is_unicode(encoded) else json.dumps(text)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
