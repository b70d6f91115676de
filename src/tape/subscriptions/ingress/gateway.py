"""A gateway's connection to its server: it reads listeners from the server and sends messages there in batches.

Messages that arrive while a request is in flight share the next request, and one commit on the server.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from tape.base import structs
from tape.errors import ApiRefused, PayloadTooLarge, ServerUnreachable, TapeError
from tape.model.dispatch_result import RunDispatchResult
from tape.subscriptions.api_client import Control
from tape.subscriptions.dispatch.request import request_of
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.events import SubscriptionEvent
from tape.subscriptions.ingress.ingress import AdmittedMessage
from tape.subscriptions.ingress.listeners import Listener

EMITTER = "gateway_ingress"
WORKER = "gateway"
FRESH_S = 30.0
# Concurrent requests to the server. Messages that arrive meanwhile go with the next batch.
CONNECTIONS = 4
MAX_BATCH = 500
# The server accepts 2 MiB per request; 4 KiB are left for the frame.
MAX_BATCH_BYTES = (2 << 20) - 4_096


class RemoteListeners:
    """The listeners of a server."""

    def __init__(self, control: Control) -> None:
        self._control = control

    async def names(self) -> frozenset[str]:
        """The names of all listeners."""
        return frozenset((await self._control.ask("GET", "/api/internal/ingress"))["listeners"])

    async def fetch(self, name: str) -> Listener | None:
        """The current state of a listener."""
        try:
            found = await self._control.ask("GET", f"/api/internal/ingress/{quote(name, safe='')}")
        except ApiRefused as error:
            if error.http_status == 404:
                return None
            raise
        return Listener(
            name=name,
            subscription=structs.convert(found["subscription"], Subscription),
            subscription_id=int(found["subscription_id"]),
            state=found["state"],
            secrets=tuple(found["secrets"]),
            handshake_secrets=tuple(found.get("handshake_secrets", ())),
        )


async def post_events(control: Control, events: Sequence[SubscriptionEvent]) -> None:
    """Append events to the server's journal."""
    await asyncio.to_thread(control.post_events, events)


class _PendingRequest(NamedTuple):
    request: bytes
    result: asyncio.Future[RunDispatchResult]


class GatewayDispatch:
    """Starts runs on the server; returns once each message is durable there."""

    def __init__(self, control: Control, connections: int = CONNECTIONS) -> None:
        self._control = control
        self._free = connections
        self._waiting: deque[_PendingRequest] = deque()
        self._running: set[asyncio.Task[None]] = set()

    async def __call__(self, listener: Listener, admitted: AdmittedMessage) -> RunDispatchResult:
        request = msgspec.json.encode(request_of(listener.ref, admitted.plan, EMITTER, WORKER))
        if len(request) > MAX_BATCH_BYTES:
            raise PayloadTooLarge(f"The request has {len(request)} bytes; the limit is {MAX_BATCH_BYTES}.")
        waiting = _PendingRequest(request, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._free:
            self._free -= 1
            task = asyncio.create_task(self._send_batches())
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return await waiting.result

    async def close(self) -> None:
        """Wait for the requests in flight."""
        await asyncio.gather(*self._running)

    async def _send_batches(self) -> None:
        """Send batches until no request is pending."""
        try:
            while batch := self._next_batch():
                await self._send(batch)
        finally:
            self._free += 1

    def _next_batch(self) -> list[_PendingRequest]:
        batch: list[_PendingRequest] = []
        size = 0
        while self._waiting and len(batch) < MAX_BATCH and size + len(self._waiting[0].request) <= MAX_BATCH_BYTES:
            waiting = self._waiting.popleft()
            if not waiting.result.done():  # its sender is still connected
                batch.append(waiting)
                size += len(waiting.request) + 1
        return batch

    async def _send(self, batch: list[_PendingRequest]) -> None:
        body = b'{"executions":[%b]}' % b",".join(waiting.request for waiting in batch)
        answers: list[RunDispatchResult | TapeError]
        try:
            results = (await self._control.ask("POST", "/api/execute/batch", msgspec.Raw(body)))["results"]
            answers = [_result(each) for each in results]
            if len(answers) != len(batch):
                raise ServerUnreachable(f"{self._control.url} gave {len(answers)} answers to {len(batch)} messages.")
        except TapeError as error:
            answers = [error] * len(batch)
        except (KeyError, TypeError) as error:
            answers = [ServerUnreachable(f"{self._control.url} gave an invalid answer: {error!r}.")] * len(batch)
        for waiting, answer in zip(batch, answers, strict=True):
            if waiting.result.done():
                continue
            if isinstance(answer, TapeError):
                waiting.result.set_exception(answer)
            else:
                waiting.result.set_result(answer)


def _result(answer: dict[str, str]) -> RunDispatchResult | TapeError:
    if answer["status"] == "error":
        return ApiRefused(answer["error"], 422, answer.get("code", ""))
    return RunDispatchResult("duplicate" if answer["status"] == "duplicate" else "started", int(answer["execution_id"]))
