"""What became of deliveries, and a delivery sent again: by operators of the tenant, from what the journal keeps."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from tests.server.test_ingress import TOKEN, Edge, at_the_server, edge, eventually
from tests.web import Answer, call

__all__ = ["edge"]


async def deliveries(edge: Edge, **asked: str) -> dict[str, Any]:
    query = "&".join(f"{name}={value}" for name, value in ({"path": "subscriptions/orders"} | asked).items())
    found: dict[str, Any] = await edge.api(f"/api/deliveries?{query}")
    return found


async def resend(edge: Edge, execution_id: str, dedup: str = "new") -> Answer:
    headers = {"authorization": f"Bearer {TOKEN}"}
    body = {"execution_id": execution_id, "dedup": dedup}
    return await call(edge.server.http_address, "POST", "/api/deliveries/resend", body, **headers)


async def test_deliveries_are_listed_with_their_outcome_newest_first(edge: Edge) -> None:
    first = (await edge.signed(b'{"n": 1}', x_message_id="m1")).json()["execution_id"]
    await edge.signed(b'{"n": 1}', x_message_id="m1")
    second = (await edge.signed(b'{"n": 2}', x_message_id="m2")).json()["execution_id"]
    await edge.post(b'{"n": 3, "pin": "1234"}', x_signature="00")

    async def complete() -> list[dict[str, Any]]:
        found = (await deliveries(edge))["deliveries"]
        return found if {"rejected", "duplicate"} <= {each["outcome"] for each in found} else []

    found = await eventually(complete)
    accepted = [(each["execution_id"], each["message_id"]) for each in found if each["outcome"] == "accepted"]
    assert accepted == [(second, "m2"), (first, "m1")]
    assert {each["status"] for each in found if each["outcome"] == "accepted"} == {"runnable"}
    (rejected,) = [each for each in found if each["outcome"] == "rejected"]
    assert (rejected["reason"], rejected["count"]) == ("bad_signature", 1)
    (duplicate,) = [each for each in found if each["outcome"] == "duplicate"]
    assert duplicate["execution_id"] == first
    times = [datetime.fromisoformat(each["at"]) for each in found]
    assert times == sorted(times, reverse=True)
    assert "1234" not in str(found)


@at_the_server
async def test_deliveries_are_paged(edge: Edge) -> None:
    ids = [(await edge.signed(b'{"n": %d}' % n, x_message_id=f"m{n}")).json()["execution_id"] for n in range(5)]
    seen: list[str] = []
    page = await deliveries(edge, limit="2")
    while True:
        seen += [each["execution_id"] for each in page["deliveries"]]
        if "next" not in page:
            break
        page = await deliveries(edge, limit="2", before=page["next"])
    assert sorted(seen) == sorted(ids)
    assert len(seen) == 5


async def test_a_delivery_sent_again_is_a_new_run_with_the_same_input(edge: Edge) -> None:
    sent = await edge.signed(b'{"order_id": 7}', x_message_id="m1", x_route="domain/fraud", x_key="k1")
    original = sent.json()["execution_id"]
    answer = await resend(edge, original)
    assert (answer.status, answer.json()["status"]) == (200, "started")
    again = answer.json()["execution_id"]
    assert again != original
    commands = {each["execution_id"]: each for each in await edge.answers("command/issued/subscription")}
    for name in ("payload", "pool", "message_id", "subscription", "path"):
        assert commands[again][name] == commands[original][name], name
    (event,) = await edge.answers("message.resent")
    assert (event["original_execution_id"], event["execution_id"], event["dedup"]) == (original, again, "new")
    assert event["subscription"] == "subscriptions/orders"
    # A redelivery of the sender is still the first run's duplicate.
    redelivered = await edge.signed(b'{"order_id": 7}', x_message_id="m1", x_route="domain/fraud", x_key="k1")
    assert redelivered.json()["execution_id"] == original


async def test_under_the_same_key_a_delivery_within_the_window_is_its_own_duplicate(edge: Edge) -> None:
    for headers in ({"x_message_id": "m1"}, {"x_message_id": "m2", "x_key": "k2"}):
        original = (await edge.signed(b'{"n": 1}', **headers)).json()["execution_id"]
        answer = await resend(edge, original, "same")
        assert (answer.status, answer.json()["status"]) == (200, "duplicate")
        assert answer.json()["execution_id"] == original
    assert len(await edge.runs()) == 2


@at_the_server
async def test_what_is_unknown_pruned_or_malformed_is_not_sent_again(edge: Edge) -> None:
    original = (await edge.signed(b"{}", x_message_id="m1")).json()["execution_id"]
    direct = (await edge.api("/api/execute", {"path": "domain/ingest_order"}))["execution_id"]
    for execution_id in ("1", "nothing", direct, "", "~other/x"):
        answer = await resend(edge, execution_id)
        assert (answer.status, answer.json()["code"]) == (404, "TAPE-2254"), execution_id
    await edge.server.database.write(lambda tx: tx.execute("DELETE FROM tape_journal WHERE kind = 'command'"))
    answer = await resend(edge, original)
    assert (answer.status, answer.json()["code"]) == (422, "TAPE-2255")
    for body in (
        {"execution_id": original, "dedup": "sometimes"},
        {"execution_id": 7},
        {"execution_id": original, "x": 1},
    ):
        headers = {"authorization": f"Bearer {TOKEN}"}
        assert (await call(edge.server.http_address, "POST", "/api/deliveries/resend", body, **headers)).status == 422
    assert len(await edge.runs()) == 2


@at_the_server
@pytest.mark.parametrize("query", ["", "path=", "path=subscriptions/unknown", "path=~other/subscriptions/orders"])
async def test_an_unknown_subscription_has_no_deliveries(edge: Edge, query: str) -> None:
    answer = await call(edge.server.http_address, "GET", f"/api/deliveries?{query}", authorization=f"Bearer {TOKEN}")
    assert (answer.status, answer.json()["code"]) == (404, "TAPE-2151")


@at_the_server
@pytest.mark.parametrize("query", ["limit=0", "limit=201", "limit=x", "before=x", "before=1-", "before=-1-2"])
async def test_a_page_that_is_none_is_refused(edge: Edge, query: str) -> None:
    path = f"/api/deliveries?path=subscriptions/orders&{query}"
    answer = await call(edge.server.http_address, "GET", path, authorization=f"Bearer {TOKEN}")
    assert answer.status == 422, answer.body


@at_the_server
async def test_deliveries_need_an_operator(edge: Edge) -> None:
    for method, path, body in (
        ("GET", "/api/deliveries?path=subscriptions/orders", b""),
        ("POST", "/api/deliveries/resend", json.dumps({"execution_id": "1"}).encode()),
    ):
        answer = await call(edge.server.http_address, method, path, body, content_type="application/json")
        assert answer.status in (401, 403)
