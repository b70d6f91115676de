"""The effect that the current code performs, and its run."""

from __future__ import annotations

import contextvars
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tape.durable.budgets import Budget
from tape.durable.change_detection import StepCursor
from tape.durable.lease import RunLease
from tape.durable.server_retry import call_with_retry
from tape.errors import (
    EffectUnknown,
    IllegalTransition,
    LeaseHeld,
    NotInRun,
    RunCancelled,
    RunEnded,
    RunFenced,
    RunInterrupted,
    RunOver,
)
from tape.proto import tape_pb2 as pb

# Where a plugin leaves the call on a framework's own tool context.
ATTRIBUTE = "_tape_call"

_current: contextvars.ContextVar[EffectCall | None] = contextvars.ContextVar("tape_call", default=None)


_ENDED = (pb.RUN_STATUS_TERMINAL, pb.RUN_STATUS_FAILED, pb.RUN_STATUS_STUCK)


@dataclass(eq=False)
class RunHandle:
    """A run that this process executes, and the client that holds its lease."""

    client: Any
    run_id: str
    lease_owner: str = ""
    app_name: str = ""
    user_id: str = ""
    session_id: str = ""
    invocation_id: str = ""
    lease: RunLease | None = None
    budget: Budget | None = None
    # What a difference from the record does: stop, warn or accept.
    on_change: str = "warn"
    cursor: StepCursor | None = None
    versions: dict[str, int] = field(default_factory=dict)
    # It is TERMINAL: what is on record is returned, and nothing new is recorded.
    is_finished: bool = False
    # Why this process may do nothing more for the run: every further call raises it.
    interruption: RunInterrupted | None = None
    # The gate that it waits at.
    parked_at: str = ""

    @property
    def is_replayed(self) -> bool:
        """Whether the run is answered from its record: nothing may be performed."""
        return bool(getattr(self.client, "is_recording", False))

    def call(self, call: Callable[..., Any], /, **arguments: Any) -> Any:
        """Make a call for the run, retried while the server is unavailable.

        Raises RunInterrupted if the run was parked, cancelled, ended or leased to another process, and from then on
        without asking the server: code that has swallowed the interruption does nothing more.
        """
        self.check()
        return self.settle(call, **arguments)

    def settle(self, call: Callable[..., Any], /, **arguments: Any) -> Any:
        """`call` for what was begun before: it is recorded although the run was interrupted meanwhile."""
        try:
            return call_with_retry(call, run_id=self.run_id, **arguments)
        except LeaseHeld as error:
            raise self.interrupt(RunFenced(f"{error} This process does nothing more for the run.")) from error
        except EffectUnknown:
            raise
        except RunInterrupted as interruption:
            raise self.interrupt(interruption) from None
        except IllegalTransition as error:
            if self.is_finished:
                raise self.interrupt(RunOver(str(error))) from error
            raise

    def refuse_new(self, what: str) -> None:
        """Raise RunOver if the run is finished: it does what is on record and nothing else."""
        if self.is_finished:
            raise self.interrupt(
                RunOver(f"The run {self.run_id!r} is finished, and {what} is not on its record: nothing new is begun.")
            )

    def check(self) -> None:
        """Raise the interruption of the run, if there was one."""
        if self.interruption is not None:
            raise self.interruption

    def interrupt(self, interruption: RunInterrupted) -> RunInterrupted:
        """Let every further call of the run raise this; returns the interruption to raise."""
        self.interruption = self.interruption or interruption
        if self.lease is not None:
            self.lease.stop(wait=False)
        return self.interruption

    def take_lease_again(self) -> None:
        """Go on with a run that has parked in this process, because its gate was answered meanwhile."""
        lease = self.lease
        ttl_ms = 0 if lease is None else lease.ttl_ms
        self.settle(self.client.resume_run, lease_owner=self.lease_owner, lease_ttl_ms=ttl_ms)
        self.interruption, self.parked_at = None, ""
        if lease is not None:
            lease.start()

    def lease_is_lost(self, error: LeaseHeld | IllegalTransition) -> None:
        """The lease was not renewed: the run was cancelled or ended, or another process has it."""
        if isinstance(error, LeaseHeld):
            self.interrupt(RunFenced(f"{error} This process does nothing more for the run."))
            return
        state = call_with_retry(self.client.get_run, run_id=self.run_id)
        if pb.RUN_STATUS_CANCELLED in (state.status, state.former_status):
            self.interrupt(RunCancelled(f"The run {self.run_id!r} was cancelled."))
        elif state.status in _ENDED:
            name = pb.RunStatus.Name(state.status).removeprefix("RUN_STATUS_")
            self.interrupt(RunEnded(f"The run {self.run_id!r} is {name}: another process has ended it."))
        elif state.lease_owner not in ("", self.lease_owner):
            self.interrupt(RunFenced(f"{error} It is leased to {state.lease_owner!r}."))


