"""Feeds of tasks: pushed by the server, or polled from a server that cannot push."""

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
from tape.reactions.consumer import PendingReports, TaskConsumer
from tape.reactions.counters import Tally

log = logging.getLogger(__name__)

MAX_CLAIM = 1_000
# gRPC statuses without an error of Tape that are retried.
_TRANSIENT = frozenset({"CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL", "RESOURCE_EXHAUSTED", "UNKNOWN"})


class Feed:
    """Delivers tasks to consumers over one client, with leases of one owner."""

    def __init__(self, client: AsyncTapeClient, owner: str, tally: Tally, poll_interval_s: float) -> None:
        self.client = client
        self.owner = owner
        self.tally = tally
        self.poll_interval_s = poll_interval_s

    async def serve(self, consumer: TaskConsumer) -> None:
        """Deliver tasks to a consumer until it stops and has reported all its tasks."""
        try:
            await push(self, consumer)
        except NotServed:
            log.info("this server does not push tasks; polling every %.3g s", self.poll_interval_s)
            self.tally.is_polling = True
            await poll(self, consumer)


def is_transient(error: TapeError) -> bool:
    """Whether a retry may succeed."""
    return error.retryable or (isinstance(error, RpcFailed) and error.grpc_status in _TRANSIENT)


# ── push ─────────────────────────────────────────────────────────────────────────────────────────


async def push(feed: Feed, consumer: TaskConsumer) -> None:
    """Serve a consumer over the server's task stream, and over a new one after a disconnect."""
    backoff = Backoff(RECONNECT)
    while True:
        try:
            async for reply in feed.client.dispatch_tasks(_requests(feed, consumer)):
                backoff.reset()
                consumer.confirm(reply.settled)
                for refusal in reply.refused:
                    consumer.reject(refusal.task_id, refusal.error_message)
                consumer.accept(reply.tasks)
        except TapeError as error:
            if not is_transient(error):
                raise
            log.warning("the task stream of %s was lost, reconnecting: %s", consumer.reaction_id, error)
        if consumer.is_stopping and consumer.is_idle:
            return
        feed.tally.reconnects += 1
        await backoff.wait_async()
        consumer.resend()


async def _requests(feed: Feed, consumer: TaskConsumer) -> AsyncIterator[pb.DispatchRequest]:
    """The requests of a stream: first the subscription, then reports, all that are pending in one message."""
    window = consumer.window
    reports = consumer.reports()
    yield pb.DispatchRequest(
        owner=feed.owner,
        reaction_ids=[consumer.reaction_id],
        lease_ms=consumer.lease_ms,
        window=window or -1,
        completed=reports.completed,
        failed=reports.failed,
        released=reports.released,
        answered=reports.answered,
        renew=list(consumer.in_flight),  # delivered by an earlier stream
    )
    while not (consumer.is_stopping and consumer.is_idle):
        await consumer.changed.wait()
        consumer.changed.clear()
        reports = consumer.reports()
        changed = 0 if consumer.window == window else consumer.window or -1
        window = consumer.window
        if changed or any(reports):
            yield pb.DispatchRequest(window=changed, **reports._asdict())


# ── poll ─────────────────────────────────────────────────────────────────────────────────────────


async def poll(feed: Feed, consumer: TaskConsumer, *, once: bool = False) -> None:
    """Serve a consumer by claiming tasks; with `once`, until no task is due."""
    backoff = Backoff(RECONNECT)
    while True:
        try:
            consumer.changed.clear()
            await _send_reports(feed, consumer)
            if consumer.is_stopping and consumer.is_idle:
                return
            has_claimed = await _claim(feed, consumer)
            backoff.reset()
            if has_claimed:
                continue
            if once and consumer.is_idle and not await _is_anything_due(feed, consumer):
                return
        except TapeError as error:
            if not is_transient(error):
                raise
            log.warning("claiming tasks of %s failed, retrying: %s", consumer.reaction_id, error)
            feed.tally.reconnects += 1
            consumer.resend()
            await backoff.wait_async()
            continue
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(consumer.changed.wait(), feed.poll_interval_s)


async def _claim(feed: Feed, consumer: TaskConsumer) -> bool:
    limit = min(consumer.capacity, MAX_CLAIM)
    if not limit:
        return False
    answer = await feed.client.claim_tasks(
        reaction_id=consumer.reaction_id, owner=feed.owner, lease_ms=consumer.lease_ms, max=limit
    )
    consumer.accept(answer.tasks)
    return bool(answer.tasks)


async def _send_reports(feed: Feed, consumer: TaskConsumer) -> None:
    reports = consumer.reports()
    if any(reports[:3]):
        try:
            answer = await feed.client.settle_tasks(
                owner=feed.owner,
                completed=reports.completed,
                failed=reports.failed,
                released=reports.released,
                answered=reports.answered,
            )
        except NotServed:
            await _settle_one_by_one(feed, consumer, reports)
        else:
            consumer.confirm(answer.settled)
            for refusal in answer.refused:
                consumer.reject(refusal.task_id, refusal.error_message)
    for task_id in reports.renew:
        await _renew(feed, consumer, task_id)


async def _settle_one_by_one(feed: Feed, consumer: TaskConsumer, reports: PendingReports) -> None:
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
            consumer.reject(task_id, str(error))
        else:
            consumer.confirm([answer.task])

    # A server without SettleTasks cannot release a task: it has to fail.
    failed = [pb.TaskFailure(task_id=task_id, error="released before it began") for task_id in reports.released]
    settlements: list[tuple[str, pb.TaskFailure | None]] = [(task_id, None) for task_id in reports.completed]
    settlements += [(failure.task_id, failure) for failure in (*reports.failed, *failed)]
    await asyncio.gather(*(settle(*each) for each in settlements))


async def _renew(feed: Feed, consumer: TaskConsumer, task_id: str) -> None:
    """Renew a lease by claiming the task again. An older server returns another task instead, which is accepted."""
    try:
        answer = await feed.client.claim_tasks(
            reaction_id=consumer.reaction_id, owner=feed.owner, lease_ms=consumer.lease_ms, max=1, task_ids=[task_id]
        )
    except (TaskNotHeld, NotFound) as error:
        consumer.reject(task_id, str(error))
        return
    consumer.accept(task for task in answer.tasks if task.task_id not in consumer.in_flight)


async def _is_anything_due(feed: Feed, consumer: TaskConsumer) -> bool:
    """Whether the server has tasks that are due but not claimable, because of a rate limit or other dispatchers."""
    answer = await feed.client.list_tasks(reaction_id=consumer.reaction_id, status=pb.TASK_STATUS_PENDING, limit=1_000)
    return any(task.next_attempt_at_ms <= now_ms() for task in answer.tasks)
