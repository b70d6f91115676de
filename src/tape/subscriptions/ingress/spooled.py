"""Push with a spool: a delivery that cannot become a run now is kept, and its sender is told that it was accepted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from tape.base.telemetry.metrics import Metrics
from tape.errors import ApiRefused, SpoolFull, TapeError
from tape.model.dispatch_result import RunDispatchResult
from tape.subscriptions.dispatch.assembly import forwarder_of
from tape.subscriptions.dispatch.forwarder import Forwarder
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.ingress.ingress import AdmittedMessage, IngressDispatch
from tape.subscriptions.ingress.listeners import Listener, ListenerSource
from tape.subscriptions.message import SourceMessage
from tape.subscriptions.routing import Plan
from tape.subscriptions.spool.replay import LaneDispatch
from tape.subscriptions.spool.spool import EmitEvents

log = logging.getLogger(__name__)

Reveal = Callable[[str], Awaitable[Any]]
Replays = Callable[[Listener], LaneDispatch]

_LOOK_AGAIN_S = 5.0


class _Open(NamedTuple):
    subscription: Subscription
    forwarder: Forwarder
    running: asyncio.Task[None]


class _DeliveryDispatch:
    """Dispatches what is delivered one by one, as it comes, and what is replayed in batches."""

    def __init__(self, dispatch: IngressDispatch, listener: Listener, replays: LaneDispatch) -> None:
        self._dispatch = dispatch
        self._listener = listener
        self.in_lanes = replays.in_lanes

    async def __call__(self, plans: Sequence[Plan]) -> list[RunDispatchResult]:
        return await asyncio.gather(*map(self._one, plans))

    async def _one(self, plan: Plan) -> RunDispatchResult:
        message = SourceMessage(
            message_id=plan.message_id, source=plan.source, body=None
        )  # all that counts is in the plan
        try:
            return await self._dispatch(self._listener, AdmittedMessage(message, plan))
        except TapeError as error:
            is_unavailable = error.retryable or (isinstance(error, ApiRefused) and error.http_status >= 500)
            return RunDispatchResult("unavailable" if is_unavailable else "rejected", error=str(error))


class SpoolingDispatch:
    """Takes deliveries as another does, and keeps in a spool what that one cannot take, where there is one."""

    def __init__(
        self, dispatch: IngressDispatch, replays: Replays, emit: EmitEvents, reveal: Reveal, metrics: Metrics
    ) -> None:
        self._dispatch = dispatch
        self._replays = replays
        self._emit = emit
        self._reveal = reveal
        self._metrics = metrics
        self._open: dict[str, _Open] = {}
        self._opening: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._closed_until: dict[str, float] = {}
        self._recovering: asyncio.Task[None] | None = None

    def recover(self, listeners: ListenerSource) -> None:
        """Replay what an earlier process kept, without waiting for the next delivery."""
        self._recovering = asyncio.create_task(self._recover(listeners), name="tape-spools")

    async def __call__(self, listener: Listener, admitted: AdmittedMessage) -> RunDispatchResult:
        """The run of a message, or its place in the spool; raises if it has neither."""
        if listener.subscription.spec.spool.mode == "off":
            return await self._dispatch(listener, admitted)
        if self._closed_until.get(listener.name, 0.0) > time.monotonic():
            return await self._dispatch(listener, admitted)
        try:
            forwarder = await self._forwarder(listener)
        except TapeError as error:
            # A message that can become a run needs no spool; one that cannot is refused, and its sender told so.
            log.warning("The spool of %s cannot be opened: %s", listener.subscription.path, error)
            self._closed_until[listener.name] = time.monotonic() + _LOOK_AGAIN_S
            return await self._dispatch(listener, admitted)
        (result,) = await forwarder.forward([admitted])
        if result.is_durable:
            return result
        if result.outcome == "rejected":
            raise ApiRefused(result.error, 422)
        raise SpoolFull(result.error)

    async def close(self) -> None:
        """Stop draining; what waits is found again by the next process."""
        if self._recovering is not None:
            self._recovering.cancel()
            await asyncio.gather(self._recovering, return_exceptions=True)
        for each in self._open.values():
            await self._shut(each)
        self._open.clear()

    async def _forwarder(self, listener: Listener) -> Forwarder:
        found = self._open.get(listener.name)
        if found is not None and found.subscription == listener.subscription:
            return found.forwarder
        async with self._opening[listener.name]:
            found = self._open.get(listener.name)
            if found is None or found.subscription != listener.subscription:
                if found is not None:
                    await self._shut(found)
                found = self._open[listener.name] = await self._start(listener)
        return found.forwarder

    async def _start(self, listener: Listener) -> _Open:
        alias = listener.subscription.spec.spool.credential
        credential = await self._reveal(alias) if alias else None

        forwarder = forwarder_of(
            listener.subscription,
            listener.ref,
            _DeliveryDispatch(self._dispatch, listener, self._replays(listener)),
            self._emit,
            metrics=self._metrics,
            credential=credential,
            reveal=self._reveal,
            redelivers=False,
        )
        await forwarder.start()
        return _Open(listener.subscription, forwarder, asyncio.create_task(forwarder.run()))

    async def _recover(self, listeners: ListenerSource) -> None:
        left: set[str] | None = None
        warned: set[tuple[str, str]] = set()  # what goes on for hours is said once

        def warn(whose: str, error: TapeError) -> None:
            if (whose, str(error)) not in warned:
                warned.add((whose, str(error)))
                log.warning("%s cannot be looked at yet, trying again: %s", whose, error)

        while left is None or left:
            try:
                left = set(await listeners.names()) if left is None else left
            except TapeError as error:
                warn("The spools of push subscriptions", error)
            for name in sorted(left or ()):
                try:
                    listener = await listeners.fetch(name)
                    if listener is not None and listener.subscription.spec.spool.mode != "off":
                        await self._forwarder(listener)
                except TapeError as error:
                    warn(f"The spool of {name}", error)
                else:
                    assert left is not None
                    left.discard(name)
            if left is None or left:
                await asyncio.sleep(_LOOK_AGAIN_S)

    async def _shut(self, each: _Open) -> None:
        each.forwarder.stop()
        await asyncio.gather(each.running, return_exceptions=True)
        await each.forwarder.close()
