"""Deliveries over HTTP, to a server and through a gateway: what is signed becomes a run, nothing else does."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tape.engine.security.keyfile import KeyFile
from tape.errors import InvalidConfig, TokenRejected
from tape.server import server as server_module
from tape.server.gateway import Gateway
from tape.server.server import Server
from tape.subscriptions.ingress.ingress import Ingress
from tape.subscriptions.ingress.verification.issuer_keys import IssuerKeys
from tests.conftest import settings_for
from tests.subscriptions import issuer as issuing
from tests.subscriptions.issuer import ACCOUNT, AUDIENCE, Issuer, token
from tests.web import Answer, call

TOKEN = "int3rnal"
SECRET = "whsec-very-s3cret"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

PLAYBOOK = """\
kind: Playbook
metadata: {{path: {path}}}
workflow:
  - step: say
    tool: {{kind: value, value: done}}
"""
PUSH = """\
kind: Subscription
metadata: {name: orders, path: subscriptions/orders}
spec:
  source: webhook
  mode: push
  ingress:
    gateway_path: /ingress/orders
    max_body_bytes: 100k
    verify: {type: hmac_sha256, header: X-Signature, secret: orders_secret}
  dispatch: {playbook: domain/ingest_order, execution_pool: subscription}
  dedup: {enabled: true}
  headers:
    directives:
      - {header: X-Route, controls: dispatch.playbook, allowed: [domain/fraud]}
      - {header: X-Key, controls: idempotency_key}
    trace: {propagate: w3c}
"""
BILLING = """\
kind: Subscription
metadata: {{name: billing, path: subscriptions/billing}}
spec:
  source: pubsub
  mode: push
  ingress:
    gateway_path: /ingress/billing
    verify:
      type: pubsub_oidc
      audience: {audience}
      service_account: {account}
      jwks_url: {url}
  dispatch: {{playbook: domain/ingest_order}}
