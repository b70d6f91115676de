"""Every event of a subscription has the fields that the event catalogue lists."""

from __future__ import annotations

import msgspec
import pytest

from tape.model.entry import checked, type_of
from tape.model.event_types import EVENTS
from tape.subscriptions import events
from tape.subscriptions.events import SubscriptionEvent, SubscriptionRef
from tape.subscriptions.routing import AppliedHeader, Plan, TraceContext

REF = SubscriptionRef("orders", "subscriptions/orders", 7)
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
PLAN = Plan(
    subscription=REF.path,
    source="nats",
    message_id="m1",
    playbook="domain/fraud",
    playbook_override="domain/fraud",
    payload={},
    trace=TraceContext(PARENT),
    applied=(AppliedHeader("x-route", "dispatch.playbook", "domain/fraud"),),
)
ALL = [
    *(events.lifecycle(REF, verb, "ACTIVE", 3) for verb in events.Verb.__args__),  # type: ignore[attr-defined]
    events.held(REF, ["no playbook"]),
    events.released(REF),
    events.directives_applied(REF, PLAN, 99),
    events.deduplicated(REF, "k", 98, 99),
    events.rejected(REF, "bad_signature", 401, count=3),
    events.handshake(REF, "slack"),
    events.resent(REF, "m1", "98", "new", "ops"),
    events.received(REF, "nats", "m1", {"a": "1"}),
    events.rate_limited(REF, "dispatch_rate", None, 2),
    events.source_lost(REF, "nats", "connection refused"),
    events.source_restored(REF, "nats", 1500),
    events.circuit_opened(REF, "db", 5, 1),
    events.circuit_closed(REF, "db"),
    events.spooled(REF, "m1", 1, "tape://spool/orders/1/m1", "ab" * 32, "db", "circuit_open"),
    events.spool_draining(REF, 6),
    events.spool_recovered(REF, 6, 6, "local_disk"),
    events.replayed(REF, "m1", 1, "tape://spool/orders/1/m1", 99),
    events.dead_lettered(REF, "m1", 1, "tape://spool/orders/1/m1", 5, "max_replay_attempts", message={"id": "m1"}),
    events.dropped(REF, "m1", "db", "retention_full"),
    events.spool_alert(REF, "db", 1 << 30),
    events.quarantined(REF, "tape://spool/orders/1/m1", "sha256 differs"),
]
CATALOGUE = {each.name: each for each in EVENTS if each.name.startswith("subscription.")}


@pytest.mark.parametrize("event", ALL, ids=lambda event: event.event_type)
def test_an_event_has_the_fields_of_the_event_catalogue(event: SubscriptionEvent) -> None:
    draft = checked(events.stamped(event, "runtime-1").draft())
    assert type_of(draft.kind, draft.subject) == event.event_type
    assert draft.subject.endswith("/orders")
    assert set(msgspec.json.decode(draft.payload_json)) == set(CATALOGUE[event.event_type].fields)


def test_the_event_catalogue_lists_exactly_the_events_of_subscriptions() -> None:
    assert {event.event_type for event in ALL} == set(CATALOGUE)


def test_applied_headers_are_reported_in_the_run_and_the_trace_of_the_message() -> None:
    draft = events.directives_applied(REF, PLAN, 99).draft()
    assert (draft.run_id, draft.trace_id, draft.parent_span_id) == ("99", PARENT[3:35], PARENT[36:52])
    payload = msgspec.json.decode(draft.payload_json)
    assert payload["applied"] == [
        {"header": "x-route", "controls": "dispatch.playbook", "effective_value": "domain/fraud"}
    ]
    assert payload["route_override"] == {"playbook": "domain/fraud", "pool": None}
    assert payload["trace"] == {"traceparent": PARENT}


def test_a_record_is_one_json_object_of_the_same_event() -> None:
    event = events.stamped(events.circuit_opened(REF, "db", 5, 1), "cli-local")
    record = msgspec.json.decode(msgspec.json.encode(event.record()))
    assert record.pop("created_at").endswith("Z")
    assert record == {
        "execution_id": 7,
        "event_type": "subscription.circuit.opened",
        "step": "ingress",
        "status": "OPEN",
        "context": {"downstream": "db", "consecutive_failures": 5, "trips": 1},
        "meta": {"emitter": "spool_runtime"},
        "subscription": "subscriptions/orders",
        "worker_id": "cli-local",
    }
