"""Claiming of tasks by dispatchers, within the limits of their reaction.

The writer's transaction excludes every other writer of the database, including those of other servers. Counts
read here stay exact until the claim is committed, so no task is claimed twice.
"""

from __future__ import annotations

import msgspec

from tape.base.clock import now_ms
from tape.engine.reactions import commands, registry, tasks
from tape.engine.reactions.new_tasks import NewTasks
from tape.engine.reactions.reaction import COLUMNS as REACTION_COLUMNS
from tape.engine.reactions.reaction import MAX_DEBOUNCE_MS, Reaction
from tape.engine.reactions.task_order import WAITS_MS
from tape.engine.reactions.tasks import CLAIMED, COLUMNS, LIGHT_COLUMNS, PENDING, Task
from tape.errors import InvalidInput
from tape.model.principal import SYSTEM, acting_as, current_principal
from tape.model.reaction_states import HandlerKind
from tape.model.task_pacing import latest_attempt_ms, pace
from tape.store import Reader, Transaction
from tape.store.lease import latest_expiry_ms
from tape.store.records import load, load_all

DEFAULT_MAX = 16
MAX_AT_ONCE = 1_000
ANY_SHARD = -1
# How often a claim that names no tasks extends the lease of one. A task whose worker forgot it is redelivered then.
MAX_RENEWALS = 10
NO_NEW_TASKS = NewTasks()


class ClaimRequest(msgspec.Struct, frozen=True):
    """A request for tasks of one reaction, of one shard or of any."""

    reaction_id: str
    owner: str
    lease_ms: int = 0
    max: int = 0
    shard: int = ANY_SHARD


class ClaimResult(msgspec.Struct, frozen=True):
    """The claimed tasks, how many tasks were dead-lettered, and when the next task is due (0: unknown)."""

    tasks: list[Task]
    dead_lettered: int = 0
    next_check_at_ms: int = 0


def claim_tasks(tx: Transaction, request: ClaimRequest, now: int = 0, new: NewTasks = NO_NEW_TASKS) -> ClaimResult:
    """Claim tasks that are due, and tasks whose lease has expired, as many as the limits allow.

    Tasks of a shard come in the order of the journal; a retried task comes when it is due. Tasks that the transaction
    creates are among them.
    """
    tasks.check_owner(request.owner)
    lease_ms = tasks.check_lease_ms(request.lease_ms)
    now = now or now_ms()
    if not 0 <= request.max <= MAX_AT_ONCE:
        raise InvalidInput(f"max {request.max} must lie between 0 and {MAX_AT_ONCE}; 0 means {DEFAULT_MAX}.")
    if new.has_leased(request.reaction_id):
        new.insert(tx)  # the limits count the tasks in the table
    row = tx.one(
        f"SELECT (SELECT count(*) FROM tape_tasks WHERE reaction_id = ? AND status = {CLAIMED}"
        " AND lease_expires_at_ms > ? AND lease_expires_at_ms <= ?),"
        f" (SELECT min(lease_expires_at_ms) FROM tape_tasks WHERE reaction_id = ? AND status = {CLAIMED}),"
        f" (SELECT max(lease_expires_at_ms) FROM tape_tasks WHERE reaction_id = ? AND status = {CLAIMED}),"
        f" (SELECT min(next_attempt_at_ms) FROM tape_tasks WHERE reaction_id = ? AND status = {PENDING}),"
        f" (SELECT max(next_attempt_at_ms) FROM tape_tasks WHERE reaction_id = ? AND status = {PENDING}"
        f" AND next_attempt_at_ms < {WAITS_MS}),"
        f" {REACTION_COLUMNS} FROM tape_reactions WHERE reaction_id = ?",
        request.reaction_id,
        now,
        latest_expiry_ms(now),
        *[request.reaction_id] * 5,
    )
    running, first_expiry, last_expiry, first_due, last_due, *fields = row or (0,) * 5
    reaction = load(Reaction, fields or None)
    if reaction is None or not registry.is_visible(reaction):
        raise registry.not_found(request.reaction_id)
    if reaction.handler_kind == HandlerKind.AGENT:
        return ClaimResult([])  # they become runs, which the server begins itself
    if request.shard >= reaction.num_shards:
        name = registry.display_reaction(request.reaction_id)
        raise InvalidInput(f"shard {request.shard} does not exist: {name!r} has {reaction.num_shards}; -1 means any.")
    wanted = request.max or DEFAULT_MAX
    free_slots = min(wanted, reaction.max_concurrency - running)
    if free_slots <= 0:
        return ClaimResult([], next_check_at_ms=_next_expiry(tx, reaction.reaction_id, now))
    terms = ClaimTerms(
        request.owner,
        now + lease_ms,
        now,
        request.shard,
        first_expiry or 0,
        last_expiry or 0,
        WAITS_MS if first_due is None else first_due,
        last_due or 0,
    )
    return claim_up_to(tx, reaction, free_slots, terms, wanted, new)


