"""Gates: a run waits at a gate until it is answered, or until its deadline passes. A gate is answered once per run.

Times of a gate are in its row: `next_at_ms` is the next one at which a server acts (`gate_times.py`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from tape.base.clock import now_ms
from tape.base.telemetry.tracing import NO_TRACE, Trace
from tape.engine.ledgers import runs
from tape.engine.ledgers.run_record import Run
from tape.engine.ledgers.runs import ENDED
from tape.engine.scheduler import CHANNEL
from tape.errors import GateAnswered, IllegalTransition, InvalidInput, InvalidJson, NotFound
from tape.model import subject
from tape.model.entry import check_id
from tape.model.json_depth import check_depth
from tape.model.ledger_states import RunStatus
from tape.model.principal import current_principal
from tape.store import Reader, Transaction
from tape.store.records import Record, columns, insert, load, store

# The longest time-out, reminder and escalation: 10 years.
MAX_WAIT_MS = 10 * 366 * 86_400_000
# The answer of a gate whose deadline passes, unless the gate has another one.
REJECTED = '{"approved":false,"timed_out":true}'
TIMEOUT = "timeout"
ANONYMOUS = "anonymous"
# Characters of an earlier answer that a refusal shows.
SHOWN_CHARS = 200


class GateSignal(Record, frozen=True):
    """A row of tape_signals: what a gate asks, until when, and its answer.

    Texts that are shown (`context_json`, `shown_…`) are JSON without secrets; an empty `shown_…` is the text beside it.
    """

    run_id: str
    gate_name: str
    context_json: str = ""
    resolution_json: str = ""
    delivered: bool = False
    awaited: bool = False
    consumed: bool = False
    created_at_ms: int = 0
    tenant: str = ""
    app_name: str = ""
    risk: str = ""
    deadline_ms: int = 0
    on_timeout_json: str = ""
    shown_timeout_json: str = ""
    remind_at_ms: int = 0
    reminded_at_ms: int = 0
    escalate_at_ms: int = 0
    escalated_at_ms: int = 0
    next_at_ms: int = 0
    shown_answer_json: str = ""
    answered_by: str = ""
    answered_at_ms: int = 0
    timed_out: bool = False
    closed: bool = False

    @property
    def answer_json(self) -> str:
        """The answer as it is shown."""
        return self.shown_answer_json or self.resolution_json

    def following_ms(self) -> int:
        """The next time at which a server acts on the gate; 0 if there is none."""
        times = (
            0 if self.reminded_at_ms else self.remind_at_ms,
            0 if self.escalated_at_ms else self.escalate_at_ms,
            self.deadline_ms,
        )
        return min(filter(None, times), default=0)


class GateTerms(NamedTuple):
    """What a run says when it reaches a gate. Times are counted from then; 0 is never."""

    payload_json: str = ""
    risk: str = ""
    timeout_ms: int = 0
    on_timeout_json: str = ""
    shown_timeout_json: str = ""
    remind_after_ms: int = 0
    escalate_after_ms: int = 0

    def check(self) -> None:
        """Raise InvalidInput if a field cannot be."""
        check_id("risk", self.risk)
        for name in ("timeout_ms", "remind_after_ms", "escalate_after_ms"):
            if not 0 <= (value := getattr(self, name)) <= MAX_WAIT_MS:
                raise InvalidInput(f"{name} {value} must lie between 0 and {MAX_WAIT_MS} (10 years); 0 means never.")
            if name != "timeout_ms" and value >= self.timeout_ms > 0:
                raise InvalidInput(
                    f"{name} {value} must be less than timeout_ms {self.timeout_ms}: it would never come."
                )
        if self.on_timeout_json and not self.timeout_ms:
            raise InvalidInput("on_timeout_json needs a timeout_ms; without one the gate waits for ever.")


NO_TERMS = GateTerms()


class Sent(NamedTuple):
    """What an answer did: the run's new status if it waited there, and whether the gate had this answer already."""

    status: RunStatus | None
    repeated: bool


_COLUMNS = columns(GateSignal)
_KEYS = ("run_id", "gate_name")


def find(reader: Reader | Transaction, run_id: str, gate_name: str) -> GateSignal | None:
    """The signal of a run's gate, or None."""
    if not runs.is_visible(reader, run_id):
        return None
    row = reader.one(f"SELECT {_COLUMNS} FROM tape_signals WHERE run_id = ? AND gate_name = ?", run_id, gate_name)
    return load(GateSignal, row)


