"""The other half of a gateway: what it knows of its server's listeners, and how messages get there.

Messages that arrive while others are on their way travel together: one request to the server, one commit there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote

import msgspec

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
# Requests to the server at the same time. What comes meanwhile goes with the next.
CONNECTIONS = 4
MAX_BATCH = 500
# What the server takes in one request, with some room.
MAX_BATCH_BYTES = (2 << 20) - 4_096


class RemoteListeners:
    """A source of listeners: the server's."""

    def __init__(self, control: Control) -> None:
        self._control = control

    async def names(self) -> frozenset[str]:
        """The listeners there are."""
        return frozenset((await self._control.ask("GET", "/api/internal/ingress"))["listeners"])

    async def fetch(self, name: str) -> Listener | None:
        """A listener as it is now."""
        try:
            found = await self._control.ask("GET", f"/api/internal/ingress/{quote(name, safe='')}")
        except ApiRefused as error:
            if error.http_status == 404:
                return None
            raise
        return Listener(
            name=name,
            subscription=msgspec.convert(found["subscription"], Subscription),
            subscription_id=int(found["subscription_id"]),
            state=found["state"],
            secrets=tuple(found["secrets"]),
        )


async def post_events(control: Control, to_emit: Sequence[SubscriptionEvent]) -> None:
    """Put events on the server's journal."""
    await asyncio.to_thread(control.post_events, to_emit)


class _PendingRequest(NamedTuple):
    request: bytes
    taken: asyncio.Future[RunDispatchResult]


class GatewayDispatch:
    """Has the server begin the runs of messages; each is answered when it is durable there."""

    def __init__(self, control: Control, lanes: int = CONNECTIONS) -> None:
        self._control = control
        self._free = lanes
        self._waiting: deque[_PendingRequest] = deque()
        self._running: set[asyncio.Task[None]] = set()

    async def __call__(self, listener: Listener, admitted: AdmittedMessage) -> RunDispatchResult:
        request = msgspec.json.encode(request_of(listener.ref, admitted.plan, EMITTER, WORKER))
        if len(request) > MAX_BATCH_BYTES:
            raise PayloadTooLarge(f"The message makes a request of {len(request)} bytes; {MAX_BATCH_BYTES} are taken.")
        waiting = _PendingRequest(request, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._free:
            self._free -= 1
            lane = asyncio.create_task(self._carry())
            self._running.add(lane)
            lane.add_done_callback(self._running.discard)
        return await waiting.taken

    async def close(self) -> None:
        """Wait for what is on its way."""
        await asyncio.gather(*self._running)

    async def _carry(self) -> None:
        """Carry batches until nothing waits."""
        try:
            while batch := self._next():
                await self._send(batch)
        finally:
            self._free += 1

    def _next(self) -> list[_PendingRequest]:
        batch: list[_PendingRequest] = []
        size = 0
        while self._waiting and len(batch) < MAX_BATCH and size + len(self._waiting[0].request) <= MAX_BATCH_BYTES:
            waiting = self._waiting.popleft()
            if not waiting.taken.done():  # its sender has not gone away
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
            answers = [ServerUnreachable(f"{self._control.url} gave an answer that makes no sense: {error!r}.")] * len(
                batch
            )
        for waiting, answer in zip(batch, answers, strict=True):
            if waiting.taken.done():
                continue
            if isinstance(answer, TapeError):
                waiting.taken.set_exception(answer)
            else:
                waiting.taken.set_result(answer)


def _result(answer: dict[str, str]) -> RunDispatchResult | TapeError:
    if answer["status"] == "error":
        return ApiRefused(answer["error"], 422)
    return RunDispatchResult("duplicate" if answer["status"] == "duplicate" else "started", int(answer["execution_id"]))
