"""Tasks of reactions: claimed under a lease, and settled by the lease owner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tape.base.clock import now_ms
from tape.engine.reactions import commands, downstreams, task_order
from tape.engine.reactions.reaction import COLUMNS as REACTION_COLUMNS
from tape.engine.reactions.reaction import Reaction
from tape.errors import InvalidInput, NotFound, TapeError, TaskNotHeld
from tape.model.principal import current_principal
from tape.model.reaction_states import TaskStatus
from tape.model.task_pacing import backoff_ms
from tape.store import Reader, Transaction
from tape.store.lease import MAX_TTL_MS
from tape.store.records import Record, columns, load, load_all

DEFAULT_LEASE_MS = 60_000
MAX_LEASE_MS = MAX_TTL_MS
MAX_ERROR_CHARS = 4_000
# A task whose downstream is unavailable is tried again after a tenth of its age, within these bounds, while the
# downstream is not held.
RETRY_UNAVAILABLE_MS = (1_000, 60_000)

PENDING, CLAIMED, DONE, FAILED, DLQ = TaskStatus


class Task(Record, frozen=True):
    """A row of tape_tasks."""

    task_id: str
    reaction_id: str
    shard: int
    source_run_id: str
    source_global_seq: int
    subject: str
    payload_json: str
    status: TaskStatus
    attempts: int
    next_attempt_at_ms: int
    lease_owner: str
    lease_expires_at_ms: int
    last_error: str
    created_at_ms: int
    completed_at_ms: int
    trace_id: str
    parent_span_id: str
    first_global_seq: int
    coalesced: int
    redriven: int
    debounced: bool
    strict_order: bool
    source_seq: int
    source_ts_ms: int
    schema_version: int
    # That of the source entry; empty for tasks from before tasks had one.
    tenant: str = ""
    ordering_key: str = ""
    downstream: str = ""
    unavailable_ms: int = 0
    # Whether its run is kept as a summary: if that has ended well, the task is deleted.
    is_summary: bool = False
    # The messages of its run, if that is a batch.
    batch: int = 0

    @property
    def is_shared(self) -> bool:
        """Whether its command is shared: its completion says more than that it is done."""
        return self.is_summary or self.batch > 0


COLUMNS = columns(Task)
# Settling does not need the payload, which may be large.
LIGHT_COLUMNS = COLUMNS.replace("payload_json", "'' AS payload_json")


class TaskFailure(msgspec.Struct, frozen=True):
    """A failed attempt of a task; a permanent failure is not retried.

    `unavailable` names the downstream that was not available, as the subscription's document does.
    """

    task_id: str
    error: str = ""
    permanent: bool = False
    unavailable: str = ""


class TaskReport(msgspec.Struct, frozen=True):
    """A report of a lease owner on its tasks: completed, failed, or released before the attempt began.

    `answered` has the ids of tasks that a downstream answered, by its name in the subscription's document.
    """

    completed: Sequence[str] = ()
    failed: Sequence[TaskFailure] = ()
    released: Sequence[str] = ()
    answered: Mapping[str, Sequence[str]] = {}


class RejectedReport(msgspec.Struct, frozen=True):
    """A report on a task that was rejected, and why; the task is unchanged."""

    task_id: str
    error: TapeError


class CompletedTask(msgspec.Struct, frozen=True, gc=False):
    """A completed task, without its content."""

    task_id: str
    reaction_id: str
    ordering_key: str = ""
    downstream: str = ""


class Settlement(msgspec.Struct):
    """The result of a report: changed tasks, rejections, and tasks that were completed without being loaded."""

    tasks: list[Task] = []
    rejected: list[RejectedReport] = []
    done: list[CompletedTask] = []


def find(reader: Reader | Transaction, task_id: str) -> Task | None:
    """The task with that id, or None. A task of an entry that the caller does not see does not exist for it."""
    task = load(Task, reader.one(f"SELECT {COLUMNS} FROM tape_tasks WHERE task_id = ?", task_id))
    return task if task is not None and current_principal().sees(task.tenant) and granted([task]) else None


def get(reader: Reader | Transaction, task_id: str) -> Task:
    """The task with that id; NotFound if there is none."""
    task = find(reader, task_id)
    if task is None:
        raise _not_found(task_id)
    return task


def visible_condition() -> tuple[str, list[str]]:
    """The condition that a task is of a tenant that the caller sees, and its parameters. Begins with AND."""
    tenant = current_principal().only_tenant
    return ("", []) if tenant is None else (" AND tenant = ?", [tenant])


def granted(found: list[Task]) -> list[Task]:
    """Those of the tasks whose entries are among the read grants of the caller."""
    grants = current_principal().read_grants
    return found if grants is None else [task for task in found if grants.matches(task.subject)]


def check_owner(owner: str) -> None:
    """Raise InvalidInput unless the lease has an owner."""
    if not owner:
        raise InvalidInput("owner is empty; a lease needs a name, for example that of the host and process.")


def check_lease_ms(lease_ms: int) -> int:
    """The lease duration in ms; 0 is the default. Raises InvalidInput if it is out of range."""
    if not 0 <= lease_ms <= MAX_LEASE_MS:
        raise InvalidInput(f"lease_ms {lease_ms} must lie between 0 and {MAX_LEASE_MS}; 0 means {DEFAULT_LEASE_MS}.")
    return lease_ms or DEFAULT_LEASE_MS


def settle_tasks(tx: Transaction, owner: str, report: TaskReport, now: int = 0, *, briefly: bool = False) -> Settlement:
    """Complete, fail and release tasks in one transaction. Tasks that are not leased to the owner are rejected.

    A report after the lease has expired is accepted while no other owner has claimed the task. Reports are
    idempotent: completing a task twice changes nothing. With `briefly`, completed tasks are not loaded.
    """
    now = now or now_ms()
    done = dict.fromkeys(report.completed)
    briefly = briefly and current_principal().read is None  # grants are checked on the subjects of loaded tasks
    settled = Settlement([], [], _complete(tx, owner, list(done), now) if briefly and done else [])
    for each in settled.done:
        del done[each.task_id]
    failures = {failure.task_id: failure for failure in report.failed if failure.task_id not in done}
    released = [task_id for task_id in dict.fromkeys(report.released) if task_id not in done | failures]
    found = _load(tx, LIGHT_COLUMNS, [*done, *failures, *released])
    finished = []
    for task_id in done:
        task = found.get(task_id)
        if task is not None and task.status == DONE and task.lease_owner == owner:
            settled.tasks.append(task)
        elif (rejection := _check_lease(task, task_id, owner)) is not None:
            settled.rejected.append(rejection)
        else:
            assert task is not None
            finished.append(task_id)
            settled.tasks.append(msgspec.structs.replace(task, status=DONE, completed_at_ms=now))
    _close(tx, [found[task_id] for task_id in finished], now)
    if report.answered:
        _record_answers(tx, report.answered, found, settled, now)
    if failures:
        _fail(tx, owner, found, failures.values(), settled, now, report.answered)
    for task_id in released:
        _release(tx, owner, found.get(task_id), task_id, settled)
    closed = [(task.reaction_id, task.ordering_key) for task in settled.tasks if task.status in (DONE, DLQ)]
    closed += [(task.reaction_id, task.ordering_key) for task in settled.done]
    task_order.release_next(tx, closed, now)
    return settled


def _record_answers(
    tx: Transaction, answered: Mapping[str, Sequence[str]], found: Mapping[str, Task], settled: Settlement, now: int
) -> None:
    """Record which downstreams answered. A task belongs to a subscription, whose downstreams the names are."""
    known = {task.task_id: task.downstream for task in found.values()}
    known |= {task.task_id: task.downstream for task in settled.done}
    running = [task_id for task_ids in answered.values() for task_id in task_ids if task_id not in known]
    known |= {task.task_id: task.downstream for task in _load(tx, LIGHT_COLUMNS, running).values()}
    names = {
        _sibling(known[task_id], downstream)
        for downstream, task_ids in answered.items()
        for task_id in task_ids
        if known.get(task_id)
    }
    downstreams.record_successes(tx, names, now)


def _sibling(qualified: str, downstream: str) -> str:
    """The qualified name of another downstream of the same subscription."""
    return downstreams.name_of(qualified.rpartition(downstreams.SEPARATOR)[0], downstream)


def _complete(tx: Transaction, owner: str, task_ids: Sequence[str], now: int) -> list[CompletedTask]:
    """Complete tasks that are leased to the owner, without loading them; not those with a shared command."""
    condition, ids = tx.is_any("task_id", task_ids)
    visible, tenant = visible_condition()
    rows = tx.query(
        f"UPDATE tape_tasks SET status = {DONE}, completed_at_ms = ? WHERE {condition}"
        f" AND status = {CLAIMED} AND lease_owner = ? AND is_summary = 0 AND batch = 0{visible}"
        " RETURNING task_id, reaction_id, ordering_key, downstream",
        now,
        ids,
        owner,
        *tenant,
    )
    return [CompletedTask(*row) for row in rows]


def _release(tx: Transaction, owner: str, task: Task | None, task_id: str, settled: Settlement) -> None:
    if (rejection := _check_lease(task, task_id, owner)) is not None:
        settled.rejected.append(rejection)
        return
    assert task is not None
    task = msgspec.structs.replace(
        task, status=PENDING, attempts=task.attempts - 1, lease_owner="", lease_expires_at_ms=0
    )
    _store_state(tx, task)
    tx.execute("UPDATE tape_tasks SET attempts = ? WHERE task_id = ?", task.attempts, task_id)
    settled.tasks.append(task)


def _fail(
    tx: Transaction,
    owner: str,
    found: dict[str, Task],
    failures: Iterable[TaskFailure],
    settled: Settlement,
    now: int,
    answered: Mapping[str, Sequence[str]],
) -> None:
    policies = _reactions(tx, {task.reaction_id for task in found.values()})
    for failure in failures:
        task = found.get(failure.task_id)
        if (rejection := _check_lease(task, failure.task_id, owner)) is not None:
            settled.rejected.append(rejection)
            continue
        assert task is not None
        reaction = policies[task.reaction_id]
        error = failure.error[:MAX_ERROR_CHARS].replace("\0", "\\u0000")
        if failure.unavailable and task.downstream:
            has_progressed = task.task_id in answered.get(failure.unavailable, ())
            if parked := _park(tx, task, failure.unavailable, error, now, has_progressed=has_progressed):
                settled.tasks.append(parked)
                continue
        is_dead = failure.permanent or task.attempts >= reaction.max_attempts
        is_held = bool(task.downstream and not is_dead and downstreams.find_held(tx, [task.downstream]))
        due = task_order.WAITS_MS if is_held else now + backoff_ms(reaction.retry_backoff_ms, task.attempts)
        task = msgspec.structs.replace(
            task,
            status=DLQ if is_dead else PENDING,
            next_attempt_at_ms=0 if is_dead else due,
            lease_owner="",
            lease_expires_at_ms=0,
            last_error=error,
            completed_at_ms=now if is_dead else 0,
        )
        _store_state(tx, task)
        if is_dead:
            commands.fail_run(tx, task)
        settled.tasks.append(task)


def _park(tx: Transaction, task: Task, downstream: str, error: str, now: int, *, has_progressed: bool) -> Task | None:
    """Let a task wait for its downstream, without counting the attempt.

    None if the attempt counts: another run has succeeded there since this task failed for the same reason, so it is the
    message and not the downstream. An attempt in which the downstream answered an earlier step does not count.
    """
    name = _sibling(task.downstream, downstream)
    before = downstreams.record_failure(tx, name, error, now)
    if 0 < task.unavailable_ms < before.last_success_ms and not has_progressed:
        tx.execute("UPDATE tape_tasks SET unavailable_ms = ? WHERE task_id = ?", now, task.task_id)
        return None
    task = msgspec.structs.replace(
        task,
        status=PENDING,
        attempts=task.attempts - 1,
        next_attempt_at_ms=task_order.WAITS_MS if before.held else now + _unavailable_retry_ms(task, now),
        lease_owner="",
        lease_expires_at_ms=0,
        last_error=error,
        downstream=name,
        unavailable_ms=now,
    )
    _store_state(tx, task)
    tx.execute(
        "UPDATE tape_tasks SET attempts = ?, downstream = ?, unavailable_ms = ? WHERE task_id = ?",
        task.attempts,
        name,
        now,
        task.task_id,
    )
    commands.park_run(tx, task, f"downstream/{downstream}")
    return task


def _unavailable_retry_ms(task: Task, now: int) -> int:
    least, most = RETRY_UNAVAILABLE_MS
    return min(max((now - task.source_ts_ms) // 10, least), most)


def _close(tx: Transaction, some: Sequence[Task], now: int) -> None:
    """Mark tasks as done, and end the runs of those whose command is shared: nothing needs the task of a summary."""
    shared = [task for task in some if task.is_shared]
    gone = set(commands.end_runs(tx, shared, now)) if shared else set()
    if gone:
        condition, ids = tx.is_any("task_id", list(gone))
        tx.execute(f"DELETE FROM tape_tasks WHERE {condition}", ids)
    if kept := [task.task_id for task in some if task.task_id not in gone]:
        condition, ids = tx.is_any("task_id", kept)
        tx.execute(f"UPDATE tape_tasks SET status = {DONE}, completed_at_ms = ? WHERE {condition}", now, ids)


def close_tasks(tx: Transaction, some: Sequence[Task], now: int) -> None:
    """Complete tasks whose runs have ended without them."""
    _close(tx, some, now)
    task_order.release_next(tx, [(task.reaction_id, task.ordering_key) for task in some], now)


def dead_letter(tx: Transaction, task: Task, error: str, now: int) -> None:
    """Dead-letter a task whose last allowed attempt was not reported."""
    task = msgspec.structs.replace(
        task,
        status=DLQ,
        next_attempt_at_ms=0,
        lease_owner="",
        lease_expires_at_ms=0,
        last_error=error,
        completed_at_ms=now,
    )
    _store_state(tx, task)
    task_order.release_next(tx, [(task.reaction_id, task.ordering_key)], now)
    commands.fail_run(tx, task)


def _store_state(tx: Transaction, task: Task) -> None:
    tx.execute(
        "UPDATE tape_tasks SET status = ?, next_attempt_at_ms = ?, lease_owner = ?, lease_expires_at_ms = ?,"
        " last_error = ?, completed_at_ms = ? WHERE task_id = ?",
        int(task.status),
        task.next_attempt_at_ms,
        task.lease_owner,
        task.lease_expires_at_ms,
        task.last_error,
        task.completed_at_ms,
        task.task_id,
    )


def renew_leases(tx: Transaction, owner: str, task_ids: Sequence[str], lease_ms: int, now: int = 0) -> Settlement:
    """Renew the leases of an owner's tasks; the number of attempts stays."""
    now = now or now_ms()
    wanted = dict.fromkeys(task_ids)
    found = _load(tx, COLUMNS, list(wanted))
    extended = Settlement([], [])
    expires = now + check_lease_ms(lease_ms)
    for task_id in wanted:
        task = found.get(task_id)
        if (rejection := _check_lease(task, task_id, owner)) is not None:
            extended.rejected.append(rejection)
        else:
            assert task is not None
            extended.tasks.append(msgspec.structs.replace(task, lease_expires_at_ms=expires))
    if extended.tasks:
        condition, ids = tx.is_any("task_id", [task.task_id for task in extended.tasks])
        tx.execute(f"UPDATE tape_tasks SET lease_expires_at_ms = ? WHERE {condition}", expires, ids)
    return extended


