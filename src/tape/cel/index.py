"""Conditions that an index over many predicates can look up instead of evaluating each.

A predicate can only match if every one of its index keys holds: they are operands of its outermost
`&&`, and an operand that is false or an error keeps the whole from being true.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tape.cel.checker import Checked, Variable
from tape.cel.entry_view import COMPUTED, EntryView
from tape.cel.syntax import Binary, Index, ListOf, Literal, Logical, Name, Node, Select
from tape.cel.values import BoolKey, Fault, Uint, key_of

MISSING = object()
_SCALARS = (str, int, Uint, float, bool, bytes)


class IndexKey(msgspec.Struct, frozen=True):
    """The value at `path` must be one of `values`, which are hashable.

    `path` begins with a variable: `("kind",)`, `("payload", "status")`. Compare `values` with what
    `read` gives: in them a bool differs from 0 and 1, and numbers of different types are equal.
    """

    path: tuple[str, ...]
    values: frozenset[Any]

    def read(self, view: EntryView) -> Any:
        """What the entry has at the path, or MISSING."""
        return read_path(view, self.path)

    def holds(self, view: EntryView) -> bool:
        """Whether the condition is true of the entry."""
        return self.read(view) in self.values


def read_path(view: EntryView, path: tuple[str, ...]) -> Any:
    """What an entry has at a path in the form that index keys hold, or MISSING."""
    name, *fields = path
    try:
        value = getattr(view if name in COMPUTED else view.entry, name)
    except Fault:
        return MISSING
    for field in fields:
        if type(value) is not dict or field not in value:
            return MISSING
        value = value[field]
    return _hashable(value)


def index_keys_of(checked: Checked) -> tuple[IndexKey, ...]:
    """The index keys of a tree, in the order of the text."""
    found = (_key(condition, checked) for condition in _conditions(checked.tree))
    return tuple(key for key in found if key is not None)


def _conditions(node: Node) -> Iterator[Node]:
    """What `&&` joins, also in parentheses of its own."""
    if isinstance(node, Logical) and node.operator == "&&":
        for operand in node.operands:
            yield from _conditions(operand)
    else:
        yield node


def _key(node: Node, checked: Checked) -> IndexKey | None:
    if isinstance(node, Binary) and node.operator == "==":
        return _pair(node.left, (node.right,), checked) or _pair(node.right, (node.left,), checked)
    if isinstance(node, Binary) and node.operator == "in" and isinstance(node.right, ListOf):
        return _pair(node.left, node.right.items, checked)
    if isinstance(node, Logical) and node.operator == "||":
        return _alternatives(node, checked)
    if isinstance(node, Logical):
        # One alternative of an `||`: any of its conditions must hold.
        return next((key for operand in node.operands if (key := _key(operand, checked))), None)
    return None


def _alternatives(node: Logical, checked: Checked) -> IndexKey | None:
    """`kind == "a" || kind == "b"` is a membership if every alternative is about the same path."""
    keys = [_key(operand, checked) for operand in node.operands]
    first = keys[0]
    if first is None:
        return None
    values: frozenset[Any] = frozenset()
    for key in keys:
        if key is None or key.path != first.path:
            return None
        values |= key.values
    return IndexKey(first.path, values)


def _pair(operand: Node, constants: tuple[Node, ...], checked: Checked) -> IndexKey | None:
    path = _path(operand, checked)
    if path is None or not constants:
        return None
    values: set[Any] = set()
    for constant in constants:
        if not isinstance(constant, Literal):
            return None
        values.add(_hashable(constant.value))
    return IndexKey(path, frozenset(values))


def _path(node: Node, checked: Checked) -> tuple[str, ...] | None:
    fields: list[str] = []
    while True:
        if isinstance(node, Select):
            fields.append(node.field)
            node = node.operand
        elif isinstance(node, Index) and isinstance(node.index, Literal) and type(node.index.value) is str:
            fields.append(node.index.value)
            node = node.operand
        else:
            break
    if not isinstance(node, Name) or not isinstance(checked.meanings.get(id(node)), Variable):
        return None
    return (node.name, *reversed(fields))


def _hashable(value: Any) -> Any:
    if type(value) is bool:
        return key_of(value)
    return value if value is None or type(value) in _SCALARS or type(value) is BoolKey else MISSING
