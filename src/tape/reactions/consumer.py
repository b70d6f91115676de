"""One reaction as a dispatcher serves it: the tasks it holds, what runs, and what is to be reported.

A feed brings tasks and takes the reports; a line runs the handlers, within the limits of its reaction.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from tape.errors import HandlerTimedOut, NeverRetry
from tape.model.task_pacing import pace
from tape.proto import tape_pb2 as pb
from tape.reactions.counters import Tally
from tape.reactions.invocation import Caller, StillRunning, describe
from tape.reactions.slots import Place, current_place

log = logging.getLogger(__name__)

# A lease is renewed when a third of it is over: two attempts may fail.
RENEWALS_PER_LEASE = 3
# A line that fetches ahead holds what its places get through in this time, and not more than it was told.
AHEAD_S = 0.1
# What has waited so long for a place is given back: somebody else may have one.
MAX_WAIT_S = 0.5


class Outcome(Enum):
    """What is reported of a task that did not fail."""

    DONE = "done"
    RELEASED = "given back unbegun"


Report = Outcome | pb.TaskFailure


class GiveBack(Exception):
    """For a handler that cannot begin: its task goes back, and no attempt is counted."""


class Held:
    """A task that is ours for now."""

    __slots__ = ("has_begun", "is_lost", "is_running", "leased_at", "since", "task", "waits_since", "work")

    def __init__(self, task: pb.Task) -> None:
        self.task = task
        self.since = self.leased_at = time.monotonic()
        self.has_begun = False  # to wait for its turn
        self.waits_since = 0.0  # for a place; 0: it does not
        self.is_running = False
        self.is_lost = False
        self.work: asyncio.Task[None] | None = None


class Reports(NamedTuple):
    """What is to be sent: tasks by their ids, and failures."""

    completed: list[str]
    failed: list[pb.TaskFailure]
    released: list[str]
    renew: list[str]


class Line:
    """Runs the tasks of one reaction. It never holds more than its window, nor runs more than its limits allow.

    With `ahead`, handlers begin at once and take their place themselves: up to so many more are prepared meanwhile.
    """

    def __init__(
        self,
        reaction_id: str,
        call: Caller,
        tally: Tally,
        *,
        max_concurrency: int = 1,
        rate_limit_per_s: int = 0,
        claim_max: int = 16,
        lease_ms: int = 60_000,
        ahead: int = 0,
    ) -> None:
        self.reaction_id = reaction_id
        self.lease_ms = lease_ms
        self.is_stopping = False
        self.held: dict[str, Held] = {}
        self.unsettled: dict[str, Report] = {}  # reported, not yet confirmed by the server
        self.fresh: list[str] = []  # reported, not yet sent
        self.renewals: list[str] = []
        self.news = asyncio.Event()  # there is something to send, or room for more
        self._call = call
        self._tally = tally
        self.places = asyncio.Semaphore(max_concurrency)
        self._rate = rate_limit_per_s
        self._next_us = 0
        self._full_window = max(min(claim_max, max_concurrency), 1)
        self._ahead = ahead
        self._usual_s = 0.0  # how long a place is taken, lately; 0 until one was
        self._stuck = 0

    @property
    def window(self) -> int:
        """How many tasks it takes at most. A handler that hangs on its thread keeps its place."""
        if self.is_stopping:
            return 0
        ahead = min(self._ahead, int(self._full_window * AHEAD_S / self._usual_s)) if self._usual_s else 0
        return max(self._full_window - self._stuck, 0) + ahead

    @property
    def room(self) -> int:
        """How many more it takes now."""
        return max(self.window - len(self.held), 0)

    @property
    def is_idle(self) -> bool:
        """Whether it holds nothing and owes no report."""
        return not self.held and not self.unsettled

    # ── what a feed brings ───────────────────────────────────────────────────────────────────────

    def take(self, tasks: Iterable[pb.Task]) -> None:
        """Run these, in this order, as far as the limits allow."""
        for task in tasks:
            if self.is_stopping:  # it was on its way when we said that we want no more
                self._report(task.task_id, Outcome.RELEASED)
                continue
            held = Held(task)
            before = self.held.get(task.task_id)
            if before is not None:  # our lease ran out unnoticed, and the task came to us again
                self._lose(before)
            self.held[task.task_id] = held
            self._tally.in_flight += 1
            held.work = asyncio.create_task(self._work(held))

    def settled(self, tasks: Iterable[pb.Task]) -> None:
        """The server has written these reports down."""
        for task in tasks:
            report = self.unsettled.pop(task.task_id, None)
            if report is None:
                continue  # confirmed already, before a connection was lost
            if report is Outcome.DONE:
                self._tally.done += 1
            elif report is Outcome.RELEASED:
                self._tally.released += 1
            else:
                self._tally.failed += 1
                if task.status == pb.TASK_STATUS_DLQ:
                    self._tally.dead += 1
                    log.error("task %s of %s is a dead letter: %s", task.task_id, self.reaction_id, task.last_error)
        self.news.set()

    def refused(self, task_id: str, reason: str) -> None:
        """The server says that a task is not ours: somebody else has it, or it is settled."""
        if task_id in self.unsettled:
            del self.unsettled[task_id]
        elif task_id not in self.held:
            return
        self._tally.lost += 1
        log.warning("task %s of %s is not ours any more: %s", task_id, self.reaction_id, reason)
        held = self.held.get(task_id)
        if held is not None:
            self._lose(held)
        self.news.set()

    # ── what a feed takes ────────────────────────────────────────────────────────────────────────

    def reports(self) -> Reports:
        """What is to be sent."""
        fresh, self.fresh = self.fresh, []
        renewals, self.renewals = self.renewals, []
        reports = Reports([], [], [], [task_id for task_id in renewals if task_id in self.held])
        for task_id in fresh:
            match self.unsettled.get(task_id):
                case Outcome.DONE:
                    reports.completed.append(task_id)
                case Outcome.RELEASED:
                    reports.released.append(task_id)
                case pb.TaskFailure() as failure:
                    reports.failed.append(failure)
        return reports

    def resend(self) -> None:
        """Nobody knows whether what was sent has arrived: all that is not confirmed goes out again."""
        self.fresh = list(self.unsettled)
        self.renewals = list(self.held)
        self.news.set()

    def renew_leases(self) -> None:
        """Ask for more time for what has been held for a while."""
        now = time.monotonic()
        lease_s = self.lease_ms / 1_000
        for task_id, held in self.held.items():
            if now - held.leased_at >= lease_s / RENEWALS_PER_LEASE:
                held.leased_at = now
                self.renewals.append(task_id)
                if held.is_running and now - held.since >= lease_s:
                    log.warning(
                        "the handler of %s has been at task %s for %.0f s; its lease goes on",
                        self.reaction_id,
                        task_id,
                        now - held.since,
                    )
        if self.renewals:
            self.news.set()

    def give_back(self) -> None:
        """Give back what was fetched ahead and waits behind work that turned out to take long."""
        now = time.monotonic()
        for held in list(self.held.values()) if self._ahead else ():
            if held.waits_since and now - held.waits_since >= MAX_WAIT_S:
                self._usual_s = max(self._usual_s, MAX_WAIT_S)
                self._cancel(held)

    # ── what a handler's place tells ─────────────────────────────────────────────────────────────

    def took(self, seconds: float) -> None:
        """A place was taken for so long."""
        self._usual_s += (seconds - self._usual_s) / 8 if self._usual_s else max(seconds, 1e-6)

    async def keep_pace(self) -> None:
        """Wait for a token of the bucket; the numbers are those of the server."""
        while self._rate:
            now_us = time.time_ns() // 1_000
            allowed, self._next_us, again_us = pace(self._rate, self._next_us, now_us, 1)
            if allowed:
                return
            await asyncio.sleep(max(again_us - now_us, 1_000) / 1_000_000)

    # ── stopping ─────────────────────────────────────────────────────────────────────────────────

    def stop(self) -> None:
        """Take nothing more and give back what has not begun."""
        self.is_stopping = True
        for held in list(self.held.values()):
            if not held.is_running:
                self._cancel(held)
        self.news.set()

    def abandon(self) -> None:
        """Give back what still runs: it has had its time."""
        for held in list(self.held.values()):
            self._cancel(held)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    async def _work(self, held: Held) -> None:
        task = held.task
        held.has_begun = True
        place = Place(self, held)
        current_place.set(place)
        report: Report = Outcome.DONE
        try:
            if not self._ahead:
                await place.take()
            await self._call(task)
        except asyncio.CancelledError:
            report = _cut_short(task) if held.is_running else Outcome.RELEASED
        except GiveBack as error:
            log.info("task %s of %s is given back: %s", task.task_id, self.reaction_id, error)
            report = Outcome.RELEASED
        except NeverRetry as error:
            report = pb.TaskFailure(task_id=task.task_id, error=str(error), permanent=True)
        except StillRunning as error:
            place.keep()  # until the handler is really over
            self._wait_for(error.ended)
            report = self._failure(task, HandlerTimedOut(str(error)))
        except (Exception, SystemExit) as error:
            report = self._failure(task, error)
        finally:
            place.leave()
        self._conclude(held, report)

    def _cancel(self, held: Held) -> None:
        assert held.work is not None
        held.work.cancel()
        if not held.has_begun:  # what is cancelled before its first step never takes one, and reports nothing
            held.has_begun = True
            self._conclude(held, Outcome.RELEASED)

    def _conclude(self, held: Held, report: Report) -> None:
        self._tally.in_flight -= 1
        if not held.is_lost:
            del self.held[held.task.task_id]
            self._report(held.task.task_id, report)

    def _report(self, task_id: str, report: Report) -> None:
        self.unsettled[task_id] = report
        self.fresh.append(task_id)
        self.news.set()

    def _failure(self, task: pb.Task, error: BaseException) -> pb.TaskFailure:
        text = describe(error)
        log.warning("task %s of %s failed (attempt %d): %s", task.task_id, self.reaction_id, task.attempts, text)
        log.debug("where it failed", exc_info=error)
        return pb.TaskFailure(task_id=task.task_id, error=text)

    def _lose(self, held: Held) -> None:
        held.is_lost = True
        self.held.pop(held.task.task_id, None)
        if self._call.is_async or not held.is_running:
            self._cancel(held)  # a thread cannot be stopped: its result is of no interest, and its place stays taken

    def _wait_for(self, ended: asyncio.Future[object]) -> None:
        self._stuck += 1
        self._tally.stuck += 1

        def is_over(future: asyncio.Future[object]) -> None:
            future.cancelled() or future.exception()  # whatever it is, the attempt was reported as failed
            self._stuck -= 1
            self._tally.stuck -= 1
            self.places.release()
            self.news.set()

        ended.add_done_callback(is_over)


def _cut_short(task: pb.Task) -> pb.TaskFailure:
    return pb.TaskFailure(task_id=task.task_id, error="the handler was cancelled before it was done")
