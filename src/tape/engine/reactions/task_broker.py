"""The task broker: pushes tasks to connected dispatchers as soon as they are due.

One claim round is one transaction for all dispatcher sessions: it writes their reports and lease renewals and
claims new tasks for them. Requests that arrive during a round go into the next one, so a busy server needs few
commits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Set

import msgspec

from tape.base.clock import now_ms
from tape.base.retry import WHILE_UNAVAILABLE, Backoff
from tape.engine.reactions import claims, tasks
from tape.engine.reactions.claims import ANY_SHARD, MAX_AT_ONCE, NO_NEW_TASKS, ClaimRequest, ClaimResult
from tape.engine.reactions.new_tasks import NewTasks
from tape.engine.reactions.task_order import CHANNEL
from tape.engine.reactions.tasks import Settlement, Task, TaskReport
from tape.errors import InvalidInput, NotFound, ServerStopping, TapeError
from tape.model.principal import acting_as, current_principal
from tape.model.reaction_states import TaskStatus
from tape.store import Database, Transaction

log = logging.getLogger(__name__)

MAX_WINDOW = 10_000


class DispatcherDelivery(msgspec.Struct):
    """The next message to a dispatcher: new tasks, and the results of its reports and lease renewals."""

    tasks: list[Task] = []
    settled: Settlement = msgspec.field(default_factory=lambda: Settlement([], []))
    renewed: Settlement = msgspec.field(default_factory=lambda: Settlement([], []))


class DispatcherSession:
    """One connected dispatcher. It never has more tasks in flight than its window."""

    def __init__(self, broker: TaskBroker, owner: str, reaction_ids: list[str], lease_ms: int, shard: int) -> None:
        self.owner = owner
        self.reaction_ids = reaction_ids
        self.lease_ms = lease_ms
        self.shard = shard
        self.window = 0
        self.in_flight: set[str] = set()
        self.reports: list[TaskReport] = []
        self.renewals: list[str] = []
        self.deliveries: asyncio.Queue[DispatcherDelivery | TapeError | None] = asyncio.Queue()
        self.is_writing = False
        self.is_closed = False
        # Claim rounds serve the sessions of several callers; each gets what its own may have.
        self.principal = current_principal()
        self._broker = broker

    @property
    def free_slots(self) -> int:
        """How many more tasks the dispatcher accepts."""
        return max(self.window - len(self.in_flight), 0)

    @property
    def has_reports(self) -> bool:
        """Whether reports or lease renewals wait to be written."""
        return bool(self.reports or self.renewals)

    @property
    def has_unanswered_reports(self) -> bool:
        """Whether the result of a report has not been sent yet."""
        return self.has_reports or self.is_writing or not self.deliveries.empty()

    def set_window(self, window: int) -> None:
        """Set the maximum number of tasks in flight; 0 pauses delivery."""
        if window > MAX_WINDOW:
            raise InvalidInput(f"window {window} must not be larger than {MAX_WINDOW}.")
        is_wider = window > self.window
        self.window = window
        if is_wider:
            self._broker.notify_ready(self.reaction_ids)

    def report(self, report: TaskReport, renewals: Iterable[str]) -> None:
        """Report the results of tasks, and renew the leases of those that are still in progress."""
        if report != TaskReport():
            self.reports.append(report)
        self.renewals += renewals
        self._broker.wake()

    def end_requests(self) -> None:
        """The dispatcher sends no more requests: let `next()` return None once what came before is delivered."""
        self.deliveries.put_nowait(None)

    async def next(self) -> DispatcherDelivery | None:
        """Wait for the next delivery; None when the dispatcher has sent its last request."""
        delivery = await self.deliveries.get()
        if isinstance(delivery, TapeError):
            raise delivery
        return delivery

    def close(self) -> None:
        """Stop delivery. Tasks in flight stay leased: the dispatcher may reconnect and report."""
        self._broker.remove_session(self)


class ClaimRound(msgspec.Struct):
    """The input of one claim round, and its result."""

    reports: list[tuple[DispatcherSession, list[TaskReport], list[str]]]
    sessions: list[DispatcherSession]
    ready: list[str]
    deliveries: dict[DispatcherSession, DispatcherDelivery] = {}
    now_ms: int = 0
    began_at: float = 0.0
    next_check_at_ms: dict[str, int] = {}
    unfinished: set[str] = set()
    dead_lettered: int = 0

    def monotonic_at(self, at_ms: int) -> float:
        """The monotonic time of a time that was computed in this round: waits ignore changes of the system clock."""
        return self.began_at + (at_ms - self.now_ms) / 1_000


class RoundLock:
    """Held by one claim round at a time. Any thread may try it; the event loop waits for it and releases it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = 0
        self._is_released = asyncio.Event()

    def try_acquire(self) -> bool:
        """Acquire the lock unless another round has it or waits for it."""
        return not self._waiting and self._lock.acquire(blocking=False)

    async def acquire(self) -> None:
        """Wait for the lock."""
        self._waiting += 1
        try:
            while not self._lock.acquire(blocking=False):
                self._is_released.clear()
                await self._is_released.wait()
        finally:
            self._waiting -= 1

    def release(self) -> None:
        """Let the next round begin."""
        self._lock.release()
        self._is_released.set()

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()