def wait(
    tx: Transaction,
    run_id: str,
    gate_name: str,
    *,
    terms: GateTerms = NO_TERMS,
    owner: str = "",
    trace: Trace = NO_TRACE,
) -> GateSignal:
    """The answer if there is one; otherwise the run waits at the gate and releases its lease.

    The first call sets the terms of the gate.
    """
    _check_gate(gate_name)
    terms.check()
    run = runs.get_writable(tx, run_id, owner)
    now = now_ms()
    signal = find(tx, run_id, gate_name)
    if signal is not None and not signal.delivered and 0 < signal.deadline_ms <= now:
        signal = expire(tx, run, signal, now, trace=trace)
    if signal is not None and signal.delivered:
        signal = msgspec.structs.replace(signal, consumed=True, awaited=True)
        store(tx, "tape_signals", _KEYS, signal)
        return signal
    if run.status in ENDED:
        raise IllegalTransition(f"The run {run_id!r} is {run.status.name} and cannot wait at a gate.")
    if signal is None:
        signal = _new_signal(run, gate_name, terms, now)
        insert(tx, "tape_signals", signal)
        if signal.next_at_ms:
            tx.notify(CHANNEL)
    elif signal.closed:  # the run had ended, and was begun again
        signal = msgspec.structs.replace(signal, closed=False, next_at_ms=signal.following_ms())
        store(tx, "tape_signals", _KEYS, signal)
    if run.status == RunStatus.WAITING and run.waiting_on_gate == gate_name:
        return signal  # it waits there already
    tx.execute(
        "UPDATE tape_runs SET status = ?, waiting_on_gate = ?, lease_owner = '', lease_expires_at_ms = 0,"
        " lease_caller = '' WHERE run_id = ?",
        int(RunStatus.WAITING),
        gate_name,
        run_id,
    )
    journal(tx, run, signal, "waiting", describe(signal), trace)
    return signal


def send(
    tx: Transaction,
    run: Run,
    gate_name: str,
    *,
    resolution_json: str = "",
    shown_json: str = "",
    trace: Trace = NO_TRACE,
) -> Sent:
    """Answer a gate; the first answer counts. Raises GateAnswered if it has another one, or its deadline has passed."""
    _check_gate(gate_name)
    now = now_ms()
    signal = find(tx, run.run_id, gate_name) or GateSignal(
        run.run_id, gate_name, created_at_ms=now, tenant=run.tenant, app_name=run.app_name
    )
    if signal.delivered:
        if signal.timed_out or not _is_same(signal.resolution_json, resolution_json):
            raise GateAnswered(_refusal(signal))
        return Sent(_release(tx, run, signal, trace), repeated=True)
    if 0 < signal.deadline_ms <= now:
        raise GateAnswered(_refusal(_expired(signal, signal.deadline_ms)))
    signal = msgspec.structs.replace(
        signal,
        resolution_json=resolution_json,
        shown_answer_json=shown_json if shown_json != resolution_json else "",
        delivered=True,
        answered_by=name_of_caller(),
        answered_at_ms=now,
        next_at_ms=0,
    )
    store(tx, "tape_signals", _KEYS, signal)
    status = _release(tx, run, signal, trace)
    if status is None:
        journal(tx, run, signal, "answered", describe_answer(signal), trace)
    return Sent(status, repeated=False)


def expire(tx: Transaction, run: Run, signal: GateSignal, now: int, *, trace: Trace = NO_TRACE) -> GateSignal:
    """Answer a gate whose deadline has passed; a run that waits there becomes runnable."""
    signal = _expired(signal, now)
    store(tx, "tape_signals", _KEYS, signal)
    if _release(tx, run, signal, trace) is None:
        journal(tx, run, signal, "answered", describe_answer(signal), trace)
    return signal


def run_for_signal(tx: Reader | Transaction, run_id: str, app_name: str, user_id: str, session_id: str) -> Run:
    """The run of a signal: by its id, or the newest run of a session."""
    if run_id:
        return runs.get(tx, run_id)
    run = runs.find_newest_of_session(tx, app_name, user_id, session_id)
    if run is None:
        raise NotFound(f"no run for that session: {app_name}/{user_id}/{session_id}.")
    return run


def name_of_caller() -> str:
    """The caller as gates and schedules record it: its user, else its key, else `anonymous`."""
    principal = current_principal()
    return principal.user or (f"key:{principal.key_id}" if principal.key_id else ANONYMOUS)


def describe(signal: GateSignal) -> dict[str, Any]:
    """What the entries of a waiting gate say about it; what it does not have is left out."""
    described: dict[str, Any] = {
        "risk": signal.risk,
        "payload": as_raw(signal.context_json),
        "waiting_since_ms": signal.created_at_ms,
        "deadline_ms": signal.deadline_ms,
        "on_timeout": as_raw(signal.shown_timeout_json or signal.on_timeout_json),
    }
    return {name: value for name, value in described.items() if value}


