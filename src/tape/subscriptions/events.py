"""The events of subscriptions: one function per event type, the same in every runtime.

An event becomes a journal entry (`draft`), or a line of a local trail or an item of `POST /api/events` (`record`).
Its subject is `/tape/subscription/<verb>/<name>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import msgspec

from tape.base.telemetry.tracing import NO_TRACE, parse_traceparent
from tape.model import subject
from tape.model.entry import Draft
from tape.model.payload import to_json
from tape.model.tenant_names import plain_name, tenant_of
from tape.subscriptions.routing import Plan, TraceContext

STEP = "ingress"


class SubscriptionRef(NamedTuple):
    """A reference to a subscription. The id is that of its current registration, 0 if it has none."""

    name: str
    path: str
    subscription_id: int = 0


def subscription_ref(path: str, subscription_id: int = 0) -> SubscriptionRef:
    """The reference of a path; the name is its last segment."""
    return SubscriptionRef(path.rpartition("/")[2], path, subscription_id)


class SubscriptionEvent(msgspec.Struct, frozen=True, kw_only=True, rename={"ref": "about"}):
    """An event of a subscription or of one of its messages.

    `execution_id` is the subscription's id, or the id of a message's run. Spools of earlier versions hold events whose
    field `ref` is named `about`, so that is its name in JSON.
    """

    ref: SubscriptionRef
    event_type: str
    status: str
    context: dict[str, Any]
    execution_id: int
    emitter: str
    worker_id: str = ""
    trace: TraceContext | None = None
    created_at: str = ""

    def draft(self) -> Draft:
        """The journal entry, in the run of its execution and the tenant of its subscription."""
        trace = parse_traceparent(self.trace.traceparent) if self.trace else NO_TRACE
        payload = {
            "subscription": plain_name(self.ref.path),
            "execution_id": str(self.execution_id),
            "status": self.status,
            "emitter": self.emitter,
            "created_at": self.created_at,
            **({"worker_id": self.worker_id} if self.worker_id else {}),
            **self.context,
        }
        return Draft(
            subject=subject.build("subscription", self.event_type.removeprefix("subscription."), self.ref.name),
            payload_json=to_json(payload),
            run_id=str(self.execution_id) if self.execution_id else "",
            trace_id=trace.trace_id,
            parent_span_id=trace.span_id,
            tenant=tenant_of(self.ref.path),
        )

    def record(self) -> dict[str, Any]:
        """The event as one JSON object, for a local trail and for `POST /api/events`."""
        record: dict[str, Any] = {
            "execution_id": self.execution_id,
            "event_type": self.event_type,
            "step": STEP,
            "status": self.status,
            "created_at": self.created_at,
            "context": self.context,
            "meta": {"emitter": self.emitter},
            "subscription": self.ref.path,
        }
        return record | {"worker_id": self.worker_id} if self.worker_id else record


def stamped(event: SubscriptionEvent, worker_id: str) -> SubscriptionEvent:
    """The event with the id of the process that emits it."""
    return msgspec.structs.replace(event, worker_id=worker_id)


def _event(
    ref: SubscriptionRef,
    verb: str,
    status: str,
    emitter: str,
    context: dict[str, Any],
    execution_id: int | None = None,
    trace: TraceContext | None = None,
) -> SubscriptionEvent:
    return SubscriptionEvent(
        ref=ref,
        event_type=f"subscription.{verb}",
        status=status,
        context=context,
        execution_id=ref.subscription_id if execution_id is None else execution_id,
        emitter=emitter,
        trace=trace,
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    )


Verb = Literal["registered", "activated", "paused", "resumed", "draining", "deactivated"]


def lifecycle(
    ref: SubscriptionRef, verb: Verb, state: str, catalog_id: int, *, emitter: str = "control_plane"
) -> SubscriptionEvent:
    """A subscription was registered, activated, paused, resumed, set to drain or deactivated."""
    context = {
        "subscription_id": str(ref.subscription_id),
        "path": plain_name(ref.path),
        "catalog_id": str(catalog_id),
    }
    return _event(ref, verb, state, emitter, context)


def held(ref: SubscriptionRef, reasons: Sequence[str], *, emitter: str = "") -> SubscriptionEvent:
    """A subscription is held: its configuration lets no run start, and its messages wait."""
    context = {"subscription_id": str(ref.subscription_id), "reasons": list(reasons)}
    return _event(ref, "held", "HELD", emitter or "subscription_runtime", context)


def released(ref: SubscriptionRef, *, emitter: str = "") -> SubscriptionEvent:
    """A subscription is held no longer."""
    context = {"subscription_id": str(ref.subscription_id)}
    return _event(ref, "released", "RELEASED", emitter or "subscription_runtime", context)


def directives_applied(
    ref: SubscriptionRef, plan: Plan, execution_id: int, *, emitter: str = "subscription_runtime"
) -> SubscriptionEvent:
    """Headers of a message changed its routing or set its trace."""
    context = {
        "message_id": plan.message_id,
        "applied": msgspec.to_builtins(plan.applied),
        "route_override": {"playbook": plan.playbook_override or None, "pool": plan.pool_override or None},
        "trace": msgspec.to_builtins(plan.trace),
    }
    return _event(ref, "message.directives_applied", "APPLIED", emitter, context, execution_id, plan.trace)


def deduplicated(ref: SubscriptionRef, dedup_key: str, original: int, suppressed: int = 0) -> SubscriptionEvent:
    """A duplicate within the dedup window started no second run."""
    context = {
        "subscription_id": str(ref.subscription_id),
        "dedup_key": dedup_key,
        "original_execution_id": str(original),
        "suppressed_execution_id": str(suppressed) if suppressed else "",
        "duplicate_suppressed": True,
    }
    return _event(ref, "message.deduplicated", "DEDUPLICATED", "control_plane", context, original)


def rejected(
    ref: SubscriptionRef, reason: str, status_code: int, *, count: int = 1, emitter: str = "ingress"
) -> SubscriptionEvent:
    """`count` deliveries were rejected for one reason within a second. Contains no body and no secret."""
    context = {"reason": reason, "status_code": status_code, "count": count}
    return _event(ref, "message.rejected", "REJECTED", emitter, context)


def handshake(ref: SubscriptionRef, kind: str, *, count: int = 1, emitter: str = "ingress") -> SubscriptionEvent:
    """`count` handshakes of a provider were verified and answered within a second. None became a message."""
    return _event(ref, "handshake", "ANSWERED", emitter, {"kind": kind, "count": count})


def resent(ref: SubscriptionRef, message_id: str, original: str, dedup: str, by: str) -> SubscriptionEvent:
    """An operator had a delivery dispatched again. `dedup` is `new` or `same`."""
    context = {"message_id": message_id, "original_execution_id": original, "dedup": dedup, "by": by}
    return _event(ref, "message.resent", "RESENT", "control_plane", context, 0)


def received(ref: SubscriptionRef, source: str, message_id: str, headers: dict[str, Any]) -> SubscriptionEvent:
    """A local runtime fetched a message."""
    context = {"subscription": ref.path, "source": source, "message_id": message_id, "headers": headers}
    return _event(ref, "message.received", "RECEIVED", "subscribe_runtime", context)


def local(
    ref: SubscriptionRef,
    event_type: str,
    status: str,
    execution_id: int,
    context: dict[str, Any],
    trace: TraceContext | None = None,
) -> SubscriptionEvent:
    """An event of a playbook that a local runtime runs in its own process."""
    event = _event(ref, "", status, "subscribe_runtime", context, execution_id, trace)
    return msgspec.structs.replace(event, event_type=event_type)


def rate_limited(
    ref: SubscriptionRef,
    reason: str,
    max_in_flight: int | None,
    max_dispatch_per_sec: int | None,
    *,
    action: str = "stopped_fetching",
    emitter: str = "subscription_runtime",
) -> SubscriptionEvent:
    """A flow limit began to apply; further messages stay at their source."""
    context = {
        "reason": reason,
        "max_in_flight": max_in_flight,
        "max_dispatch_per_sec": max_dispatch_per_sec,
        "action": action,
        "loss_safe": True,
    }
    return _event(ref, "rate_limited", "RATE_LIMITED", emitter, context)


def source_lost(
    ref: SubscriptionRef, source: str, error: str, *, emitter: str = "subscription_runtime"
) -> SubscriptionEvent:
    """The source is unavailable; the runtime reconnects."""
    return _event(ref, "source.lost", "RECONNECTING", emitter, {"source": source, "error": error})


def source_restored(
    ref: SubscriptionRef, source: str, outage_ms: int, *, emitter: str = "subscription_runtime"
) -> SubscriptionEvent:
    """The source is available again."""
    return _event(ref, "source.restored", "CONNECTED", emitter, {"source": source, "outage_ms": outage_ms})


SPOOL = "spool_runtime"


def circuit_opened(
    ref: SubscriptionRef, downstream: str, consecutive_failures: int, trips: int, *, emitter: str = SPOOL
) -> SubscriptionEvent:
    """A circuit opened: the downstream failed `trip_after` times in a row."""
    context = {"downstream": downstream, "consecutive_failures": consecutive_failures, "trips": trips}
    return _event(ref, "circuit.opened", "OPEN", emitter, context)


def circuit_closed(ref: SubscriptionRef, downstream: str, *, emitter: str = SPOOL) -> SubscriptionEvent:
    """A circuit closed: the downstream answers again."""
    return _event(ref, "circuit.closed", "CLOSED", emitter, {"downstream": downstream})


def spooled(
    ref: SubscriptionRef,
    message_id: str,
    recv_seq: int,
    spool_ref: str,
    sha256: str,
    downstream: str,
    reason: str,
    *,
    emitter: str = SPOOL,
) -> SubscriptionEvent:
    """A message was appended to the spool."""
    context = {
        "message_id": message_id,
        "recv_seq": recv_seq,
        "spool_ref": spool_ref,
        "sha256": sha256,
        "downstream": downstream,
        "reason": reason,
    }
    return _event(ref, "message.spooled", "SPOOLED", emitter, context)


def spool_draining(ref: SubscriptionRef, pending: int, *, emitter: str = SPOOL) -> SubscriptionEvent:
    """A replay of the spool started."""
    return _event(ref, "spool.draining", "DRAINING", emitter, {"pending": pending})


def spool_recovered(
    ref: SubscriptionRef, pending: int, recv_seq_high_water: int, backend: str, *, emitter: str = SPOOL
) -> SubscriptionEvent:
    """A runtime found messages in the spool at its start."""
    context = {"pending": pending, "recv_seq_high_water": recv_seq_high_water, "backend": backend}
    return _event(ref, "spool.recovered", "RECOVERED", emitter, context)


def replayed(
    ref: SubscriptionRef, message_id: str, recv_seq: int, spool_ref: str, execution_id: int
) -> SubscriptionEvent:
    """A spooled message started its run."""
    context = {
        "message_id": message_id,
        "recv_seq": recv_seq,
        "spool_ref": spool_ref,
        "execution_id": str(execution_id),
    }
    return _event(ref, "message.replayed", "REPLAYED", "spool_drain", context, execution_id)


def dead_lettered(
    ref: SubscriptionRef,
    message_id: str,
    recv_seq: int,
    spool_ref: str,
    attempts: int,
    reason: str,
    *,
    message: dict[str, Any] | None = None,
    emitter: str = SPOOL,
) -> SubscriptionEvent:
    """A message is a dead letter: no more retries. The event has the whole message if no store holds it."""
    context = {
        "message_id": message_id,
        "recv_seq": recv_seq,
        "spool_ref": spool_ref,
        "attempts": attempts,
        "reason": reason,
        **({} if message is None else {"message": message}),
    }
    return _event(ref, "message.dead_lettered", "DEAD_LETTERED", emitter, context)


def dropped(
    ref: SubscriptionRef, message_id: str, downstream: str, reason: str, *, emitter: str = SPOOL
) -> SubscriptionEvent:
    """A message was not spooled: the spool is full, or there is none and the source stops redelivering."""
    context = {"message_id": message_id, "downstream": downstream, "reason": reason}
    return _event(ref, "message.dropped", "DROPPED", emitter, context)


def spool_alert(ref: SubscriptionRef, downstream: str, spool_bytes: int, *, emitter: str = SPOOL) -> SubscriptionEvent:
    """The spool exceeds `retention.max_bytes`."""
    return _event(ref, "spool.alert", "ALERT", emitter, {"downstream": downstream, "spool_bytes": spool_bytes})


def quarantined(ref: SubscriptionRef, spool_ref: str, reason: str, *, emitter: str = SPOOL) -> SubscriptionEvent:
    """A spooled item is torn or altered; it was quarantined, not replayed."""
    return _event(ref, "spool.quarantined", "QUARANTINED", emitter, {"spool_ref": spool_ref, "reason": reason})
