"""Handing tasks out, within every limit of their reaction and across all dispatchers.

The writer's transaction excludes every other writer of the database, also those of other servers, so
what is counted here stays true until the claim is committed, and no task is handed out twice.
"""

from __future__ import annotations

import msgspec

from tape.base.clock import now_ms
from tape.engine.reactions import tasks
from tape.engine.reactions.reaction import COLUMNS as REACTION_COLUMNS
from tape.engine.reactions.reaction import Reaction
from tape.engine.reactions.registry import get
from tape.engine.reactions.tasks import CLAIMED, COLUMNS, PENDING, Task
from tape.errors import InvalidInput
from tape.model.reaction_states import HandlerKind
from tape.model.task_pacing import pace
from tape.store import Reader, Transaction
from tape.store.records import load, load_all

DEFAULT_MAX = 16
MAX_AT_ONCE = 1_000
ANY_SHARD = -1


class Want(msgspec.Struct, frozen=True):
    """What somebody asks for: tasks of one reaction, of one shard or of any."""

    reaction_id: str
    owner: str
    lease_ms: int = 0
    max: int = 0
    shard: int = ANY_SHARD


class Claimed(msgspec.Struct, frozen=True):
    """The tasks handed out, how many dead letters that showed, and when to ask again (0: when told)."""

    tasks: list[Task]
    buried: int = 0
    again_at_ms: int = 0


def claim(tx: Transaction, want: Want, now: int = 0) -> Claimed:
    """Hand out tasks that are due, and those whose holder has vanished, as many as the limits allow.

    Tasks of a shard come in the order of the journal; one that is tried again comes when it is due.
    """
    tasks.check_owner(want.owner)
    lease_ms = tasks.lease(want.lease_ms)
    now = now or now_ms()
    if not 0 <= want.max <= MAX_AT_ONCE:
        raise InvalidInput(f"max {want.max} must lie between 0 and {MAX_AT_ONCE}; 0 means {DEFAULT_MAX}.")
    row = tx.one(
        f"SELECT (SELECT count(*) FROM tape_tasks WHERE reaction_id = ? AND status = {CLAIMED}"
        " AND lease_expires_at_ms > ?),"
        f" (SELECT min(lease_expires_at_ms) FROM tape_tasks WHERE reaction_id = ? AND status = {CLAIMED}),"
        f" {REACTION_COLUMNS} FROM tape_reactions WHERE reaction_id = ?",
        want.reaction_id,
        now,
        want.reaction_id,
        want.reaction_id,
    )
    if row is None:
        get(tx, want.reaction_id)
        raise AssertionError("unreachable")
    running, first_expiry, *fields = row
    reaction = load(Reaction, fields)
    assert reaction is not None
    if reaction.handler_kind == HandlerKind.AGENT:
        return Claimed([])  # those become runs, and the server begins them itself
    if want.shard >= reaction.num_shards:
        raise InvalidInput(
            f"shard {want.shard} does not exist: {want.reaction_id!r} has {reaction.num_shards}; -1 means any."
        )
    wanted = want.max or DEFAULT_MAX
    room = min(wanted, reaction.max_concurrency - running)
    if room <= 0:
        return Claimed([], again_at_ms=_next_expiry(tx, reaction.reaction_id, now))
    terms = Terms(want.owner, now + lease_ms, now, want.shard, first_expiry or 0)
    return take(tx, reaction, room, terms, wanted)


class Terms(msgspec.Struct, frozen=True):
    """For whom tasks are claimed, until when, and the first lease of the reaction that runs out (0: none)."""

    owner: str
    expires: int
    now: int
    shard: int = ANY_SHARD
    first_expiry: int = 0

    @property
    def has_abandoned(self) -> bool:
        """Whether a lease has run out."""
        return 0 < self.first_expiry <= self.now


