"""Routing: the playbook, pool, keys and trace of a message, from its subscription and the headers that it allows.

`resolve` makes every plan. It is a pure function of a validated subscription and a message, so that live messages,
replays and batch jobs get the same plan. Push deliveries are verified before it is called.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Collection
from typing import Any

import msgspec

from tape.base import structs
from tape.model.entry import MAX_ID_BYTES
from tape.model.tenant_names import plain_name
from tape.subscriptions.document.spec import ROUTING, BatchSpec, HeaderRule, Subscription, TraceSpec
from tape.subscriptions.message import SourceMessage, lower_ascii, payload_of

# W3C, version 00: four parts, lower-case hex, no id of zeros alone, no version ff.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class AppliedHeader(msgspec.Struct, frozen=True):
    """A header that took effect: the setting that it controls, and the effective value."""

    header: str
    controls: str
    effective_value: str


class TraceContext(msgspec.Struct, frozen=True, omit_defaults=True):
    """W3C trace context that a run inherits from its message."""

    traceparent: str = ""
    tracestate: str = ""
    baggage: dict[str, str] = {}


class DedupKey(msgspec.Struct, frozen=True):
    """The key that identifies duplicates of a message, and for how many seconds."""

    key: str
    window_secs: int


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a message is dispatched. It has everything that a dispatch needs and is stored in the spool as JSON.

    `pool` is empty if the playbook's path decides. `playbook_override` and `pool_override` are set by headers;
    `priority` is the value of the header that selected a pool.
    """

    subscription: str
    source: str
    message_id: str
    playbook: str
    payload: dict[str, Any]
    pool: str = ""
    playbook_override: str = ""
    pool_override: str = ""
    priority: str = ""
    idempotency_key: str = ""
    content_type: str = ""
    schema_hint: str = ""
    ordering_key: str = ""
    # Runs with the same text take turns; runs without one do not wait for each other.
    run_order: str = ""
    # The downstream that the run depends on.
    downstream: str = ""
    dedup: DedupKey | None = None
    trace: TraceContext | None = None
    # What is kept of the run.
    record: str = "full"
    # Messages of one run at most; 0: a run for each.
    batch: int = 0
    applied: tuple[AppliedHeader, ...] = ()

    @property
    def key(self) -> str:
        """The identity of the message: the idempotency key of a header, else the source's message id."""
        return self.idempotency_key or self.message_id

    @property
    def changed_something(self) -> bool:
        """Whether a header had an effect; if so, an event reports it."""
        return bool(self.applied) or self.trace is not None

    def to_json(self) -> bytes:
        """The plan as JSON, to be read with `Plan.from_json`."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, text: bytes | str) -> Plan:
        """The plan that `to_json` wrote."""
        return structs.decode(text, cls)


def resolve(subscription: Subscription, message: SourceMessage) -> Plan:
    """The plan for a message: the subscription's settings, overridden by the headers that its rules allow."""
    spec = subscription.spec
    chosen: dict[str, str] = {}
    priority_pool = ""
    applied: list[AppliedHeader] = []
    for rule in spec.headers.directives:
        value = _value(message, rule.header)
        if value is None or (effect := _effect(rule, value)) is None:
            continue
        applied.append(AppliedHeader(lower_ascii(rule.header), rule.controls, effect))
        if rule.controls != "priority":
            chosen[rule.controls] = effect
        elif not priority_pool:
            # Of several priorities the first that is mapped counts; an explicit pool overrides all of them.
            chosen["priority"], priority_pool = value, effect
    playbook = chosen.get("dispatch.playbook", "")
    pool = chosen.get("dispatch.execution_pool", "") or priority_pool
    key, content_type = chosen.get("idempotency_key", ""), chosen.get("content_type", "")
    payload = payload_of(message, plain_name(subscription.path), spec.dispatch, spec.headers)
    if "idempotency_key" in chosen:
        payload["idempotency_key"] = key
    if "content_type" in chosen:
        payload["content_type"] = content_type
    dedup = DedupKey(storable_key(key or message.message_id), spec.dedup.window_secs) if spec.dedup.enabled else None
    ordering_key = _ordering_key(message, payload, spec.spool.ordering_key)
    return Plan(
        subscription=subscription.path,
        source=spec.source,
        message_id=message.message_id,
        playbook=playbook or spec.dispatch.playbook,
        payload=payload,
        pool=pool or spec.dispatch.execution_pool,
        playbook_override=playbook,
        pool_override=pool,
        priority=chosen.get("priority", ""),
        idempotency_key=key,
        content_type=content_type,
        schema_hint=chosen.get("schema_hint", ""),
        ordering_key=ordering_key,
        run_order=_run_order(spec.spool.ordering, ordering_key, spec.dispatch.batch),
        downstream=route_downstream(
            [each.name for each in spec.spool.circuit.downstream], pool or spec.dispatch.execution_pool
        ),
        dedup=dedup,
        trace=_trace(spec.headers.trace, message),
        record=spec.dispatch.record,
        batch=spec.dispatch.batch.max if spec.dispatch.batch else 0,
        applied=tuple(applied),
    )


