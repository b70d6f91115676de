"""Reactions of kind AGENT: a match becomes a run that a recovery worker can resume at once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tape.base.telemetry.tracing import Trace
from tape.engine.ledgers import runs
from tape.engine.ledgers.run_record import Run
from tape.engine.reactions.reaction import Reaction
from tape.model.entry import Entry
from tape.model.ledger_states import RunStatus
from tape.store import Transaction

OWNER = "matcher"


class RunSource(msgspec.Struct, frozen=True):
    """The entry that a run was begun for."""

    global_seq: int
    run_id: str
    subject: str
    payload_json: str
    trace_id: str
    span_id: str
    tenant: str


def source_of(entry: Entry) -> RunSource:
    """The run source of an entry."""
    return RunSource(
        entry.global_seq,
        entry.run_id,
        entry.subject,
        entry.payload_json,
        entry.trace_id,
        entry.span_id,
        entry.tenant,
    )


def invocation_id(reaction_id: str, global_seq: int) -> str:
    """The invocation id of the run of a reaction and an entry; it makes the match idempotent."""
    return f"react-{reaction_id}-{global_seq}"


def is_begun_by(reaction_id: str, invocation: str) -> bool:
    """Whether the reaction has begun the run with this invocation id."""
    prefix, _, number = invocation.rpartition("-")
    return prefix == f"react-{reaction_id}" and number.isdecimal()


def tenant_of_run(reaction: Reaction, source_tenant: str) -> str:
    """The tenant of the run that a reaction begins for an entry: that of the entry.

    A reaction of an open server begins all runs in the tenant of its app.
    """
    return _tenant_id(reaction, source_tenant) or reaction.agent_app


def _tenant_id(reaction: Reaction, source_tenant: str) -> str:
    return reaction.tenant or (source_tenant if reaction.in_source_tenant else "")


def launch_runs(tx: Transaction, reaction: Reaction, sources: Sequence[RunSource]) -> int:
    """Begin a run for each source unless it exists; the number of new runs."""
    ids = [invocation_id(reaction.reaction_id, source.global_seq) for source in sources]
    condition, values = tx.is_any("invocation_id", ids)
    rows = tx.query(
        "SELECT invocation_id, tenant FROM tape_runs WHERE app_name = ? AND user_id = '' AND session_id = ''"
        f" AND {condition}",
        reaction.agent_app,
        values,
    )
    begun = {(invocation, tenant) for invocation, tenant in rows}
    count = 0
    for source, invocation in zip(sources, ids, strict=True):
        if (invocation, tenant_of_run(reaction, source.tenant)) not in begun:
            _begin(tx, reaction, source, invocation)
            count += 1
    return count


def _begin(tx: Transaction, reaction: Reaction, source: RunSource, invocation: str) -> None:
    labels = {
        "tape.reaction_id": reaction.reaction_id,
        "tape.source_global_seq": str(source.global_seq),
        "tape.source_run_id": source.run_id,
        "tape.source_subject": source.subject,
    }
    wanted = Run(
        run_id="",
        app_name=reaction.agent_app,
        user_id="",
        session_id="",
        invocation_id=invocation,
        status=RunStatus.RUNNING,
        labels_json=msgspec.json.encode(labels).decode(),
        tenant_id=_tenant_id(reaction, source.tenant),
        tenant=tenant_of_run(reaction, source.tenant),
    )
    extra_payload = {
        "reaction_id": reaction.reaction_id,
        "source_global_seq": source.global_seq,
        "source_run_id": source.run_id,
        "source_subject": source.subject,
        "source_payload": msgspec.Raw(source.payload_json.encode()),
    }
    trace = Trace(source.trace_id, "", source.span_id)
    # The lease is expired from the start, so a recovery worker resumes the run at once.
    runs.begin(tx, wanted, owner=OWNER, lease_ms=0, trace=trace, extra_payload=extra_payload, is_recoverable=True)