def take(tx: Transaction, reaction: Reaction, room: int, terms: Terms, wanted: int) -> Claimed:
    """Claim up to `room` tasks; says when to ask again if that was fewer than `wanted`."""
    now = terms.now
    allowed, next_us, again_us = room, 0, 0
    if reaction.rate_limit_per_s:
        allowed, next_us, again_us = _paced(tx, reaction, room, now)
    buried = _bury_exhausted(tx, reaction, now) if terms.has_abandoned else 0
    chosen = _candidates(tx, reaction, allowed, terms) if allowed else []
    if reaction.rate_limit_per_s and chosen:
        _, next_us, again_us = _paced(tx, reaction, len(chosen), now)
        tx.upsert("tape_reaction_pace", ["reaction_id"], ["reaction_id", "next_us"], [(reaction.reaction_id, next_us)])
    if chosen:
        condition, ids = tx.is_any("task_id", [task.task_id for task in chosen])
        tx.execute(
            f"UPDATE tape_tasks SET status = {CLAIMED}, attempts = attempts + 1, lease_owner = ?,"
            " lease_expires_at_ms = ?"
            f" WHERE {condition}",
            terms.owner,
            terms.expires,
            ids,
        )
    claimed = [
        msgspec.structs.replace(
            task,
            status=CLAIMED,
            attempts=task.attempts + 1,
            lease_owner=terms.owner,
            lease_expires_at_ms=terms.expires,
        )
        for task in chosen
    ]
    if len(claimed) >= wanted:
        return Claimed(claimed, buried)
    if allowed < room and len(claimed) == allowed:
        return Claimed(claimed, buried, -(-again_us // 1_000))
    return Claimed(claimed, buried, _next_due(tx, reaction.reaction_id, terms, bool(claimed)))


def _paced(tx: Transaction, reaction: Reaction, wanted: int, now: int) -> tuple[int, int, int]:
    row = tx.one("SELECT next_us FROM tape_reaction_pace WHERE reaction_id = ?", reaction.reaction_id)
    return pace(reaction.rate_limit_per_s, row[0] if row else 0, now * 1_000, wanted)


def _bury_exhausted(tx: Transaction, reaction: Reaction, now: int) -> int:
    """A holder that vanished during the last allowed attempt has used that attempt up."""
    rows = tx.query(
        f"SELECT {COLUMNS} FROM tape_tasks WHERE reaction_id = ? AND status = {CLAIMED} AND lease_expires_at_ms <= ?"
        " AND attempts >= ? ORDER BY lease_expires_at_ms LIMIT ?",
        reaction.reaction_id,
        now,
        reaction.max_attempts,
        MAX_AT_ONCE,
    )
    for task in load_all(Task, rows):
        error = f"the lease of {task.lease_owner!r} ran out during attempt {task.attempts}, the last one allowed"
        tasks.bury(tx, task, f"{error}; before that: {task.last_error}" if task.last_error else error, now)
    return len(rows)


def _candidates(tx: Transaction, reaction: Reaction, limit: int, terms: Terms) -> list[Task]:
    now, shard = terms.now, terms.shard
    if reaction.strict_order:
        return _heads(tx, reaction, limit, shard, now)
    one_shard, params = (" AND shard = ?", [shard]) if shard >= 0 else ("", [])
    abandoned = (
        []
        if not terms.has_abandoned
        else tx.query(
            f"SELECT {COLUMNS} FROM tape_tasks WHERE reaction_id = ? AND status = {CLAIMED}"
            " AND lease_expires_at_ms <= ?"
            f"{one_shard} ORDER BY lease_expires_at_ms LIMIT ?",
            reaction.reaction_id,
            now,
            *params,
            limit,
        )
    )
    due = tx.query(
        f"SELECT {COLUMNS} FROM tape_tasks WHERE reaction_id = ? AND status = {PENDING} AND next_attempt_at_ms <= ?"
        f"{one_shard} ORDER BY next_attempt_at_ms, source_global_seq LIMIT ?",
        reaction.reaction_id,
        now,
        *params,
        limit,
    )
    if not abandoned:
        return load_all(Task, due)
    found = load_all(Task, abandoned + due)
    found.sort(key=lambda task: (task.next_attempt_at_ms, task.source_global_seq))
    return found[:limit]


def _heads(tx: Transaction, reaction: Reaction, limit: int, shard: int, now: int) -> list[Task]:
    """The first open task of each shard, where it is due and nothing of the shard is out: nothing overtakes it."""
    rows = tx.query(
        f"SELECT DISTINCT shard FROM tape_tasks WHERE reaction_id = ? AND status = {CLAIMED}"
        " AND lease_expires_at_ms > ?",
        reaction.reaction_id,
        now,
    )
    busy = {row[0] for row in rows}
    found: list[Task] = []
    for number in [shard] if shard >= 0 else range(reaction.num_shards):
        if number in busy:
            continue
        row = tx.one(
            f"SELECT {COLUMNS} FROM tape_tasks WHERE reaction_id = ? AND shard = ? AND strict_order = 1"
            f" AND status IN ({PENDING}, {CLAIMED}) ORDER BY source_global_seq LIMIT 1",
            reaction.reaction_id,
            number,
        )
        task = load(Task, row)
        if task is not None and (task.status == CLAIMED or task.next_attempt_at_ms <= now):
            found.append(task)
    found.sort(key=lambda task: task.source_global_seq)
    return found[:limit]


def _next_due(tx: Transaction, reaction_id: str, terms: Terms, has_claimed: bool) -> int:
    """When a task will be due that is not now: a retry, a debounce, a lease that runs out; 0 if there is none."""
    row = tx.one(
        f"SELECT min(next_attempt_at_ms) FROM tape_tasks WHERE reaction_id = ? AND status = {PENDING}"
        " AND next_attempt_at_ms > ?",
        reaction_id,
        terms.now,
    )
    expiry = _next_expiry(tx, reaction_id, terms.now) if terms.has_abandoned else terms.first_expiry
    times = [row[0] if row is not None else 0, expiry, terms.expires if has_claimed else 0]
    return min((time for time in times if time), default=0)


def _next_expiry(tx: Transaction, reaction_id: str, now: int) -> int:
    row = tx.one(
        f"SELECT min(lease_expires_at_ms) FROM tape_tasks WHERE reaction_id = ? AND status = {CLAIMED}"
        " AND lease_expires_at_ms > ?",
        reaction_id,
        now,
    )
    return row[0] if row is not None and row[0] is not None else 0


def ready(reader: Reader, reaction_ids: list[str], now: int) -> list[str]:
    """Those of the reactions that have something to hand out, limits aside."""
    found = []
    for reaction_id in reaction_ids:
        row = reader.one(
            f"SELECT 1 WHERE EXISTS (SELECT 1 FROM tape_tasks WHERE reaction_id = ? AND status = {PENDING}"
            " AND next_attempt_at_ms <= ?) OR EXISTS (SELECT 1 FROM tape_tasks WHERE reaction_id = ?"
            f" AND status = {CLAIMED}"
            " AND lease_expires_at_ms <= ?)",
            reaction_id,
            now,
            reaction_id,
            now,
        )
        if row is not None:
            found.append(reaction_id)
    return found
