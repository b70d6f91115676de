"""Invokes a handler in its span, on the event loop or on a thread, with a timeout."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import traceback
from collections.abc import Callable
from typing import Any

from tape.base.telemetry.spans import child_span
from tape.base.telemetry.tracing import current_cause
from tape.errors import HandlerTimedOut
from tape.proto import tape_pb2 as pb
from tape.reactions.envelope import Envelope, entry_id, open_envelope
from tape.reactions.threads import Threads

Handler = Callable[[Envelope], Any]


class StillRunning(Exception):
    """A handler on a thread has timed out and cannot be cancelled; `ended` is done when it returns."""

    def __init__(self, limit: float, ended: asyncio.Future[Any]) -> None:
        super().__init__(f"the handler took longer than timeout_s {limit}; it is still running")
        self.ended = ended


class HandlerInvoker:
    """Runs a handler with the envelope of a task; its exceptions propagate. Only an `async def` can be cancelled."""

    def __init__(self, handler: Handler, name: str, threads: Threads, timeout_s: float = 0.0) -> None:
        self.is_async = any(map(inspect.iscoroutinefunction, (handler, getattr(handler, "__call__", None))))  # noqa: B004
        self._handler = handler
        self._name = f"tape task {name}"
        self._threads = threads
        self._limit = timeout_s or None

    async def __call__(self, task: pb.Task) -> None:
        envelope = open_envelope(task)
        token = current_cause.set(task.reaction_id)
        try:
            with child_span(self._name, task.trace_id, task.parent_span_id, _attributes(task)):
                if self.is_async:
                    await _on_the_loop(self._handler, envelope, self._limit)
                else:
                    await _on_a_thread(self._handler, envelope, self._limit, self._threads)
        finally:
            current_cause.reset(token)


async def _on_the_loop(handler: Handler, envelope: Envelope, limit: float | None) -> None:
    if limit is None:
        await handler(envelope)
        return
    try:
        async with asyncio.timeout(limit) as timer:
            await handler(envelope)
    except TimeoutError as error:
        if timer.expired():
            raise HandlerTimedOut(f"the handler took longer than timeout_s {limit} and was cancelled") from error
        raise


async def _on_a_thread(handler: Handler, envelope: Envelope, limit: float | None, threads: Threads) -> None:
    context = contextvars.copy_context()
    future = threads.submit(lambda: context.run(handler, envelope))
    if limit is None:
        result = await future
    else:
        done, _ = await asyncio.wait((future,), timeout=limit)
        if not done:
            raise StillRunning(limit, future)
        result = future.result()
    if inspect.isawaitable(result):  # a function that returns a coroutine, e.g. a partial or a wrapper
        await asyncio.wait_for(result, limit)


def _attributes(task: pb.Task) -> dict[str, Any]:
    return {
        "messaging.system": "tape",
        "messaging.operation.type": "process",
        "messaging.destination.name": task.subject,
        "messaging.message.id": entry_id(task.source_tenant, task.source_run_id, task.source_seq),
        "tape.reaction_id": task.reaction_id,
        "tape.task_id": task.task_id,
        "tape.global_seq": task.source_global_seq,
        "tape.attempt": task.attempts,
    }


def describe(error: BaseException) -> str:
    """An error in one line, with the file, line and function that raised it."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name})" if frames else text
