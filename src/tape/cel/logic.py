"""Code for `&&`, `||` and `?:`, where an error is absorbed if the other operands decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tape.cel.entry_view import EntryView, Run
from tape.cel.values import Fault, described


def as_bool(operand: Run, operator: str, at: int) -> Run:
    """The operand, or an error if it is no bool."""

    def run(view: EntryView) -> bool:
        value = operand(view)
        if value is True or value is False:
            return value
        raise Fault(f"{operator} expects a bool, not {described(value)}", at)

    return run


def both(left: Run, right: Run) -> Run:
    """`left && right` of bools."""

    def run(view: EntryView) -> bool:
        try:
            if not left(view):
                return False
        except Fault:
            if not right(view):
                return False
            raise
        return right(view)  # type: ignore[no-any-return]  # a bool by construction

    return run


def either(left: Run, right: Run) -> Run:
    """`left || right` of bools."""

    def run(view: EntryView) -> bool:
        try:
            if left(view):
                return True
        except Fault:
            if right(view):
                return True
            raise
        return right(view)  # type: ignore[no-any-return]  # a bool by construction

    return run


def chain(join: Callable[[Run, Run], Run], operands: Sequence[Run]) -> Run:
    """Many operands as a balanced tree: a thousand of them are ten calls deep, not a thousand."""
    if len(operands) == 1:
        return operands[0]
    middle = len(operands) // 2
    return join(chain(join, operands[:middle]), chain(join, operands[middle:]))


def conditional(condition: Run, then: Run, otherwise: Run) -> Run:
    """`condition ? then : otherwise` with a bool as condition."""

    def run(view: EntryView) -> Any:
        return then(view) if condition(view) else otherwise(view)

    return run


def negation(operand: Run) -> Run:
    """`!operand` of a bool."""
    return lambda view: not operand(view)
