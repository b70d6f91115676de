"""Downstreams: what became of the runs that depend on one, and which of their tasks wait until it is available.

A downstream belongs to a subscription: its name is `<path of the subscription>|<name in the document>`. Runtimes read
the counts to feed their circuits. While a circuit is open the downstream is *held*: the pool starts none of its tasks.
A hold is renewed by the runtime and lapses without it, so that no run waits for a runtime that has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from tape.engine.reactions.task_order import CHANNEL as TASKS
from tape.engine.reactions.task_order import WAITS_MS
from tape.model.reaction_states import TaskStatus
from tape.store import Reader, Transaction
from tape.store.records import Record, columns, load_all

# The channel on which runtimes are notified of outcomes.
CHANNEL = "tape_downstreams"
MAX_ERROR_CHARS = 500
SEPARATOR = "|"
# A hold that was not renewed for so long lapses.
HOLD_MS = 600_000
RECORD_MS = 1_000
RELEASE_PAGE = 1_000


class Downstream(Record, frozen=True):
    """A row of tape_downstreams. `failures` and `successes` only grow."""

    name: str
    failures: int = 0
    successes: int = 0
    last_success_ms: int = 0
    last_failure_ms: int = 0
    last_error: str = ""
    held: bool = False
    held_until_ms: int = 0
    probe_task_id: str = ""


class DownstreamState(Record, frozen=True):
    """A downstream, whether tasks wait for it, and whether the task that was let go as its probe is still open."""

    name: str
    failures: int
    successes: int
    last_success_ms: int
    last_failure_ms: int
    last_error: str
    held: bool
    held_until_ms: int
    probe_task_id: str
    has_waiting: bool
    is_probe_open: bool


class WaitingRun(msgspec.Struct, frozen=True):
    """A run whose task waits for its downstream."""

    task_id: str
    run_id: str
    message_id: str


_COLUMNS = columns(Downstream)
# A waiting task that is the first of its ordering key, if it has one.
_IS_FIRST = (
    f"status = {TaskStatus.PENDING} AND next_attempt_at_ms = {WAITS_MS}"
    " AND NOT EXISTS (SELECT 1 FROM tape_tasks AS earlier WHERE waiting.ordering_key <> ''"
    " AND earlier.ordering_key = waiting.ordering_key AND earlier.reaction_id = waiting.reaction_id"
    f" AND earlier.ordering_key <> '' AND earlier.status IN ({TaskStatus.PENDING}, {TaskStatus.CLAIMED})"
    " AND (earlier.source_global_seq, earlier.shard) < (waiting.source_global_seq, waiting.shard))"
)


def name_of(subscription: str, downstream: str) -> str:
    """The name of a downstream in the store."""
    return f"{subscription}{SEPARATOR}{downstream}"


def read_downstreams(reader: Reader | Transaction, subscription: str) -> list[DownstreamState]:
    """The downstreams of a subscription that had an outcome or are held."""
    rows = reader.query(
        f"SELECT {_COLUMNS}, CASE WHEN EXISTS (SELECT 1 FROM tape_tasks WHERE downstream = name AND downstream <> ''"
        f" AND status = {TaskStatus.PENDING} AND next_attempt_at_ms = {WAITS_MS}) THEN 1 ELSE 0 END,"
        " CASE WHEN probe_task_id <> '' AND EXISTS (SELECT 1 FROM tape_tasks WHERE task_id = probe_task_id"
        f" AND (status = {TaskStatus.CLAIMED} OR status = {TaskStatus.PENDING}"
        f" AND next_attempt_at_ms < {WAITS_MS})) THEN 1 ELSE 0 END"
        " FROM tape_downstreams WHERE name >= ? AND name < ?",
        *_range_of(subscription),
    )
    return load_all(DownstreamState, rows)


def _range_of(subscription: str) -> tuple[str, str]:
    return subscription + SEPARATOR, subscription + chr(ord(SEPARATOR) + 1)


def find_held(tx: Transaction, names: Collection[str]) -> set[str]:
    """Those of the downstreams that are held."""
    if not names:
        return set()
    condition, values = tx.is_any("name", list(names))
    return {row[0] for row in tx.query(f"SELECT name FROM tape_downstreams WHERE held = 1 AND {condition}", values)}


def record_successes(tx: Transaction, names: Collection[str], now: int) -> None:
    """Record that runs got an answer of these downstreams. One that never failed has no row and needs none."""
    if not names:
        return
    condition, values = tx.is_any("name", list(names))
    # The first success after a failure is recorded at once, further ones once a second: the row is one for all runs.
    changed = tx.execute(
        f"UPDATE tape_downstreams SET successes = successes + 1, last_success_ms = ? WHERE {condition}"
        " AND (last_success_ms <= last_failure_ms OR last_success_ms < ? OR last_success_ms > ?)",
        now,
        values,
        now - RECORD_MS,
        now,
    )
    if changed:
        tx.notify(CHANNEL)


def record_failure(tx: Transaction, name: str, error: str, now: int) -> Downstream:
    """Record that a run found a downstream unavailable; its counts before that."""
    rows = tx.query(f"SELECT {_COLUMNS} FROM tape_downstreams WHERE name = ?", name)
    before = load_all(Downstream, rows)[0] if rows else Downstream(name)
    tx.upsert(
        "tape_downstreams",
        ["name"],
        ["name", "failures", "last_failure_ms", "last_error"],
        [(name, before.failures + 1, now, error[:MAX_ERROR_CHARS])],
    )
    tx.notify(CHANNEL)
    return before


def hold(tx: Transaction, name: str, now: int) -> int:
    """Hold a downstream, or renew its hold: its tasks that are due, or will be, wait, but for the probe. How many."""
    tx.upsert("tape_downstreams", ["name"], ["name", "held", "held_until_ms"], [(name, 1, now + HOLD_MS)])
    return tx.execute(
        f"UPDATE tape_tasks SET next_attempt_at_ms = {WAITS_MS} WHERE downstream = ? AND downstream <> ''"
        f" AND status = {TaskStatus.PENDING} AND next_attempt_at_ms < {WAITS_MS}"
        " AND task_id <> (SELECT probe_task_id FROM tape_downstreams WHERE name = tape_tasks.downstream)",
        name,
    )


def release_probe(tx: Transaction, name: str, now: int, *, may_repeat: bool = True) -> WaitingRun | None:
    """Make one waiting task of a held downstream due: the one after the last probe, in the order of the journal.

    None if none waits, or only the last probe, which with `may_repeat` is tried again.
    """
    row = tx.one(
        "SELECT probe_task_id, source_global_seq, shard FROM tape_downstreams"
        " LEFT JOIN tape_tasks ON task_id = probe_task_id WHERE name = ?",
        name,
    )
    last, last_seq, last_shard = (row[0], row[1] or 0, row[2] or 0) if row is not None else ("", 0, 0)
    waiting = _find_waiting(tx, name, 1, after=(last_seq, last_shard)) or _find_waiting(tx, name, 1)
    if not waiting or (waiting[0].task_id == last and not may_repeat):
        return None
    chosen = waiting[0]
    tx.execute("UPDATE tape_downstreams SET probe_task_id = ? WHERE name = ?", chosen.task_id, name)
    _make_due(tx, [chosen.task_id], now)
    return chosen


def release(tx: Transaction, name: str, now: int, limit: int) -> list[WaitingRun]:
    """Hold a downstream no longer, and make up to `limit` of its waiting tasks due, the oldest first; their runs."""
    tx.execute("UPDATE tape_downstreams SET held = 0, probe_task_id = '' WHERE name = ?", name)
    waiting = _find_waiting(tx, name, limit)
    _make_due(tx, [each.task_id for each in waiting], now)
    return waiting


def release_lapsed(tx: Transaction, now: int) -> list[str]:
    """Hold no longer the downstreams whose hold was not renewed; their names. Their tasks are stranded then."""
    rows = tx.query(
        "UPDATE tape_downstreams SET held = 0, probe_task_id = '' WHERE held = 1 AND held_until_ms < ? RETURNING name",
        now,
    )
    return [name for (name,) in rows]


def release_all(tx: Transaction, subscription: str, now: int) -> None:
    """Hold no downstream of a subscription that no process watches any more; its waiting tasks are tried again."""
    for row in read_downstreams(tx, subscription):
        if row.held:
            while release(tx, row.name, now, RELEASE_PAGE):
                pass


def _find_waiting(tx: Transaction, name: str, limit: int, *, after: tuple[int, int] = (0, 0)) -> list[WaitingRun]:
    rows = tx.query(
        "SELECT task_id, source_run_id, (SELECT labels_json FROM tape_runs WHERE run_id = source_run_id),"
        " CASE WHEN is_summary = 1 THEN payload_json ELSE '{}' END"
        f" FROM tape_tasks AS waiting WHERE downstream = ? AND downstream <> '' AND {_IS_FIRST}"
        " AND (source_global_seq, shard) > (?, ?) ORDER BY source_global_seq, shard LIMIT ?",
        name,
        *after,
        limit,
    )
    return [WaitingRun(task_id, run_id, _message_id(labels, command)) for task_id, run_id, labels, command in rows]


def _message_id(labels_json: str | None, command_json: str) -> str:
    """The message of a run: from its row, or from its command if it has none."""
    if labels_json is None:
        return str(msgspec.json.decode(command_json, type=dict).get("message_id", ""))
    return str(msgspec.json.decode(labels_json, type=dict[str, str]).get("tape.message_id", ""))


def _make_due(tx: Transaction, task_ids: Sequence[str], now: int) -> None:
    if not task_ids:
        return
    condition, values = tx.is_any("task_id", task_ids)
    tx.execute(
        "UPDATE tape_tasks SET next_attempt_at_ms = CASE WHEN source_ts_ms < ? THEN source_ts_ms ELSE ? END"
        f" WHERE {condition}",
        now,
        now,
        values,
    )
    tx.notify(TASKS)
