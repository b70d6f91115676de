"""Push dispatch with circuits and a spool: a delivery whose run cannot start now is spooled and accepted.

Without a spool (`mode: off`) it is refused while the circuit of its downstream is open. The circuits of a subscription
are kept from its activation on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tape.base.telemetry.metrics import Metrics
from tape.errors import ApiRefused, CircuitOpen, PayloadTooLarge, SpoolFull, SubscriptionHeld, TapeError
from tape.model.dispatch_result import RunDispatchResult
from tape.subscriptions.dispatch.assembly import forwarder_of
from tape.subscriptions.dispatch.forwarder import Forwarder
from tape.subscriptions.dispatch.holds import ReadinessCheck, is_configuration_error
from tape.subscriptions.dispatch.outcomes import Downstreams
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.ingress.ingress import AdmittedMessage, IngressDispatch
from tape.subscriptions.ingress.listeners import Listener, ListenerSource
from tape.subscriptions.message import SourceMessage
from tape.subscriptions.routing import Plan
from tape.subscriptions.secrets import Reveal, reveal_within
from tape.subscriptions.spool.locations import spool_hosts
from tape.subscriptions.spool.replay import LaneDispatch
from tape.subscriptions.spool.spool import EmitEvents

log = logging.getLogger(__name__)

Replays = Callable[[Listener], LaneDispatch]

_RETRY_S = 5.0


class _OpenForwarder(NamedTuple):
    subscription: Subscription
    forwarder: Forwarder
    running: asyncio.Task[None]


class _DeliveryDispatch:
    """Dispatches deliveries one by one and replays in batches."""

    def __init__(self, dispatch: IngressDispatch, listener: Listener, replays: LaneDispatch) -> None:
        self._dispatch = dispatch
        self._listener = listener
        self.in_lanes = replays.in_lanes

    async def __call__(self, plans: Sequence[Plan]) -> list[RunDispatchResult]:
        return await asyncio.gather(*map(self._one, plans))

    async def _one(self, plan: Plan) -> RunDispatchResult:
        message = SourceMessage(message_id=plan.message_id, source=plan.source, body=None)  # the plan has everything
        try:
            return await self._dispatch(self._listener, AdmittedMessage(message, plan))
        except PayloadTooLarge:
            raise
        except TapeError as error:
            if is_configuration_error(error):
                return RunDispatchResult("misconfigured", error=str(error))
            is_unavailable = error.retryable or (isinstance(error, ApiRefused) and error.http_status >= 500)
            return RunDispatchResult("unavailable" if is_unavailable else "rejected", error=str(error))


class SpoolingDispatch:
    """Wraps another dispatch: spools what it cannot dispatch, or refuses it if the subscription has no spool."""

    def __init__(
        self,
        dispatch: IngressDispatch,
        replays: Replays,
        emit: EmitEvents,
        reveal: Reveal,
        metrics: Metrics,
        downstreams: Callable[[str], Downstreams] | None = None,
        readiness: Callable[[Listener], ReadinessCheck] | None = None,
    ) -> None:
        self._dispatch = dispatch
        self._replays = replays
        self._emit = emit
        self._reveal = reveal
        self._metrics = metrics
        self._downstreams = downstreams
        self._readiness = readiness
        self._open: dict[str, _OpenForwarder] = {}
        self._opening: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._closed_until: dict[str, float] = {}
        self._recovering: asyncio.Task[None] | None = None

    def recover(self, listeners: ListenerSource) -> None:
        """Keep the circuits of active subscriptions, and replay what an earlier process left, before any delivery."""
        self._recovering = asyncio.create_task(self._recover(listeners), name="tape-spools")

    async def __call__(self, listener: Listener, admitted: AdmittedMessage) -> RunDispatchResult:
        """Start the run of a message, or spool it. Raises if neither is possible."""
        if self._closed_until.get(listener.name, 0.0) > time.monotonic():
            return await self._dispatch(listener, admitted)
        try:
            forwarder = await self._forwarder(listener)
        except TapeError as error:
            # Dispatch without the spool: if that fails too, the sender gets an error.
            log.warning("The spool of %s cannot be opened: %s", listener.subscription.path, error)
            self._closed_until[listener.name] = time.monotonic() + _RETRY_S
            return await self._dispatch(listener, admitted)
        (result,) = await forwarder.forward([admitted])
        if result.is_durable:
            return result
        if result.outcome == "rejected":
            raise ApiRefused(result.error, 422)
        if forwarder.hold.is_held:
            raise SubscriptionHeld(result.error)
        if forwarder.spool is None and (wait_s := forwarder.retry_after_s(admitted.plan)):
            raise CircuitOpen(
                f"{listener.subscription.path} accepts no deliveries: its downstream {admitted.plan.downstream!r} is"
                " unavailable, and spool.mode is off. Send the delivery again later, or set spool.mode.",
                wait_s,
            )
        raise SpoolFull(result.error)

    @property
    def has_open_spool(self) -> bool:
        """Whether deliveries of some listener can be kept while the server is unavailable."""
        return any(each.forwarder.spool is not None for each in self._open.values())

    async def close(self) -> None:
        """Stop draining; the next process continues."""
        if self._recovering is not None:
            self._recovering.cancel()
            await asyncio.gather(self._recovering, return_exceptions=True)
        for each in self._open.values():
            await self._close_forwarder(each)
        self._open.clear()

    async def _forwarder(self, listener: Listener) -> Forwarder:
        found = self._open.get(listener.name)
        if found is not None and found.subscription == listener.subscription:
            return found.forwarder
        async with self._opening[listener.name]:
            found = self._open.get(listener.name)
            if found is None or found.subscription != listener.subscription:
                if found is not None:
                    await self._close_forwarder(found)
                found = self._open[listener.name] = await self._start(listener)
        return found.forwarder

    async def _start(self, listener: Listener) -> _OpenForwarder:
        spool = listener.subscription.spec.spool
        reveal = reveal_within(listener.subscription.path, self._reveal)
        credential = await reveal(spool.credential, spool_hosts(spool)) if spool.credential else None
        forwarder = forwarder_of(
            listener.subscription,
            listener.ref,
            _DeliveryDispatch(self._dispatch, listener, self._replays(listener)),
            self._emit,
            metrics=self._metrics,
            credential=credential,
            reveal=reveal,
            redelivers=False,
            downstreams=self._downstreams(listener.subscription.path) if self._downstreams is not None else None,
            readiness=self._readiness(listener) if self._readiness is not None else None,
        )
        await forwarder.start()
        return _OpenForwarder(listener.subscription, forwarder, asyncio.create_task(forwarder.run()))

    async def _recover(self, listeners: ListenerSource) -> None:
        warned: set[tuple[str, str]] = set()  # log each error once

        def warn(what: str, error: TapeError) -> None:
            if (what, str(error)) not in warned:
                warned.add((what, str(error)))
                log.warning("%s cannot be opened yet, retrying: %s", what, error)

        while True:
            try:
                names = await listeners.names()
            except TapeError as error:
                warn("The spools of push subscriptions", error)
                names = frozenset()
            for name in sorted(names - self._open.keys()):
                try:
                    listener = await listeners.fetch(name)
                    if listener is not None and listener.state in ("ACTIVE", "PAUSED", "DRAINING"):
                        await self._forwarder(listener)
                except TapeError as error:
                    warn(f"The spool of {name}", error)
            await asyncio.sleep(_RETRY_S)

    async def _close_forwarder(self, each: _OpenForwarder) -> None:
        each.forwarder.stop()
        await asyncio.gather(each.running, return_exceptions=True)
        await each.forwarder.close()
