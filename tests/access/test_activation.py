"""Only an active push subscription accepts deliveries, at a server and through a gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tape.server import server as server_module
from tape.server.gateway import Gateway
from tape.subscriptions.ingress import listeners
from tests.server.test_ingress import PUSH, SECRET, TOKEN, Edge, serving
from tests.web import Answer, call

PATH = "subscriptions/late"
LATE = PUSH.replace("subscriptions/orders", PATH).replace("/ingress/orders", "/ingress/late")
RIVAL = PUSH.replace("subscriptions/orders", "a/rival").replace("domain/ingest_order", "domain/fraud")


@pytest.fixture(params=["sqlite", "postgres", "gateway"])
async def edge(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Edge]:
    """A server on each database, and one behind a gateway. Nothing is cached."""
    monkeypatch.setattr(server_module, "LISTENERS_S", 0.0)
    monkeypatch.setattr(listeners, "NAMES_S", 0.0)
    async with AsyncExitStack() as stack:
        store = f"sqlite:{tmp_path / 'tape.db'}"
        if request.param == "postgres":
            store = stack.enter_context(request.getfixturevalue("postgres").fresh_database())
        server = await stack.enter_async_context(serving(store, tmp_path))
        address = server.http_address
        if request.param == "gateway":
            gateway = await stack.enter_async_context(Gateway(f"http://{address}", TOKEN, fresh_s=0.0))
            address = gateway.address
        yield Edge(server, address)


async def deliver(edge: Edge, name: str = "late") -> tuple[int, bytes, dict[str, str]]:
    """The answer to a delivery with a valid signature, without its time."""
    answer: Answer = await edge.signed(b'{"n": 1}', name=name)
    return answer.status, answer.body, {key: value for key, value in answer.headers.items() if key != "date"}


async def register(edge: Edge, path: str = PATH) -> str:
    return str((await edge.api("/api/subscriptions/register", {"path": path}))["subscription_id"])


async def test_a_push_subscription_accepts_deliveries_only_while_it_is_active(edge: Edge) -> None:
    unknown = await deliver(edge, "stranger")
    assert unknown[0] == 404

    await edge.api("/api/catalog/register", {"content": LATE})
    assert await deliver(edge) == unknown
    # The delivery did not register it.
    assert [each["path"] for each in (await edge.api("/api/subscriptions"))["subscriptions"]] == [
        "subscriptions/orders"
    ]

    first = await register(edge)
    assert await deliver(edge) == unknown
    assert await edge.runs() == []

    await edge.api(f"/api/subscriptions/{first}/activate", {})
    assert (await deliver(edge))[0] == 202

    await edge.api(f"/api/subscriptions/{first}/deactivate", {})
    assert await deliver(edge) == unknown

    second = await register(edge)
    assert second != first
    assert await deliver(edge) == unknown

    # An older registration can be activated again when no other is live.
    await edge.api(f"/api/subscriptions/{second}/deactivate", {})
    await edge.api(f"/api/subscriptions/{first}/activate", {})
    assert (await deliver(edge))[0] == 202


async def test_a_gateway_gets_no_secret_of_a_subscription_that_was_never_activated(edge: Edge) -> None:
    await edge.api("/api/catalog/register", {"content": LATE})
    await register(edge)
    assert (await edge.api("/api/internal/ingress"))["listeners"] == ["orders"]
    answers = [
        await call(edge.server.http_address, "GET", f"/api/internal/ingress/{name}", authorization=f"Bearer {TOKEN}")
        for name in ("late", "none")
    ]
    assert [answer.status for answer in answers] == [404, 404]
    assert answers[0].body.replace(b"'late'", b"'none'") == answers[1].body
    assert SECRET.encode() not in answers[0].body


async def test_a_document_that_is_not_active_takes_no_deliveries_from_one_that_is(edge: Edge) -> None:
    await edge.api("/api/catalog/register", {"content": RIVAL})
    rival = await register(edge, "a/rival")
    assert (await deliver(edge, "orders"))[0] == 202
    await edge.api(f"/api/subscriptions/{rival}/activate", {})
    assert (await deliver(edge, "orders"))[0] == 202
    await edge.api(f"/api/subscriptions/{rival}/deactivate", {})
    assert (await deliver(edge, "orders"))[0] == 202
    paths = [path for _, path, _ in await edge.runs()]
    # Of two active ones, the first by path gets the delivery; the last delivery repeats the first message.
    assert paths.count("domain/fraud") == 1
    assert set(paths) == {"domain/ingest_order", "domain/fraud"}
