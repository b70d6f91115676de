"""Outcomes of executions: whether a run has ended, and how."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tape.engine.ledgers import runs
from tape.model.ledger_states import RunStatus
from tape.model.principal import current_principal
from tape.model.run_outcome import RunOutcome
from tape.model.tenant_names import plain_name
from tape.store import Reader

MAX_ERROR_CHARS = 500

_FAILED = frozenset({RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.COMPENSATING, RunStatus.STUCK})


def read_outcomes(reader: Reader, subscription: str, execution_ids: Sequence[str]) -> dict[str, RunOutcome]:
    """The outcomes of runs of a subscription, by execution id; a run that does not exist for the caller is left out."""
    if not execution_ids:
        return {}
    condition, ids = reader.is_any("run_id", list(execution_ids))
    tenant = current_principal().only_tenant
    visible, values = ("", []) if tenant is None else (" AND tenant = ?", [tenant])
    rows = reader.query(
        f"SELECT run_id, status, CASE WHEN status = {RunStatus.TERMINAL} THEN '' ELSE detail_json END FROM tape_runs"
        f" WHERE {condition} AND session_id = ?{visible}",
        ids,
        plain_name(subscription),
        *values,
    )
    found = {run_id: _outcome(RunStatus(status), detail_json) for run_id, status, detail_json in rows}
    for run_id in set(execution_ids) - found.keys():
        run = runs.find(reader, run_id)  # kept as a summary
        if run is not None and run.session_id == plain_name(subscription):
            found[run_id] = _outcome(run.status, run.detail_json)
    return found


def _outcome(status: RunStatus, detail_json: str) -> RunOutcome:
    if status == RunStatus.TERMINAL:
        return RunOutcome("completed")
    if status not in _FAILED:
        return RunOutcome()
    return RunOutcome("failed", _error(detail_json)[:MAX_ERROR_CHARS] or status.name.lower())


def _error(detail_json: str) -> str:
    detail = msgspec.json.decode(detail_json) if detail_json else {}
    error = detail.get("error") if isinstance(detail, dict) else None
    return str(error.get("message", "")) if isinstance(error, dict) else str(error or "")
