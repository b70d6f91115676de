"""Reads a block of a document by its declaration: checks every value and records all problems."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from tape.documents.document import Node, choice_rule, number_rule, whole_rule
from tape.documents.fields import Field, Shape, fields_of

SIZE = r"^([1-9][0-9]{0,14})(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
_SIZE = re.compile(SIZE.strip("^$"))
_UNITS = {prefix: 1_000**power for power, prefix in enumerate(("", "k", "M", "G", "T", "P"))} | {
    f"{prefix}i": 1 << (10 * power) for power, prefix in enumerate(("", "K", "M", "G", "T", "P"))
}

B = TypeVar("B", bound=msgspec.Struct)


class ProblemTexts:
    """The texts of problems. A kind of document can override them."""

    text = "must be a text"
    flag = "must be true or false"
    mapping = "must be a mapping"
    list = "must be a list"
    commas = "must be a list, or a text with commas"
    size = "must be a positive integer or a size like 50Gi (k M G T P, Ki Mi Gi Ti Pi)"

    def missing(self, node: Node) -> None:
        """Record that a required key is missing."""
        node.document.wrong(node.path, "is missing; it is required")

    def wrong(self, node: Node, rule: str) -> None:
        """Record that a value breaks a rule."""
        node.wrong(rule)

    def choice(self, node: Node, choices: Sequence[str]) -> str:
        """The rule of a choice."""
        return choice_rule(node.value, choices)

    def whole(self, node: Node, shape: Shape) -> str:
        """The rule of a whole number."""
        return whole_rule(int(shape.least or 0), None if shape.most is None else int(shape.most))

    def number(self, node: Node, shape: Shape) -> str:
        """The rule of a number."""
        return number_rule(shape.least or 0.0)

    def pattern(self, node: Node, shape: Shape) -> str:
        """The rule of a text with a pattern."""
        return shape.means if shape.means.startswith("must ") else f"must be {shape.means}"


PLAIN = ProblemTexts()


def read_block(node: Node, block: type[B], texts: ProblemTexts = PLAIN) -> B:
    """The block at a node. Wrong and missing values are recorded, and replaced by values of the right type."""
    if not isinstance(node.value, dict):
        texts.wrong(node, texts.mapping)
        return _empty(block)
    node.mapping(*(name for field in fields_of(block).values() for name in field.names))
    return read_fields(node, block, texts)


def read_fields(node: Node, block: type[B], texts: ProblemTexts = PLAIN) -> B:
    """The fields of a block in a mapping that can have other keys too."""
    values: dict[str, Any] = {}
    for field in fields_of(block).values():
        given = [name for name in field.names if name in node.value]
        if len(given) > 1:
            key_at(node, given[1]).wrong(f"is another name of {given[0]!r}, which is given too; keep one of them")
        if given:
            values[field.attribute] = read_value(key_at(node, given[0]), field.shape, texts)
            continue
        if field.is_required:
            texts.missing(key_at(node, field.name))
        values[field.attribute] = _default(field)
    return block(**values)


def key_at(node: Node, key: str) -> Node:
    """The node of a key of a mapping, also of a missing one."""
    return Node(node.document, node.value.get(key), (*node.path, key))


def read_value(node: Node, shape: Shape, texts: ProblemTexts = PLAIN) -> Any:
    """The value of a node. A wrong value is recorded, and replaced by a value of the right type."""
    value = node.value
    match shape.kind:
        case "any":
            return value
        case "block":
            assert shape.block is not None
            return read_block(node, shape.block, texts)
        case "list" | "commas":
            if shape.kind == "commas" and isinstance(value, str):
                parts = tuple(filter(None, map(str.strip, value.split(","))))
                return parts or _wrong(node, shape, texts, texts.commas)
            if not isinstance(value, list):
                return _wrong(node, shape, texts, texts.list)
            assert shape.item is not None
            return tuple(read_value(item, shape.item, texts) for item in node.items())
        case "table":
            if not isinstance(value, dict):
                return _wrong(node, shape, texts, texts.mapping)
            assert shape.item is not None
            return {key: read_value(key_at(node, key), shape.item, texts) for key in value}
        case "either":
            return read_value(node, _option(value, shape.options), texts)
        case _:
            if rule := _broken_rule(node, shape, texts):
                # A text that breaks its pattern is a text all the same.
                substitute = _wrong(node, shape, texts, rule)
                return value if shape.kind == "text" and isinstance(value, str) else substitute
            return _size(value) if shape.kind == "size" else float(value) if shape.kind == "number" else value


def _broken_rule(node: Node, shape: Shape, texts: ProblemTexts) -> str:
    """The rule that a scalar breaks; empty if it is right."""
    value = node.value
    is_text = isinstance(value, str) and value != ""
    match shape.kind:
        case "flag":
            return "" if isinstance(value, bool) else texts.flag
        case "choice":
            choices = (*shape.choices, *shape.more())
            return "" if isinstance(value, str) and value in choices else texts.choice(node, choices)
        case "whole":
            return "" if isinstance(value, int) and _is_within(value, shape) else texts.whole(node, shape)
        case "number":
            is_number = isinstance(value, int | float) and _is_within(value, shape)
            return "" if is_number else texts.number(node, shape)
        case "size":
            return "" if _size(value) else texts.size
        case "expression":
            return "" if is_text or isinstance(value, bool) else texts.text
        case _:
            if not is_text:
                return texts.text
            return texts.pattern(node, shape) if shape.pattern and not re.fullmatch(shape.pattern, value) else ""


def _option(value: Any, options: Sequence[Shape]) -> Shape:
    """The option for a value: the first that accepts its type, else the last, whose rule is reported."""
    by_type: dict[type, tuple[str, ...]] = {
        str: ("text", "choice", "expression"),
        bool: ("flag", "whole", "expression"),
        int: ("whole", "number"),
        float: ("number",),
        dict: ("block", "table"),
        list: ("list",),
    }
    kinds = by_type.get(type(value), ())
    return next((option for option in options if option.kind in kinds), options[-1])


def _is_within(value: float, shape: Shape) -> bool:
    return (
        not isinstance(value, bool)
        and (shape.least is None or value >= shape.least)
        and (shape.most is None or value <= shape.most)
    )


def _size(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value >= 1 else None
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    return None if match is None else int(match[1]) * _UNITS[match[2] or ""]


def _wrong(node: Node, shape: Shape, texts: ProblemTexts, rule: str) -> Any:
    texts.wrong(node, rule)
    return _substitute(shape)


def _empty(block: type[B]) -> B:
    return block(**{field.attribute: _default(field) for field in fields_of(block).values()})


def _default(field: Field) -> Any:
    return _substitute(field.shape) if field.is_required else field.default


def _substitute(shape: Shape) -> Any:
    """A value of the right type, so that checks that follow can go on."""
    match shape.kind:
        case "block":
            assert shape.block is not None
            return _empty(shape.block)
        case "list" | "commas":
            return ()
        case "table":
            return {}
        case "choice":
            return shape.choices[0]
        case "whole" | "size":
            return int(shape.least or 0)
        case "number":
            return float(shape.least or 0.0)
        case "flag":
            return False
        case "either":
            return _substitute(shape.options[-1])
        case "any":
            return None
        case "text" | "expression":
            return ""
