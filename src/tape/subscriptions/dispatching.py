"""How plans become runs: by the writer of this process, or by a server over HTTP.

Both answer for each plan: `started` and `duplicate` are durable, `refused` is the plan's own fault and will not get
better, `away` means that nobody could say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from tape.errors import ApiRefused, ServerUnreachable, TapeError
from tape.playbooks.executing import Executed, ExecuteRequest, checked_request, execute_batch
from tape.store import Database
from tape.subscriptions.control import Control
from tape.subscriptions.directives import Plan
from tape.subscriptions.events import About
from tape.subscriptions.requesting import request_of
from tape.subscriptions.spool.draining import Replayed

EMITTER = "subscription_runtime"
# Room that a run takes beside its payload, for the limits of the writer.
RUN_OVERHEAD_BYTES = 2_048
# A batch request of more than this is sent in several; the server takes 2 MiB.
BATCH_BYTES = 1_500_000
CONCURRENCY = 16
# What the server says of a request that no repetition makes better.
_REFUSALS = frozenset({400, 404, 409, 413, 422})


class WriterDispatch:
    """Begins runs in this process. Plans that are given together, or wait at the same time, share a commit."""

    def __init__(self, database: Database, about: About, max_payload_bytes: int, *, is_batched: bool) -> None:
        self._database = database
        self._about = about
        self._max_bytes = max_payload_bytes
        self._is_batched = is_batched

    async def __call__(self, plans: Sequence[Plan]) -> list[Replayed]:
        """Begin the runs; each plan has its own answer."""
        answers: list[Replayed | None] = [None] * len(plans)
        good: list[tuple[int, ExecuteRequest, int]] = []
        for index, plan in enumerate(plans):
            body = request_of(self._about, plan, EMITTER)
            try:
                request = checked_request(msgspec.convert(body, ExecuteRequest), self._max_bytes)
                good.append((index, request, len(msgspec.json.encode(plan.payload)) + RUN_OVERHEAD_BYTES))
            except TapeError as error:
                answers[index] = _failed(error)
        for (index, _, _), result in zip(good, await self._execute(good), strict=True):
            answers[index] = result
        return [answer or Replayed("away") for answer in answers]

    async def _execute(self, good: list[tuple[int, ExecuteRequest, int]]) -> list[Replayed]:
        if not good:
            return []
        if not self._is_batched:
            writes = (self._database.write_bulk(execute_batch, request, size) for _, request, size in good)
            return [_answer(result) for result in await asyncio.gather(*writes, return_exceptions=True)]
        requests = [request for _, request, _ in good]
        try:
            results = await self._database.write(lambda tx: execute_batch(tx, requests), sum(size for *_, size in good))
        except TapeError as error:
            return [_failed(error)] * len(good)
        return [_answer(result) for result in results]


class ServerDispatch:
    """Begins runs on a server, through `POST /api/execute` or, in batches, `POST /api/execute/batch`."""

    def __init__(self, control: Control, about: About, *, batch_max: int = 1, concurrency: int | None = None) -> None:
        self._control = control
        self._about = about
        self._batch_max = batch_max
        self._places = asyncio.Semaphore(concurrency or CONCURRENCY)

    async def __call__(self, plans: Sequence[Plan]) -> list[Replayed]:
        """Begin the runs, in batches one after the other, or several requests at a time."""
        requests = [request_of(self._about, plan, EMITTER) for plan in plans]
        if self._batch_max == 1 or len(requests) == 1:
            return list(await asyncio.gather(*map(self._one, requests)))
        answers: list[Replayed] = []
        for some in self._chunks(requests):
            answers += await self._many(some)
        return answers

    async def _one(self, request: dict[str, Any]) -> Replayed:
        async with self._places:
            try:
                return _told(await self._control.ask("POST", "/api/execute", request))
            except ApiRefused as error:
                return Replayed("refused" if error.http_status in _REFUSALS else "away", error=str(error))
            except ServerUnreachable as error:
                return Replayed("away", error=str(error))

    async def _many(self, requests: list[dict[str, Any]]) -> list[Replayed]:
        try:
            said = await self._control.ask("POST", "/api/execute/batch", {"executions": requests})
        except ApiRefused as error:
            if error.http_status in _REFUSALS and len(requests) > 1:
                # The batch as a whole was not taken: one by one, the fault is found with whom it lies.
                return list(await asyncio.gather(*map(self._one, requests)))
            return [Replayed("away", error=str(error))] * len(requests)
        except ServerUnreachable as error:
            return [Replayed("away", error=str(error))] * len(requests)
        return [_told(each) for each in said["results"]]

    def _chunks(self, requests: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        chunks: list[list[dict[str, Any]]] = []
        size = 0
        for request in requests:
            weight = len(msgspec.json.encode(request))
            if not chunks or len(chunks[-1]) >= self._batch_max or size + weight > BATCH_BYTES:
                chunks.append([])
                size = 0
            chunks[-1].append(request)
            size += weight
        return chunks


def _answer(result: Any) -> Replayed:
    if isinstance(result, Executed):
        return Replayed(result.status, int(result.execution_id))
    if isinstance(result, TapeError):
        return _failed(result)
    if isinstance(result, BaseException):
        raise result
    raise TypeError(f"an execution gave {result!r}")


def _failed(error: TapeError) -> Replayed:
    return Replayed("away" if error.retryable else "refused", error=str(error))


def _told(said: dict[str, Any]) -> Replayed:
    if said.get("status") in ("started", "duplicate"):
        return Replayed(said["status"], int(said["execution_id"]))
    return Replayed("refused", error=str(said.get("error", "the server did not say why")))
