"""Code for `&&`, `||` and `?:`, where an error is absorbed if the other operands decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tape.cel.envelope import Envelope, Run
from tape.cel.values import Fault, described


def as_bool(operand: Run, operator: str, at: int) -> Run:
    """The operand, or an error if it is no bool."""

    def run(envelope: Envelope) -> bool:
        value = operand(envelope)
        if value is True or value is False:
            return value
        raise Fault(f"{operator} expects a bool, not {described(value)}", at)

    return run


def both(left: Run, right: Run) -> Run:
    """`left && right` of bools."""

    def run(envelope: Envelope) -> bool:
        try:
            if not left(envelope):
                return False
        except Fault:
            if not right(envelope):
                return False
            raise
        return right(envelope)  # type: ignore[no-any-return]  # a bool by construction

    return run


def either(left: Run, right: Run) -> Run:
    """`left || right` of bools."""

    def run(envelope: Envelope) -> bool:
        try:
            if left(envelope):
                return True
        except Fault:
            if right(envelope):
                return True
            raise
        return right(envelope)  # type: ignore[no-any-return]  # a bool by construction

    return run


def chain(join: Callable[[Run, Run], Run], operands: Sequence[Run]) -> Run:
    """Many operands as a balanced tree: a thousand of them are ten calls deep, not a thousand."""
    if len(operands) == 1:
        return operands[0]
    middle = len(operands) // 2
    return join(chain(join, operands[:middle]), chain(join, operands[middle:]))


def conditional(condition: Run, then: Run, otherwise: Run) -> Run:
    """`condition ? then : otherwise` with a bool as condition."""

    def run(envelope: Envelope) -> Any:
        return then(envelope) if condition(envelope) else otherwise(envelope)

    return run


def negation(operand: Run) -> Run:
    """`!operand` of a bool."""
    return lambda envelope: not operand(envelope)
