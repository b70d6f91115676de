"""The states that things go through, numbered as on the wire and in the tables."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TypeVar

from tape.errors import IllegalTransition, InvalidInput


class RunStatus(IntEnum):
    """Where a run stands."""

    RUNNABLE = 1
    RUNNING = 2
    WAITING = 3
    TERMINAL = 4
    FAILED = 5
    COMPENSATING = 6
    STUCK = 7
    CANCELLED = 8


class EffectStatus(IntEnum):
    """What is known about an effect."""

    PENDING = 1
    CONFIRMED = 2
    FAILED = 3
    UNKNOWN = 4


class EffectSemantics(IntEnum):
    """What repeating an effect would do."""

    IDEMPOTENT = 1
    NON_IDEMPOTENT = 2
    OBSERVE_ONLY = 3


class DispatchMode(IntEnum):
    """Who carries an effect out: the agent itself, or a dispatcher from the outbox."""

    INLINE = 1
    OUTBOX = 2


class DispatchCertainty(IntEnum):
    """Whether an attempt to send an outbox effect may have reached the other side. UNSPECIFIED counts as UNKNOWN."""

    UNSPECIFIED = 0
    FAILED = 1
    UNKNOWN = 2


class ChangeCheck(IntEnum):
    """What to do with a new effect at a position where the run has recorded another step."""

    UNSPECIFIED = 0
    STOP = 1
    REPORT = 2
    PEEK = 3


class Resolution(IntEnum):
    """What looking at the outside world showed about an effect."""

    UNSPECIFIED = 0
    CONFIRMED = 1
    FAILED = 2
    ABSENT = 3
    DUPLICATE = 4
    STUCK = 5


class ObligationStatus(IntEnum):
    """Where a compensation stands."""

    PENDING = 1
    COMMITTED = 2
    COMPENSATED = 3
    STUCK = 4


class Owed(IntEnum):
    """When a compensation is due: only if the run fails, because it has failed, or whatever becomes of the run."""

    IF_RUN_FAILS = 0
    BECAUSE_RUN_FAILED = 1
    ALWAYS = 2


class ChildPolicy(IntEnum):
    """What becomes of a child run when its parent is cancelled; unspecified means CANCEL."""

    UNSPECIFIED = 0
    CANCEL = 1
    LEAVE = 2


class GateState(IntEnum):
    """Where a gate stands: without an answer, answered, timed out, or its run ended without an answer."""

    WAITING = 1
    ANSWERED = 2
    TIMED_OUT = 3
    CLOSED = 4


S = TypeVar("S", bound=IntEnum)
Transitions = Mapping[S, frozenset[S]]


def parse(kind: type[S], field: str, number: int) -> S:
    """The state with that number, or an error that names the field and what it may be."""
    try:
        return kind(number)
    except ValueError:
        known = ", ".join(f"{state.name} ({state.value})" for state in kind)
        raise InvalidInput(f"{field} {number} is not one of {known}.") from None


def check_transition(what: str, table: Transitions[S], before: S, after: S) -> None:
    """Raise unless the table lets `what` go from one state to the other."""
    if after not in table[before]:
        allowed = ", ".join(sorted(state.name for state in table[before])) or "nothing: it is final"
        raise IllegalTransition(f"{what} is {before.name} and cannot become {after.name}; allowed: {allowed}.")
