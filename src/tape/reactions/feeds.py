"""Where tasks come from: pushed by the server, or asked for again and again where it cannot push."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

from tape.base.clock import now_ms
from tape.base.retry import RECONNECT, Backoff
from tape.client import AsyncTapeClient
from tape.errors import NotFound, NotServed, RpcFailed, TapeError, TaskNotHeld
from tape.proto import tape_pb2 as pb
from tape.reactions.consumer import Line, Reports
from tape.reactions.counters import Tally

log = logging.getLogger(__name__)

MAX_CLAIM = 1_000
# Statuses without an error of Tape's that are worth another attempt.
_PASSING = frozenset({"CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL", "RESOURCE_EXHAUSTED", "UNKNOWN"})


class Feed:
    """What a line is served by: a client, and the name that the leases are in."""

    def __init__(self, client: AsyncTapeClient, owner: str, tally: Tally, poll_interval_s: float) -> None:
        self.client = client
        self.owner = owner
        self.tally = tally
        self.poll_interval_s = poll_interval_s

    async def serve(self, line: Line) -> None:
        """Bring tasks to a line until it stops and all that it held is reported."""
        try:
            await push(self, line)
        except NotServed:
            log.info("this server does not push tasks; asking for them every %.3g s", self.poll_interval_s)
            self.tally.is_polling = True
            await poll(self, line)


def is_passing(error: TapeError) -> bool:
    """Whether it may go well the next time."""
    return error.retryable or (isinstance(error, RpcFailed) and error.grpc_status in _PASSING)


# ── pushed ───────────────────────────────────────────────────────────────────────────────────────


async def push(feed: Feed, line: Line) -> None:
    """Serve a line over the server's task stream; when that is lost, over a new one."""
    backoff = Backoff(RECONNECT)
    while True:
        try:
            async for reply in feed.client.dispatch_tasks(_requests(feed, line)):
                backoff.reset()
                line.settled(reply.settled)
                for refusal in reply.refused:
                    line.refused(refusal.task_id, refusal.error_message)
                line.take(reply.tasks)
        except TapeError as error:
            if not is_passing(error):
                raise
            log.warning("the task stream of %s was lost, connecting again: %s", line.reaction_id, error)
        if line.is_stopping and line.is_idle:
            return
        feed.tally.reconnects += 1
        await backoff.wait_async()
        line.resend()


async def _requests(feed: Feed, line: Line) -> AsyncIterator[pb.DispatchRequest]:
    """What the dispatcher says: first who it is, then reports, all that have gathered in one message."""
    window = line.window
    reports = line.reports()
    yield pb.DispatchRequest(
        owner=feed.owner,
        reaction_ids=[line.reaction_id],
        lease_ms=line.lease_ms,
        window=window or -1,
        completed=reports.completed,
        failed=reports.failed,
        released=reports.released,
        renew=list(line.held),  # handed out by an earlier stream, if there was one
    )
    while not (line.is_stopping and line.is_idle):
        await line.news.wait()
        line.news.clear()
        reports = line.reports()
        changed = 0 if line.window == window else line.window or -1
        window = line.window
        if changed or any(reports):
            yield pb.DispatchRequest(window=changed, **reports._asdict())


# ── asked for ────────────────────────────────────────────────────────────────────────────────────


async def poll(feed: Feed, line: Line, *, once: bool = False) -> None:
    """Serve a line by claiming; with `once`, until nothing is due any more."""
    backoff = Backoff(RECONNECT)
    while True:
        try:
            line.news.clear()
            await _send_reports(feed, line)
            if line.is_stopping and line.is_idle:
                return
            took = await _claim(feed, line)
            backoff.reset()
            if took:
                continue
            if once and line.is_idle and not await _is_anything_due(feed, line):
                return
        except TapeError as error:
            if not is_passing(error):
                raise
            log.warning("claiming tasks of %s failed, trying again: %s", line.reaction_id, error)
            feed.tally.reconnects += 1
            line.resend()
            await backoff.wait_async()
            continue
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(line.news.wait(), feed.poll_interval_s)


async def _claim(feed: Feed, line: Line) -> bool:
    room = min(line.room, MAX_CLAIM)
    if not room:
        return False
    answer = await feed.client.claim_tasks(
        reaction_id=line.reaction_id, owner=feed.owner, lease_ms=line.lease_ms, max=room
    )
    line.take(answer.tasks)
    return bool(answer.tasks)


async def _send_reports(feed: Feed, line: Line) -> None:
    reports = line.reports()
    if any(reports[:3]):
        try:
            answer = await feed.client.settle_tasks(
                owner=feed.owner, completed=reports.completed, failed=reports.failed, released=reports.released
            )
        except NotServed:
            await _settle_one_by_one(feed, line, reports)
        else:
            line.settled(answer.settled)
            for refusal in answer.refused:
                line.refused(refusal.task_id, refusal.error_message)
    for task_id in reports.renew:
        await _renew(feed, line, task_id)


async def _settle_one_by_one(feed: Feed, line: Line, reports: Reports) -> None:
    async def settle(task_id: str, failure: pb.TaskFailure | None) -> None:
        answer: Any
        try:
            if failure is None:
                answer = await feed.client.complete_task(task_id=task_id, owner=feed.owner)
            else:
                answer = await feed.client.nack_task(
                    task_id=task_id, owner=feed.owner, error=failure.error, permanent=failure.permanent
                )
        except (TaskNotHeld, NotFound) as error:
            line.refused(task_id, str(error))
        else:
            line.settled([answer.task])

    # Where a task cannot be given back it has to fail.
    failed = [pb.TaskFailure(task_id=task_id, error="given back unbegun") for task_id in reports.released]
    all_of_them: list[tuple[str, pb.TaskFailure | None]] = [(task_id, None) for task_id in reports.completed]
    all_of_them += [(failure.task_id, failure) for failure in (*reports.failed, *failed)]
    await asyncio.gather(*(settle(*each) for each in all_of_them))


async def _renew(feed: Feed, line: Line, task_id: str) -> None:
    """The lease begins anew by claiming again. An older server hands out another task instead: that is ours too."""
    try:
        answer = await feed.client.claim_tasks(
            reaction_id=line.reaction_id, owner=feed.owner, lease_ms=line.lease_ms, max=1, task_ids=[task_id]
        )
    except (TaskNotHeld, NotFound) as error:
        line.refused(task_id, str(error))
        return
    line.take(task for task in answer.tasks if task.task_id not in line.held)


async def _is_anything_due(feed: Feed, line: Line) -> bool:
    """Whether the server withholds something that is due, because of a rate or because others are at it."""
    answer = await feed.client.list_tasks(reaction_id=line.reaction_id, status=pb.TASK_STATUS_PENDING, limit=1_000)
    return any(task.next_attempt_at_ms <= now_ms() for task in answer.tasks)