class TaskBroker:
    """Claims tasks for the dispatcher sessions of one server."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._metrics = database.metrics
        self._sessions: list[DispatcherSession] = []
        self._backoff = Backoff(WHILE_UNAVAILABLE)
        self._ready: dict[str, None] = {}
        self._next_check_at: dict[str, float] = {}
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._rotation = 0
        # Held during a claim round: the free slots of a session are exact only between rounds.
        self._round_lock = RoundLock()

    async def start(self) -> None:
        """Start to deliver tasks."""
        supervise = self._metrics.background.supervise
        self._tasks = [
            asyncio.create_task(supervise("task broker", self._run)),
            asyncio.create_task(supervise("task notifications", self._watch_other_servers)),
        ]

    async def close(self) -> None:
        """Stop to deliver tasks, and end every session with ServerStopping."""
        await self._round_lock.acquire()  # the current round is delivered; the lock is never released again
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for session in self._sessions:
            session.deliveries.put_nowait(ServerStopping("The server is shutting down; connect again."))

    def open_session(
        self, owner: str, reaction_ids: Iterable[str], lease_ms: int, shard: int = ANY_SHARD
    ) -> DispatcherSession:
        """Open a session for a dispatcher. Raises InvalidInput if it names no owner or no reaction."""
        tasks.check_owner(owner)
        wanted = list(dict.fromkeys(reaction_ids))
        if not wanted:
            raise InvalidInput("reaction_ids is empty; name at least one reaction.")
        session = DispatcherSession(self, owner, wanted, tasks.check_lease_ms(lease_ms), shard)
        self._sessions.append(session)
        self._metrics.dispatchers.set(len(self._sessions))
        return session

    def remove_session(self, session: DispatcherSession) -> None:
        """Remove a session as soon as its last reports are written."""
        session.is_closed = True
        session.window = 0
        self._drop_closed_sessions()

    def _drop_closed_sessions(self) -> None:
        self._sessions = [s for s in self._sessions if not s.is_closed or s.has_reports or s.is_writing]
        self._metrics.dispatchers.set(len(self._sessions))

    def notify_ready(self, reaction_ids: Iterable[str]) -> None:
        """Claim tasks of these reactions in the next round."""
        reactions = dict.fromkeys(reaction_ids)
        if self._sessions and reactions:
            self._ready.update(reactions)
            self._wake.set()

    def wake(self) -> None:
        """Run a claim round: a session has reports to write."""
        self._wake.set()

    # ── claim rounds within a transaction of the matcher ─────────────────────────────────────────

    @property
    def has_free_slots(self) -> bool:
        """Whether a dispatcher accepts more tasks."""
        return any(session.free_slots for session in self._sessions)

    def awaits(self, reaction_ids: Set[str]) -> bool:
        """Whether a dispatcher waits for tasks of one of these reactions."""
        return bool(self._waiting_for(reaction_ids))

    def begin_round(self, reaction_ids: Set[str]) -> ClaimRound | None:
        """Begin a round in a transaction that creates tasks of these reactions.

        It saves a commit between an entry and its handler. Call `commit_round` or `abort_round` afterwards. None if no
        dispatcher waits for such tasks, or another round is in progress.
        """
        if not self.awaits(reaction_ids) or not self._round_lock.try_acquire():
            return None
        self._ready.update(dict.fromkeys(reaction_ids))
        return self._gather_round()

    def join_round(self, reaction_ids: Set[str]) -> ClaimRound | None:
        """Begin such a round on the writer's thread: it claims tasks, and leaves reports to the next round."""
        if not self.awaits(reaction_ids) or not self._round_lock.try_acquire():
            return None
        return ClaimRound([], self._rotated(self._waiting_for(reaction_ids)), list(reaction_ids))

    def _waiting_for(self, reaction_ids: Set[str]) -> list[DispatcherSession]:
        return [
            session
            for session in self._sessions
            if session.free_slots and not reaction_ids.isdisjoint(session.reaction_ids)
        ]

    def commit_round(self, claim_round: ClaimRound) -> None:
        """Deliver the tasks of a committed round."""
        self._deliver_round(claim_round)
        self._round_lock.release()

    def abort_round(self, claim_round: ClaimRound) -> None:
        """Restore the requests of a round whose transaction was rolled back."""
        self._restore_round(claim_round)
        self._round_lock.release()

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._seconds_until_due())
            self._wake.clear()
            now = time.monotonic()
            for reaction_id, at in list(self._next_check_at.items()):
                if at <= now:
                    del self._next_check_at[reaction_id]
                    self._ready[reaction_id] = None
            async with self._round_lock:
                await self._run_round()

    async def _run_round(self) -> None:
        claim_round = self._gather_round()
        if not claim_round.reports and not claim_round.sessions:
            return
        try:
            await self._database.write(lambda tx: run_claim_round(tx, claim_round), size=1_024)
        except TapeError as error:
            log.warning("claim round failed, retrying: %s", error)
            self._restore_round(claim_round)
            await self._backoff.wait_async()
        except Exception:
            log.exception("claim round failed, retrying")
            self._restore_round(claim_round)
            await self._backoff.wait_async()
        else:
            self._backoff.reset()
            self._deliver_round(claim_round)

    def _seconds_until_due(self) -> float | None:
        if not self._next_check_at:
            return None
        return max(min(self._next_check_at.values()) - time.monotonic(), 0.0)

    def _gather_round(self) -> ClaimRound:
        reports = []
        for session in self._sessions:
            if session.has_reports:
                reports.append((session, session.reports, session.renewals))
                session.reports, session.renewals = [], []
                session.is_writing = True
        # A completed task frees a slot of its reaction and of its session, so its reaction is ready again.
        ready = list(self._ready)
        self._ready.clear()
        waiting = [
            session
            for session in self._rotated(self._sessions)
            if session.window and (session.free_slots or session.has_reports or reports)
        ]
        return ClaimRound(
            reports, waiting if ready or reports else [], ready, deliveries={}, next_check_at_ms={}, unfinished=set()
        )

    def _rotated(self, sessions: list[DispatcherSession]) -> list[DispatcherSession]:
        """The sessions, each time with another one first."""
        self._rotation += 1
        first = self._rotation % max(len(sessions), 1)
        return sessions[first:] + sessions[:first]

    def _restore_round(self, claim_round: ClaimRound) -> None:
        """Put reports, renewals and ready reactions of a failed round back: nothing of it was written."""
        for session, reports, renewals in claim_round.reports:
            session.reports[:0] = reports
            session.renewals[:0] = renewals
            session.is_writing = False
        self._ready.update(dict.fromkeys(claim_round.ready))
        self._wake.set()

    def _deliver_round(self, claim_round: ClaimRound) -> None:
        for session, *_ in claim_round.reports:
            session.is_writing = False
        next_checks = {
            reaction_id: claim_round.monotonic_at(at_ms) for reaction_id, at_ms in claim_round.next_check_at_ms.items()
        }
        self._next_check_at.update(next_checks)
        now = time.monotonic()
        for session, delivery in claim_round.deliveries.items():
            session.in_flight.difference_update(done.task_id for done in delivery.settled.done)
            self._metrics.tasks_settled.labels("DONE").inc(len(delivery.settled.done))
            for task in delivery.settled.tasks:
                session.in_flight.discard(task.task_id)
                self._metrics.tasks_settled.labels(task.status.name).inc()
                if task.status == TaskStatus.PENDING:
                    self._schedule(task.reaction_id, claim_round.monotonic_at(task.next_attempt_at_ms))
            for rejection in (*delivery.settled.rejected, *delivery.renewed.rejected):
                session.in_flight.discard(rejection.task_id)
            self._metrics.tasks_refused.inc(len(delivery.settled.rejected) + len(delivery.renewed.rejected))
            session.in_flight.update(task.task_id for task in delivery.tasks)
            self._metrics.tasks_claimed.inc(len(delivery.tasks))
            session.deliveries.put_nowait(delivery)
        self._metrics.tasks_settled.labels("DLQ").inc(claim_round.dead_lettered)
        self._drop_closed_sessions()
        # A session whose slots were freed by its own report may take more of the tasks that were ready before.
        if claim_round.unfinished and any(session.free_slots for session in self._sessions):
            self.notify_ready(claim_round.unfinished)
        for reaction_id, at in next_checks.items():
            if at <= now:
                self._ready[reaction_id] = None
                self._wake.set()

    def _schedule(self, reaction_id: str, at: float) -> None:
        self._next_check_at[reaction_id] = min(self._next_check_at.get(reaction_id, at), at)
        self._wake.set()

    async def _watch_other_servers(self) -> None:
        """Claim tasks that other servers created: on their notification, and by polling."""
        async for _ in self._database.changes(CHANNEL):
            free = [session for session in self._sessions if session.free_slots]
            wanted = list({reaction_id for session in free for reaction_id in session.reaction_ids})
            if not wanted:
                continue
            try:
                found = await self._database.read(lambda reader: claims.find_ready(reader, wanted, now_ms()))  # noqa: B023
            except TapeError as error:
                log.warning("looking for ready tasks failed, retrying: %s", error)
                continue
            if found:
                self.notify_ready(found)


