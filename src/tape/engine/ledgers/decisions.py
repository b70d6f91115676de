"""Decisions: the choices of a model, recorded once, so that a replayed run makes the same choices."""

from __future__ import annotations

import msgspec

from tape.base.telemetry.tracing import NO_TRACE, Trace
from tape.engine.ledgers import runs
from tape.model import subject
from tape.store import Reader, Transaction
from tape.store.records import Record, columns, insert, load


class Decision(Record, frozen=True):
    """A row of tape_decisions."""

    run_id: str
    seq: int
    decision_index: int
    model: str
    request_json: str
    response_json: str
    rationale: str
    policy_version: str
    ts_ms: int
    # What it was asked for with, and where it stands in the run; "" if the client does not say.
    digest: str = ""
    position: str = ""


_COLUMNS = columns(Decision)


def find(reader: Reader | Transaction, run_id: str, decision_index: int) -> Decision | None:
    """The decision of a run with this index, or None."""
    row = reader.one(
        f"SELECT {_COLUMNS} FROM tape_decisions WHERE run_id = ? AND decision_index = ?", run_id, decision_index
    )
    if not runs.is_visible(reader, run_id):
        return None
    return load(Decision, row)


def record(
    tx: Transaction, wanted: Decision, *, owner: str = "", caller: str = "", trace: Trace = NO_TRACE
) -> Decision:
    """Record a decision. If the index has a decision already, that one is returned unchanged.

    Raises RunRefused if the run is parked, cancelled or ended.
    """
    run = runs.get_writable(tx, wanted.run_id, owner, caller)
    if (existing := find(tx, wanted.run_id, wanted.decision_index)) is not None:
        return existing
    runs.check_acting(run)
    payload = {
        "decision_index": wanted.decision_index,
        "model": wanted.model,
        "policy_version": wanted.policy_version,
        "rationale": wanted.rationale,
    }
    entry = runs.journal(tx, run, subject.decision_recorded(run.run_id, wanted.decision_index), payload, trace)
    decision = msgspec.structs.replace(wanted, seq=entry.seq, ts_ms=entry.ts_ms)
    insert(tx, "tape_decisions", decision)
    return decision
