"""The RPCs of tasks: claim and settle (single, batched, or pushed on a stream), and dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

import msgspec

from tape.engine.executions.retries import RetryFilter, retry_runs
from tape.engine.reactions import claims, dead_letters, registry, tasks
from tape.engine.reactions.claims import ANY_SHARD, ClaimRequest, ClaimResult
from tape.engine.reactions.dead_letters import DeadLetterFilter
from tape.engine.reactions.reaction import Reaction
from tape.engine.reactions.statistics import ReactionStatistics
from tape.engine.reactions.task_broker import DispatcherDelivery, DispatcherSession, TaskBroker
from tape.engine.reactions.tasks import RejectedReport, Settlement, Task, TaskFailure, TaskReport
from tape.errors import InvalidInput
from tape.journal.journal import Journal
from tape.model.entry import check_id
from tape.model.principal import current_principal
from tape.model.tenant_names import qualify
from tape.proto import tape_pb2 as pb
from tape.server.grpc.checks import check_time
from tape.server.grpc.messages import to_message
from tape.server.grpc.methods import Context
from tape.store import Reader, Transaction

DONE = pb.TASK_STATUS_DONE

R = TypeVar("R", Reaction, Task, ReactionStatistics)
C = TypeVar("C", ClaimRequest, DeadLetterFilter)


class TasksService:
    """RPCs of tasks, for dispatchers and operators."""

    def __init__(self, journal: Journal, task_broker: TaskBroker) -> None:
        self._database = journal.database
        self._metrics = journal.database.metrics
        self._task_broker = task_broker

    # ── for dispatchers ──────────────────────────────────────────────────────────────────────────

    async def claim_tasks(self, request: pb.ClaimTasksRequest, context: Context) -> pb.ClaimTasksResponse:
        """Claim tasks, and extend the owner's leases on others; with `task_ids`, renew the leases on these alone."""
        tasks.check_owner(request.owner)
        now = check_time("now_ms", request.now_ms)
        if request.task_ids:
            ids = list(request.task_ids)
            extended = await self._database.write(
                lambda tx: tasks.renew_leases(tx, request.owner, ids, request.lease_ms, now)
            )
            _raise_first(extended.rejected)
            return pb.ClaimTasksResponse(tasks=map(task_message, extended.tasks))
        want = ClaimRequest(request.reaction_id, request.owner, request.lease_ms, request.max, request.shard)
        claimed = await self._database.write(lambda tx: _claim(tx, _resolved(tx, want), now))
        self._metrics.tasks_claimed.inc(len(claimed.tasks))
        self._metrics.tasks_settled.labels("DLQ").inc(claimed.dead_lettered)
        return pb.ClaimTasksResponse(tasks=map(task_message, claimed.tasks))

    async def complete_task(self, request: pb.CompleteTaskRequest, context: Context) -> pb.CompleteTaskResponse:
        """Complete a task."""
        settled = await self._settle(request.owner, TaskReport(completed=[request.task_id]))
        _raise_first(settled.rejected)
        task = await self._database.read(lambda reader: tasks.get(reader, request.task_id))
        return pb.CompleteTaskResponse(task=task_message(task))

    async def nack_task(self, request: pb.NackTaskRequest, context: Context) -> pb.NackTaskResponse:
        """Report that an attempt of a task failed."""
        failure = TaskFailure(request.task_id, request.error, request.permanent)
        settled = await self._settle(request.owner, TaskReport(failed=[failure]))
        _raise_first(settled.rejected)
        task = await self._database.read(lambda reader: tasks.get(reader, request.task_id))
        return pb.NackTaskResponse(task=task_message(task))

    async def settle_tasks(self, request: pb.SettleTasksRequest, context: Context) -> pb.SettleTasksResponse:
        """Complete and nack many tasks in one commit."""
        settled = await self._settle(request.owner, _report(request))
        return pb.SettleTasksResponse(
            settled=map(task_message, settled.tasks), refused=map(_refusal_message, settled.rejected)
        )

    async def dispatch_tasks(
        self, requests: AsyncIterator[pb.DispatchRequest], context: Context
    ) -> AsyncIterator[pb.DispatchReply]:
        """Push tasks to a dispatcher and receive its reports."""
        first = await anext(aiter(requests), None)
        if first is None:
            return
        session = await self._open_session(first)
        listening = asyncio.create_task(self._listen(session, requests))
        listening.add_done_callback(lambda _: session.end_requests())
        try:
            session.set_window(max(first.window, 0))
            session.report(_report(first), first.renew)
            while (delivery := await session.next()) is not None:
                yield _reply(delivery)
            listening.result()  # raises what was wrong with a request of the dispatcher
            session.set_window(0)  # the dispatcher has half-closed the stream; its last reports are answered first
            while session.has_unanswered_reports:
                if (delivery := await session.next()) is not None:
                    yield _reply(delivery)
        finally:
            listening.cancel()
            session.close()

    async def _open_session(self, first: pb.DispatchRequest) -> DispatcherSession:
        shard = first.shard if first.is_one_shard else ANY_SHARD

        def find(reader: Reader) -> list[str]:
            found = [registry.get(reader, registry.resolve(reader, name)) for name in first.reaction_ids]
            for name, reaction in zip(first.reaction_ids, found, strict=True):
                if shard >= reaction.num_shards:
                    raise InvalidInput(f"shard {shard} does not exist: {name!r} has {reaction.num_shards} shards.")
            return [reaction.reaction_id for reaction in found]

        reaction_ids = await self._database.read(find)
        return self._task_broker.open_session(first.owner, reaction_ids, first.lease_ms, shard)

    async def _listen(self, session: DispatcherSession, requests: AsyncIterator[pb.DispatchRequest]) -> None:
        async for request in requests:
            if request.owner not in ("", session.owner):
                raise InvalidInput(f"owner {request.owner!r} differs from that of the stream, {session.owner!r}.")
            if request.window:
                session.set_window(max(request.window, 0))
            session.report(_report(request), request.renew)

    async def _settle(self, owner: str, report: TaskReport) -> Settlement:
        tasks.check_owner(owner)
        settled = await self._database.write(lambda tx: tasks.settle_tasks(tx, owner, report))
        for task in settled.tasks:
            self._metrics.tasks_settled.labels(task.status.name).inc()
        self._metrics.tasks_refused.inc(len(settled.rejected))
        self._task_broker.notify_ready({task.reaction_id for task in settled.tasks})
        return settled

    # ── for operators ───────────────────────────────────────────────────────────────────────────────

    async def list_tasks(self, request: pb.ListTasksRequest, context: Context) -> pb.ListTasksResponse:
        """A reaction's tasks, the newest first."""
        found = await self._database.read(
            lambda reader: dead_letters.list_tasks(
                reader,
                registry.resolve(reader, request.reaction_id),
                status=request.status,
                before=request.before_global_seq,
                limit=request.limit,
            )
        )
        return pb.ListTasksResponse(tasks=map(task_message, found))

    async def get_task(self, request: pb.GetTaskRequest, context: Context) -> pb.Task:
        """One task."""
        return task_message(await self._database.read(lambda reader: tasks.get(reader, request.task_id)))

    async def redrive_tasks(self, request: pb.RedriveTasksRequest, context: Context) -> pb.RedriveTasksResponse:
        """Make dead letters pending again."""
        moved = await self._database.write(
            lambda tx: dead_letters.redrive(
                tx,
                task_ids=request.task_ids,
                which=_resolved(tx, _filter(request.filter)),
                everything=request.everything,
                limit=request.limit,
            )
        )
        self._task_broker.notify_ready(moved.reaction_ids)
        return pb.RedriveTasksResponse(redriven=moved.count, more=moved.more)

    async def retry_runs(self, request: pb.RetryRunsRequest, context: Context) -> pb.RetryRunsResponse:
        """Begin failed runs again under their ids, or let cancelled and stuck ones go on."""
        check_id("subscription", request.subscription)
        which = RetryFilter(qualify(request.subscription), check_time("ended_after_ms", request.ended_after_ms))
        run_ids = list(request.run_ids)
        found = await self._database.write(
            lambda tx: retry_runs(
                tx,
                run_ids=run_ids,
                which=which,
                limit=request.limit,
                is_dry_run=request.dry_run,
                is_resume=request.resume,
            )
        )
        self._task_broker.notify_ready(found.reaction_ids)
        return pb.RetryRunsResponse(runs=[pb.RunRetry(**each._asdict()) for each in found.runs], more=found.more)

    async def drop_tasks(self, request: pb.DropTasksRequest, context: Context) -> pb.DropTasksResponse:
        """Mark dead letters as failed, with a reason."""
        moved = await self._database.write(
            lambda tx: dead_letters.drop(
                tx,
                task_ids=request.task_ids,
                which=_resolved(tx, _filter(request.filter)),
                everything=request.everything,
                limit=request.limit,
                reason=request.reason,
            )
        )
        self._metrics.tasks_settled.labels("FAILED").inc(moved.count)
        return pb.DropTasksResponse(dropped=moved.count, more=moved.more)


