"""The board: hands tasks to dispatchers that wait for them, as soon as there are any.

All that the open streams want at one moment (reports on tasks, renewals, new tasks) is one operation on
the database, so that a busy server needs few commits. What comes meanwhile is the next operation.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Set

import msgspec

from tape.base.clock import now_ms
from tape.base.retry import WHILE_UNAVAILABLE, Backoff
from tape.engine.reactions import claims, tasks
from tape.engine.reactions.claims import ANY_SHARD, MAX_AT_ONCE, Claimed, Want
from tape.engine.reactions.enqueue import CHANNEL
from tape.engine.reactions.tasks import Report, Settled, Task
from tape.errors import InvalidInput, NotFound, ServerStopping, TapeError
from tape.model.reaction_states import TaskStatus
from tape.store import Database, Transaction

log = logging.getLogger(__name__)

MAX_WINDOW = 10_000


class Delivery(msgspec.Struct):
    """What a dispatcher is told next."""

    tasks: list[Task] = []
    settled: Settled = msgspec.field(default_factory=lambda: Settled([], []))
    renewed: Settled = msgspec.field(default_factory=lambda: Settled([], []))


class Seat:
    """One dispatcher's place at the board. It never holds more tasks than its window."""

    def __init__(self, board: Board, owner: str, reaction_ids: list[str], lease_ms: int, shard: int) -> None:
        self.owner = owner
        self.reaction_ids = reaction_ids
        self.lease_ms = lease_ms
        self.shard = shard
        self.window = 0
        self.held: set[str] = set()
        self.reports: list[Report] = []
        self.renewals: list[str] = []
        self.deliveries: asyncio.Queue[Delivery | TapeError] = asyncio.Queue()
        self.is_being_written = False
        self.has_left = False
        self._board = board

    @property
    def room(self) -> int:
        """How many more tasks it takes."""
        return max(self.window - len(self.held), 0)

    @property
    def has_reports(self) -> bool:
        """Whether there is something to write down for it."""
        return bool(self.reports or self.renewals)

    @property
    def owes_an_answer(self) -> bool:
        """Whether a report of its has not been answered yet."""
        return self.has_reports or self.is_being_written or not self.deliveries.empty()

    def open_window(self, window: int) -> None:
        """Hold at most so many tasks from now on; 0 pauses."""
        if window > MAX_WINDOW:
            raise InvalidInput(f"window {window} must not be larger than {MAX_WINDOW}.")
        is_wider = window > self.window
        self.window = window
        if is_wider:
            self._board.stir(self.reaction_ids)

    def report(self, report: Report, renewals: Iterable[str]) -> None:
        """Say what became of tasks, and which are still being worked on."""
        if report != Report():
            self.reports.append(report)
        self.renewals += renewals
        self._board.wake()

    async def next(self) -> Delivery:
        """What there is to tell, as soon as there is anything."""
        delivery = await self.deliveries.get()
        if isinstance(delivery, TapeError):
            raise delivery
        return delivery

    def leave(self) -> None:
        """Take nothing more. What it holds stays leased: it may come back and report."""
        self._board.remove(self)


class Turn(msgspec.Struct):
    """What the board does in one operation, and what came of it."""

    reports: list[tuple[Seat, list[Report], list[str]]]
    seats: list[Seat]
    ready: list[str]
    deliveries: dict[Seat, Delivery] = {}
    again_at_ms: dict[str, int] = {}
    moved: set[str] = set()
    buried: int = 0


