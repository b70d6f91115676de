"""The syntax tree of a CEL text: small frozen nodes that know where they stand.

`start` and `end` are offsets into the text; `at` is the offset that an error about the node points
to, such as that of the operator.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec


class Literal(msgspec.Struct, frozen=True, gc=False):
    """A number, string, bytes, bool or null that is written out."""

    start: int
    end: int
    value: Any

    @property
    def at(self) -> int:
        """Where an error about it points to."""
        return self.start


class Name(msgspec.Struct, frozen=True, gc=False):
    """A variable or a type. `is_rooted` means that it was written with a leading dot."""

    start: int
    end: int
    name: str
    is_rooted: bool = False

    @property
    def at(self) -> int:
        """Where an error about it points to."""
        return self.start


class Select(msgspec.Struct, frozen=True):
    """`operand.field`."""

    start: int
    end: int
    at: int
    operand: Node
    field: str


class Has(msgspec.Struct, frozen=True):
    """`has(operand.field)`."""

    start: int
    end: int
    at: int
    operand: Node
    field: str


class Index(msgspec.Struct, frozen=True):
    """`operand[index]`."""

    start: int
    end: int
    at: int
    operand: Node
    index: Node


class Unary(msgspec.Struct, frozen=True):
    """`!operand` or `-operand`."""

    start: int
    end: int
    operator: str
    operand: Node

    @property
    def at(self) -> int:
        """Where an error about it points to."""
        return self.start


class Binary(msgspec.Struct, frozen=True):
    """Arithmetic, comparison, equality or `in`."""

    start: int
    end: int
    at: int
    operator: str
    left: Node
    right: Node


class Logical(msgspec.Struct, frozen=True):
    """Two or more operands joined by `&&` or by `||`."""

    start: int
    end: int
    at: int
    operator: str
    operands: tuple[Node, ...]


class Conditional(msgspec.Struct, frozen=True):
    """`condition ? then : otherwise`."""

    start: int
    end: int
    at: int
    condition: Node
    then: Node
    otherwise: Node


class Call(msgspec.Struct, frozen=True):
    """`function(arguments)` or `receiver.function(arguments)`."""

    start: int
    end: int
    at: int
    function: str
    receiver: Node | None
    arguments: tuple[Node, ...]


class ListOf(msgspec.Struct, frozen=True):
    """`[item, …]`."""

    start: int
    end: int
    items: tuple[Node, ...]

    @property
    def at(self) -> int:
        """Where an error about it points to."""
        return self.start


class MapOf(msgspec.Struct, frozen=True):
    """`{key: value, …}`."""

    start: int
    end: int
    keys: tuple[Node, ...]
    values: tuple[Node, ...]

    @property
    def at(self) -> int:
        """Where an error about it points to."""
        return self.start


class Comprehension(msgspec.Struct, frozen=True):
    """A macro over a list or the keys of a map.

    `all`, `exists`, `exists_one` and `filter` have a condition, `map` has a transform and may have a
    condition.
    """

    start: int
    end: int
    at: int
    macro: str
    range: Node
    variable: str
    condition: Node | None
    transform: Node | None


Node: TypeAlias = (
    Literal
    | Name
    | Select
    | Has
    | Index
    | Unary
    | Binary
    | Logical
    | Conditional
    | Call
    | ListOf
    | MapOf
    | Comprehension
)


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly below, in the order of the text."""
    match node:
        case Literal() | Name():
            return ()
        case Select(operand=operand) | Has(operand=operand) | Unary(operand=operand):
            return (operand,)
        case Index():
            return (node.operand, node.index)
        case Binary():
            return (node.left, node.right)
        case Logical():
            return node.operands
        case Conditional():
            return (node.condition, node.then, node.otherwise)
        case Call():
            return node.arguments if node.receiver is None else (node.receiver, *node.arguments)
        case ListOf():
            return node.items
        case MapOf():
            return tuple(part for pair in zip(node.keys, node.values, strict=True) for part in pair)
        case Comprehension():
            return tuple(part for part in (node.range, node.condition, node.transform) if part is not None)


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(children(node))


def depth_of(node: Node) -> int:
    """How many nodes stand above each other at most; found without recursion."""
    level, deepest = [node], 0
    while level:
        deepest += 1
        level = [child for parent in level for child in children(parent)]
    return deepest
