"""Code that calls functions, methods and arithmetic operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tape.bus.predicate.envelope import Constant, Envelope, Run
from tape.bus.predicate.functions import Function, Implementation
from tape.bus.predicate.limits import STEP_SIZE_BITS
from tape.bus.predicate.regex import searcher
from tape.bus.predicate.values import Exhausted, Fault, kind_of, no_overload

_SIZED = frozenset((str, bytes, list))
_REGEX_STEP_BITS = 4


def call(function: Function, certain: Implementation | None, operands: Sequence[Run], shown: str, at: int) -> Run:
    """A call of one implementation, if the types have decided which, else by the types of the values."""
    if len(operands) == 1 and not function.weighs:
        return _call_1(certain, operands[0], at) if certain else _choose_1(function, operands[0], shown, at)
    if len(operands) == 2 and not function.weighs:
        return _call_2(certain or _by_types(function, shown), operands[0], operands[1], at)
    return _call_any(certain or _by_types(function, shown), operands, at, weighs=function.weighs)


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

    def run(envelope: Envelope) -> Any:
        value = operand(envelope)
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
    def run(envelope: Envelope) -> Any:
        value = operand(envelope)
        try:
            return apply(value)
        except (Fault, Exhausted) as error:
            error.at = at
            raise

    return run


def _call_2(apply: Callable[[Any, Any], Any], first: Run, second: Run, at: int) -> Run:
    def run(envelope: Envelope) -> Any:
        left, right = first(envelope), second(envelope)
        try:
            return apply(left, right)
        except (Fault, Exhausted) as error:
            error.at = at
            raise

    return run


def _call_any(apply: Callable[..., Any], operands: Sequence[Run], at: int, *, weighs: bool) -> Run:
    def run(envelope: Envelope) -> Any:
        values = [operand(envelope) for operand in operands]
        try:
            if not weighs:
                return apply(*values)
            for value in values:
                if type(value) in _SIZED and len(value) >> STEP_SIZE_BITS:
                    envelope.spend(len(value) >> STEP_SIZE_BITS)
            result = apply(*values)
            if type(result) in _SIZED and len(result) >> STEP_SIZE_BITS:
                envelope.spend(len(result) >> STEP_SIZE_BITS)
            return result
        except (Fault, Exhausted) as error:
            error.at = at
            raise

    return run


def variadic(implementation: Implementation, operands: Sequence[Run], at: int) -> Run:
    """A call that gets its arguments as one list."""
    return _call_any(lambda *values: implementation(list(values)), operands, at, weighs=True)


# ── tests of a string against a constant, which most predicates are made of ──────────────────────


def string_test(name: str, operand: Run, wanted: str, at: int, *, is_string: bool) -> Run | None:
    """`operand.startsWith("…")` and its kin with a constant; `is_string` if the operand surely is one."""
    if name == "startsWith" and is_string:
        return lambda envelope: operand(envelope).startswith(wanted)
    if name == "endsWith" and is_string:
        return lambda envelope: operand(envelope).endswith(wanted)
    if name not in ("startsWith", "endsWith", "contains", "matches"):
        return None
    test = _test(name, wanted, at)
    bits = _REGEX_STEP_BITS if name == "matches" else STEP_SIZE_BITS

    def run(envelope: Envelope) -> bool:
        value = operand(envelope)
        if type(value) is not str:
            raise Fault(f"{name}() does not take {kind_of(value)} and string", at)
        if len(value) > 1024:
            envelope.spend(len(value) >> bits)
        return test(value)

    return run


def _test(name: str, wanted: str, at: int) -> Callable[[str], bool]:
    match name:
        case "startsWith":
            return lambda value: value.startswith(wanted)
        case "endsWith":
            return lambda value: value.endswith(wanted)
        case "contains":
            return lambda value: wanted in value
    try:
        search = searcher(wanted)
    except Fault as fault:
        reason = fault.reason

        def fail(_: str) -> bool:
            raise Fault(reason, at)

        return fail

    def found(value: str) -> bool:
        try:
            return bool(search(value))
        except UnicodeEncodeError:
            raise Fault("the string has a lone surrogate, which is not Unicode text", at) from None

    return found


def constant_string(run: Run) -> str | None:
    """The string that the code always gives, if it does."""
    return run.value if isinstance(run, Constant) and type(run.value) is str else None
