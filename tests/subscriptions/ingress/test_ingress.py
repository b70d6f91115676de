"""Push ingress: accepted deliveries, their plans, and rejections."""

from __future__ import annotations

import ast
import asyncio
import base64
import hashlib
import hmac
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tape.subscriptions.ingress.ingress as module
from tape.base.telemetry.metrics import Metrics
from tape.errors import PayloadTooLarge, StoreUnavailable, TapeError
from tape.model.dispatch_result import RunDispatchResult
from tape.subscriptions.events import SubscriptionEvent
from tape.subscriptions.ingress.ingress import AdmittedMessage, Ingress, IngressResponse, admit
from tape.subscriptions.ingress.listeners import Listener, Listeners
from tape.subscriptions.ingress.verification.delivery import DeliveryRejection, PushDelivery
from tape.subscriptions.ingress.verification.issuer_keys import IssuerKeys
from tape.subscriptions.routing import Plan
from tape.subscriptions.runtime.flow_limits import FlowLimiter
from tests.subscriptions.specs import subscription

SECRET = "s3cret"
ROUTES = {
    "directives": [
        {"header": "X-Route", "controls": "dispatch.playbook", "allowed": ["domain/fraud"]},
        {"header": "X-Key", "controls": "idempotency_key"},
    ],
    "trace": {"propagate": "w3c"},
}


def push(name: str = "orders", verify: dict[str, Any] | None = None, **spec: Any) -> Listener:
    verify = verify or {"type": "hmac_sha256", "header": "X-Signature", "secret": "alias"}
    ingress = {"gateway_path": f"/ingress/{name}", "verify": verify} | spec.pop("ingress", {})
    state = spec.pop("state", "ACTIVE")
    base = {"source": "webhook", "mode": "push", "ingress": ingress, "headers": ROUTES}
    made = subscription(f"subscriptions/{name}", **(base | spec))
    return Listener(name=name, subscription=made, subscription_id=77, state=state, secrets=(SECRET,))


def signed(body: bytes, secret: str = SECRET, **headers: str) -> list[tuple[bytes, bytes]]:
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return wire(x_signature=f"sha256={digest}", **headers)


def wire(**headers: str) -> list[tuple[bytes, bytes]]:
    return [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]


class Known:
    """Listeners that are just there."""

    def __init__(self, *listeners: Listener) -> None:
        self.listeners = {each.name: each for each in listeners}
        self.error: TapeError | None = None

    async def names(self) -> frozenset[str]:
        if self.error:
            raise self.error
        return frozenset(self.listeners)

    async def fetch(self, name: str) -> Listener | None:
        return self.listeners[name]


class IngressRig:
    """An ingress with a dispatch that a test controls."""

    def __init__(self, *listeners: Listener, **options: Any) -> None:
        self.dispatched: list[AdmittedMessage] = []
        self.emitted: list[SubscriptionEvent] = []
        self.error: TapeError | None = None
        self.answer = RunDispatchResult("started", 4711)
        self.go = asyncio.Event()
        self.go.set()
        self.waiting = 0
        self.metrics = Metrics()
        self.known = Known(*listeners)
        self.ingress = Ingress(Listeners(self.known, 30), self.dispatch, self.emit, self.metrics, **options)

    @property
    def plans(self) -> list[Plan]:
        return [each.plan for each in self.dispatched]

    async def dispatch(self, listener: Listener, admitted: AdmittedMessage) -> RunDispatchResult:
        self.waiting += 1
        await self.go.wait()
        self.waiting -= 1
        if self.error is not None:
            raise self.error
        self.dispatched.append(admitted)
        return self.answer

    async def reached(self, count: int) -> None:
        """Wait until so many deliveries are about to become runs."""
        while self.waiting < count:
            await asyncio.sleep(0)

    async def emit(self, events: Sequence[SubscriptionEvent]) -> None:
        self.emitted += events

    async def post(
        self, body: bytes = b"{}", headers: list[tuple[bytes, bytes]] | None = None, name: str = "orders"
    ) -> IngressResponse:
        return await self.ingress.receive(name, signed(body) if headers is None else headers, chunks(body))

    def count(self, metric: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"tape_ingress_{metric}_total", labels) or 0.0


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def rejected(status: int, reason: str, detail: str = "", **other: Any) -> IngressResponse:
    body = {"status": "rejected", "reason": reason} | ({"detail": detail} if detail else {})
    return IngressResponse(status, body, **other)