def _load(tx: Transaction, names: str, task_ids: Sequence[str]) -> dict[str, Task]:
    if not task_ids:
        return {}
    condition, ids = tx.is_any("task_id", task_ids)
    visible, tenant = visible_condition()
    rows = tx.query(f"SELECT {names} FROM tape_tasks WHERE {condition}{visible}", ids, *tenant)
    return {task.task_id: task for task in granted(load_all(Task, rows))}


def _reactions(tx: Transaction, reaction_ids: set[str]) -> dict[str, Reaction]:
    condition, ids = tx.is_any("reaction_id", list(reaction_ids))
    rows = tx.query(f"SELECT {REACTION_COLUMNS} FROM tape_reactions WHERE {condition}", ids)
    return {reaction.reaction_id: reaction for reaction in load_all(Reaction, rows)}


def _check_lease(task: Task | None, task_id: str, owner: str) -> RejectedReport | None:
    if task is None:
        return RejectedReport(task_id, _not_found(task_id))
    if task.status == CLAIMED and task.lease_owner == owner:
        return None
    lease_state = f"leased to {task.lease_owner!r}" if task.status == CLAIMED else task.status.name
    return RejectedReport(
        task_id, TaskNotHeld(f"lease mismatch: the task {task_id!r} is {lease_state}, not leased to {owner!r}.")
    )


def _not_found(task_id: str) -> NotFound:
    return NotFound(f"no such task: {task_id!r}.")
