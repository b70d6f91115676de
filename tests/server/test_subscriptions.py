"""`/api/subscriptions…` and `/api/events`: the shapes and the statuses that clients go by."""

from __future__ import annotations

from typing import Any

import pytest

from tape.server.server import Server
from tests.conftest import settings_for
from tests.subscriptions.documents import EXAMPLES, NATS
from tests.web import Answer, call

PATH = "subscriptions/orders"
FORCED = {"force": True}


async def post(server: Server, path: str, body: Any = b"", **headers: str) -> Answer:
    return await call(server.http_address, "POST", path, body, **headers)


async def get(server: Server, path: str, **headers: str) -> Answer:
    return await call(server.http_address, "GET", path, **headers)


@pytest.fixture
async def orders(server: Server) -> str:
    """The id of a registered subscription."""
    assert (await post(server, "/api/catalog/register", {"content": NATS})).status == 200
    answer = await post(server, "/api/subscriptions/register", {"path": PATH})
    assert answer.status == 200
    return str(answer.json()["subscription_id"])


async def test_every_example_of_the_design_registers(server: Server) -> None:
    for text in EXAMPLES.values():
        answer = await post(server, "/api/catalog/register", {"content": text})
        assert (answer.status, answer.json()["kind"]) == (200, "subscription")
        path = answer.json()["path"]
        registered = await post(server, "/api/subscriptions", {"path": path})
        assert (registered.status, registered.json()["state"]) == (200, "REGISTERED")
    listed = (await get(server, "/api/subscriptions")).json()["subscriptions"]
    assert len(listed) == len(EXAMPLES)


async def test_an_invalid_document_is_rejected_with_every_problem(server: Server) -> None:
    text = NATS.replace("source: nats", "source: natz").replace("playbook:", "playbok:")
    answer = await post(server, "/api/catalog/register", {"content": text})
    assert answer.status == 422
    body = answer.json()
    assert body["status"] == 422
    assert [problem["path"] for problem in body["problems"]] == [
        "spec.source",
        "spec.dispatch.playbok",
        "spec.dispatch.playbook",
    ]
    assert "did you mean 'playbook'" in body["error"]


async def test_what_cannot_start_runs_is_activated_only_by_force(server: Server, orders: str) -> None:
    registered = (await post(server, "/api/subscriptions/register", {"path": PATH})).json()
    (problem,) = registered["problems"]
    assert "has no playbook" in problem
    refused = await post(server, f"/api/subscriptions/{orders}/activate")
    assert (refused.status, refused.json()["code"]) == (422, "TAPE-2186")
    assert problem in refused.json()["error"]
    assert (await get(server, f"/api/subscriptions/{orders}")).json()["state"] == "REGISTERED"
    forced = await post(server, f"/api/subscriptions/{orders}/activate", FORCED)
    assert (forced.status, forced.json()["state"], forced.json()["problems"]) == (200, "ACTIVE", [problem])
    wrong = await post(server, f"/api/subscriptions/{orders}/pause", FORCED)
    assert (wrong.status, "force is for activate" in wrong.json()["error"]) == (422, True)


async def test_a_hold_is_recorded_once_and_ends_with_the_registration(server: Server, orders: str) -> None:
    await post(server, f"/api/subscriptions/{orders}/activate", FORCED)
    for reasons in (["no playbook"], ["no playbook"], ["no playbook", "no secret"]):
        held = await post(server, "/api/holds", {"subscription_id": orders, "reasons": reasons})
        assert (held.status, held.json()["held"]) == (200, reasons)
    paused = (await post(server, f"/api/subscriptions/{orders}/pause")).json()
    assert paused["held"]["reasons"] == ["no playbook", "no secret"]
    (problem,) = (await post(server, "/api/holds", {"subscription_id": orders})).json()["problems"]
    assert problem["kind"] == "playbook"
    for body, status in (
        ({"subscription_id": "1"}, 404),
        ({"subscription_id": orders, "reasons": [" "]}, 422),
        ({"subscription_id": orders, "reasons": "x"}, 422),
    ):
        assert (await post(server, "/api/holds", body)).status == status
    ended = (await post(server, f"/api/subscriptions/{orders}/deactivate")).json()
    assert "held" not in ended
    rows = await server.database.read(lambda reader: reader.query("SELECT subject FROM tape_journal"))
    assert [name.split("/")[3] for (name,) in rows].count("held") == 2


async def test_the_whole_life_of_a_subscription(server: Server, orders: str) -> None:
    states = []
    for action in ("activate", "pause", "resume", "drain", "deactivate"):
        answer = await post(server, f"/api/subscriptions/{orders}/{action}", FORCED if action == "activate" else {})
        states.append((answer.json()["state"], answer.json()["last_event_type"]))
    assert states == [
        ("ACTIVE", "subscription.activated"),
        ("PAUSED", "subscription.paused"),
        ("ACTIVE", "subscription.resumed"),
        ("DRAINING", "subscription.draining"),
        ("DEACTIVATED", "subscription.deactivated"),
    ]
    shown = (await get(server, f"/api/subscriptions/{orders}")).json()
    assert set(shown) == {"subscription_id", "path", "catalog_id", "state", "last_event_type", "updated_at"}
    assert (shown["subscription_id"], shown["path"], shown["state"]) == (orders, PATH, "DEACTIVATED")


