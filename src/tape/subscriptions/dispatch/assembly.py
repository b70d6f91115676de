"""Builds the forwarder of a subscription with its spool, backend and metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tape.base.clock import steady_ms
from tape.base.telemetry.metrics import Metrics
from tape.subscriptions.dispatch.forwarder import Forwarder
from tape.subscriptions.dispatch.holds import ReadinessCheck
from tape.subscriptions.dispatch.ordered import Dispatch
from tape.subscriptions.dispatch.outcomes import Downstreams
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.events import SubscriptionEvent, SubscriptionRef
from tape.subscriptions.spool.backend import SpoolBackend
from tape.subscriptions.spool.credential_renewal import RenewingBackend, fields_of
from tape.subscriptions.spool.locations import open_backend
from tape.subscriptions.spool.metrics import SpoolCounts
from tape.subscriptions.spool.pending_events import PendingEvents
from tape.subscriptions.spool.spool import EmitEvents, Spool, SpoolRules


def forwarder_of(
    subscription: Subscription,
    ref: SubscriptionRef,
    dispatch: Dispatch,
    emit: EmitEvents,
    *,
    metrics: Metrics,
    credential: Any = None,
    reveal: Callable[[str, Sequence[str]], Awaitable[Any]] | None = None,
    redelivers: bool = True,
    downstreams: Downstreams | None = None,
    readiness: ReadinessCheck | None = None,
) -> Forwarder:
    """The forwarder of a subscription, with a spool on its configured backend unless `spool.mode` is off.

    `credential` is the backend's secret; with `reveal` it is read again when the backend rejects it.
    """
    spec = subscription.spec.spool
    counting = SpoolCounts(metrics, subscription.spec.source, subscription.path)
    if spec.mode == "off":

        async def counted(to_emit: Sequence[SubscriptionEvent]) -> None:
            counting.see(to_emit)
            await emit(to_emit)

        clock = steady_ms()
        return Forwarder(
            subscription,
            ref,
            dispatch,
            spool=None,
            emit=counted,
            rules=rules_of(subscription),
            redelivers=redelivers,
            now_ms=clock,
            downstreams=downstreams,
            readiness=readiness,
            metrics=metrics,
            state_unwritten=counting.count_unwritten,
        )
    fields = fields_of(spec.credential, credential) if credential is not None else None
    backend: SpoolBackend
    if reveal is not None and spec.credential:
        backend = RenewingBackend(spec, subscription.path, fields, reveal)
    else:
        backend = open_backend(spec, subscription.path, fields)
    pending = PendingEvents(backend, emit, counting.see)
    clock = steady_ms()
    spool = Spool(ref, subscription.spec.source, backend, rules_of(subscription), emit=pending, now_ms=clock)
    counting.watch(spool)
    return Forwarder(
        subscription,
        ref,
        dispatch,
        spool=spool,
        emit=pending,
        redelivers=redelivers,
        now_ms=clock,
        downstreams=downstreams,
        readiness=readiness,
        metrics=metrics,
        closed=counting.forget,
        state_unwritten=counting.count_unwritten,
    )


def rules_of(subscription: Subscription) -> SpoolRules:
    """The spool's rules from the `spool` block."""
    spec = subscription.spec.spool
    return SpoolRules(
        ordering=spec.ordering,
        max_bytes=spec.retention.max_bytes,
        max_age_hours=spec.retention.max_age_hours,
        on_full=spec.retention.on_full,
        rate_per_sec=spec.drain.rate_per_sec,
        max_replay_attempts=spec.drain.max_replay_attempts,
    )
