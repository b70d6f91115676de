"""Batches of runnable runs, for workers to claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tape.base.clock import now_ms
from tape.base.telemetry.tracing import Trace
from tape.engine.ledgers.run_record import Run
from tape.model import subject
from tape.model.entry import Draft
from tape.model.ledger_states import RunStatus
from tape.store import Transaction
from tape.store.records import row_of


class RunOpening(msgspec.Struct, frozen=True):
    """A run to begin, extra fields for the payload of its first entry, and its trace."""

    run: Run
    extra_payload: Mapping[str, Any]
    trace: Trace


def find_taken_ids(tx: Transaction, run_ids: Sequence[str]) -> set[str]:
    """Those of the ids that belong to a run already."""
    condition, values = tx.is_any("run_id", run_ids)
    return {row[0] for row in tx.query(f"SELECT run_id FROM tape_runs WHERE {condition}", values)}


def open_runs(tx: Transaction, openings: Sequence[RunOpening]) -> list[Draft]:
    """Insert runnable runs; returns the entry of each for the caller to append.

    Their ids must be new; the caller sees to that with `taken_ids`.
    """
    now = now_ms()
    runs = [msgspec.structs.replace(opening.run, status=RunStatus.RUNNABLE, started_at_ms=now) for opening in openings]
    tx.insert("tape_runs", Run.__struct_fields__, [row_of(run) for run in runs])
    return [_draft(run, opening) for run, opening in zip(runs, openings, strict=True)]


def _draft(run: Run, opening: RunOpening) -> Draft:
    payload = {
        "run_id": run.run_id,
        "app": run.app_name,
        "user": run.user_id,
        "session": run.session_id,
        "invocation_id": run.invocation_id,
        "status": "runnable",
        "agent_id": run.agent_id,
        **opening.extra_payload,
    }
    return Draft(
        subject=subject.run("running", run.app_name, run.user_id, run.session_id, run.run_id),
        kind="run",
        run_id=run.run_id,
        payload_json=msgspec.json.encode(payload).decode(),
        tenant=run.tenant,
        user=run.user_id,
        session=run.session_id,
        **opening.trace._asdict(),
    )
