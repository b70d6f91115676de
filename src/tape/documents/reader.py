"""Reads a block of a document by its declaration: every value is checked, whatever is wrong is noted."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tape.documents.document import Node, nearest
from tape.documents.fields import Shape, fields_of
from tape.documents.yaml import render

SIZE = r"^([1-9][0-9]{0,14})(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
_SIZE = re.compile(SIZE.strip("^$"))
_UNITS = {letter: 1_000**power for power, letter in enumerate(("", "k", "M", "G", "T", "P"))} | {
    f"{letter}i": 1 << (10 * power) for power, letter in enumerate(("", "K", "M", "G", "T", "P"))
}

# Where a sentence of its own says more than the rule does. `[]` stands for any item of a list.
_MISSING = {
    "source": "subscription spec requires 'source'",
    "mode": "subscription spec requires 'mode' (pull | push)",
    "dispatch": "subscription spec requires a 'dispatch' block",
    "headers.directives[].header": "subscription '{parent}' requires 'header' and 'controls'",
    "headers.directives[].controls": "subscription '{parent}' requires 'header' and 'controls'",
    "ingress.gateway_path": "subscription 'ingress.gateway_path' is required for push",
    "ingress.verify": "subscription 'ingress' requires a 'verify' block (push always verifies)",
    "spool.circuit.downstream[].name": "spool.circuit.downstream[].name is required",
}
_WRONG = {
    "mode": "subscription 'mode' must be 'pull' or 'push', got {value}",
    "dispatch.playbook": "subscription 'dispatch.playbook' is required",
    "ingress.gateway_path": "subscription 'ingress.gateway_path' must be an absolute path starting with '/' whose last"
    " segment has letters, digits and . _ ~ - only, got {value}",
    "spool.circuit.downstream[].name": "spool.circuit.downstream[].name must be non-empty",
}
_ALSO = {"ingress.verify.type": " ('none' is not allowed — push ingress always verifies)"}


def read_block(node: Node, block: type[msgspec.Struct]) -> Any:
    """The block at a place; None if something necessary is missing, which was noted then."""
    fields = fields_of(block)
    if not isinstance(node.value, dict):
        _wrong(node, "must be a mapping")
        return None
    node.mapping(*(name for field in fields.values() for name in field.names))
    values: dict[str, Any] = {}
    is_whole = True
    for field in fields.values():
        given = [name for name in field.names if name in node.value]
        if len(given) > 1:
            key_at(node, given[1]).wrong(f"is another name of {given[0]!r}, which is given too; keep one of them")
        if given:
            values[field.name] = _read(key_at(node, given[0]), field.shape)
        elif field.is_required:
            is_whole = False
            _missing(key_at(node, field.name))
        else:
            values[field.name] = field.default
    return block(**values) if is_whole else None


def key_at(node: Node, key: str) -> Node:
    """The place of a key of a mapping, also of one that is missing."""
    return Node(node.document, node.value.get(key), (*node.path, key))


def _read(node: Node, shape: Shape) -> Any:
    value = node.value
    match shape.kind:
        case "block":
            assert shape.block is not None
            return read_block(node, shape.block)
        case "list" | "commas":
            if shape.kind == "commas" and isinstance(value, str):
                texts = tuple(filter(None, map(str.strip, value.split(","))))
                return texts if texts else _wrong(node, "must be a list, or a text with commas")
            if not isinstance(value, list):
                return _wrong(node, "must be a list")
            assert shape.item is not None
            return tuple(_read(item, shape.item) for item in node.items())
        case "table":
            if not isinstance(value, dict):
                return _wrong(node, "must be a mapping")
            assert shape.item is not None
            return {key: _read(key_at(node, key), shape.item) for key in value}
        case "flag":
            return value if isinstance(value, bool) else _wrong(node, "must be a boolean")
        case "choice":
            if isinstance(value, str) and (value in shape.choices or value in shape.more()):
                return value
            quoted = ", ".join(f'"{choice}"' for choice in (*shape.choices, *shape.more()))
            return _wrong(
                node, f"must be one of [{quoted}], got {_quoted(value)}", nearest(value, shape.choices, listed=False)
            )
        case "whole":
            return value if _is_whole(value, shape) else _wrong(node, _bounds(value, shape))
        case "size":
            size = _size(value)
            return size or _wrong(node, "must be a positive integer or a size like 50Gi (k M G T P, Ki Mi Gi Ti Pi)")
        case "text":
            if not isinstance(value, str) or not value:
                return _wrong(node, "must be a non-empty string")
            if shape.pattern and not re.fullmatch(shape.pattern, value):
                return _wrong(node, f"must be {shape.means}, got {_quoted(value)}")
            return value


def _is_whole(value: Any, shape: Shape) -> bool:
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and (shape.least is None or value >= shape.least)
        and (shape.most is None or value <= shape.most)
    )


def _bounds(value: Any, shape: Shape) -> str:
    if shape.most is not None and isinstance(value, int) and not isinstance(value, bool) and value > shape.most:
        return f"must be <= {shape.most} (the server batch cap)"
    return "must be a positive integer" if shape.least == 1 else "must be a whole number of at least 0"


def _size(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value >= 1 else None
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    return None if match is None else int(match[1]) * _UNITS[match[2] or ""]


def _missing(node: Node) -> None:
    name, parent = _names(node)
    text = _MISSING.get(re.sub(r"\[\d+\]", "[]", name), f"subscription '{name}' is required")
    node.document.wrong(node.path, text.replace("{parent}", parent))


def _wrong(node: Node, rule: str, hint: str = "") -> Any:
    """Note what is wrong; the value is None then, which nobody uses, as the document is refused."""
    name, _ = _names(node)
    general = re.sub(r"\[\d+\]", "[]", name)
    text = _WRONG.get(general, f"subscription '{name}' {rule}").replace("{value}", _quoted(node.value))
    node.wrong(text + _ALSO.get(general, "") + hint)


def _names(node: Node) -> tuple[str, str]:
    """A place and what it is in, as paths within the spec."""
    path = node.path[1:]
    return render(path), render(path[:-1])


def _quoted(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else repr(value)
