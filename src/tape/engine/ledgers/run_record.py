"""The record of a run: a row of tape_runs."""

from __future__ import annotations

import msgspec

from tape.model.ledger_states import ChildPolicy, RunStatus
from tape.store.records import Record, columns

# The app of runs that workers of a pool carry on: their tasks bring them back, so recovery leaves them alone.
PLAYBOOKS = "playbooks"


class Run(Record, frozen=True):
    """A row of tape_runs."""

    run_id: str
    app_name: str
    user_id: str
    session_id: str
    invocation_id: str
    status: RunStatus
    seq_cursor: int = 0
    lease_owner: str = ""
    lease_expires_at_ms: int = 0
    waiting_on_gate: str = ""
    detail_json: str = ""
    started_at_ms: int = 0
    ended_at_ms: int = 0
    tenant_id: str = ""
    actor: str = ""
    subject: str = ""
    agent_id: str = ""
    aiplex_instance_id: str = ""
    gateway_route: str = ""
    scopes_json: str = "[]"
    labels_json: str = "{}"
    compacted_at_ms: int = 0
    former_status: int = 0
    dead_task_id: str = ""
    # Whom the run belongs to: never empty, unlike `tenant_id`, which is what the client said.
    tenant: str = ""
    # Who took the lease: a caller that names no lease owner writes to the run only if it is the same one.
    lease_caller: str = ""
    # Of a fork: the run whose steps it shares, and up to where.
    forked_from: str = ""
    forked_at_seq: int = 0
    forked_at_decision: int = 0
    # What a finished run gave, as JSON; '' if nothing was recorded.
    result_json: str = ""
    # The run that began it, and what becomes of it when that one is cancelled.
    parent_run_id: str = ""
    on_parent_cancel: ChildPolicy = ChildPolicy.UNSPECIFIED

    @property
    def scopes(self) -> list[str]:
        """What the run may do."""
        return msgspec.json.decode(self.scopes_json, type=list[str])

    @property
    def labels(self) -> dict[str, str]:
        """What the run was labelled with."""
        return msgspec.json.decode(self.labels_json, type=dict[str, str])


COLUMNS = columns(Run)
# For lists, which have no results: one may be as large as a payload.
LISTED_COLUMNS = ", ".join("'' AS result_json" if name == "result_json" else name for name in Run.__struct_fields__)