def extend_leases(tx: Transaction, request: ClaimRequest, now: int = 0) -> int:
    """Extend the owner's unexpired leases that have less than half of `lease_ms` left; how many.

    It is what a plain claim does first: a worker that polls while its handlers run keeps their tasks, at most
    MAX_RENEWALS times each. These tasks are not among those claimed.
    """
    tasks.check_owner(request.owner)
    lease_ms = tasks.check_lease_ms(request.lease_ms)
    now = now or now_ms()
    narrowed, params = _narrow(request.shard)
    rows = tx.query(
        f"SELECT {LIGHT_COLUMNS} FROM tape_tasks WHERE reaction_id = ? AND status = {CLAIMED} AND lease_owner = ?"
        f" AND lease_expires_at_ms > ? AND lease_expires_at_ms < ? AND lease_renewals < {MAX_RENEWALS}"
        f"{narrowed} ORDER BY lease_expires_at_ms LIMIT ?",
        request.reaction_id,
        request.owner,
        now,
        now + -(-lease_ms // 2),
        *params,
        MAX_AT_ONCE,
    )
    held = tasks.granted(load_all(Task, rows))
    if held:
        condition, ids = tx.is_any("task_id", [task.task_id for task in held])
        tx.execute(
            f"UPDATE tape_tasks SET lease_expires_at_ms = ?, lease_renewals = lease_renewals + 1 WHERE {condition}",
            now + lease_ms,
            ids,
        )
    return len(held)


class ClaimTerms(msgspec.Struct, frozen=True):
    """The new lease of claimed tasks, and of the reaction: first and last expiry (0: none), first and last due time."""

    owner: str
    lease_expires_at_ms: int
    now: int
    shard: int = ANY_SHARD
    first_expiry: int = 0
    last_expiry: int = 0
    # 0 if it is not known.
    first_due: int = 0
    last_due: int = 0

    @property
    def has_expired_lease(self) -> bool:
        """Whether a lease of the reaction has expired or is void."""
        return 0 < self.first_expiry <= self.now or self.last_expiry > latest_expiry_ms(self.now)

    @property
    def may_have_due(self) -> bool:
        """Whether a task in the table may be due. A dead letter can make another task due."""
        return self.first_due <= self.now or self.has_expired_lease


def claim_up_to(
    tx: Transaction,
    reaction: Reaction,
    free_slots: int,
    terms: ClaimTerms,
    wanted: int,
    new: NewTasks = NO_NEW_TASKS,
) -> ClaimResult:
    """Claim up to `free_slots` tasks; if fewer than `wanted`, the result has the time of the next one."""
    now = terms.now
    created = new.of(reaction.reaction_id)
    if created and not _come_first(created, reaction, terms):
        new.insert(tx)
        created, terms = [], msgspec.structs.replace(terms, first_due=0)
    allowed, next_us, again_us = free_slots, 0, 0
    if reaction.rate_limit_per_s:
        allowed, next_us, again_us = _apply_rate_limit(tx, reaction, free_slots, now)
    dead_lettered = _dead_letter_exhausted(tx, reaction, now) if terms.has_expired_lease else 0
    if created:
        chosen = _visible(created, terms)[:allowed]
    else:
        chosen = _candidates(tx, reaction, allowed, terms) if allowed else []
    while ended := commands.find_ended(tx, chosen):
        tasks.close_tasks(tx, ended, now)
        terms = msgspec.structs.replace(terms, first_due=0)
        chosen = _candidates(tx, reaction, allowed, terms)
    if reaction.rate_limit_per_s and chosen:
        _, next_us, again_us = _apply_rate_limit(tx, reaction, len(chosen), now)
        tx.upsert("tape_reaction_pace", ["reaction_id"], ["reaction_id", "next_us"], [(reaction.reaction_id, next_us)])
    claimed = [
        msgspec.structs.replace(
            task,
            status=CLAIMED,
            attempts=task.attempts + 1,
            lease_owner=terms.owner,
            lease_expires_at_ms=terms.lease_expires_at_ms,
        )
        for task in chosen
    ]
    if created:
        new.lease(claimed)
    elif claimed:
        condition, ids = tx.is_any("task_id", [task.task_id for task in claimed])
        tx.execute(
            f"UPDATE tape_tasks SET status = {CLAIMED}, attempts = attempts + 1, lease_owner = ?,"
            " lease_expires_at_ms = ?, lease_renewals = 0"
            f" WHERE {condition}",
            terms.owner,
            terms.lease_expires_at_ms,
            ids,
        )
    if len(claimed) >= wanted:
        return ClaimResult(claimed, dead_lettered)
    if allowed < free_slots and len(claimed) == allowed:
        return ClaimResult(claimed, dead_lettered, -(-again_us // 1_000))
    return ClaimResult(claimed, dead_lettered, _next_due(tx, reaction, terms, bool(claimed)))


def _come_first(created: list[Task], reaction: Reaction, terms: ClaimTerms) -> bool:
    """Whether new tasks are the next ones of their reaction, so that none in the table has to be looked for."""
    return (
        not reaction.strict_order
        and not terms.may_have_due
        and terms.last_due <= latest_attempt_ms(terms.now, reaction.debounce_ms)
        and all(task.next_attempt_at_ms <= terms.now and not task.is_shared for task in created)
    )


def _visible(created: list[Task], terms: ClaimTerms) -> list[Task]:
    """New tasks that the caller may claim, as `_narrow` selects those in the table."""
    principal = current_principal()
    return tasks.granted(
        [
            task
            for task in created
            if terms.shard in (ANY_SHARD, task.shard) and principal.only_tenant in (None, task.tenant)
        ]
    )


def _apply_rate_limit(tx: Transaction, reaction: Reaction, wanted: int, now: int) -> tuple[int, int, int]:
    row = tx.one("SELECT next_us FROM tape_reaction_pace WHERE reaction_id = ?", reaction.reaction_id)
    return pace(reaction.rate_limit_per_s, row[0] if row else 0, now * 1_000, wanted)


def _dead_letter_exhausted(tx: Transaction, reaction: Reaction, now: int) -> int:
    """Dead-letter tasks, of all tenants, whose lease expired during the last allowed attempt; how many."""
    rows = tx.query(
        f"SELECT {COLUMNS} FROM tape_tasks WHERE reaction_id = ? AND status = {CLAIMED}"
        " AND (lease_expires_at_ms <= ? OR lease_expires_at_ms > ?)"
        " AND attempts >= ? ORDER BY lease_expires_at_ms LIMIT ?",
        reaction.reaction_id,
        now,
        latest_expiry_ms(now),
        reaction.max_attempts,
        MAX_AT_ONCE,
    )
    with acting_as(SYSTEM):
        for task in load_all(Task, rows):
            error = f"the lease of {task.lease_owner!r} expired during attempt {task.attempts}, the last one allowed"
            tasks.dead_letter(tx, task, f"{error}; before that: {task.last_error}" if task.last_error else error, now)
    return len(rows)


def _candidates(tx: Transaction, reaction: Reaction, limit: int, terms: ClaimTerms) -> list[Task]:
    """The tasks to claim next. Tasks from before the reaction was changed may be outside of the caller's grants."""
    if current_principal().read is None:
        return _select_due(tx, reaction, limit, terms)
    return tasks.granted(_select_due(tx, reaction, MAX_AT_ONCE, terms))[:limit]


def _select_due(tx: Transaction, reaction: Reaction, limit: int, terms: ClaimTerms) -> list[Task]:
    now = terms.now
    if reaction.strict_order:
        return _first_of_each_shard(tx, reaction, limit, terms.shard, now)
    narrowed, params = _narrow(terms.shard)
    abandoned = (
        []
        if not terms.has_expired_lease
        else tx.query(
            f"SELECT {COLUMNS} FROM tape_tasks WHERE reaction_id = ? AND status = {CLAIMED}"
            " AND (lease_expires_at_ms <= ? OR lease_expires_at_ms > ?)"
            f"{narrowed} ORDER BY lease_expires_at_ms LIMIT ?",
            reaction.reaction_id,
            now,
            latest_expiry_ms(now),
            *params,
            limit,
        )
    )
    due = (
        []
        if not terms.may_have_due
        else tx.query(
            f"SELECT {COLUMNS} FROM tape_tasks WHERE reaction_id = ? AND status = {PENDING} AND next_attempt_at_ms <= ?"
            f"{narrowed} ORDER BY next_attempt_at_ms, source_global_seq LIMIT ?",
            reaction.reaction_id,
            now,
            *params,
            limit,
        )
    )
    latest = latest_attempt_ms(now, reaction.debounce_ms)
    void = [] if terms.last_due <= latest else _select_void(tx, reaction.reaction_id, latest, terms.shard, limit)
    if not abandoned:
        return (void + load_all(Task, due))[:limit]
    found = load_all(Task, abandoned + due)
    found.sort(key=lambda task: (task.next_attempt_at_ms, task.source_global_seq))
    return (void + found)[:limit]


def _select_void(tx: Transaction, reaction_id: str, latest: int, shard: int, limit: int) -> list[Task]:
    """Tasks whose due time was written while the clock was ahead. They come first: they have waited the longest."""
    narrowed, params = _narrow(shard)
    rows = tx.query(
        f"SELECT {COLUMNS} FROM tape_tasks WHERE reaction_id = ? AND status = {PENDING} AND next_attempt_at_ms > ?"
        f" AND next_attempt_at_ms < {WAITS_MS}{narrowed} ORDER BY next_attempt_at_ms, source_global_seq LIMIT ?",
        reaction_id,
        latest,
        *params,
        limit,
    )
    return load_all(Task, rows)


def read_last_due(tx: Transaction, reaction_id: str) -> int:
    """The latest time at which a task of the reaction is due; 0 if it has none."""
    row = tx.one(
        f"SELECT max(next_attempt_at_ms) FROM tape_tasks WHERE reaction_id = ? AND status = {PENDING}"
        f" AND next_attempt_at_ms < {WAITS_MS}",
        reaction_id,
    )
    return row[0] if row is not None and row[0] is not None else 0


def _narrow(shard: int) -> tuple[str, list[int | str]]:
    """The conditions that a task is in the shard and that the caller sees it, and their parameters."""
    one_shard, number = (" AND shard = ?", [shard]) if shard >= 0 else ("", [])
    visible, tenant = tasks.visible_condition()
    return one_shard + visible, [*number, *tenant]


def _first_of_each_shard(tx: Transaction, reaction: Reaction, limit: int, shard: int, now: int) -> list[Task]:
    """The first open task of each shard, if it is due and no task of the shard is claimed: strict order.

    A caller of one tenant gets its own tasks in strict order; those of others do not block them.
    """
    visible, tenant = tasks.visible_condition()
    rows = tx.query(
        f"SELECT DISTINCT shard FROM tape_tasks WHERE reaction_id = ? AND status = {CLAIMED}"
        f" AND lease_expires_at_ms > ? AND lease_expires_at_ms <= ?{visible}",
        reaction.reaction_id,
        now,
        latest_expiry_ms(now),
        *tenant,
    )
    latest = latest_attempt_ms(now, reaction.debounce_ms)
    busy = {row[0] for row in rows}
    found: list[Task] = []
    for number in [shard] if shard >= 0 else range(reaction.num_shards):
        if number in busy:
            continue
        row = tx.one(
            f"SELECT {COLUMNS} FROM tape_tasks WHERE reaction_id = ? AND shard = ? AND strict_order = 1"
            f" AND status IN ({PENDING}, {CLAIMED}){visible} ORDER BY source_global_seq LIMIT 1",
            reaction.reaction_id,
            number,
            *tenant,
        )
        task = load(Task, row)
        if task is not None and (task.status == CLAIMED or not now < task.next_attempt_at_ms <= latest):
            found.append(task)
    found.sort(key=lambda task: task.source_global_seq)
    return found[:limit]


def _next_due(tx: Transaction, reaction: Reaction, terms: ClaimTerms, has_claimed: bool) -> int:
    """When the next task is due: a retry, a debounce, or a lease that expires; 0 if there is none."""
    latest = latest_attempt_ms(terms.now, reaction.debounce_ms)
    if terms.may_have_due:
        row = tx.one(
            f"SELECT min(next_attempt_at_ms) FROM tape_tasks WHERE reaction_id = ? AND status = {PENDING}"
            " AND next_attempt_at_ms > ? AND next_attempt_at_ms <= ?",
            reaction.reaction_id,
            terms.now,
            latest,
        )
        due = row[0] if row is not None else 0
    else:
        due = terms.first_due if terms.first_due <= latest else 0
    expiry = _next_expiry(tx, reaction.reaction_id, terms.now) if terms.has_expired_lease else terms.first_expiry
    times = [due, expiry, terms.lease_expires_at_ms if has_claimed else 0]
    return min((time for time in times if time), default=0)


def _next_expiry(tx: Transaction, reaction_id: str, now: int) -> int:
    row = tx.one(
        f"SELECT min(lease_expires_at_ms) FROM tape_tasks WHERE reaction_id = ? AND status = {CLAIMED}"
        " AND lease_expires_at_ms > ? AND lease_expires_at_ms <= ?",
        reaction_id,
        now,
        latest_expiry_ms(now),
    )
    return row[0] if row is not None and row[0] is not None else 0


def find_ready(reader: Reader, reaction_ids: list[str], now: int) -> list[str]:
    """The reactions that have tasks to claim; their limits are not checked."""
    latest = latest_attempt_ms(now, MAX_DEBOUNCE_MS)
    found = []
    for reaction_id in reaction_ids:
        row = reader.one(
            f"SELECT 1 WHERE EXISTS (SELECT 1 FROM tape_tasks WHERE reaction_id = ? AND status = {PENDING}"
            f" AND (next_attempt_at_ms <= ? OR (next_attempt_at_ms > ? AND next_attempt_at_ms < {WAITS_MS})))"
            f" OR EXISTS (SELECT 1 FROM tape_tasks WHERE reaction_id = ? AND status = {CLAIMED}"
            " AND (lease_expires_at_ms <= ? OR lease_expires_at_ms > ?))",
            reaction_id,
            now,
            latest,
            reaction_id,
            now,
            latest_expiry_ms(now),
        )
        if row is not None:
            found.append(reaction_id)
    return found