class Board:
    """One per server."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._metrics = database.metrics
        self._seats: list[Seat] = []
        self._backoff = Backoff(WHILE_UNAVAILABLE)
        self._ready: dict[str, None] = {}
        self._again_at_ms: dict[str, int] = {}
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._rotation = 0
        # Held while a turn is taken: what a seat has room for is true only between turns.
        self._turns = asyncio.Lock()

    async def start(self) -> None:
        """Begin to hand out."""
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._look())]

    async def close(self) -> None:
        """Hand out nothing more; every dispatcher is told to come back elsewhere."""
        await self._turns.acquire()  # what is being handed out arrives; nobody gives the lock back
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for seat in self._seats:
            seat.deliveries.put_nowait(ServerStopping("The server is shutting down; connect again."))

    def sit(self, owner: str, reaction_ids: Iterable[str], lease_ms: int, shard: int = ANY_SHARD) -> Seat:
        """A place for a dispatcher."""
        tasks.check_owner(owner)
        wanted = list(dict.fromkeys(reaction_ids))
        if not wanted:
            raise InvalidInput("reaction_ids is empty; name at least one reaction.")
        seat = Seat(self, owner, wanted, tasks.lease(lease_ms), shard)
        self._seats.append(seat)
        self._metrics.dispatchers.set(len(self._seats))
        return seat

    def remove(self, seat: Seat) -> None:
        """Forget a place, as soon as its last reports are written down."""
        seat.has_left = True
        seat.window = 0
        self._forget_those_who_left()

    def _forget_those_who_left(self) -> None:
        self._seats = [s for s in self._seats if not s.has_left or s.has_reports or s.is_being_written]
        self._metrics.dispatchers.set(len(self._seats))

    def stir(self, reaction_ids: Iterable[str]) -> None:
        """These reactions may have something to hand out."""
        news = dict.fromkeys(reaction_ids)
        if self._seats and news:
            self._ready.update(news)
            self._wake.set()

    def wake(self) -> None:
        """Somebody has something to report."""
        self._wake.set()

    # ── turns inside the operation of somebody else ──────────────────────────────────────────────

    async def join(self, reaction_ids: Set[str]) -> Turn | None:
        """A turn to take in an operation that makes tasks of these reactions, if a dispatcher waits for them.

        It saves a commit between an entry and its handler. Must be followed by `conclude` or `abandon`.
        """
        if self._turns.locked() or not any(
            seat.room and not reaction_ids.isdisjoint(seat.reaction_ids) for seat in self._seats
        ):
            return None
        await self._turns.acquire()
        self._ready.update(dict.fromkeys(reaction_ids))
        return self._gather()

    def conclude(self, turn: Turn) -> None:
        """The operation is committed: deliver."""
        self._finish(turn)
        self._turns.release()

    def abandon(self, turn: Turn) -> None:
        """The operation came to nothing."""
        self._take_back(turn)
        self._turns.release()

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._patience())
            self._wake.clear()
            now = now_ms()
            for reaction_id, at in list(self._again_at_ms.items()):
                if at <= now:
                    del self._again_at_ms[reaction_id]
                    self._ready[reaction_id] = None
            async with self._turns:
                await self._take_one()

    async def _take_one(self) -> None:
        turn = self._gather()
        if not turn.reports and not turn.seats:
            return
        try:
            await self._database.write(lambda tx: take_turn(tx, turn), size=1_024)
        except TapeError as error:
            log.warning("handing out tasks failed, trying again: %s", error)
            self._take_back(turn)
            await self._backoff.wait_async()
        except Exception:
            log.exception("handing out tasks failed, trying again")
            self._take_back(turn)
            await self._backoff.wait_async()
        else:
            self._backoff.reset()
            self._finish(turn)

    def _patience(self) -> float | None:
        if not self._again_at_ms:
            return None
        return max((min(self._again_at_ms.values()) - now_ms()) / 1_000, 0.0)

    def _gather(self) -> Turn:
        reports = []
        for seat in self._seats:
            if seat.has_reports:
                reports.append((seat, seat.reports, seat.renewals))
                seat.reports, seat.renewals = [], []
                seat.is_being_written = True
        # What is reported done frees a place, and perhaps room in the seat: so everyone reported on is ready.
        ready = list(self._ready)
        self._ready.clear()
        self._rotation += 1
        seats = self._seats
        if len(seats) > 1:
            turn = self._rotation % len(seats)
            seats = seats[turn:] + seats[:turn]
        waiting = [seat for seat in seats if seat.window and (seat.room or seat.has_reports or reports)]
        return Turn(reports, waiting if ready or reports else [], ready, {}, {}, set())

    def _take_back(self, turn: Turn) -> None:
        """The operation failed as a whole: nothing of it was written, and all of it is wanted still."""
        for seat, reports, renewals in turn.reports:
            seat.reports[:0] = reports
            seat.renewals[:0] = renewals
            seat.is_being_written = False
        self._ready.update(dict.fromkeys(turn.ready))
        self._wake.set()

    def _finish(self, turn: Turn) -> None:
        for seat, *_ in turn.reports:
            seat.is_being_written = False
        self._again_at_ms.update(turn.again_at_ms)
        now = now_ms()
        for seat, delivery in turn.deliveries.items():
            seat.held.difference_update(done.task_id for done in delivery.settled.done)
            self._metrics.tasks_settled.labels("DONE").inc(len(delivery.settled.done))
            for task in delivery.settled.tasks:
                seat.held.discard(task.task_id)
                self._metrics.tasks_settled.labels(task.status.name).inc()
                if task.status == TaskStatus.PENDING:
                    self._schedule(task.reaction_id, task.next_attempt_at_ms)
            for refusal in (*delivery.settled.refused, *delivery.renewed.refused):
                seat.held.discard(refusal.task_id)
            self._metrics.tasks_refused.inc(len(delivery.settled.refused) + len(delivery.renewed.refused))
            seat.held.update(task.task_id for task in delivery.tasks)
            self._metrics.tasks_claimed.inc(len(delivery.tasks))
            seat.deliveries.put_nowait(delivery)
        self._metrics.tasks_settled.labels("DLQ").inc(turn.buried)
        self._forget_those_who_left()
        # A seat whose room was freed by its own report may take more of what was ready before.
        if turn.moved and any(seat.room for seat in self._seats):
            self.stir(turn.moved)
        for reaction_id, at in turn.again_at_ms.items():
            if at <= now:
                self._ready[reaction_id] = None
                self._wake.set()

    def _schedule(self, reaction_id: str, at_ms: int) -> None:
        before = self._again_at_ms.get(reaction_id, 0)
        self._again_at_ms[reaction_id] = min(before, at_ms) if before else at_ms
        self._wake.set()

    async def _look(self) -> None:
        """Find out what other servers have made ready, when they say so and now and then."""
        async for _ in self._database.changes(CHANNEL):
            wanted = list({reaction_id for seat in self._seats if seat.room for reaction_id in seat.reaction_ids})
            if not wanted:
                continue
            try:
                found = await self._database.read(lambda reader: claims.ready(reader, wanted, now_ms()))  # noqa: B023
            except TapeError as error:
                log.warning("looking for tasks failed, trying again: %s", error)
                continue
            if found:
                self.stir(found)


def take_turn(tx: Transaction, turn: Turn) -> None:
    """Write down all reports, then hand out what is ready. The turn is filled in as if nothing was there before."""
    turn.deliveries, turn.again_at_ms, turn.moved, turn.buried = {}, {}, set(), 0
    now = now_ms()
    freed: dict[Seat, int] = {}
    ready = dict.fromkeys(turn.ready)
    for seat, reports, renewals in turn.reports:
        delivery = turn.deliveries[seat] = Delivery([])
        if reports:
            settled = delivery.settled = tasks.settle(tx, seat.owner, _joined(reports), now, briefly=True)
            gone = {done.task_id for done in settled.done}
            gone |= {task.task_id for task in settled.tasks}
            gone |= {refusal.task_id for refusal in settled.refused}
            freed[seat] = len(gone & seat.held)
            ready |= dict.fromkeys(done.reaction_id for done in settled.done)
            ready |= dict.fromkeys(task.reaction_id for task in settled.tasks)
            # Its other reactions may have waited for room in the window only.
            ready |= dict.fromkeys(seat.reaction_ids) if len(seat.reaction_ids) > 1 and not seat.room else {}
        if renewals:
            delivery.renewed = tasks.extend(tx, seat.owner, renewals, seat.lease_ms, now)
    for seat in turn.seats:
        room = max(seat.window - len(seat.held) + freed.get(seat, 0), 0)
        for reaction_id in seat.reaction_ids:
            if room <= 0:
                break
            if reaction_id not in ready:
                continue
            want = Want(reaction_id, seat.owner, seat.lease_ms, min(room, MAX_AT_ONCE), seat.shard)
            claimed = _claim(tx, want, now)
            turn.buried += claimed.buried
            if claimed.tasks:
                turn.deliveries.setdefault(seat, Delivery([])).tasks += claimed.tasks
                room -= len(claimed.tasks)
            if len(claimed.tasks) == want.max:
                if want.max == MAX_AT_ONCE:
                    turn.moved.add(reaction_id)
            else:
                del ready[reaction_id]
                if claimed.again_at_ms:
                    turn.again_at_ms[reaction_id] = claimed.again_at_ms


def _joined(reports: list[Report]) -> Report:
    if len(reports) == 1:
        return reports[0]
    return Report(
        [task_id for report in reports for task_id in report.completed],
        [failure for report in reports for failure in report.failed],
        [task_id for report in reports for task_id in report.released],
    )


def _claim(tx: Transaction, want: Want, now: int) -> Claimed:
    try:
        return claims.claim(tx, want, now)
    except (InvalidInput, NotFound) as error:  # the number of shards has changed since the seat was taken
        log.info("nothing to hand out: %s", error)
        return Claimed([])
