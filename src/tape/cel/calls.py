"""Code that calls functions, methods and arithmetic operators."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from tape.cel.entry_view import Constant, EntryView, Run
from tape.cel.functions import Function, Implementation, Weight
from tape.cel.limits import LONG_STRING, STEP_SIZE_BITS
from tape.cel.regex import compile_pattern
from tape.cel.values import Exhausted, Fault, kind_of, no_overload

_SIZED = frozenset((str, bytes, list))
_REGEX_STEP_BITS = 4


def call(function: Function, certain: Implementation | None, operands: Sequence[Run], shown: str, at: int) -> Run:
    """A call of one implementation, if the types have decided which, else by the types of the values."""
    if len(operands) == 1 and function.weight is Weight.NONE:
        return _call_1(certain, operands[0], at) if certain else _choose_1(function, operands[0], shown, at)
    if len(operands) == 2 and function.weight is Weight.NONE:
        return _call_2(certain or _by_types(function, shown), operands[0], operands[1], at)
    return _call_any(certain or _by_types(function, shown), operands, at, weight=function.weight)


def _by_types(function: Function, shown: str) -> Callable[..., Any]:
    table = function.table

    def apply(*values: Any) -> Any:
        implementation = table.get(tuple(map(type, values)))
        if implementation is None:
            raise no_overload(shown, values)
        return implementation(*values)

    return apply


def _choose_1(function: Function, operand: Run, shown: str, at: int) -> Run:
    table = {types[0]: implementation for types, implementation in function.table.items() if len(types) == 1}

    def run(view: EntryView) -> Any:
        value = operand(view)
        implementation = table.get(type(value))
        try:
            if implementation is None:
                raise no_overload(shown, (value,))
            return implementation(value)
        except (Fault, Exhausted) as error:
            error.at = at
            raise

    return run


def _call_1(apply: Callable[[Any], Any], operand: Run, at: int) -> Run:
    def run(view: EntryView) -> Any:
        value = operand(view)
        try:
            return apply(value)
        except (Fault, Exhausted) as error:
            error.at = at
            raise

    return run


def _call_2(apply: Callable[[Any, Any], Any], first: Run, second: Run, at: int) -> Run:
    def run(view: EntryView) -> Any:
        left, right = first(view), second(view)
        try:
            return apply(left, right)
        except (Fault, Exhausted) as error:
            error.at = at
            raise

    return run


def _call_any(apply: Callable[..., Any], operands: Sequence[Run], at: int, *, weight: Weight) -> Run:
    def run(view: EntryView) -> Any:
        values = [operand(view) for operand in operands]
        try:
            if weight is not Weight.NONE:
                for value in values:
                    if type(value) in _SIZED:
                        if weight is Weight.DEEP:
                            view.spend_on(value)
                        else:
                            view.spend(_size(value))
            result = apply(*values)
            if type(result) in _SIZED:
                view.spend(_size(result))
            return result
        except (Fault, Exhausted) as error:
            error.at = at
            raise

    return run


def _size(value: Any) -> int:
    return len(value) if type(value) is list else len(value) >> STEP_SIZE_BITS


def variadic(implementation: Implementation, operands: Sequence[Run], at: int) -> Run:
    """A call that gets its arguments as one list."""
    return _call_any(lambda *values: implementation(list(values)), operands, at, weight=Weight.FLAT)


# ── tests of a string, which most predicates are made of ─────────────────────────────────────────


def string_test(name: str, operand: Run, wanted: str, at: int, *, is_string: bool) -> Run | None:
    """`operand.startsWith("…")` and its kin with a constant; `is_string` if its type is known."""
    if name == "startsWith" and is_string:
        return lambda view: operand(view).startswith(wanted)
    if name == "endsWith" and is_string:
        return lambda view: operand(view).endswith(wanted)
    test = _TESTS.get(name)
    if test is None:
        return None

    def run(view: EntryView) -> bool:
        value = operand(view)
        if type(value) is not str:
            raise Fault(f"{name}() does not take {kind_of(value)} and string", at)
        if len(value) > LONG_STRING:
            view.spend(len(value) >> STEP_SIZE_BITS)
        return test(value, wanted)

    return run


_TESTS: dict[str, Callable[[str, str], bool]] = {
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": operator.contains,
}


def match(operand: Run, pattern: Run, at: int) -> Run:
    """`operand.matches(pattern)`; a pattern that is no constant costs what it takes to compile it."""
    wanted = constant_string(pattern)
    constant = None if wanted is None else compile_pattern(wanted)

    def run(view: EntryView) -> bool:
        value = operand(view)
        compiled = constant
        if compiled is None:
            text = pattern(view)
            if type(value) is not str or type(text) is not str:
                raise Fault(f"matches() does not take {kind_of(value)} and {kind_of(text)}", at)
            compiled = compile_pattern(text)
            view.spend(compiled.cost)
        elif type(value) is not str:
            raise Fault(f"matches() does not take {kind_of(value)} and string", at)
        if len(value) > LONG_STRING:
            view.spend(len(value) >> _REGEX_STEP_BITS)
        try:
            return compiled.is_found_in(value)
        except Fault as fault:
            fault.at = at
            raise

    return run


def constant_string(run: Run) -> str | None:
    """The string that the code always gives, if it does."""
    return run.value if isinstance(run, Constant) and type(run.value) is str else None
