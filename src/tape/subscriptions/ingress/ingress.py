"""Push ingress: verifies a delivery, plans it, and answers once its run or its spooled item is durable.

`admit` is the only path from a request to a plan. It verifies first and never parses an unverified body, so that an
unauthenticated sender cannot select a playbook, a pool or a key.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterable, Callable, Sequence
from typing import Any, NamedTuple, Protocol

from tape.base.telemetry.metrics import Metrics
from tape.errors import CircuitOpen, InvalidConfig, PayloadTooLarge, SubscriptionHeld, TapeError
from tape.model.dispatch_result import RunDispatchResult
from tape.subscriptions import events
from tape.subscriptions.dispatch.holds import RETRY_AFTER_S, Hold, ReadinessCheck, is_configuration_error
from tape.subscriptions.events import SubscriptionRef
from tape.subscriptions.ingress.handshakes import Handshake, answer_get, answer_handshake, has_get_handshake
from tape.subscriptions.ingress.listeners import Listener, Listeners
from tape.subscriptions.ingress.push_message import message_from_push
from tape.subscriptions.ingress.rejections import UNKNOWN_LISTENER, EmitEvents, IngressEvents
from tape.subscriptions.ingress.verification.delivery import POSTED, DeliveryRejection, PushDelivery, RequestTarget
from tape.subscriptions.ingress.verification.issuer_keys import NO_KEYS, IssuerKeys
from tape.subscriptions.ingress.verification.verify import verify_delivery
from tape.subscriptions.message import SourceMessage
from tape.subscriptions.routing import Plan, resolve
from tape.subscriptions.runtime.flow_limits import FlowLimiter

log = logging.getLogger(__name__)

# Metrics label of unknown listeners: names that senders choose must not become time series.
UNKNOWN = "unknown"
PAUSED_S = 30
LIMITED_S = 1.0
LIMITED = "answered_429"
# Limit of all bodies that are being read or dispatched.
MAX_HELD_BYTES = 256 << 20

RawHeaders = Sequence[tuple[bytes, bytes]]

_DETAILS = {
    "unknown_listener": "no push subscription for this ingress path",
    "config_error": "could not resolve ingress config",
    "jwks_error": "could not fetch OIDC keys",
    "certificate_unavailable": "could not fetch the certificate of the signature",
    "confirmation_failed": "verified but could not confirm the subscription",
    "too_many_headers": "the request has more headers than are looked at",
    "dispatch_error": "verified but could not dispatch execution",
    "downstream_unavailable": "verified, but the downstream is unavailable and spool.mode is off",
    "held": "the subscription cannot start runs yet; try again later",
    "paused": "the subscription is paused",
    "draining": "the subscription accepts no more deliveries",
    "body_too_large": "the body is larger than this listener accepts",
    "payload_too_large": "the message is larger than the server stores",
    "slow_body": "the body did not arrive in time",
    "overloaded": "too many deliveries at once",
    "max_in_flight": "too many deliveries of this subscription at once",
    "dispatch_rate": "more deliveries per second than this subscription accepts",
}


class AdmittedMessage(NamedTuple):
    """A message of a verified delivery, with its plan."""

    message: SourceMessage
    plan: Plan


class IngressDispatch(Protocol):
    """Makes a verified message durable: starts its run, or spools it. Raises a TapeError if that fails."""

    async def __call__(self, listener: Listener, admitted: AdmittedMessage) -> RunDispatchResult: ...


class IngressResponse(NamedTuple):
    """The HTTP response to a sender. `closes` ends the connection before the body is read."""

    status: int
    body: dict[str, Any] | str
    retry_after_s: int = 0
    closes: bool = False


async def admit(
    listener: Listener, issuers: IssuerKeys, delivery: PushDelivery
) -> AdmittedMessage | Handshake | DeliveryRejection:
    """Verify a delivery; only then parse it, and answer its handshake or resolve its plan."""
    verified = await verify_delivery(listener.subscription, listener.secrets, issuers, delivery)
    if isinstance(verified, DeliveryRejection):
        return verified
    if (handshake := await answer_handshake(verified, issuers.certificates)) is not None:
        return handshake
    message = message_from_push(verified)
    return AdmittedMessage(message, resolve(verified.subscription, message))


class Ingress:
    """Receives deliveries for all listeners of a process."""

    def __init__(
        self,
        listeners: Listeners,
        dispatch: IngressDispatch,
        emit: EmitEvents,
        metrics: Metrics,
        *,
        body_timeout_s: float = 10.0,
        emitter: str = "ingress",
        readiness: Callable[[Listener], ReadinessCheck] | None = None,
    ) -> None:
        self._listeners = listeners
        self._dispatch = dispatch
        self._emit = emit
        self._metrics = metrics
        self._body_timeout_s = body_timeout_s
        self._emitter = emitter
        self._rejections = IngressEvents(emit, emitter)
        self._issuers = IssuerKeys()
        self._limiters: dict[str, FlowLimiter] = {}
        self._held_bytes = 0
        self._readiness = readiness
        self._holds: dict[SubscriptionRef, Hold] = {}

    async def close(self) -> None:
        """Emit pending rejection events and stop refreshing keys."""
        for hold in self._holds.values():
            await hold.close()
        await self._rejections.close()
        await self._issuers.close()

    async def receive_get(self, name: str, query: str) -> IngressResponse | None:
        """Answer the handshake that a provider makes with a GET; None if the listener has none."""
        listener = await self._find(name)
        if isinstance(listener, IngressResponse):
            return listener
        if not has_get_handshake(listener):
            return None
        return self._settle_handshake(listener, answer_get(listener, query))

    async def receive(
        self, name: str, headers: RawHeaders, body: AsyncIterable[bytes], target: RequestTarget = POSTED
    ) -> IngressResponse:
        """Receive a delivery for a listener. A rejected body is not read to its end."""
        listener = await self._find(name)
        if isinstance(listener, IngressResponse):
            return listener
        if listener.lacks_secret:
            return self._hold(listener, "The secret of ingress.verify is not set.", closes=True)
        held = bytearray()
        try:
            rejection = await self._read(listener, headers, body, held)
            if rejection is not None:
                return self._reject(listener, rejection.status, rejection.reason, closes=True)
            return await self._verify_and_accept(listener, PushDelivery(headers, bytes(held), target=target))
        finally:
            self._held_bytes -= len(held)

    async def _find(self, name: str) -> Listener | IngressResponse:
        """The listener of a name if it accepts deliveries now, or the rejection."""
        try:
            listener = await self._listeners.find(name)
        except TapeError as error:
            log.warning("the listener %r cannot be looked up: %s", name[:100], error)
            return self._reject(None, 502, "config_error", closes=True)
        if listener is None:
            return self._reject(None, 404, "unknown_listener", closes=True)
        self._metrics.ingress_received.labels(listener.name).inc()
        if listener.state in ("PAUSED", "DRAINING"):
            reason = listener.state.lower()
            return self._reject(listener, 503, reason, retry_after_s=PAUSED_S, closes=True)
        if listener.state != "ACTIVE":
            return self._reject(listener, 404, "unknown_listener", closes=True)
        return listener

    def _settle_handshake(self, listener: Listener, found: Handshake | DeliveryRejection) -> IngressResponse:
        if isinstance(found, DeliveryRejection):
            return self._reject(listener, found.status, found.reason)
        self._metrics.ingress_handshakes.labels(listener.name, found.kind).inc()
        self._rejections.add_handshake(listener.ref, found.kind)
        return IngressResponse(200, found.answer)

    async def _read(
        self, listener: Listener, headers: RawHeaders, body: AsyncIterable[bytes], held: bytearray
    ) -> DeliveryRejection | None:
        """Read a body into `held`. Returns a rejection if it is too large, too slow, or the process is overloaded."""
        assert listener.subscription.spec.ingress is not None
        limit = listener.subscription.spec.ingress.max_body_bytes
        announced = next((value for name, value in headers if name.lower() == b"content-length"), b"")
        if announced.isdigit() and int(announced) > limit:
            return DeliveryRejection(413, "body_too_large")
        try:
            async with asyncio.timeout(self._body_timeout_s):
                async for chunk in body:
                    held += chunk
                    self._held_bytes += len(chunk)
                    if len(held) > limit:
                        return DeliveryRejection(413, "body_too_large")
                    if self._held_bytes > MAX_HELD_BYTES:
                        return DeliveryRejection(503, "overloaded")
        except TimeoutError:
            return DeliveryRejection(408, "slow_body")
        return None

    async def _verify_and_accept(self, listener: Listener, delivery: PushDelivery) -> IngressResponse:
        try:
            admitted: AdmittedMessage | Handshake | DeliveryRejection = await admit(listener, self._issuers, delivery)
        except InvalidConfig as error:  # the key URL is not allowed
            log.warning("%s: %s", listener.subscription.path, error)
            admitted = NO_KEYS
        if not isinstance(admitted, AdmittedMessage):
            return self._settle_handshake(listener, admitted)
        limiter = self._limiter(listener)
        allowance = limiter.allow(1)
        if allowance.batch == 0:
            if allowance.has_begun:
                await self._emit_limited(listener, allowance.reason or "")
            wait_s = LIMITED_S if allowance.wait_s is None else allowance.wait_s
            return self._reject(listener, 429, allowance.reason or "", retry_after_s=math.ceil(wait_s))
        limiter.received(1)
        try:
            return await self._accept(listener, admitted)
        finally:
            limiter.settled(1)

    async def _accept(self, listener: Listener, admitted: AdmittedMessage) -> IngressResponse:
        try:
            result = await self._dispatch(listener, admitted)
        except PayloadTooLarge as error:
            log.warning("%s: %s", listener.subscription.path, error)
            return self._reject(listener, 413, "payload_too_large")
        except CircuitOpen as error:
            log.warning("%s", error)
            return self._reject(listener, 503, "downstream_unavailable", retry_after_s=error.retry_after_s)
        except SubscriptionHeld:
            return self._reject(listener, 503, "held", retry_after_s=RETRY_AFTER_S)
        except TapeError as error:
            if is_configuration_error(error):
                return self._hold(listener, str(error), admitted.plan.playbook)
            log.warning("%s: a delivery could not be dispatched: %s", listener.subscription.path, error)
            return self._reject(listener, 502, "dispatch_error")
        self._metrics.ingress_dispatched.labels(listener.name).inc()
        if result.outcome == "spooled":
            return IngressResponse(202, {"status": "accepted", "spooled": True, "message_id": admitted.plan.message_id})
        accepted = {"status": "accepted", "execution_id": result.run_id}
        return IngressResponse(202, accepted | ({"duplicate": True} if result.outcome == "duplicate" else {}))

    def _hold(self, listener: Listener, reason: str, playbook: str = "", *, closes: bool = False) -> IngressResponse:
        """Hold the subscription: its senders try again, until its check finds no problem."""
        hold = self._holds.get(listener.ref)
        if hold is None:
            hold = self._holds[listener.ref] = Hold(
                listener.subscription.path,
                listener.subscription.spec.dispatch.playbook,
                self._readiness(listener) if self._readiness is not None else None,
                self._metrics,
                changed=lambda: self._listeners.forget(listener.name),
            )
        hold.begin(reason, playbook)
        return self._reject(listener, 503, "held", retry_after_s=RETRY_AFTER_S, closes=closes)

    def _reject(
        self, listener: Listener | None, status: int, reason: str, *, retry_after_s: int = 0, closes: bool = False
    ) -> IngressResponse:
        label = listener.name if listener else UNKNOWN
        if listener is None:
            self._metrics.ingress_received.labels(label).inc()
        self._metrics.ingress_rejected.labels(label, reason).inc()
        self._rejections.add(listener.ref if listener else UNKNOWN_LISTENER, reason, status)
        detail = _DETAILS.get(reason)
        body = {"status": "rejected", "reason": reason} | ({"detail": detail} if detail else {})
        return IngressResponse(status, body, retry_after_s or (1 if status == 503 else 0), closes)

    def _limiter(self, listener: Listener) -> FlowLimiter:
        spec = listener.subscription.spec
        limits = (spec.max_in_flight, spec.limits.max_dispatch_per_sec)
        found = self._limiters.get(listener.name)
        if found is None or (found.max_in_flight, found.max_dispatch_per_sec) != limits:
            found = self._limiters[listener.name] = FlowLimiter(*limits)
        return found

    async def _emit_limited(self, listener: Listener, reason: str) -> None:
        spec = listener.subscription.spec
        limits = (spec.max_in_flight, spec.limits.max_dispatch_per_sec)
        try:
            await self._emit(
                [events.rate_limited(listener.ref, reason, *limits, action=LIMITED, emitter=self._emitter)]
            )
        except TapeError as error:
            log.warning("a limit could not be journaled: %s", error)
