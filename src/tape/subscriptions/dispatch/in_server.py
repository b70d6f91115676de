"""Dispatch inside the server's process, through its writer."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import msgspec

from tape.base import structs
from tape.base.clock import now_ms
from tape.engine.executions.execute import ExecuteRequest, checked_request, execute_batch
from tape.engine.executions.outcomes import read_outcomes
from tape.engine.reactions import downstreams
from tape.engine.reactions.downstreams import DownstreamState
from tape.errors import ExecutionSkipped, TapeError
from tape.model.dispatch_result import RunDispatchResult
from tape.model.run_outcome import RunOutcome
from tape.store import Database
from tape.subscriptions.dispatch.holds import is_configuration_error
from tape.subscriptions.dispatch.http import BATCH_BYTES, EMITTER, REPLAYED_AT_ONCE
from tape.subscriptions.dispatch.outcomes import DownstreamCounts, ResumedRun
from tape.subscriptions.dispatch.request import request_of
from tape.subscriptions.events import SubscriptionRef
from tape.subscriptions.routing import Plan
from tape.subscriptions.spool.replay import batched, in_batches, named

# Bytes of a run beside its payload, for the limits of the writer.
RUN_OVERHEAD_BYTES = 2_048


class _Wanted(NamedTuple):
    request: ExecuteRequest
    size: int


class WriterDispatch:
    """Starts runs in this process. Plans that are dispatched together share a commit."""

    def __init__(
        self,
        database: Database,
        ref: SubscriptionRef,
        max_payload_bytes: int,
        *,
        batch_max: int = 1,
        worker_id: str = "",
        emitter: str = EMITTER,
    ) -> None:
        self._database = database
        self._ref = ref
        self._max_bytes = max_payload_bytes
        self._batch_max = batch_max
        self._worker_id = worker_id
        self._emitter = emitter

    async def __call__(self, plans: Sequence[Plan]) -> list[RunDispatchResult]:
        """Start the runs; one result per plan."""
        wanted = [self._wanted(plan) for plan in plans]
        good = [each for each in wanted if isinstance(each, _Wanted)]
        done = iter(await self._execute(good))
        return [next(done) if isinstance(each, _Wanted) else each for each in wanted]

    async def in_lanes(self, plans: Sequence[Plan], lanes: Sequence[Hashable]) -> list[RunDispatchResult]:
        """Start the runs in batches, each lane in order; after a failure the rest of its lane is skipped."""
        wanted = [self._wanted(plan, lane) for plan, lane in zip(plans, named(lanes), strict=True)]

        async def send(some: list[int]) -> list[RunDispatchResult]:
            answers: dict[int, RunDispatchResult] = {}
            going: dict[int, _Wanted] = {}
            stopped: set[Hashable] = set()
            for index in some:
                each = wanted[index]
                if lanes[index] in stopped:
                    answers[index] = RunDispatchResult("skipped")
                elif isinstance(each, _Wanted):
                    going[index] = each
                else:
                    answers[index] = each
                    stopped.add(lanes[index])
            answers |= zip(going, await self._execute_together(list(going.values())), strict=True)
            return [answers[index] for index in some]

        sizes = [each.size if isinstance(each, _Wanted) else 0 for each in wanted]
        return await in_batches(send, batched(sizes, REPLAYED_AT_ONCE, BATCH_BYTES), lanes)

    def _wanted(self, plan: Plan, lane: str = "") -> _Wanted | RunDispatchResult:
        body = request_of(self._ref, plan, self._emitter, self._worker_id) | ({"lane": lane} if lane else {})
        try:
            request = checked_request(structs.convert(body, ExecuteRequest), self._max_bytes)
        except TapeError as error:
            return _failed(error)
        return _Wanted(request, len(msgspec.json.encode(plan.payload)) + RUN_OVERHEAD_BYTES)

    async def _execute(self, good: list[_Wanted]) -> list[RunDispatchResult]:
        if self._batch_max == 1:
            writes = (self._database.write_bulk(execute_batch, request, size) for request, size in good)
            return [_answer(result) for result in await asyncio.gather(*writes, return_exceptions=True)]
        answers: list[RunDispatchResult] = []
        for some in batched([each.size for each in good], self._batch_max, BATCH_BYTES):
            answers += await self._execute_together([good[index] for index in some])
        return answers

    async def _execute_together(self, some: list[_Wanted]) -> list[RunDispatchResult]:
        if not some:
            return []
        requests = [request for request, _ in some]
        try:
            results = await self._database.write(lambda tx: execute_batch(tx, requests), sum(size for _, size in some))
        except TapeError as error:
            return [_failed(error)] * len(some)
        return [_answer(result) for result in results]


class WriterDownstreams:
    """The downstreams of a subscription, in the database of this process."""

    def __init__(self, database: Database, path: str) -> None:
        self._database = database
        self._path = path

    async def read(self) -> dict[str, DownstreamCounts]:
        """The counts by name."""
        rows = await self._database.read(lambda reader: downstreams.read_downstreams(reader, self._path))
        return {row.name.removeprefix(f"{self._path}{downstreams.SEPARATOR}"): _counts(row) for row in rows}

    async def hold(self, name: str) -> None:
        """Let the tasks of a downstream wait; called again, it renews the hold."""
        await self._database.write(lambda tx: downstreams.hold(tx, self._name(name), now_ms()))

    async def probe(self, name: str, *, may_repeat: bool) -> ResumedRun | None:
        """Let one waiting task of a held downstream go."""
        found = await self._database.write(
            lambda tx: downstreams.release_probe(tx, self._name(name), now_ms(), may_repeat=may_repeat)
        )
        return None if found is None else ResumedRun(int(found.run_id), found.message_id)

    async def release(self, name: str, limit: int) -> list[ResumedRun]:
        """Hold a downstream no longer, and let its waiting tasks go."""
        found = await self._database.write(lambda tx: downstreams.release(tx, self._name(name), now_ms(), limit))
        return [ResumedRun(int(each.run_id), each.message_id) for each in found]

    def _name(self, name: str) -> str:
        return downstreams.name_of(self._path, name)


class WriterOutcomes:
    """The outcomes of the runs of a subscription, in the database of this process."""

    def __init__(self, database: Database, path: str) -> None:
        self._database = database
        self._path = path

    async def read(self, execution_ids: Sequence[int]) -> dict[int, RunOutcome]:
        """The outcomes by execution id."""
        ids = [str(each) for each in execution_ids]
        found = await self._database.read(lambda reader: read_outcomes(reader, self._path, ids))
        return {int(run_id): outcome for run_id, outcome in found.items()}


def _counts(row: DownstreamState) -> DownstreamCounts:
    is_failing = row.failures > 0 and row.last_failure_ms >= row.last_success_ms
    return DownstreamCounts(
        row.failures, row.successes, is_failing, bool(row.held), bool(row.has_waiting), bool(row.is_probe_open)
    )


def _answer(result: Any) -> RunDispatchResult:
    if isinstance(result, RunDispatchResult):
        return result
    if isinstance(result, ExecutionSkipped):
        return RunDispatchResult("skipped")
    if isinstance(result, TapeError):
        return _failed(result)
    if isinstance(result, BaseException):
        raise result
    raise TypeError(f"an execution gave {result!r}")


def _failed(error: TapeError) -> RunDispatchResult:
    if is_configuration_error(error):
        return RunDispatchResult("misconfigured", error=str(error))
    return RunDispatchResult("unavailable" if error.retryable else "rejected", error=str(error))
