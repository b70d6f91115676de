"""The consumer of one reaction in a dispatcher: its in-flight tasks and the reports to be sent.

A feed delivers tasks and sends the reports; the consumer runs the handlers within the limits of its reaction.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from tape.base.lease import renewal_interval_s
from tape.errors import DownstreamUnavailable, HandlerTimedOut, NeverRetry, RunInterrupted
from tape.model.task_pacing import pace
from tape.proto import tape_pb2 as pb
from tape.reactions.counters import Tally
from tape.reactions.invocation import HandlerInvoker, StillRunning, describe
from tape.reactions.slots import Slot, current_slot

log = logging.getLogger(__name__)

# A consumer that prefetches holds the tasks that its slots finish in this time, up to `prefetch` of them.
PREFETCH_S = 0.1
# A task that has waited this long for a slot is released: another dispatcher may have a free one.
MAX_WAIT_S = 0.5


class Outcome(Enum):
    """The report of a task that did not fail."""

    DONE = "done"
    RELEASED = "released before it began"


TaskReport = Outcome | pb.TaskFailure


class ReleaseTask(Exception):
    """Raised by a handler that cannot begin: its task is released, and no attempt is counted."""


class InFlightTask:
    """A task that this process has leased."""

    __slots__ = ("has_begun", "is_lost", "is_running", "leased_at", "since", "task", "waits_since", "work")

    def __init__(self, task: pb.Task) -> None:
        self.task = task
        self.since = self.leased_at = time.monotonic()
        self.has_begun = False  # to wait for its slot
        self.waits_since = 0.0  # when it began to wait for a slot; 0 while it does not
        self.is_running = False
        self.is_lost = False
        self.work: asyncio.Task[None] | None = None


class PendingReports(NamedTuple):
    """The reports to be sent: tasks by their ids, and failures."""

    completed: list[str]
    failed: list[pb.TaskFailure]
    released: list[str]
    renew: list[str]
    answered: list[pb.TaskAnswers]


class TaskConsumer:
    """Runs the tasks of one reaction. It never leases more than its window, nor runs more than its limits allow.

    With `prefetch`, handlers begin at once and acquire their slot themselves; up to that many more tasks are prepared
    meanwhile.
    """

    def __init__(
        self,
        reaction_id: str,
        invoke: HandlerInvoker,
        tally: Tally,
        *,
        max_concurrency: int = 1,
        rate_limit_per_s: int = 0,
        claim_max: int = 16,
        lease_ms: int = 60_000,
        prefetch: int = 0,
    ) -> None:
        self.reaction_id = reaction_id
        self.lease_ms = lease_ms
        self.is_stopping = False
        self.in_flight: dict[str, InFlightTask] = {}
        self.unsettled: dict[str, TaskReport] = {}  # reported, not yet confirmed by the server
        self.fresh: list[str] = []  # reported, not yet sent
        self.renewals: list[str] = []
        self.answers: dict[str, set[str]] = {}  # downstreams that answered a task, by its id
        self.changed = asyncio.Event()  # there are reports to send, or capacity for more tasks
        self._invoke = invoke
        self._tally = tally
        self.slots = asyncio.Semaphore(max_concurrency)
        self._rate = rate_limit_per_s
        self._next_us = 0
        self._full_window = max(min(claim_max, max_concurrency), 1)
        self._prefetch = prefetch
        self._mean_duration_s = 0.0  # moving average of the time that a slot is in use; 0 before the first
        self._stuck = 0

    @property
    def window(self) -> int:
        """The number of tasks it leases at most. A handler that hangs on its thread keeps its slot."""
        if self.is_stopping:
            return 0
        fetch = int(self._full_window * PREFETCH_S / self._mean_duration_s) if self._mean_duration_s else 0
        return max(self._full_window - self._stuck, 0) + min(self._prefetch, fetch)

    @property
    def capacity(self) -> int:
        """The number of tasks it accepts now."""
        return max(self.window - len(self.in_flight), 0)

    @property
    def is_idle(self) -> bool:
        """Whether no task is in flight and no report is unconfirmed."""
        return not self.in_flight and not self.unsettled

    # ── input from the feed ──────────────────────────────────────────────────────────────────────

    def accept(self, tasks: Iterable[pb.Task]) -> None:
        """Run these tasks in this order, within the limits."""
        for task in tasks:
            if self.is_stopping:  # it was sent before the server knew that the window is 0
                self._report(task.task_id, Outcome.RELEASED)
                continue
            item = InFlightTask(task)
            earlier = self.in_flight.get(task.task_id)
            if earlier is not None:  # the lease expired unnoticed, and the task was redelivered
                self._lose(earlier)
            self.in_flight[task.task_id] = item
            self._tally.in_flight += 1
            item.work = asyncio.create_task(self._run(item))

    def confirm(self, tasks: Iterable[pb.Task]) -> None:
        """The server has recorded the reports of these tasks."""
        for task in tasks:
            report = self.unsettled.pop(task.task_id, None)
            if report is None:
                continue  # confirmed already, before a connection was lost
            self.answers.pop(task.task_id, None)
            if report is Outcome.DONE:
                self._tally.done += 1
            elif report is Outcome.RELEASED:
                self._tally.released += 1
            else:
                self._tally.failed += 1
                if task.status == pb.TASK_STATUS_DLQ:
                    self._tally.dead += 1
                    log.error("task %s of %s is a dead letter: %s", task.task_id, self.reaction_id, task.last_error)
        self.changed.set()

    def reject(self, task_id: str, reason: str) -> None:
        """The server has rejected a report or a renewal: another dispatcher has the task, or it is settled."""
        if task_id in self.unsettled:
            del self.unsettled[task_id]
        elif task_id not in self.in_flight:
            return
        self.answers.pop(task_id, None)
        self._tally.lost += 1
        log.warning("lost the lease of task %s of %s: %s", task_id, self.reaction_id, reason)
        item = self.in_flight.get(task_id)
        if item is not None:
            self._lose(item)
        self.changed.set()

    # ── output for the feed ──────────────────────────────────────────────────────────────────────

    def reports(self) -> PendingReports:
        """Take the reports that were not sent yet."""
        fresh, self.fresh = self.fresh, []
        renewals, self.renewals = self.renewals, []
        renewals = [task_id for task_id in renewals if task_id in self.in_flight]
        reports = PendingReports([], [], [], renewals, self._answered([*fresh, *renewals]))
        for task_id in fresh:
            match self.unsettled.get(task_id):
                case Outcome.DONE:
                    reports.completed.append(task_id)
                case Outcome.RELEASED:
                    reports.released.append(task_id)
                case pb.TaskFailure() as failure:
                    reports.failed.append(failure)
        return reports

    def _answered(self, task_ids: Iterable[str]) -> list[pb.TaskAnswers]:
        """The answers to some tasks. A task that goes on reports its answers with each renewal of its lease."""
        by_name: dict[str, list[str]] = {}
        for task_id in task_ids if self.answers else ():
            for name in self.answers.get(task_id, ()):
                by_name.setdefault(name, []).append(task_id)
        return [pb.TaskAnswers(downstream=name, task_ids=ids) for name, ids in by_name.items()]

    def resend(self) -> None:
        """Send everything that is not confirmed again, after a lost connection."""
        self.fresh = list(self.unsettled)
        self.renewals = list(self.in_flight)
        self.changed.set()

    def renew_leases(self) -> None:
        """Renew leases of which a third has passed."""
        now = time.monotonic()
        lease_s = self.lease_ms / 1_000
        for task_id, item in self.in_flight.items():
            if now - item.leased_at >= renewal_interval_s(self.lease_ms):
                item.leased_at = now
                self.renewals.append(task_id)
                if item.is_running and now - item.since >= lease_s:
                    log.warning(
                        "the handler of %s has run task %s for %.0f s; renewing its lease",
                        self.reaction_id,
                        task_id,
                        now - item.since,
                    )
        if self.renewals:
            self.changed.set()

    def release_waiting(self) -> None:
        """Release prefetched tasks that have waited for a slot for more than MAX_WAIT_S."""
        now = time.monotonic()
        for item in list(self.in_flight.values()) if self._prefetch else ():
            if item.waits_since and now - item.waits_since >= MAX_WAIT_S:
                self._mean_duration_s = max(self._mean_duration_s, MAX_WAIT_S)
                self._cancel(item)

    # ── called by slots ──────────────────────────────────────────────────────────────────────────

    def record_duration(self, seconds: float) -> None:
        """Add the time that a slot was in use to the moving average."""
        self._mean_duration_s += (seconds - self._mean_duration_s) / 8 if self._mean_duration_s else max(seconds, 1e-6)

    async def wait_for_rate(self) -> None:
        """Wait for a token of the token bucket, which computes as the server does."""
        while self._rate:
            now_us = time.monotonic_ns() // 1_000
            allowed, self._next_us, again_us = pace(self._rate, self._next_us, now_us, 1)
            if allowed:
                return
            await asyncio.sleep(max(again_us - now_us, 1_000) / 1_000_000)

    # ── stopping ─────────────────────────────────────────────────────────────────────────────────

    def stop(self) -> None:
        """Accept no more tasks and release those that have not begun."""
        self.is_stopping = True
        for item in list(self.in_flight.values()):
            if not item.is_running:
                self._cancel(item)
        self.changed.set()

    def abandon(self) -> None:
        """Cancel the tasks that still run."""
        for item in list(self.in_flight.values()):
            self._cancel(item)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    async def _run(self, item: InFlightTask) -> None:
        task = item.task
        item.has_begun = True
        slot = Slot(self, item)
        current_slot.set(slot)
        report: TaskReport = Outcome.DONE
        try:
            if not self._prefetch:
                await slot.acquire()
            await self._invoke(task)
        except asyncio.CancelledError:
            report = _cancelled(task) if item.is_running else Outcome.RELEASED
        except ReleaseTask as error:
            log.info("releasing task %s of %s: %s", task.task_id, self.reaction_id, error)
            report = Outcome.RELEASED
        except DownstreamUnavailable as error:
            log.info("task %s of %s waits: %s", task.task_id, self.reaction_id, error)
            report = pb.TaskFailure(task_id=task.task_id, error=str(error), unavailable=error.downstream)
        except NeverRetry as error:
            report = pb.TaskFailure(task_id=task.task_id, error=str(error), permanent=True)
        except StillRunning as error:
            slot.detach()  # the thread keeps it until the handler returns
            self._wait_for(error.ended)
            report = self._failure(task, HandlerTimedOut(str(error)))
        except (Exception, RunInterrupted, SystemExit) as error:
            report = self._failure(task, error)
        finally:
            slot.release()
        self._finish(item, report)

    def _cancel(self, item: InFlightTask) -> None:
        assert item.work is not None
        item.work.cancel()
        if not item.has_begun:  # a coroutine that is cancelled before its first step never runs, and reports nothing
            item.has_begun = True
            self._finish(item, Outcome.RELEASED)

    def _finish(self, item: InFlightTask, report: TaskReport) -> None:
        self._tally.in_flight -= 1
        if not item.is_lost:
            del self.in_flight[item.task.task_id]
            self._report(item.task.task_id, report)

    def _report(self, task_id: str, report: TaskReport) -> None:
        self.unsettled[task_id] = report
        self.fresh.append(task_id)
        self.changed.set()

    def _failure(self, task: pb.Task, error: BaseException) -> pb.TaskFailure:
        text = describe(error)
        log.warning("task %s of %s failed (attempt %d): %s", task.task_id, self.reaction_id, task.attempts, text)
        log.debug("traceback of the failure", exc_info=error)
        return pb.TaskFailure(task_id=task.task_id, error=text)

    def _lose(self, item: InFlightTask) -> None:
        item.is_lost = True
        self.answers.pop(item.task.task_id, None)
        self.in_flight.pop(item.task.task_id, None)
        if self._invoke.is_async or not item.is_running:
            self._cancel(item)  # a thread cannot be cancelled: its result is ignored, and it keeps its slot

    def _wait_for(self, ended: asyncio.Future[object]) -> None:
        self._stuck += 1
        self._tally.stuck += 1

        def free_slot(future: asyncio.Future[object]) -> None:
            future.cancelled() or future.exception()  # the attempt was reported as failed, whatever the result is
            self._stuck -= 1
            self._tally.stuck -= 1
            self.slots.release()
            self.changed.set()

        ended.add_done_callback(free_slot)


def _cancelled(task: pb.Task) -> pb.TaskFailure:
    return pb.TaskFailure(task_id=task.task_id, error="the handler was cancelled before it was done")