def describe_answer(signal: GateSignal) -> dict[str, Any]:
    """What the entries of an answered gate say about it."""
    described: dict[str, Any] = {
        "risk": signal.risk,
        "answer": as_raw(signal.answer_json),
        "answered_by": signal.answered_by,
        "answered_at_ms": signal.answered_at_ms,
        "timed_out": signal.timed_out,
    }
    return {name: value for name, value in described.items() if value}


def as_raw(text: str) -> msgspec.Raw | None:
    """A text as it goes into an entry: JSON as it is, anything else as a JSON string; None if it is empty."""
    return msgspec.Raw(as_json(text).encode()) if text else None


def as_json(text: str) -> str:
    """The text if it is JSON that an entry can hold, else the text as a JSON string."""
    try:
        check_depth(f"[{text}]".encode())  # an entry nests it one level deeper
        msgspec.json.decode(text, type=msgspec.Raw)
    except (InvalidJson, msgspec.DecodeError):
        return msgspec.json.encode(text).decode()
    return text


def journal(
    tx: Transaction, run: Run, signal: GateSignal, verb: str, payload: dict[str, Any], trace: Trace = NO_TRACE
) -> None:
    """Append an entry about a gate to its run."""
    name = subject.gate(verb, signal.gate_name, run.run_id)
    runs.journal(tx, run, name, {"gate": signal.gate_name, "status": verb, **payload}, trace)


def _new_signal(run: Run, gate_name: str, terms: GateTerms, now: int) -> GateSignal:
    def after(wait_ms: int) -> int:
        return now + wait_ms if wait_ms else 0

    signal = GateSignal(
        run.run_id,
        gate_name,
        terms.payload_json,
        awaited=True,
        created_at_ms=now,
        tenant=run.tenant,
        app_name=run.app_name,
        risk=terms.risk,
        deadline_ms=after(terms.timeout_ms),
        on_timeout_json=(terms.on_timeout_json or REJECTED) if terms.timeout_ms else "",
        shown_timeout_json=terms.shown_timeout_json if terms.shown_timeout_json != terms.on_timeout_json else "",
        remind_at_ms=after(terms.remind_after_ms),
        escalate_at_ms=after(terms.escalate_after_ms),
    )
    return msgspec.structs.replace(signal, next_at_ms=signal.following_ms())


def _expired(signal: GateSignal, at_ms: int) -> GateSignal:
    return msgspec.structs.replace(
        signal,
        resolution_json=signal.on_timeout_json or REJECTED,
        shown_answer_json=signal.shown_timeout_json,
        delivered=True,
        timed_out=True,
        answered_by=TIMEOUT,
        answered_at_ms=at_ms,
        next_at_ms=0,
    )


def _release(tx: Transaction, run: Run, signal: GateSignal, trace: Trace) -> RunStatus | None:
    """Make the run runnable if it waits at the gate."""
    if run.status != RunStatus.WAITING or run.waiting_on_gate != signal.gate_name:
        return None
    tx.execute(
        "UPDATE tape_runs SET status = ?, waiting_on_gate = '' WHERE run_id = ?", int(RunStatus.RUNNABLE), run.run_id
    )
    journal(tx, run, signal, "released", describe_answer(signal), trace)
    return RunStatus.RUNNABLE


def _is_same(before: str, after: str) -> bool:
    """Whether two answers say the same: spaces and the order of keys do not count."""
    return before == after or _canonical(before) == _canonical(after)


def _canonical(text: str) -> bytes:
    try:
        return msgspec.json.encode(msgspec.json.decode(text), order="sorted")
    except (msgspec.MsgspecError, RecursionError):
        return text.encode()


def _refusal(signal: GateSignal) -> str:
    answer = signal.answer_json
    shown = answer if len(answer) <= SHOWN_CHARS else f"{answer[:SHOWN_CHARS]}…"
    if signal.timed_out:
        return (
            f"The gate {signal.gate_name!r} of run {signal.run_id!r} timed out at {_time(signal.answered_at_ms)}:"
            f" its answer is {shown}. An answer after the deadline is refused."
        )
    by = f" by {signal.answered_by}" if signal.answered_by else ""
    at = f" at {_time(signal.answered_at_ms)}" if signal.answered_at_ms else ""
    return (
        f"The gate {signal.gate_name!r} of run {signal.run_id!r} was answered{by}{at} with {shown or 'no text'}."
        " The first answer stays; this one differs and is refused."
    )


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _check_gate(gate_name: str) -> None:
    if not gate_name:
        raise InvalidInput("gate_name is empty.")
    check_id("gate_name", gate_name)