async def test_invalid_actions_are_answered_with_a_status(server: Server, orders: str) -> None:
    refused = [
        await post(server, f"/api/subscriptions/{orders}/pause"),
        await post(server, f"/api/subscriptions/{orders}/explode"),
        await post(server, "/api/subscriptions/99/explode"),
        await post(server, "/api/subscriptions/99/activate"),
        await get(server, "/api/subscriptions/nonsense"),
        await post(server, "/api/subscriptions", {"path": "nowhere"}),
        await post(server, "/api/subscriptions", b"{", content_type="application/json"),
        await post(server, "/api/subscriptions", {}),
        await get(server, "/api/subscriptions?limit=0"),
    ]
    assert [(answer.status, answer.json()["error"]) for answer in refused[:6]] == [
        (422, "Cannot 'pause' a subscription in state 'REGISTERED' (allowed from [\"ACTIVE\", \"PAUSED\"])"),
        (422, "Unknown subscription action 'explode'"),
        (422, "Unknown subscription action 'explode'"),
        (404, "Subscription 99 not registered"),
        (404, "Subscription nonsense not registered"),
        (404, "Subscription not found: nowhere"),
    ]
    assert [answer.status for answer in refused[6:]] == [400, 422, 422]


async def test_pages_of_the_list_follow_each_other(server: Server, orders: str) -> None:
    for _ in range(2):
        await post(server, f"/api/subscriptions/{orders}/deactivate")
        orders = (await post(server, "/api/subscriptions", {"path": PATH})).json()["subscription_id"]
    first = (await get(server, f"/api/subscriptions?path={PATH}&limit=2")).json()
    second = (await get(server, f"/api/subscriptions?limit=2&before={first['next']}")).json()
    assert (len(first["subscriptions"]), len(second["subscriptions"]), "next" in second) == (2, 1, False)


async def test_runtimes_put_their_events_on_the_journal(server: Server, orders: str) -> None:
    body = {
        "execution_id": int(orders),
        "event_type": "subscription.circuit.opened",
        "step": "ingress",
        "status": "OPEN",
        "created_at": "2026-06-12T10:00:00.000Z",
        "context": {"downstream": "db", "consecutive_failures": 5, "trips": 1},
        "worker_id": "w1",
        "meta": {"emitter": "spool_runtime"},
        "event_id": 12345,
    }
    first, again = await post(server, "/api/events", body), await post(server, "/api/events", body)
    assert first.status == 200
    assert first.json() == again.json()
    assert set(first.json()) == {"status", "event_id", "commands_generated"}
    row = await server.database.read(
        lambda reader: reader.one(
            "SELECT subject, run_id, payload_json FROM tape_journal WHERE global_seq = ?", first.json()["event_id"]
        )
    )
    assert row is not None
    assert row[:2] == ("/tape/subscription/circuit.opened/orders", orders)
    assert '"downstream":"db"' in row[2]
    many = await post(server, "/api/events", [body | {"event_id": number} for number in (1, 2)])
    assert [each["event_id"] for each in many.json()["events"]] == [
        first.json()["event_id"] + 1,
        first.json()["event_id"] + 2,
    ]


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"event_type": "subscription.paused"}, 422, "The lifecycle is changed by POST"),
        ({"event_type": "order.created"}, 422, "is not accepted here"),
        ({"execution_id": "7"}, 404, "Subscription 7 not registered"),
        ({"execution_id": "x"}, 422, "execution_id 'x' must be a whole number"),
        ({"created_at": "yesterday"}, 400, "created_at 'yesterday' is not a time"),
        ({"context": []}, 422, "Expected `object`"),
    ],
)
async def test_invalid_events_are_rejected(
    server: Server, orders: str, change: dict[str, Any], status: int, said: str
) -> None:
    body = {"execution_id": orders, "event_type": "subscription.rate_limited", "status": "RATE_LIMITED"}
    answer = await post(server, "/api/events", body | change)
    assert answer.status == status
    assert said in answer.json()["error"]


async def test_only_the_internal_token_moves_a_subscription(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url, internal_token="t0ken")) as server:
        assert (await post(server, "/api/subscriptions", {"path": PATH})).status in (401, 403)
        assert (await post(server, "/api/events", {"event_type": "subscription.rate_limited"})).status in (401, 403)
        known = {"authorization": "Bearer t0ken"}
        assert (await post(server, "/api/subscriptions", {"path": PATH}, **known)).status == 404
