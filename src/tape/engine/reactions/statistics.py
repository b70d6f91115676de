"""Statistics of reactions, for operators and dashboards."""

from __future__ import annotations

import msgspec

from tape.engine.reactions import registry
from tape.engine.reactions.task_order import WAITS_MS
from tape.engine.reactions.tasks import CLAIMED, DLQ, PENDING, visible_condition
from tape.journal.appender import read_head
from tape.model.principal import current_principal
from tape.model.reaction_states import TaskStatus
from tape.store import Reader

MAX_BACKLOG = 100_000


class ReactionStatistics(msgspec.Struct, frozen=True):
    """One reaction: its position and lag, matches, predicate errors, and open tasks."""

    reaction_id: str
    position: int
    lag: int
    matched: int
    suppressed: int
    predicate_errors: int
    last_predicate_error: str
    last_error_global_seq: int
    pending: int
    claimed: int
    dlq: int
    oldest_pending_ms: int
    is_catching_up: bool


def read_statistics(reader: Reader, reaction_id: str = "") -> tuple[list[ReactionStatistics], int]:
    """The statistics of one reaction or of all that are registered, and the journal's head.

    A caller of one tenant gets the counts of its own tasks. It learns nothing of the matches and predicate errors of a
    reaction for all tenants: they are not counted by tenant.
    """
    head = read_head(reader).global_seq
    reactions = [registry.get(reader, reaction_id)] if reaction_id else registry.list_registered(reader)
    ids = [reaction.reaction_id for reaction in reactions]
    principal = current_principal()
    hidden = {reaction.reaction_id for reaction in reactions if not principal.sees(reaction.tenant)}
    partition_positions: dict[int, int] = dict(reader.query("SELECT lane, position FROM tape_reaction_lanes"))
    condition, values = reader.is_any("reaction_id", ids)
    cursors: dict[str, list[tuple[int, ...]]] = {}
    for row in reader.query(
        "SELECT reaction_id, last_global_seq, lane, behind, matched, suppressed, errors, last_error_seq"
        f" FROM tape_reaction_cursors WHERE {condition}",
        values,
    ):
        cursors.setdefault(row[0], []).append((*row[1:4], 0, 0, 0, 0) if row[0] in hidden else row[1:])
    errors = _last_errors(reader, condition, values)
    open_tasks = _open_tasks(reader, condition, values)
    found = []
    for each in ids:
        rows = cursors.get(each, [])
        position = min(
            (last if behind else max(last, partition_positions[partition]) for last, partition, behind, *_ in rows),
            default=head,
        )
        counts = open_tasks.get(each, {})
        found.append(
            ReactionStatistics(
                each,
                position,
                max(head - position, 0),
                sum(row[3] for row in rows),
                sum(row[4] for row in rows),
                sum(row[5] for row in rows),
                "" if each in hidden else errors.get(each, ""),
                max((row[6] for row in rows), default=0),
                counts.get(PENDING, 0),
                counts.get(CLAIMED, 0),
                counts.get(DLQ, 0),
                _oldest_pending(reader, each) if counts.get(PENDING) else 0,
                any(row[2] for row in rows),
            )
        )
    return found, head


def count_backlog(reader: Reader, reaction_id: str) -> int:
    """The tasks that more workers could begin, and those that are running: what a pool of workers is scaled on.

    A task that waits for its turn or for an unavailable downstream is not counted: no worker can begin it. Counts to
    100,000.
    """
    visible, tenant = visible_condition()
    total = 0
    for condition in (f"status = {PENDING} AND next_attempt_at_ms < {WAITS_MS}", f"status = {CLAIMED}"):
        row = reader.one(
            f"SELECT count(*) FROM (SELECT 1 FROM tape_tasks WHERE reaction_id = ? AND {condition}{visible}"
            f" LIMIT {MAX_BACKLOG}) AS found",
            reaction_id,
            *tenant,
        )
        total += int(row[0]) if row else 0
    return min(total, MAX_BACKLOG)


def _last_errors(reader: Reader, condition: str, values: object) -> dict[str, str]:
    rows = reader.query(
        f"SELECT reaction_id, last_error FROM tape_reaction_cursors WHERE {condition} AND last_error_seq > 0"
        " ORDER BY last_error_seq",
        values,
    )
    return dict(rows)


def _open_tasks(reader: Reader, condition: str, values: object) -> dict[str, dict[TaskStatus, int]]:
    """The number of tasks by reaction and status."""
    found: dict[str, dict[TaskStatus, int]] = {}
    visible, tenant = visible_condition()
    # One query per status: each is answered from the partial index of that status.
    for status in (PENDING, CLAIMED, DLQ):
        for reaction_id, number in reader.query(
            f"SELECT reaction_id, count(*) FROM tape_tasks WHERE {condition} AND status = {status}{visible}"
            " GROUP BY reaction_id",
            values,
            *tenant,
        ):
            found.setdefault(reaction_id, {})[status] = number
    return found


def _oldest_pending(reader: Reader, reaction_id: str) -> int:
    visible, tenant = visible_condition()
    row = reader.one(
        f"SELECT created_at_ms FROM tape_tasks WHERE reaction_id = ? AND status = {PENDING}{visible}"
        " ORDER BY next_attempt_at_ms, source_global_seq LIMIT 1",
        reaction_id,
        *tenant,
    )
    return int(row[0]) if row else 0
