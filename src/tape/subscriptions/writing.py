"""Plans become runs in the server's own process, by its writer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from tape.errors import TapeError
from tape.playbooks.executing import Executed, ExecuteRequest, checked_request, execute_batch
from tape.store import Database
from tape.subscriptions.directives import Plan
from tape.subscriptions.dispatching import EMITTER
from tape.subscriptions.events import About
from tape.subscriptions.requesting import request_of
from tape.subscriptions.spool.draining import Replayed

# Room that a run takes beside its payload, for the limits of the writer.
RUN_OVERHEAD_BYTES = 2_048


class WriterDispatch:
    """Begins runs in this process. Plans that are given together, or wait at the same time, share a commit."""

    def __init__(
        self, database: Database, about: About, max_payload_bytes: int, *, batch_max: int = 1, worker_id: str = ""
    ) -> None:
        self._database = database
        self._about = about
        self._max_bytes = max_payload_bytes
        self._batch_max = batch_max
        self._worker_id = worker_id

    async def __call__(self, plans: Sequence[Plan]) -> list[Replayed]:
        """Begin the runs; each plan has its own answer."""
        answers: list[Replayed | None] = [None] * len(plans)
        good: list[tuple[int, ExecuteRequest, int]] = []
        for index, plan in enumerate(plans):
            body = request_of(self._about, plan, EMITTER, self._worker_id)
            try:
                request = checked_request(msgspec.convert(body, ExecuteRequest), self._max_bytes)
                good.append((index, request, len(msgspec.json.encode(plan.payload)) + RUN_OVERHEAD_BYTES))
            except TapeError as error:
                answers[index] = _failed(error)
        for (index, _, _), result in zip(good, await self._execute(good), strict=True):
            answers[index] = result
        return [answer or Replayed("away") for answer in answers]

    async def _execute(self, good: list[tuple[int, ExecuteRequest, int]]) -> list[Replayed]:
        if self._batch_max == 1:
            writes = (self._database.write_bulk(execute_batch, request, size) for _, request, size in good)
            return [_answer(result) for result in await asyncio.gather(*writes, return_exceptions=True)]
        answers: list[Replayed] = []
        for start in range(0, len(good), self._batch_max):
            answers += await self._execute_together(good[start : start + self._batch_max])
        return answers

    async def _execute_together(self, some: list[tuple[int, ExecuteRequest, int]]) -> list[Replayed]:
        requests = [request for _, request, _ in some]
        try:
            results = await self._database.write(lambda tx: execute_batch(tx, requests), sum(size for *_, size in some))
        except TapeError as error:
            return [_failed(error)] * len(some)
        return [_answer(result) for result in results]


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
