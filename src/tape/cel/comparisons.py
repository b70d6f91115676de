"""Code for `==`, `!=`, `in` and the orderings, chosen by what is known of the operands' types."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from tape.cel.entry_view import Constant, EntryView, Run
from tape.cel.limits import LONG_STRING, STEP_SIZE_BITS
from tape.cel.values import NUMERIC, ORDERED, Fault, equals, kind_of, lookup_key

_ORDERINGS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_CONTAINERS = (list, dict)


# ── equality ─────────────────────────────────────────────────────────────────────────────────────


def equality(left: Run, right: Run) -> Run:
    """`left == right` of whatever they are."""
    if isinstance(right, Constant) and type(right.value) not in _CONTAINERS:
        return _equality_with(left, right.value)

    def run(view: EntryView) -> bool:
        first, second = left(view), right(view)
        if type(first) is str and len(first) <= LONG_STRING:
            return bool(first == second)
        return _are_equal(first, second, view)

    return run


def _are_equal(first: Any, second: Any, view: EntryView) -> bool:
    if type(first) is type(second):
        if type(first) in _CONTAINERS:
            if len(first) != len(second):
                return False
            view.spend_on(first)
        elif type(first) is str:
            view.spend(len(first) >> STEP_SIZE_BITS)
    return equals(first, second)


def _equality_with(operand: Run, wanted: Any) -> Run:
    if wanted is None or type(wanted) is bool:
        return lambda view: operand(view) is wanted
    if type(wanted) in NUMERIC and wanted in (0, 1):
        # Python takes False and True for 0 and 1.
        def run(view: EntryView) -> bool:
            value = operand(view)
            return value == wanted and type(value) is not bool

        return run
    return lambda view: operand(view) == wanted


def inequality(left: Run, right: Run) -> Run:
    """`left != right` of whatever they are."""
    if isinstance(right, Constant) and type(right.value) is str:
        wanted = right.value
        return lambda view: left(view) != wanted
    if isinstance(right, Constant):
        same = equality(left, right)
        return lambda view: not same(view)

    def run(view: EntryView) -> bool:
        first, second = left(view), right(view)
        if type(first) is str and len(first) <= LONG_STRING:
            return bool(first != second)
        return not _are_equal(first, second, view)

    return run


# ── order ────────────────────────────────────────────────────────────────────────────────────────


def ordering(symbol: str, left: Run, right: Run, at: int, *, is_certain: bool) -> Run:
    """`left < right` and its kin; `is_certain` if the types are known to be comparable."""
    if isinstance(right, Constant):
        if is_certain:
            return _certain_with(symbol, left, right.value)
        return _ordering_with(symbol, left, right.value, at)
    compare = _ORDERINGS[symbol]
    if is_certain:
        return lambda view: compare(left(view), right(view))

    def run(view: EntryView) -> bool:
        first, second = left(view), right(view)
        kind, other = type(first), type(second)
        if kind is str and len(first) > LONG_STRING:
            view.spend(len(first) >> STEP_SIZE_BITS)
        if (kind is other and kind in ORDERED) or (kind in NUMERIC and other in NUMERIC):
            return compare(first, second)
        raise Fault(f"'{symbol}' does not take {kind_of(first)} and {kind_of(second)}", at)

    return run


def _certain_with(symbol: str, operand: Run, bound: Any) -> Run:
    match symbol:
        case "<":
            return lambda view: operand(view) < bound
        case "<=":
            return lambda view: operand(view) <= bound
        case ">":
            return lambda view: operand(view) > bound
        case _:
            return lambda view: operand(view) >= bound


def _ordering_with(symbol: str, operand: Run, bound: Any, at: int) -> Run:
    kinds = NUMERIC if type(bound) in NUMERIC else frozenset((type(bound),)) & ORDERED

    def refuse(value: Any) -> Fault:
        return Fault(f"'{symbol}' does not take {kind_of(value)} and {kind_of(bound)}", at)

    def less(view: EntryView) -> bool:
        value = operand(view)
        if type(value) in kinds:
            return value < bound  # type: ignore[no-any-return]  # a bool by construction
        raise refuse(value)

    def at_most(view: EntryView) -> bool:
        value = operand(view)
        if type(value) in kinds:
            return value <= bound  # type: ignore[no-any-return]  # a bool by construction
        raise refuse(value)

    def more(view: EntryView) -> bool:
        value = operand(view)
        if type(value) in kinds:
            return value > bound  # type: ignore[no-any-return]  # a bool by construction
        raise refuse(value)

    def at_least(view: EntryView) -> bool:
        value = operand(view)
        if type(value) in kinds:
            return value >= bound  # type: ignore[no-any-return]  # a bool by construction
        raise refuse(value)

    return {"<": less, "<=": at_most, ">": more, ">=": at_least}[symbol]


# ── membership ───────────────────────────────────────────────────────────────────────────────────


def membership(operand: Run, container: Run, at: int) -> Run:
    """`operand in container`."""
    if (
        isinstance(container, Constant)
        and type(container.value) is list
        and all(type(item) is str for item in container.value)
    ):
        names = frozenset(container.value)

        def run_names(view: EntryView) -> bool:
            value = operand(view)
            return type(value) is str and value in names

        return run_names

    def run(view: EntryView) -> bool:
        value, found = operand(view), container(view)
        if type(found) is list:
            if type(value) in _CONTAINERS:
                view.spend_on(found)
            else:
                view.spend(len(found) * (1 if type(value) is not str else 1 + (len(value) >> STEP_SIZE_BITS)))
            return any(equals(value, item) for item in found)
        if type(found) is dict and type(value) in _KEYS:
            return lookup_key(value) in found
        raise Fault(f"'in' does not take {kind_of(value)} and {kind_of(found)}", at)

    return run


_KEYS = NUMERIC | {str, bool}
