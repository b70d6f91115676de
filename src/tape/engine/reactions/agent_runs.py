"""Reactions of kind AGENT: a match becomes a run that somebody can take up at once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tape.base.telemetry.tracing import Trace
from tape.engine.ledgers import runs
from tape.engine.reactions.reaction import Reaction
from tape.model.entry import Entry
from tape.model.ledger_states import RunStatus
from tape.store import Transaction

OWNER = "matcher"


class Source(msgspec.Struct, frozen=True):
    """The entry that a run is about."""

    global_seq: int
    run_id: str
    subject: str
    payload_json: str
    trace_id: str
    span_id: str


def source_of(entry: Entry) -> Source:
    """What a run needs to know of the entry that caused it."""
    return Source(entry.global_seq, entry.run_id, entry.subject, entry.payload_json, entry.trace_id, entry.span_id)


def invocation_id(reaction_id: str, global_seq: int) -> str:
    """The invocation id of the run that a reaction begins for an entry: the same match is the same run."""
    return f"react-{reaction_id}-{global_seq}"


def is_begun_by(reaction_id: str, invocation: str) -> bool:
    """Whether that is the invocation id of a run that the reaction has begun."""
    prefix, _, number = invocation.rpartition("-")
    return prefix == f"react-{reaction_id}" and number.isdecimal()


def launch(tx: Transaction, reaction: Reaction, sources: Sequence[Source]) -> int:
    """Begin a run for each source, unless it was begun already; how many were."""
    ids = [invocation_id(reaction.reaction_id, source.global_seq) for source in sources]
    condition, values = tx.is_any("invocation_id", ids)
    rows = tx.query(
        f"SELECT invocation_id FROM tape_runs WHERE app_name = ? AND user_id = '' AND session_id = '' AND {condition}",
        reaction.agent_app,
        values,
    )
    begun = {row[0] for row in rows}
    for source, invocation in zip(sources, ids, strict=True):
        if invocation not in begun:
            _begin(tx, reaction, source, invocation)
    return len(ids) - len(begun)


def _begin(tx: Transaction, reaction: Reaction, source: Source, invocation: str) -> None:
    labels = {
        "tape.reaction_id": reaction.reaction_id,
        "tape.source_global_seq": str(source.global_seq),
        "tape.source_run_id": source.run_id,
        "tape.source_subject": source.subject,
    }
    wanted = runs.Run(
        run_id="",
        app_name=reaction.agent_app,
        user_id="",
        session_id="",
        invocation_id=invocation,
        status=RunStatus.RUNNING,
        labels_json=msgspec.json.encode(labels).decode(),
    )
    about = {
        "reaction_id": reaction.reaction_id,
        "source_global_seq": source.global_seq,
        "source_run_id": source.run_id,
        "source_subject": source.subject,
        "source_payload": msgspec.Raw(source.payload_json.encode()),
    }
    trace = Trace(source.trace_id, "", source.span_id)
    # The lease has run out when it begins: whoever recovers runs takes this one up at once.
    runs.begin(tx, wanted, owner=OWNER, lease_ms=0, trace=trace, extra_payload=about, is_recoverable=True)
