"""Child runs: begun by a run, cancelled with it unless they are to be left, and awaited by it."""

from __future__ import annotations

from tape.base.telemetry.tracing import NO_TRACE, Trace
from tape.engine.ledgers import gates, runs
from tape.engine.ledgers.run_record import COLUMNS, Run
from tape.errors import GateAnswered
from tape.model.ledger_states import ChildPolicy, RunStatus
from tape.model.payload import to_json
from tape.store import Transaction
from tape.store.records import load, load_all

# Children that are cancelled in one transaction.
PAGE = 200
_OPEN = (RunStatus.RUNNABLE, RunStatus.RUNNING, RunStatus.WAITING)


def gate_of(run_id: str) -> str:
    """The gate at which a parent waits for the end of a child."""
    return f"child:{run_id}"


def cancel_children(tx: Transaction, run_id: str, *, trace: Trace = NO_TRACE) -> int:
    """Cancel the open runs below a run, up to PAGE of them; returns their number. Fewer than PAGE: none is left."""
    statuses = ", ".join(str(int(status)) for status in _OPEN)
    rows = tx.query(
        "WITH RECURSIVE below(run_id) AS ("
        f" SELECT run_id FROM tape_runs WHERE parent_run_id = ? AND on_parent_cancel <> {ChildPolicy.LEAVE}"
        " UNION SELECT r.run_id FROM tape_runs r JOIN below b ON r.parent_run_id = b.run_id"
        f" WHERE r.on_parent_cancel <> {ChildPolicy.LEAVE})"
        f" SELECT {COLUMNS} FROM tape_runs WHERE run_id IN (SELECT run_id FROM below) AND status IN ({statuses})"
        " ORDER BY started_at_ms, run_id LIMIT ?",
        run_id,
        PAGE,
    )
    found = load_all(Run, rows)
    detail = to_json({"error": "Cancelled", "message": f"The run {run_id} above it was cancelled."})
    for child in found:
        runs.end(tx, child.run_id, RunStatus.CANCELLED, detail_json=detail, with_children=False, trace=trace)
    return len(found)


def wake_parent(tx: Transaction, child: Run, trace: Trace) -> None:
    """Release the parent of a child that has ended, if it waits for that."""
    parent = load(Run, tx.one(f"SELECT {COLUMNS} FROM tape_runs WHERE run_id = ?", child.parent_run_id))
    gate = gate_of(child.run_id)
    if parent is None or parent.status != RunStatus.WAITING or parent.waiting_on_gate != gate:
        return
    try:
        gates.send(tx, parent, gate, resolution_json=to_json({"child": child.run_id}), trace=trace)
    except GateAnswered:  # by hand, before the child ended
        return