def run_claim_round(tx: Transaction, claim_round: ClaimRound, new: NewTasks = NO_NEW_TASKS) -> None:
    """Write all reports, then claim ready tasks, also those that the transaction creates.

    A retry of the transaction starts from an empty result.
    """
    claim_round.deliveries, claim_round.next_check_at_ms = {}, {}
    claim_round.unfinished, claim_round.dead_lettered = set(), 0
    now = claim_round.now_ms = now_ms()
    claim_round.began_at = time.monotonic()
    freed: dict[DispatcherSession, int] = {}
    ready = dict.fromkeys(claim_round.ready)
    for session, reports, renewals in claim_round.reports:
        delivery = claim_round.deliveries[session] = DispatcherDelivery([])
        if reports:
            with acting_as(session.principal):
                settled = delivery.settled = tasks.settle_tasks(
                    tx, session.owner, _join_reports(reports), now, briefly=True
                )
            settled_ids = {done.task_id for done in settled.done}
            settled_ids |= {task.task_id for task in settled.tasks}
            settled_ids |= {rejection.task_id for rejection in settled.rejected}
            freed[session] = len(settled_ids & session.in_flight)
            ready |= dict.fromkeys(done.reaction_id for done in settled.done)
            ready |= dict.fromkeys(task.reaction_id for task in settled.tasks)
            # The other reactions of the session may have waited for its window only.
            if len(session.reaction_ids) > 1 and not session.free_slots:
                ready |= dict.fromkeys(session.reaction_ids)
        if renewals:
            with acting_as(session.principal):
                delivery.renewed = tasks.renew_leases(tx, session.owner, renewals, session.lease_ms, now)
    # What is ready for one tenant, or within some grants, may be exhausted for another.
    exhausted: set[tuple[str, str | None, tuple[str, ...] | None]] = set()
    for session in claim_round.sessions:
        reach = (session.principal.only_tenant, session.principal.read)
        free_slots = max(session.window - len(session.in_flight) + freed.get(session, 0), 0)
        for reaction_id in session.reaction_ids:
            if free_slots <= 0:
                break
            if reaction_id not in ready or (reaction_id, *reach) in exhausted:
                continue
            request = ClaimRequest(
                reaction_id, session.owner, session.lease_ms, min(free_slots, MAX_AT_ONCE), session.shard
            )
            with acting_as(session.principal):
                claimed = _claim(tx, request, now, new)
            claim_round.dead_lettered += claimed.dead_lettered
            if claimed.tasks:
                claim_round.deliveries.setdefault(session, DispatcherDelivery([])).tasks += claimed.tasks
                free_slots -= len(claimed.tasks)
            if len(claimed.tasks) == request.max:
                if request.max == MAX_AT_ONCE:
                    claim_round.unfinished.add(reaction_id)
            else:
                exhausted.add((reaction_id, *reach))
                if claimed.next_check_at_ms:
                    before = claim_round.next_check_at_ms.get(reaction_id, claimed.next_check_at_ms)
                    claim_round.next_check_at_ms[reaction_id] = min(before, claimed.next_check_at_ms)


def _join_reports(reports: list[TaskReport]) -> TaskReport:
    if len(reports) == 1:
        return reports[0]
    return TaskReport(
        [task_id for report in reports for task_id in report.completed],
        [failure for report in reports for failure in report.failed],
        [task_id for report in reports for task_id in report.released],
        _join_answers(reports),
    )


def _join_answers(reports: list[TaskReport]) -> dict[str, list[str]]:
    joined: dict[str, list[str]] = {}
    for report in reports:
        for name, task_ids in report.answered.items():
            joined.setdefault(name, []).extend(task_ids)
    return joined


def _claim(tx: Transaction, request: ClaimRequest, now: int, new: NewTasks) -> ClaimResult:
    try:
        return claims.claim_tasks(tx, request, now, new)
    except (InvalidInput, NotFound) as error:  # the reaction was resharded or deleted after the session began
        log.info("no tasks claimed for %s: %s", request.owner, error)
        return ClaimResult([])
