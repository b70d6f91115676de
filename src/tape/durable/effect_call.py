"""Which effect of which run a piece of code is carrying out."""

from __future__ import annotations

import contextvars
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tape.durable.lease import Lease
from tape.errors import NotInRun

# Where a plugin leaves the call on a framework's own tool context.
ATTRIBUTE = "_tape_call"

_current: contextvars.ContextVar[EffectCall | None] = contextvars.ContextVar("tape_call", default=None)


@dataclass(eq=False)
class RunHandle:
    """A run that this process carries on, and the client that speaks for it."""

    client: Any
    run_id: str
    lease_owner: str = ""
    app_name: str = ""
    user_id: str = ""
    session_id: str = ""
    invocation_id: str = ""
    lease: Lease | None = None


@dataclass(eq=False)
class EffectCall:
    """One effect while it is carried out; the run itself when `idempotency_key` is empty.

    Tools that ask for a `tool_context` get one of these where no framework brings its own.
    """

    run: RunHandle
    decision_index: int = -1
    tool_name: str = ""
    idempotency_key: str = ""
    semantics: str = "idempotent"
    business_key: str = ""
    external_ref: str = ""
    parent: EffectCall | None = None
    is_entered: bool = False
    counts: Counter[tuple[int, str]] = field(default_factory=Counter)

    @property
    def run_id(self) -> str:
        """The run it belongs to."""
        return self.run.run_id

    def number_of(self, name: str) -> int:
        """How many calls of that name came before from here: the same in every re-drive."""
        place = (self.decision_index, name)
        self.counts[place] += 1
        return self.counts[place] - 1

    def is_within(self, other: EffectCall) -> bool:
        """Whether this is done from within another call."""
        call: EffectCall | None = self
        while call is not None and call is not other:
            call = call.parent
        return call is other

    def inner_key(self, name: str) -> str:
        """The idempotency key of something done from within this effect.

        It hangs below the effect's own key: a re-drive that finds the effect confirmed skips what is
        within, and whoever comes after must not get its number.
        """
        return f"{self.idempotency_key or self.run_id}/{name}/{self.number_of(name)}"


def find_call(tool_context: Any = None) -> EffectCall | None:
    """The call that a tool context stands for, or that this code runs in; None outside of a run."""
    call = tool_context if isinstance(tool_context, EffectCall) else getattr(tool_context, ATTRIBUTE, None)
    current = _current.get()
    # A tool may pass its context on to another one: what is being carried out there is the inner call.
    return current if call is None or (current is not None and current.is_within(call)) else call


def call_of(tool_context: Any) -> EffectCall:
    """The call that a tool context stands for; NotInRun outside of a run."""
    call = find_call(tool_context)
    if call is None:
        raise NotInRun(
            f"tool_context {tool_context!r} belongs to no run of Tape. Call this within tape.durable_run(...),"
            " or from a tool of an agent that has the TapePlugin."
        )
    return call


@contextmanager
def within(call: EffectCall) -> Iterator[None]:
    """Code in this block carries out that call."""
    token = _current.set(call)
    try:
        yield
    finally:
        _current.reset(token)


def enter(call: EffectCall) -> None:
    """Code that follows in this task carries out that call: for frameworks that run each call in a task of its own."""
    _current.set(call)


def idempotency_key(tool_context: Any) -> str:
    """The key that makes this effect recognisable: give it to the other side, so that it acts once."""
    return call_of(tool_context).idempotency_key


def business_key(tool_context: Any) -> str:
    """The key of this effect in the words of the business, such as an invoice number; "" without one."""
    return call_of(tool_context).business_key


def effect_semantics(tool_context: Any) -> str:
    """`idempotent`, `non_idempotent` or `observe_only`."""
    return call_of(tool_context).semantics


def external_ref(tool_context: Any) -> str:
    """What the other side calls this effect, if it has been observed; "" otherwise."""
    call = call_of(tool_context)
    if not call.external_ref and call.idempotency_key:
        found = call.run.client.get_effect(run_id=call.run_id, idempotency_key=call.idempotency_key)
        call.external_ref = found.effect.external_ref
    return call.external_ref


def run_id_of(tool_context: Any) -> str:
    """The run that a tool is called in."""
    return call_of(tool_context).run_id
