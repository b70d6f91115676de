"""Server streams that outlive their connection: they are opened again after the last entry that they returned."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

from tape.base.retry import RECONNECT, Backoff
from tape.client.channel import Channel
from tape.client.rpcs import ServerStreamRpc
from tape.errors import (
    RpcFailed,
    ServerStopping,
    ServerUnreachable,
    StoreBusy,
    StoreFull,
    StoreUnavailable,
    TapeError,
)

log = logging.getLogger(__name__)

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

# A stream that was lost is opened again for this long.
TIMEOUT_S = 30.0

_UNAVAILABLE = (ServerUnreachable, ServerStopping, StoreUnavailable, StoreBusy, StoreFull)


def is_outage(error: TapeError) -> bool:
    """Whether the server or its database is unavailable, so that the same stream may succeed later."""
    # A server that stops cancels the streams that have not ended after its grace period.
    return isinstance(error, _UNAVAILABLE) or (isinstance(error, RpcFailed) and error.grpc_status == "CANCELLED")


@dataclass(frozen=True)
class ResumableCall(Generic[Request, Response]):
    """A server-streaming RPC, and how its request is moved behind what was received.

    `begin` gets the request and the position at which the server began to read. `advance` gets the request and a
    response. `can_repeat` says whether the request as it is now leaves nothing out.
    """

    rpc: ServerStreamRpc[Request, Response]
    advance: Callable[[Request, Response], None]
    begin: Callable[[Request, int], None] = lambda request, position: None
    can_repeat: Callable[[Request], bool] = lambda request: True


class Resumptions:
    """Opens the streams of one client again, and counts how often, by RPC."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self.counts: Counter[str] = Counter()

    async def stream(
        self,
        channel: Channel,
        call: ResumableCall[Request, Response],
        request: Request,
        deadline_s: float | None = None,
    ) -> AsyncGenerator[Response, None]:
        """What the RPC returns, each response once and in order, until it ends.

        An outage before the server has accepted the call is raised at once. After that the stream is opened again
        until `timeout_s` have passed since it was lost; then the last error is raised. Other errors are final. The
        call as a whole takes no longer than `deadline_s`.
        """
        ends_at = None if deadline_s is None else time.monotonic() + deadline_s
        state = _StreamState(self.timeout_s)

        def opened(position: int) -> None:
            state.open()
            call.begin(request, position)

        while True:
            left = None if ends_at is None else max(ends_at - time.monotonic(), 0.0)
            try:
                async for response in channel.stream(call.rpc, request, left, on_open=opened):
                    state.open()
                    state.backoff.reset()
                    call.advance(request, response)
                    yield response
            except TapeError as error:
                is_first = state.is_open
                if not is_outage(error) or not call.can_repeat(request) or not state.may_resume():
                    raise
                self.count(call.rpc.name, error, is_first=is_first)
                await state.backoff.wait_async(error)
            else:
                return

    def count(self, name: str, error: TapeError, *, is_first: bool) -> None:
        """Count and log that a stream was lost and is opened again: a warning, then information while it lasts."""
        self.counts[name] += 1
        log.log(logging.WARNING if is_first else logging.INFO, "%s stream lost, resuming: %s", name, error)


class _StreamState:
    """Whether the server has accepted a stream, and since when it is lost."""

    def __init__(self, timeout_s: float) -> None:
        self.backoff = Backoff(RECONNECT)
        self.is_open = False
        self._timeout_s = timeout_s
        self._was_open = False
        self._lost_at = 0.0

    def open(self) -> None:
        """The server has accepted the call or sent something."""
        self.is_open = self._was_open = True

    def may_resume(self) -> bool:
        """Whether to open the stream again, now that it is lost."""
        if self.is_open:
            self.is_open, self._lost_at = False, time.monotonic()
        return self._was_open and time.monotonic() - self._lost_at < self._timeout_s
