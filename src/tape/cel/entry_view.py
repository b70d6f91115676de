"""The entry as a predicate sees it: the variables of an expression and the steps that it may still use."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn, Protocol, TypeAlias

import msgspec

from tape.cel.celtypes import DYN, INT, STRING, Type
from tape.cel.limits import STEPS_PER_ELEMENT
from tape.cel.values import INT_MAX, INT_MIN, UINT_MAX, Exhausted, Fault, Uint, revealed, weight_of

VARIABLES: dict[str, Type] = {
    "global_seq": INT,
    "run_id": STRING,
    "seq": INT,
    "kind": STRING,
    "subject": STRING,
    "ts_ms": INT,
    "schema_version": INT,
    "payload": DYN,
    "trace_id": STRING,
    "tenant": STRING,
    "user": STRING,
    "session": STRING,
    "type": STRING,
    "prev_value_json": DYN,
}
# Computed by the view on first access; all other variables are plain attributes of the entry.
COMPUTED = frozenset(("payload", "type", "prev_value_json"))


_REVEALED_PER_STEP = 8


class EntryLike(Protocol):
    """Anything that has the fields of a journal entry."""

    @property
    def global_seq(self) -> int: ...
    @property
    def run_id(self) -> str: ...
    @property
    def seq(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def subject(self) -> str: ...
    @property
    def payload_json(self) -> str: ...
    @property
    def schema_version(self) -> int: ...
    @property
    def trace_id(self) -> str: ...
    @property
    def ts_ms(self) -> int: ...
    @property
    def tenant(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def session(self) -> str: ...
    @property
    def type(self) -> str: ...


class EntryView:
    """An entry with its payload, which is parsed on first access and then cached.

    Pass the same view to every predicate that evaluates the entry. A view belongs to one thread.
    """

    __slots__ = ("entry", "locals", "payload", "prev_value_json", "steps", "type")

    payload: Any
    type: str
    prev_value_json: Any
    steps: int
    locals: list[Any]

    def __init__(self, entry: EntryLike) -> None:
        self.entry = entry

    def __getattr__(self, name: str) -> Any:
        # Called for a slot that is empty, so what has been worked out costs no more than an attribute.
        if name == "payload":
            self.payload = value = parse_payload(self.entry.payload_json)
        elif name == "type":
            self.type = value = self.entry.type
        elif name == "prev_value_json":
            payload = self.payload
            value = payload.get("prev_value_json", "") if type(payload) is dict else ""
            self.prev_value_json = value
        else:
            raise AttributeError(name)
        return value

    def spend(self, steps: int) -> None:
        """Take steps from the budget of the evaluation that is going on."""
        self.steps -= steps
        if self.steps < 0:
            raise_exhausted()

    def spend_on(self, value: Any) -> None:
        """Take the steps that it costs to walk through a value, before anything walks through it."""
        self.spend(weight_of(value, self.steps // STEPS_PER_ELEMENT) * STEPS_PER_ELEMENT)

    def reveal(self, value: Any) -> Any:
        """The result of the evaluation as a copy for the caller; eight values of it cost one step."""
        limit = max(self.steps, 0) * _REVEALED_PER_STEP
        self.spend(-(-weight_of(value, limit) // _REVEALED_PER_STEP))
        return revealed(value)


Run: TypeAlias = Callable[[EntryView], Any]


def raise_exhausted(at: int = -1) -> NoReturn:
    """Stop an evaluation that has used its steps."""
    raise Exhausted("the evaluation takes more steps than it may", at)


class Constant:
    """Code whose value is known when it is compiled."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, _: EntryView) -> Any:
        return self.value


_decode = msgspec.json.decode
_DIGITS = bytes(ord("0") if chr(code).isdigit() and code < 128 else 32 for code in range(256))
_LONG_NUMBER = b"0" * 19


def parse_payload(text: str) -> Any:
    """JSON as CEL's values: integers beyond int become uint if they fit, else double."""
    try:
        value = _decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        value = _parse_slowly(text)
    # Only a number of nineteen digits or more can be beyond an int: one pass in C finds out.
    if len(text) >= 19 and _LONG_NUMBER in text.encode(errors="replace").translate(_DIGITS):
        try:
            return _within_range(value)
        except RecursionError:
            raise Fault("the payload is nested too deeply") from None
    return value


def _parse_slowly(text: str) -> Any:
    # The fast parser refuses reals beyond a double, which the journal takes: they are infinite here.
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Fault(f"the payload cannot be parsed: {error}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _within_range(value: Any) -> Any:
    kind = type(value)
    if kind is int:
        if INT_MIN <= value <= INT_MAX:
            return value
        if 0 <= value <= UINT_MAX:
            return Uint(value)
        try:
            return float(value)
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")
    if kind is list:
        return [_within_range(item) for item in value]
    if kind is dict:
        return {key: _within_range(item) for key, item in value.items()}
    return value