# ── the way in ───────────────────────────────────────────────────────────────────────────────────


async def test_a_signed_delivery_becomes_a_plan_and_is_accepted_when_its_run_is_there() -> None:
    rig = IngressRig(push())
    rig.go.clear()
    body = b'{"order": 5}'
    headers = signed(body, x_route="domain/fraud", x_key="k1", cookie="c", authorization="a", content_type="x/y")
    posting = asyncio.create_task(rig.ingress.receive("orders", headers, chunks(body[:4], body[4:])))
    await rig.reached(1)
    assert not posting.done()
    rig.go.set()
    assert await posting == IngressResponse(202, {"status": "accepted", "execution_id": "4711"})
    (plan,) = rig.plans
    assert (plan.playbook, plan.idempotency_key, plan.payload["order"]) == ("domain/fraud", "k1", 5)
    message = plan.payload["message"]
    assert message["headers"] == {"x-route": "domain/fraud", "x-key": "k1", "content-type": "x/y"}
    assert message["metadata"] == {"source": "webhook", "mode": "push"}
    assert (rig.count("received", subscription="orders"), rig.count("dispatched", subscription="orders")) == (1, 1)


async def test_a_message_that_has_its_run_already_is_accepted_as_that_run() -> None:
    rig = IngressRig(push())
    rig.answer = RunDispatchResult("duplicate", 17)
    assert await rig.post() == IngressResponse(202, {"status": "accepted", "execution_id": "17", "duplicate": True})


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        (wire(x_route="domain/fraud"), "missing_signature"),
        (wire(x_signature="sha256=00", x_route="domain/fraud"), "bad_signature"),
        (signed(b"{}", "other", x_route="domain/fraud"), "bad_signature"),
        (signed(b"{ }", x_route="domain/fraud"), "bad_signature"),
    ],
)
async def test_what_is_not_proven_is_never_parsed(
    headers: list[tuple[bytes, bytes]], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parsed(*_: Any, **__: Any) -> Any:
        raise AssertionError("parsed before it was verified")

    rig = IngressRig(push())
    await rig.ingress._listeners.find("orders")
    for owner, name in ((module, "message_from_push"), (module, "resolve"), (msgspec.json, "decode"), (json, "loads")):
        monkeypatch.setattr(owner, name, parsed)
    assert await rig.post(b"{}", headers) == rejected(401, reason)
    assert rig.plans == []


async def test_with_verification_the_same_delivery_is_parsed() -> None:
    found = await admit(push(), IssuerKeys(), PushDelivery(signed(b"[1]", x_route="domain/fraud"), b"[1]"))
    assert isinstance(found, AdmittedMessage)
    assert (found.message.body, found.plan.payload["body"], found.plan.playbook_override) == (
        b"[1]",
        [1],
        "domain/fraud",
    )
    refused = await admit(push(), IssuerKeys(), PushDelivery(wire(x_route="domain/fraud"), b"[1]"))
    assert refused == DeliveryRejection(401, "missing_signature")


def test_no_other_code_can_verify_or_parse_a_delivery() -> None:
    """The gate is a matter of structure: this looks for a second way around it."""
    root = Path(module.__file__).parents[2]
    makers: dict[str, set[str]] = {"VerifiedDelivery": set(), "message_from_push": set(), "_VERIFIED": set()}
    for path in root.rglob("*.py"):
        text = path.read_text()
        if not any(name in text for name in makers):
            continue
        for node in ast.walk(ast.parse(text)):
            name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            name = node.id if isinstance(node, ast.Name) and node.id == "_VERIFIED" else name
            if name in makers:
                makers[name].add(path.relative_to(root).as_posix())
    assert makers == {
        "VerifiedDelivery": {"subscriptions/ingress/verification/verify.py"},
        "_VERIFIED": {"subscriptions/ingress/verification/verify.py"},
        # `tape ingress test` shows what a verified sample would become; it starts nothing.
        "message_from_push": {"subscriptions/ingress/ingress.py", "cli/ingress.py"},
    }


# ── messages ─────────────────────────────────────────────────────────────────────────────────────


async def plan_of(listener: Listener, body: bytes, **headers: str) -> Plan:
    found = await admit(listener, IssuerKeys(), PushDelivery(signed(body, **headers), body))
    assert isinstance(found, AdmittedMessage), found
    return found.plan


async def test_the_sender_names_the_message_once_or_it_gets_a_name() -> None:
    assert (await plan_of(push(), b"", x_message_id="m-1")).message_id == "m-1"
    first, second = await plan_of(push(), b"{}"), await plan_of(push(), b"{}")
    assert first.message_id != second.message_id
    twice = [*signed(b""), (b"x-message-id", b"a"), (b"X-Message-Id", b"b")]
    found = await admit(push(), IssuerKeys(), PushDelivery(twice, b""))
    assert isinstance(found, AdmittedMessage)
    assert len(found.plan.message_id) == 36
    assert found.plan.payload["message"]["headers"]["x-message-id"] == ["a", "b"]
    assert (await plan_of(push(), b"", x_message_id="x" * 9000)).message_id.startswith("sha256-")


async def test_with_dedup_two_nameless_deliveries_that_say_the_same_are_one_message() -> None:
    listener = push(dedup={"enabled": True, "window_secs": 60})
    first, second, other = [await plan_of(listener, body) for body in (b"{}", b"{}", b"[]")]
    assert first.dedup == second.dedup != other.dedup
    assert first.dedup is not None
    assert (await plan_of(listener, b"{}", x_key="k")).dedup.key == "k"  # type: ignore[union-attr]


async def test_a_signed_id_takes_precedence_over_an_unsigned_one() -> None:
    key = base64.b64encode(b"k" * 24).decode()
    verify = {"type": "hmac_sha256", "header": "webhook-signature", "secret": "alias"}
    listener = msgspec.structs.replace(push(verify=verify), secrets=(f"whsec_{key}",))
    moment = "1700000000"
    digest = base64.b64encode(hmac.digest(b"k" * 24, f"msg_1.{moment}.{{}}".encode(), "sha256")).decode()
    headers = wire(webhook_id="msg_1", webhook_timestamp=moment, webhook_signature=f"v1,{digest}", x_message_id="other")
    found = await admit(listener, IssuerKeys(), PushDelivery(headers, b"{}", 1700000000))
    assert isinstance(found, AdmittedMessage)
    assert found.plan.message_id == "msg_1"
    assert "webhook-signature" not in found.message.headers


async def test_an_empty_body_is_null_text_is_text_and_headers_that_are_no_text_are_left_out() -> None:
    assert (await plan_of(push(), b"")).payload["message"]["data"] is None
    assert (await plan_of(push(), b"plain \xff")).payload["body"] == "plain \ufffd"
    headers = [*signed(b""), (b"x-bad", b"\xff\xfe"), (b"x-tab", b"a\tb"), (b"x-bell", b"\x07")]
    found = await admit(push(), IssuerKeys(), PushDelivery(headers, b""))
    assert isinstance(found, AdmittedMessage)
    assert found.message.headers == {"x-tab": ("a\tb",)}


def pubsub(**message: Any) -> bytes:
    return json.dumps({"message": message, "subscription": "projects/p/subscriptions/s", "deliveryAttempt": 3}).encode()


async def test_a_push_of_pubsub_is_unwrapped_and_its_attributes_are_its_headers() -> None:
    data = base64.b64encode(b'{"n": 1}').decode()
    attributes = {"X-Route": "domain/fraud", "Region": "eu"}
    body = pubsub(data=data, attributes=attributes, messageId="88", orderingKey="o1")
    listener = push(source="pubsub")
    found = await admit(listener, IssuerKeys(), PushDelivery(signed(body, x_key="from http"), body))
    assert isinstance(found, AdmittedMessage)
    assert (found.plan.message_id, found.plan.playbook, found.plan.payload["n"]) == ("88", "domain/fraud", 1)
    assert found.plan.idempotency_key == ""
    message = found.plan.payload["message"]
    assert message["headers"] == {"x-route": "domain/fraud", "region": "eu"}
    assert (message["attributes"], message["metadata"]) == (attributes, {"source": "pubsub", "mode": "push"})
    assert (found.message.ordering_key, found.message.deliveries) == ("o1", 3)


@pytest.mark.parametrize(
    ("message", "data"),
    [
        ({"message_id": "1"}, None),
        ({"message_id": "1", "data": ""}, None),
        ({"message_id": "1", "data": base64.b64encode(b"text").decode()}, "text"),
        ({"message_id": "1", "data": "no base64!"}, "no base64!"),
        ({"message_id": "1", "data": "123"}, "123"),
    ],
)
async def test_the_data_of_a_push_of_pubsub(message: dict[str, Any], data: Any) -> None:
    plan = await plan_of(push(source="pubsub"), pubsub(**message))
    assert (plan.message_id, plan.payload["message"]["data"]) == ("1", data)


async def test_an_id_that_no_database_can_keep_is_its_digest() -> None:
    for bad in ("a\0b", "x" * 500):
        assert (await plan_of(push(source="pubsub"), pubsub(messageId=bad))).message_id.startswith("sha256-")


@pytest.mark.parametrize("body", [b"[]", b'{"message": 5}', b'{"message": {"attributes": [1]}}', b"{", b"\xff", b"1"])
async def test_a_body_that_is_no_envelope_of_pubsub_is_a_message_as_it_is(body: bytes) -> None:
    plan = await plan_of(push(source="pubsub"), body, x_goog_pubsub_message_id="99")
    assert plan.message_id == "99"
    assert plan.payload["message"]["headers"]["x-goog-pubsub-message-id"] == "99"


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────


async def test_every_refusal_has_its_status_its_word_and_its_count() -> None:
    rig = IngressRig(
        push(),
        push("new", state="REGISTERED"),
        push("paused", state="PAUSED"),
        push("draining", state="DRAINING"),
        push("gone", state="DEACTIVATED"),
    )
    unknown = rejected(404, "unknown_listener", "no push subscription for this ingress path", closes=True)
    assert await rig.post(name="stranger") == unknown
    assert await rig.post(name="new") == unknown
    assert await rig.post(name="gone") == unknown
    paused = await rig.post(name="paused")
    assert (paused.status, paused.body["reason"], paused.retry_after_s) == (503, "paused", 30)
    assert (await rig.post(name="draining")).body["reason"] == "draining"
    for _ in range(3):
        await rig.post(headers=wire())
    await rig.ingress.close()
    emitted: Counter[tuple[str, str, int]] = Counter()
    for event in rig.emitted:
        emitted[event.ref.path, event.context["reason"], event.context["status_code"]] += event.context["count"]
    assert emitted == {
        ("unknown", "unknown_listener", 404): 1,
        ("subscriptions/new", "unknown_listener", 404): 1,
        ("subscriptions/gone", "unknown_listener", 404): 1,
        ("subscriptions/paused", "paused", 503): 1,
        ("subscriptions/draining", "draining", 503): 1,
        ("subscriptions/orders", "missing_signature", 401): 3,
    }
    assert {event.event_type for event in rig.emitted} == {"subscription.message.rejected"}
    assert rig.count("rejected", subscription="orders", reason="missing_signature") == 3
    assert rig.count("rejected", subscription="unknown", reason="unknown_listener") == 1
    assert rig.plans == []


async def test_strangers_make_no_time_series_and_no_events_of_their_own() -> None:
    rig = IngressRig(push())
    for n in range(2_000):
        await rig.post(name=f"stranger-{n}")
    await rig.ingress.close()
    assert sum(event.context["count"] for event in rig.emitted) == 2_000
    assert len(rig.emitted) <= 3
    assert len(next(iter(rig.metrics.ingress_received.collect())).samples) <= 4


async def test_rejection_events_that_fail_are_emitted_later() -> None:
    rig = IngressRig(push())
    has_failed = asyncio.Event()

    async def fails(_: Sequence[SubscriptionEvent]) -> None:
        has_failed.set()
        raise StoreUnavailable("away")

    emit, rig.ingress._rejections._emit = rig.emit, fails
    await rig.post(headers=wire())
    await has_failed.wait()
    rig.ingress._rejections._emit = emit
    await rig.ingress.close()
    assert [event.context["count"] for event in rig.emitted] == [1]


async def test_a_failed_lookup_of_a_listener_is_a_502() -> None:
    rig = IngressRig(push())
    rig.known.error = StoreUnavailable("away")
    assert await rig.post() == rejected(502, "config_error", "could not resolve ingress config", closes=True)


async def test_a_dispatch_that_fails_is_not_accepted() -> None:
    rig = IngressRig(push())
    rig.error = StoreUnavailable("away")
    assert await rig.post() == rejected(502, "dispatch_error", "verified but could not dispatch execution")
    rig.error = PayloadTooLarge("3 MB")
    assert (await rig.post()).status == 413
    assert rig.count("dispatched", subscription="orders") == 0


async def test_what_waits_in_a_spool_is_accepted_without_a_run() -> None:
    rig = IngressRig(push())
    rig.answer = RunDispatchResult("spooled")
    answer = await rig.post(b'{"n": 1}', signed(b'{"n": 1}', x_message_id="m1"))
    assert answer == IngressResponse(202, {"status": "accepted", "spooled": True, "message_id": "m1"})
    assert rig.dispatched[0].message.body == b'{"n": 1}'


# ── limits ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_body_that_is_announced_too_large_is_refused_unread_and_one_that_lies_is_cut_off() -> None:
    rig = IngressRig(push(ingress={"max_body_bytes": 1_000}))

    async def never() -> AsyncIterator[bytes]:
        raise AssertionError("read")
        yield b""

    answer = await rig.ingress.receive("orders", wire(content_length="100000000"), never())
    assert (answer.status, answer.body["reason"], answer.closes) == (413, "body_too_large", True)
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 100
            yield b"x" * 100

    assert (await rig.ingress.receive("orders", wire(content_length="5"), endless())).status == 413
    assert read == 1_100
    body = b"x" * 1_000
    assert (await rig.post(body)).status == 202
    assert rig.ingress._held_bytes == 0


async def test_a_body_that_comes_too_slowly_is_given_up() -> None:
    rig = IngressRig(push(), body_timeout_s=0.05)

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    answer = await rig.ingress.receive("orders", signed(b"{}"), slow())
    assert (answer.status, answer.body["reason"], answer.closes) == (408, "slow_body", True)
    assert rig.ingress._held_bytes == 0


async def test_all_bodies_together_have_a_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_HELD_BYTES", 1_500)
    rig = IngressRig(push())
    rig.go.clear()
    body = b"x" * 1_000
    first = asyncio.create_task(rig.post(body))
    await rig.reached(1)
    second = await rig.post(body)
    assert (second.status, second.body["reason"], second.retry_after_s) == (503, "overloaded", 1)
    rig.go.set()
    assert (await first).status == 202
    assert (await rig.post(body)).status == 202


async def test_deliveries_above_the_limit_get_429_and_one_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FlowLimiter", partial(FlowLimiter, clock=lambda: 0.0))  # no time passes
    rig = IngressRig(push(limits={"max_dispatch_per_sec": 2}))
    answers = [await rig.post() for _ in range(5)]
    assert [answer.status for answer in answers] == [202, 202, 429, 429, 429]
    assert (answers[-1].body["reason"], answers[-1].retry_after_s) == ("dispatch_rate", 1)
    (limited,) = [event for event in rig.emitted if event.event_type == "subscription.rate_limited"]
    assert (limited.context["reason"], limited.context["action"]) == ("dispatch_rate", "answered_429")
    # Who cannot sign does not use up what the others may send.
    rig = IngressRig(push(limits={"max_dispatch_per_sec": 1}))
    for _ in range(5):
        assert (await rig.post(headers=wire())).status == 401
    assert (await rig.post()).status == 202


async def test_so_many_at_once_and_no_more() -> None:
    rig = IngressRig(push(limits={"max_in_flight": 2}))
    rig.go.clear()
    waiting = [asyncio.create_task(rig.post()) for _ in range(2)]
    await rig.reached(2)
    third = await rig.post()
    assert (third.status, third.body["reason"], third.retry_after_s) == (429, "max_in_flight", 1)
    rig.go.set()
    assert [answer.status for answer in await asyncio.gather(*waiting)] == [202, 202]
    assert (await rig.post()).status == 202
