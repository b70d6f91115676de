"""Gates: a run waits at a gate until a signal is sent to it. A gate is used once per run."""

from __future__ import annotations

import msgspec

from tape.base.clock import now_ms
from tape.base.telemetry.tracing import NO_TRACE, Trace
from tape.engine.ledgers import runs
from tape.engine.ledgers.run_record import Run
from tape.engine.ledgers.runs import ENDED
from tape.errors import IllegalTransition, InvalidInput, NotFound
from tape.model import subject
from tape.model.entry import check_id
from tape.model.ledger_states import RunStatus
from tape.store import Reader, Transaction
from tape.store.records import Record, columns, insert, load, store


class GateSignal(Record, frozen=True):
    """A row of tape_signals: the context of a gate and its resolution."""

    run_id: str
    gate_name: str
    context_json: str = ""
    resolution_json: str = ""
    delivered: bool = False
    awaited: bool = False
    consumed: bool = False
    created_at_ms: int = 0


_COLUMNS = columns(GateSignal)
_KEYS = ("run_id", "gate_name")


def find(reader: Reader | Transaction, run_id: str, gate_name: str) -> GateSignal | None:
    """The signal of a run's gate, or None."""
    if not runs.is_visible(reader, run_id):
        return None
    row = reader.one(f"SELECT {_COLUMNS} FROM tape_signals WHERE run_id = ? AND gate_name = ?", run_id, gate_name)
    return load(GateSignal, row)


def wait(
    tx: Transaction, run_id: str, gate_name: str, *, payload_json: str = "", owner: str = "", trace: Trace = NO_TRACE
) -> GateSignal:
    """The signal if it was sent; otherwise the run waits at the gate and releases its lease."""
    _check_gate(gate_name)
    run = runs.get_writable(tx, run_id, owner)
    signal = find(tx, run_id, gate_name)
    if signal is not None and signal.delivered:
        signal = msgspec.structs.replace(signal, consumed=True, awaited=True)
        store(tx, "tape_signals", _KEYS, signal)
        return signal
    if run.status in ENDED:
        raise IllegalTransition(f"The run {run_id!r} is {run.status.name} and cannot wait at a gate.")
    if signal is None:
        signal = GateSignal(run_id, gate_name, payload_json, awaited=True, created_at_ms=now_ms())
        insert(tx, "tape_signals", signal)
    if run.status == RunStatus.WAITING and run.waiting_on_gate == gate_name:
        return signal  # it waits there already
    tx.execute(
        "UPDATE tape_runs SET status = ?, waiting_on_gate = ?, lease_owner = '', lease_expires_at_ms = 0,"
        " lease_caller = '' WHERE run_id = ?",
        int(RunStatus.WAITING),
        gate_name,
        run_id,
    )
    _journal(tx, run, gate_name, "waiting", trace)
    return signal


def send(
    tx: Transaction, run: Run, gate_name: str, *, resolution_json: str = "", trace: Trace = NO_TRACE
) -> RunStatus | None:
    """Send a signal to a gate; the first one counts. Returns the run's new status if it was waiting there."""
    _check_gate(gate_name)
    signal = find(tx, run.run_id, gate_name)
    if signal is None:
        signal = GateSignal(run.run_id, gate_name, created_at_ms=now_ms())
    if not signal.delivered:
        signal = msgspec.structs.replace(signal, resolution_json=resolution_json, delivered=True)
        store(tx, "tape_signals", _KEYS, signal)
    if run.status != RunStatus.WAITING or run.waiting_on_gate != gate_name:
        return None
    tx.execute(
        "UPDATE tape_runs SET status = ?, waiting_on_gate = '' WHERE run_id = ?", int(RunStatus.RUNNABLE), run.run_id
    )
    _journal(tx, run, gate_name, "released", trace)
    return RunStatus.RUNNABLE


def run_for_signal(tx: Transaction, run_id: str, app_name: str, user_id: str, session_id: str) -> Run:
    """The run of a signal: by its id, or the newest run of a session."""
    if run_id:
        return runs.get(tx, run_id)
    run = runs.find_newest_of_session(tx, app_name, user_id, session_id)
    if run is None:
        raise NotFound(f"no run for that session: {app_name}/{user_id}/{session_id}.")
    return run


def _check_gate(gate_name: str) -> None:
    if not gate_name:
        raise InvalidInput("gate_name is empty.")
    check_id("gate_name", gate_name)


def _journal(tx: Transaction, run: Run, gate_name: str, verb: str, trace: Trace) -> None:
    runs.journal(tx, run, subject.gate(verb, gate_name, run.run_id), {"gate": gate_name, "status": verb}, trace)