@dataclass(eq=False)
class EffectCall:
    """One effect while it is performed; the run itself when `idempotency_key` is empty.

    Tools with a `tool_context` parameter get one of these where no framework provides its own.
    """

    run: RunHandle
    decision_index: int = -1
    tool_name: str = ""
    idempotency_key: str = ""
    semantics: str = "idempotent"
    business_key: str = ""
    external_ref: str = ""
    parent: EffectCall | None = None
    position: str = ""
    steps: int = 0
    is_entered: bool = False
    counts: Counter[tuple[int, str]] = field(default_factory=Counter)

    @property
    def run_id(self) -> str:
        """The run it belongs to."""
        return self.run.run_id

    def here(self) -> EffectCall:
        """The call that code makes effects from while this one is current; a framework may know it more exactly."""
        return self

    def number_of(self, name: str) -> int:
        """The number of earlier calls of that name from here: the same each time the run is resumed."""
        counter = (self.decision_index, name)
        self.counts[counter] += 1
        return self.counts[counter] - 1

    def is_within(self, other: EffectCall) -> bool:
        """Whether this call is made from within another one."""
        call: EffectCall | None = self
        while call is not None and call is not other:
            call = call.parent
        return call is other

    def inner_key(self, name: str) -> str:
        """The idempotency key of an effect performed from within this effect.

        It extends this effect's key. A resumed run that finds this effect confirmed skips the inner ones, so later
        calls must not share their numbering.
        """
        return f"{self.idempotency_key or self.run_id}/{name}/{self.number_of(name)}"


def find_call(tool_context: Any = None) -> EffectCall | None:
    """The call of a tool context, or the current one; None outside of a run."""
    call = tool_context if isinstance(tool_context, EffectCall) else getattr(tool_context, ATTRIBUTE, None)
    current = _current.get()
    if current is not None:
        current = current.here()
    # A tool may pass its context to another tool: the inner call is the current one there.
    return current if call is None or (current is not None and current.is_within(call)) else call


def call_of(tool_context: Any) -> EffectCall:
    """The call of a tool context; NotInRun outside of a run."""
    call = find_call(tool_context)
    if call is None:
        raise NotInRun(
            f"tool_context {tool_context!r} belongs to no run of Tape. Call this within tape.durable_run(...),"
            " or from a tool of an agent that has the TapePlugin."
        )
    return call


@contextmanager
def within(call: EffectCall) -> Iterator[None]:
    """Make a call the current one in this block."""
    token = _current.set(call)
    try:
        yield
    finally:
        _current.reset(token)


def enter(call: EffectCall) -> None:
    """Make a call the current one for the rest of this task: for frameworks that run each call in its own task."""
    _current.set(call)


def idempotency_key(tool_context: Any) -> str:
    """The idempotency key of this effect: send it to the other side, so that it acts once."""
    return call_of(tool_context).idempotency_key


def business_key(tool_context: Any) -> str:
    """The business key of this effect, such as an invoice number; "" without one."""
    return call_of(tool_context).business_key


def effect_semantics(tool_context: Any) -> str:
    """`idempotent`, `non_idempotent` or `observe_only`."""
    return call_of(tool_context).semantics


def external_ref(tool_context: Any) -> str:
    """The other side's id of this effect, if it has been observed; "" otherwise."""
    call = call_of(tool_context)
    if not call.external_ref and call.idempotency_key:
        found = call.run.client.get_effect(run_id=call.run_id, idempotency_key=call.idempotency_key)
        call.external_ref = found.effect.external_ref
    return call.external_ref


def run_id_of(tool_context: Any) -> str:
    """The run that a tool is called in."""
    return call_of(tool_context).run_id