def _value(message: SourceMessage, header: str) -> str | None:
    """The effective value of a header: the last one."""
    values = message.headers.get(lower_ascii(header))
    return values[-1] if values else None


def _effect(rule: HeaderRule, value: str) -> str | None:
    """The setting that a header value selects, or None if the rule does not allow the value."""
    if rule.controls == "priority":
        return rule.map.get(value)
    if rule.allowed or rule.controls in ROUTING:
        return value if value in rule.allowed else None
    return value


def storable_key(key: str) -> str:
    """A dedup key that the store accepts: the SHA-256 of a key that is too long or contains NUL."""
    encoded = key.encode(errors="replace")
    if len(encoded) <= MAX_ID_BYTES and "\0" not in key:
        return key
    return f"sha256:{hashlib.sha256(encoded).hexdigest()}"


def _ordering_key(message: SourceMessage, payload: dict[str, Any], name: str) -> str:
    """The ordering key: the named header, else that field of the message, else the source's own key."""
    if not name:
        return message.ordering_key
    if (value := _value(message, name)) is not None:
        return value
    data = payload["message"]["data"]
    field = data.get(name) if isinstance(data, dict) else None
    if isinstance(field, str | int) and not isinstance(field, bool):
        return str(field)
    return message.ordering_key


def route_downstream(declared: Collection[str], pool: str) -> str:
    """The downstream of runs on a pool: the one of that name, else `default`, else the first by name."""
    if pool in declared:
        return pool
    return "default" if not declared or "default" in declared else min(declared)


def _run_order(ordering: str, ordering_key: str, batch: BatchSpec | None) -> str:
    match ordering:
        case "global":
            return "all"
        case "per_key" if ordering_key and batch is not None:
            # A batch has many keys: those of one lane stay together.
            return f"lane:{zlib.crc32(ordering_key.encode(errors='replace')) % batch.lanes}"
        case "per_key" if ordering_key:
            return storable_key(f"key:{ordering_key}")
        case _:
            return ""


def _trace(rules: TraceSpec, message: SourceMessage) -> TraceContext | None:
    if rules.propagate != "w3c":
        return None
    parent = _value(message, "traceparent") or ""
    trace = TraceContext(
        traceparent=parent if _TRACEPARENT.fullmatch(parent) else "",
        tracestate=_value(message, "tracestate") or "",
        baggage=_baggage(_value(message, "baggage") or "", rules.baggage_allowlist),
    )
    return trace if trace != TraceContext() else None


def _baggage(header: str, allowlist: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for member in header.split(",") if allowlist else ():
        key, equals, value = member.partition("=")
        if equals and key.strip() in allowlist:
            found[key.strip()] = value.partition(";")[0].strip()
    return found