"""


class Edge:
    """A server with a listener, and the address that senders know."""

    def __init__(self, server: Server, address: str, ingress: Ingress | None = None) -> None:
        self.server = server
        self.address = address
        self.ingress = ingress or server.ingress

    async def post(self, body: bytes = b"{}", name: str = "orders", **headers: str) -> Answer:
        return await call(self.address, "POST", f"/ingress/{name}", body, **headers)

    async def signed(self, body: bytes = b"{}", secret: str = SECRET, **headers: str) -> Answer:
        digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        return await self.post(body, x_signature=f"sha256={digest}", **headers)

    async def api(self, path: str, body: Any = None, method: str = "") -> Any:
        given = {"authorization": f"Bearer {TOKEN}"}
        method = method or ("GET" if body is None else "POST")
        answer = await call(self.server.http_address, method, path, b"" if body is None else body, **given)
        assert answer.status == 200, answer.body
        return answer.json()

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return await self.server.database.read(lambda reader: reader.query(sql))

    async def runs(self) -> list[tuple[Any, ...]]:
        return await self.rows("SELECT run_id, agent_id, labels_json FROM tape_runs ORDER BY run_id")

    async def answers(self, kind: str) -> list[dict[str, Any]]:
        rows = await self.rows("SELECT subject, payload_json FROM tape_journal ORDER BY global_seq")
        return [json.loads(payload) for subject, payload in rows if f"/{kind}/" in subject]

    async def open(self, document: str, path: str = "subscriptions/orders") -> None:
        """Store, register and activate a push subscription."""
        await self.api("/api/catalog/register", {"content": document})
        status = await self.api("/api/subscriptions/register", {"path": path})
        await self.api(f"/api/subscriptions/{status['subscription_id']}/activate", {})

    async def act(self, action: str) -> None:
        (row,) = (await self.api("/api/subscriptions"))["subscriptions"]
        await self.api(f"/api/subscriptions/{row['subscription_id']}/{action}", {})


async def eventually(condition: Callable[[], Awaitable[Any]], seconds: float = 120) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := await condition()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    return found


@asynccontextmanager
async def serving(store: str, tmp_path: Path) -> AsyncIterator[Server]:
    key = tmp_path / "wallet.key"
    KeyFile(key).create()
    options = {"wallet_key": str(key), "ingress_body_timeout_s": 60, "http_allow": "127.0.0.1"}
    settings = settings_for(store, internal_token=TOKEN, **options)
    async with Server(settings) as server:
        await server.wallet.set("orders_secret", SECRET)
        edge = Edge(server, server.http_address)
        for path in ("domain/ingest_order", "domain/fraud"):
            await edge.api("/api/catalog/register", {"content": PLAYBOOK.format(path=path)})
        await edge.open(PUSH)
        yield server


@pytest.fixture(params=["sqlite", "postgres", "gateway"])
async def edge(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Edge]:
    """A server on each database, and one behind a gateway."""
    monkeypatch.setattr(server_module, "LISTENERS_S", 0.0)
    async with AsyncExitStack() as stack:
        store = f"sqlite:{tmp_path / 'tape.db'}"
        if request.param == "postgres":
            store = stack.enter_context(request.getfixturevalue("postgres").fresh_database())
        server = await stack.enter_async_context(serving(store, tmp_path))
        if request.param == "gateway":
            gateway = Gateway(f"http://{server.http_address}", TOKEN, fresh_s=0.0, body_timeout_s=60)
            await stack.enter_async_context(gateway)
            yield Edge(server, gateway.address, gateway._ingress)
        else:
            yield Edge(server, server.http_address)


at_server_and_gateway = pytest.mark.parametrize("edge", ["sqlite", "gateway"], indirect=True)
at_the_server = pytest.mark.parametrize("edge", ["sqlite"], indirect=True)


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────


async def test_six_signed_webhooks_become_six_runs_redirected_where_that_is_allowed_and_traced(edge: Edge) -> None:
    answers = []
    for n in range(6):
        headers = {"x_message_id": f"m{n}", "traceparent": TRACE}
        headers |= {"x_route": "domain/fraud"} if n == 1 else {"x_route": "domain/anything"} if n == 2 else {}
        answers.append(await edge.signed(json.dumps({"n": n}).encode(), **headers))
    assert [(answer.status, answer.json()["status"]) for answer in answers] == [(202, "accepted")] * 6
    runs = {run_id: (path, json.loads(labels)) for run_id, path, labels in await edge.runs()}
    assert list(runs) == [answer.json()["execution_id"] for answer in answers]
    assert [path for path, _ in runs.values()].count("domain/fraud") == 1
    for n, (_, labels) in enumerate(runs.values()):
        assert (labels["tape.pool"], labels["tape.message_id"]) == ("subscription", f"m{n}")
        assert labels["tape.subscription"] == "subscriptions/orders"
    commands = await edge.answers("command/issued/subscription")
    assert [command["payload"]["n"] for command in commands] == list(range(6))
    assert {command["trace"]["traceparent"] for command in commands} == {TRACE}
    assert "x-signature" not in str(commands).lower()
    applied = await edge.answers("message.directives_applied")
    assert [each["applied"] for each in applied if each["applied"]] == [
        [{"header": "x-route", "controls": "dispatch.playbook", "effective_value": "domain/fraud"}]
    ]
    assert {each["execution_id"] for each in applied} == set(runs)


async def test_a_redelivered_message_returns_its_existing_run(edge: Edge) -> None:
    first = await edge.signed(b'{"n": 1}', x_message_id="m1")
    again = await edge.signed(b'{"n": 1}', x_message_id="m1")
    assert (again.status, again.json()) == (202, first.json() | {"duplicate": True})
    assert (await edge.signed(b'{"n": 2}', x_message_id="m1", x_key="other")).json() != first.json()
    assert len(await edge.runs()) == 2


@at_server_and_gateway
async def test_a_forged_delivery_is_rejected_reported_and_counted_and_starts_nothing(edge: Edge) -> None:
    forged = await edge.signed(b"{}", "guess", x_route="domain/fraud")
    unsigned = await edge.post(x_route="domain/fraud")
    stranger = await edge.post(name="missing")
    assert (forged.status, forged.json()) == (401, {"status": "rejected", "reason": "bad_signature"})
    assert (unsigned.status, unsigned.json()) == (401, {"status": "rejected", "reason": "missing_signature"})
    assert (stranger.status, stranger.json()["reason"]) == (404, "unknown_listener")
    assert await edge.runs() == []

    async def all_rejected() -> set[tuple[str, int]]:
        answers = {(each["reason"], each["count"]) for each in await edge.answers("message.rejected")}
        return answers if len(answers) == 3 else set()

    answers = await eventually(all_rejected)
    assert answers == {("bad_signature", 1), ("missing_signature", 1), ("unknown_listener", 1)}
    metrics = (await call(edge.address, "GET", "/metrics")).body.decode()
    assert 'tape_ingress_rejected_total{reason="bad_signature",subscription="orders"} 1.0' in metrics
    assert 'tape_ingress_received_total{subscription="orders"} 2.0' in metrics
    assert 'subscription="missing"' not in metrics


@at_server_and_gateway
async def test_other_methods_are_not_for_deliveries(edge: Edge) -> None:
    assert (await call(edge.address, "GET", "/ingress/orders")).status == 405
    assert (await call(edge.address, "POST", "/ingress/")).status == 404
    assert (await edge.post(name="a%2Fb%00")).status == 404


# ── lifecycle and secrets ────────────────────────────────────────────────────────────────────────


@at_server_and_gateway
async def test_a_paused_subscription_answers_retry_later_and_a_deactivated_one_gone(edge: Edge) -> None:
    assert (await edge.signed()).status == 202
    await edge.act("pause")
    paused = await edge.signed()
    assert (paused.status, paused.json()["reason"], paused.headers["retry-after"]) == (503, "paused", "30")
    await edge.act("resume")
    assert (await edge.signed()).status == 202
    await edge.act("drain")
    assert (await edge.signed()).json()["reason"] == "draining"
    await edge.act("deactivate")
    assert (await edge.signed()).status == 404
    # A delivery does not bring it back to life.
    assert [row["state"] for row in (await edge.api("/api/subscriptions"))["subscriptions"]] == ["DEACTIVATED"]


@at_server_and_gateway
async def test_a_secret_is_replaced_while_deliveries_go_on(edge: Edge) -> None:
    assert (await edge.signed()).status == 202
    await edge.server.wallet.set("orders_secret", {"secret": "newer"}, keep_previous_s=3600)
    assert [(await edge.signed(secret=each)).status for each in (SECRET, "newer", "other")] == [202, 202, 401]
    await edge.server.wallet.rotate()
    assert [(await edge.signed(secret=each)).status for each in (SECRET, "newer", "other")] == [202, 202, 401]
    await edge.server.wallet.set("orders_secret", "newest")
    assert [(await edge.signed(secret=each)).status for each in (SECRET, "newer", "newest")] == [401, 401, 202]
    await edge.server.wallet.delete("orders_secret")
    refused = await edge.signed(secret="newest")
    assert (refused.status, refused.json()["reason"], refused.headers["retry-after"]) == (503, "held", "5")
    await edge.server.wallet.set("orders_secret", SECRET)
    assert (await edge.signed()).status == 202


@at_server_and_gateway
async def test_a_new_version_of_the_document_takes_effect(edge: Edge) -> None:
    assert (await edge.signed(b"x" * 90_000)).status == 202
    smaller = PUSH.replace("max_body_bytes: 100k", "max_body_bytes: 10").replace("domain/ingest_order", "domain/fraud")
    await edge.api("/api/catalog/register", {"content": smaller})
    assert (await edge.signed(b"x" * 11)).status == 413
    assert (await edge.signed(b"x" * 10)).status == 202
    assert [path for _, path, _ in await edge.runs()] == ["domain/ingest_order", "domain/fraud"]


# ── Pub/Sub ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def google() -> Iterator[Issuer]:
    with issuing.serving() as issuer:
        yield issuer


async def test_keys_at_a_private_address_that_is_not_allowed_are_not_fetched(
    google: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    issuers = IssuerKeys()
    keys = await issuers.keys(google.url)
    with pytest.raises(TokenRejected, match="jwks_stale"):
        await keys.find("k1")
    await issuers.close()
    assert "TAPE_HTTP_ALLOW=127.0.0.1:" in caplog.text


@at_server_and_gateway
async def test_six_pushes_of_pubsub_with_tokens_of_google_become_runs_and_no_others_do(
    edge: Edge, google: Issuer
) -> None:
    document = BILLING.format(audience=AUDIENCE, account=ACCOUNT, url=google.url)
    await edge.open(document, "subscriptions/billing")

    async def push(n: int, bearer: str) -> Answer:
        message = {"data": base64.b64encode(b'{"n": %d}' % n).decode(), "messageId": str(n)}
        body = json.dumps({"message": message}).encode()
        # The names of new listeners are looked at once a second.
        return await edge.post(body, "billing", authorization=f"Bearer {bearer}")

    async def known() -> bool:
        return (await edge.post(name="billing")).status != 404

    await eventually(known)
    for n in range(6):
        assert (await push(n, token())).status == 202
    for bad, reason in (
        (token("k1", issuing.ROGUE), "oidc_bad_signature"),
        (token(aud="other"), "oidc_wrong_audience"),
        (token(exp=time.time() - 90), "oidc_expired"),
    ):
        refused = await push(7, bad)
        assert refused.json()["reason"] == reason
    assert [json.loads(labels)["tape.message_id"] for _, _, labels in await edge.runs()] == list("012345")
    assert [each["payload"]["n"] for each in await edge.answers("command/issued/shared")] == list(range(6))


# ── what is sent to do harm ──────────────────────────────────────────────────────────────────────


@at_server_and_gateway
async def test_a_hundred_megabytes_are_refused_without_being_read(edge: Edge) -> None:
    host, _, port = edge.address.rpartition(":")
    for head in ("content-length: 104857600", "transfer-encoding: chunked"):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST /ingress/orders HTTP/1.1\r\nhost: x\r\nx-signature: 00\r\n{head}\r\n\r\n".encode())
        sent = 0
        piece = b"x" * 65_536
        framed = piece if "length" in head else b"10000\r\n" + piece + b"\r\n"
        try:
            while sent < 100 << 20 and not reader.at_eof() and not reader._buffer:  # type: ignore[attr-defined]
                writer.write(framed)
                await writer.drain()
                sent += len(piece)
        except ConnectionError:
            pass
        with contextlib.suppress(ConnectionError):
            assert (await reader.readline()).startswith(b"HTTP/1.1 413"), head
        writer.close()
        assert sent < 50 << 20
    metrics = (await call(edge.address, "GET", "/metrics")).body.decode()
    assert 'tape_ingress_rejected_total{reason="body_too_large",subscription="orders"} 2.0' in metrics


@at_server_and_gateway
async def test_a_body_that_never_arrives_times_out(edge: Edge) -> None:
    assert edge.ingress._body_timeout_s == 60
    edge.ingress._body_timeout_s = 0.1
    host, _, port = edge.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /ingress/orders HTTP/1.1\r\nhost: x\r\ncontent-length: 70000\r\n\r\n{")
    answer = await asyncio.wait_for(reader.read(), 120)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"slow_body" in answer
    writer.close()


@at_server_and_gateway
async def test_a_sender_that_disconnects_does_not_affect_other_deliveries(edge: Edge) -> None:
    host, _, port = edge.address.rpartition(":")
    for _ in range(20):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /ingress/orders HTTP/1.1\r\nhost: x\r\ncontent-length: 70000\r\n\r\n{")
        await writer.drain()
        writer.close()
    assert (await edge.signed()).status == 202


@at_server_and_gateway
async def test_a_message_that_the_server_cannot_store_is_rejected_permanently(edge: Edge) -> None:
    await edge.api("/api/catalog/register", {"content": PUSH.replace("100k", "4M")})
    body = json.dumps({"text": "x" * 1_200_000}).encode()
    refused = await edge.signed(body)
    assert (refused.status, refused.json()["reason"]) == (413, "payload_too_large")


@at_server_and_gateway
async def test_a_missing_playbook_holds_the_subscription_and_senders_try_again(edge: Edge) -> None:
    await edge.api("/api/catalog/register", {"content": PUSH.replace("domain/ingest_order", "domain/none")})
    for _ in range(2):
        refused = await edge.signed()
        assert (refused.status, refused.json()["reason"], refused.headers["retry-after"]) == (503, "held", "5")

    async def holds() -> list[str]:
        (row,) = (await edge.api("/api/subscriptions"))["subscriptions"]
        return list(row.get("held", {}).get("reasons", ()))

    (reason,) = await eventually(holds)
    assert "domain/none" in reason
    await edge.api("/api/catalog/register", {"content": PLAYBOOK.format(path="domain/none")})
    # The claim of a message that was not begun does not swallow its repetition.
    assert (await edge.signed()).status == 202

    async def is_released() -> bool:
        return not await holds()

    await eventually(is_released)
    assert len(await edge.answers("subscription/held")) == 1
    assert len(await edge.answers("subscription/released")) == 1


# ── the gateway ──────────────────────────────────────────────────────────────────────────────────


@at_the_server
async def test_a_gateway_reads_listeners_with_the_internal_token_only(edge: Edge) -> None:
    config = await edge.api("/api/internal/ingress/orders")
    (row,) = (await edge.api("/api/subscriptions"))["subscriptions"]
    assert {name: config[name] for name in ("listener", "catalog_path", "source", "subscription_id", "state")} == {
        "listener": "orders",
        "catalog_path": "subscriptions/orders",
        "source": "webhook",
        "subscription_id": row["subscription_id"],
        "state": "ACTIVE",
    }
    assert config["verify"] == {"type": "hmac_sha256", "header": "x-signature", "secret": SECRET}
    assert config["dispatch"] == {
        "playbook": "domain/ingest_order",
        "payload_from": "message.json",
        "execution_pool": "subscription",
    }
    assert config["directives"]["directives"][0]["allowed"] == ["domain/fraud"]
    assert (await edge.api("/api/internal/ingress"))["listeners"] == ["orders"]
    for _ in range(3):
        await edge.api("/api/internal/ingress/orders")
    assert [each["alias"] for each in await edge.answers("wallet/revealed")] == ["orders_secret"]
    for path in ("/api/internal/ingress", "/api/internal/ingress/orders"):
        for headers in ({}, {"authorization": "Bearer no"}):
            refused = await call(edge.server.http_address, "GET", path, **headers)
            assert refused.status == 403
            assert SECRET not in refused.body.decode()
    missing = await call(edge.server.http_address, "GET", "/api/internal/ingress/none", authorization=f"Bearer {TOKEN}")
    assert (missing.status, missing.json()["error"]) == (404, "No push subscription for ingress listener 'none'")


async def test_a_gateway_needs_the_internal_token_and_a_sensible_address() -> None:
    with pytest.raises(InvalidConfig, match="TAPE_INTERNAL_API_TOKEN"):
        Gateway("http://127.0.0.1:1", "")
    with pytest.raises(InvalidConfig, match="must look like"):
        Gateway("nonsense", TOKEN)


async def test_a_gateway_without_its_server_is_not_ready() -> None:
    async with Gateway("http://127.0.0.1:9", TOKEN) as gateway:
        refused = await call(gateway.address, "POST", "/ingress/orders", b"{}")
        assert (refused.status, refused.json()["reason"]) == (502, "config_error")
        assert (await call(gateway.address, "GET", "/healthz")).status == 200
        assert (await call(gateway.address, "GET", "/readyz")).status == 503
        metrics = (await call(gateway.address, "GET", "/metrics")).body.decode()
        assert "tape_gateway_build_info" in metrics


@at_the_server
async def test_a_gateway_with_a_cached_listener_verifies_during_an_outage_of_its_server(edge: Edge) -> None:
    async with Gateway(f"http://{edge.server.http_address}", TOKEN, fresh_s=0.0) as gateway:
        behind = Edge(edge.server, gateway.address)
        assert (await call(gateway.address, "GET", "/readyz")).status == 200
        assert (await behind.signed()).status == 202
        await edge.server.stop()
        assert (await behind.signed()).json()["reason"] == "dispatch_error"
        assert (await behind.signed(secret="guess")).status == 401


@at_the_server
async def test_concurrent_deliveries_share_a_request(edge: Edge) -> None:
    async with Gateway(f"http://{edge.server.http_address}", TOKEN) as gateway:
        behind = Edge(edge.server, gateway.address)
        await behind.signed()
        answers = await asyncio.gather(*(behind.signed(b'{"n": %d}' % n) for n in range(200)))
        assert {answer.status for answer in answers} == {202}
        assert len({answer.json()["execution_id"] for answer in answers}) == 200
        metrics = (await call(edge.server.http_address, "GET", "/metrics")).body.decode()
        (requests,) = [line for line in metrics.splitlines() if line.startswith("tape_execute_batch_size_count")]
        assert float(requests.split()[1]) < 150


def test_a_gateway_loads_no_database() -> None:
    drivers = "{'apsw', 'psycopg', 'grpc'}"
    code = f"import sys, tape.cli.gateway, tape.server.gateway as g; print(sorted({drivers} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


async def test_a_spool_that_cannot_be_opened_does_not_block_other_deliveries(edge: Edge) -> None:
    waiting = "  spool: {mode: buffer_and_ack, backend: s3, bucket: orders, credential: not_set}\n"
    await edge.api("/api/catalog/register", {"content": PUSH + waiting})
    answer = await edge.signed()
    assert (answer.status, answer.json()["status"]) == (202, "accepted")
    assert answer.json()["execution_id"]