def task_message(task: Task) -> pb.Task:
    """A task on the wire."""
    tenant = task.tenant if current_principal().reads_several_tenants else ""
    return to_message(pb.Task, displayed(task), source_tenant=tenant)


def displayed(record: R) -> R:
    """The record with its reaction's id as the caller knows it."""
    name = registry.display_reaction(record.reaction_id)
    return record if name == record.reaction_id else msgspec.structs.replace(record, reaction_id=name)


def _resolved(tx: Transaction, named: C) -> C:
    """The request or filter with the id of the reaction that it names."""
    return msgspec.structs.replace(named, reaction_id=registry.resolve(tx, named.reaction_id))


def _claim(tx: Transaction, request: ClaimRequest, now: int) -> ClaimResult:
    claims.extend_leases(tx, request, now)
    return claims.claim_tasks(tx, request, now)


def _reply(delivery: DispatcherDelivery) -> pb.DispatchReply:
    return pb.DispatchReply(
        tasks=map(task_message, delivery.tasks),
        settled=(
            *(
                pb.Task(task_id=done.task_id, reaction_id=registry.display_reaction(done.reaction_id), status=DONE)
                for done in delivery.settled.done
            ),
            *map(task_message, delivery.settled.tasks),
        ),
        renewed=map(task_message, delivery.renewed.tasks),
        refused=map(_refusal_message, (*delivery.settled.rejected, *delivery.renewed.rejected)),
    )


def _refusal_message(refusal: RejectedReport) -> pb.TaskRefusal:
    return pb.TaskRefusal(task_id=refusal.task_id, error_code=refusal.error.code, error_message=str(refusal.error))


def _report(request: pb.DispatchRequest | pb.SettleTasksRequest) -> TaskReport:
    failed = [
        TaskFailure(failure.task_id, failure.error, failure.permanent, failure.unavailable)
        for failure in request.failed
    ]
    answered = {each.downstream: list(each.task_ids) for each in request.answered}
    for name in answered:
        check_id("answered.downstream", name)
    return TaskReport(list(request.completed), failed, list(request.released), answered)


def _filter(on_wire: pb.TaskFilter) -> DeadLetterFilter:
    return DeadLetterFilter(
        on_wire.reaction_id,
        on_wire.error_contains,
        on_wire.subject_pattern,
        on_wire.created_after_ms,
        on_wire.created_before_ms,
    )


def _raise_first(refused: list[RejectedReport]) -> None:
    if refused:
        raise refused[0].error
