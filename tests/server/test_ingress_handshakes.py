"""Handshakes of providers and client certificates, at a server and a gateway: answered, counted, no messages."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tape.base.config import TlsFiles
from tape.engine.security.dev_certificates import DevAuthority
from tape.server import server as server_module
from tape.server.gateway import Gateway
from tape.server.server import Server
from tests.conftest import settings_for
from tests.server.test_ingress import PLAYBOOK, TOKEN, Edge, at_server_and_gateway, edge, eventually
from tests.web import Answer, call

__all__ = ["edge"]

PUSH = """\
kind: Subscription
metadata: {{name: hook, path: subscriptions/hook}}
spec:
  source: webhook
  mode: push
  ingress:
    gateway_path: /ingress/hook
    verify: {verify}
  dispatch: {{playbook: domain/ingest_order}}
"""


async def open_hook(edge: Edge, verify: str, **secrets: str) -> None:
    for alias, secret in secrets.items():
        await edge.server.wallet.set(alias, secret)
    await edge.open(PUSH.format(verify=verify), "subscriptions/hook")


async def is_counted_and_journaled(edge: Edge, kind: str) -> None:
    async def journaled() -> list[dict[str, Any]]:
        return [each for each in await edge.answers("handshake") if each["kind"] == kind]

    (event,) = await eventually(journaled)
    assert (event["subscription"], event["count"]) == ("subscriptions/hook", 1)
    metrics = (await call(edge.address, "GET", "/metrics")).body.decode()
    assert f'tape_ingress_handshakes_total{{kind="{kind}",subscription="hook"}} 1.0' in metrics
    assert await edge.runs() == []


def versioned(prefix: str, body: bytes, secret: str = "s3cret", at: float | None = None) -> dict[str, str]:
    """The headers of Slack and Zoom."""
    moment = str(int(at or time.time()))
    digest = hmac.new(secret.encode(), f"v0:{moment}:".encode() + body, hashlib.sha256).hexdigest()
    return {f"{prefix}_signature": f"v0={digest}", f"{prefix}_request_timestamp": moment}


@at_server_and_gateway
async def test_slack_gets_its_challenge_back_if_it_signed_it(edge: Edge) -> None:
    await open_hook(edge, "{type: signature, preset: slack, secret: slack}", slack="s3cret")
    body = b'{"token": "x", "challenge": "3eZbrw1aB", "type": "url_verification"}'
    answer = await edge.post(body, "hook", **versioned("x_slack", body))
    assert (answer.status, answer.json()) == (200, {"challenge": "3eZbrw1aB"})
    await is_counted_and_journaled(edge, "url_verification")
    for headers in ({}, versioned("x_slack", body, "wrong"), versioned("x_slack", body, at=time.time() - 400)):
        assert (await edge.post(body, "hook", **headers)).status == 401
    for challenge in (b'"<script>\\u0000"', b'""', b"7", b'"' + b"x" * 1_025 + b'"'):
        bad = b'{"challenge": %b, "type": "url_verification"}' % challenge
        answer = await edge.post(bad, "hook", **versioned("x_slack", bad))
        assert (answer.status, answer.json()["reason"]) == (400, "bad_challenge")
    message = b'{"type": "event_callback", "event_id": "Ev1"}'
    assert (await edge.post(message, "hook", **versioned("x_slack", message))).status == 202
    assert len(await edge.runs()) == 1


@at_server_and_gateway
async def test_zoom_gets_its_token_encrypted_with_the_secret_that_signed(edge: Edge) -> None:
    await open_hook(edge, "{type: signature, preset: zoom, secrets: [new, old]}", new="n3w", old="s3cret")
    body = b'{"event": "endpoint.url_validation", "payload": {"plainToken": "qgg8vlvZRS6UYooatFL8Aw"}}'
    answer = await edge.post(body, "hook", **versioned("x_zm", body))
    made = hmac.new(b"s3cret", b"qgg8vlvZRS6UYooatFL8Aw", hashlib.sha256).hexdigest()
    assert (answer.status, answer.json()) == (200, {"plainToken": "qgg8vlvZRS6UYooatFL8Aw", "encryptedToken": made})
    await is_counted_and_journaled(edge, "url_validation")


@at_server_and_gateway
async def test_discord_gets_a_pong_if_it_signed_the_ping(edge: Edge) -> None:
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw().hex()
    await open_hook(edge, "{type: signature, preset: discord, secret: discord}", discord=public)

    async def send(body: bytes, signed: bytes) -> Answer:
        moment = str(int(time.time()))
        signature = key.sign(moment.encode() + signed).hex()
        return await edge.post(body, "hook", x_signature_ed25519=signature, x_signature_timestamp=moment)

    answer = await send(b'{"type": 1}', b'{"type": 1}')
    assert (answer.status, answer.json()) == (200, {"type": 1})
    assert (await send(b'{"type": 1}', b"{}")).status == 401
    await is_counted_and_journaled(edge, "ping")
    assert (await send(b'{"type": 2, "id": "i1"}', b'{"type": 2, "id": "i1"}')).status == 202


@at_server_and_gateway
async def test_meta_gets_its_challenge_back_for_the_right_token(edge: Edge) -> None:
    verify = "{type: signature, preset: meta, secret: app, verify_token: hub}"
    await open_hook(edge, verify, app="s3cret", hub="t0ken&x")

    async def ask(query: str, method: str = "GET") -> Answer:
        return await call(edge.address, method, f"/ingress/hook?{query}")

    answer = await ask("hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token=t0ken%26x")
    assert (answer.status, answer.body) == (200, b"1158201444")
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["x-content-type-options"] == "nosniff"
    await is_counted_and_journaled(edge, "hub_challenge")
    for query, status in (
        ("hub.mode=subscribe&hub.challenge=1&hub.verify_token=wrong", 403),
        ("hub.mode=subscribe&hub.challenge=1", 403),
        ("", 403),
        ("hub.mode=unsubscribe&hub.challenge=1&hub.verify_token=t0ken%26x", 400),
        ("hub.mode=subscribe&hub.verify_token=t0ken%26x", 400),
        ("hub.mode=subscribe&hub.challenge=%0d%0a&hub.verify_token=t0ken%26x", 400),
        ("a=1&" * 21 + "hub.verify_token=t0ken%26x", 400),
    ):
        assert (await ask(query)).status == status, query
    assert (await ask("", "HEAD")).status == 405
    body = b'{"object": "page"}'
    digest = hmac.new(b"s3cret", body, hashlib.sha256).hexdigest()
    assert (await edge.post(body, "hook", x_hub_signature_256=f"sha256={digest}")).status == 202


@at_server_and_gateway
async def test_a_listener_without_such_a_handshake_answers_no_get(edge: Edge) -> None:
    await open_hook(edge, "{type: signature, preset: github, secret: app}", app="s3cret")
    answer = await call(edge.address, "GET", "/ingress/hook?hub.mode=subscribe&hub.challenge=1")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert (await call(edge.address, "GET", "/ingress/unknown")).status == 404


@at_server_and_gateway
async def test_what_a_provider_signed_over_its_public_address_is_accepted_behind_a_proxy(edge: Edge) -> None:
    verify = "{type: signature, preset: square, secret: square}\n    public_url: https://hooks.example.com/base"
    await open_hook(edge, verify, square="s3cret")
    body = b'{"event_id": "e1"}'
    digest = hmac.new(b"s3cret", b"https://hooks.example.com/base/ingress/hook?v=1" + body, hashlib.sha256).digest()
    headers = {"x_square_hmacsha256_signature": base64.b64encode(digest).decode()}
    assert (await call(edge.address, "POST", "/ingress/hook?v=1", body, **headers)).status == 202
    answer = await call(edge.address, "POST", "/ingress/hook?v=2", body, **headers)
    assert (answer.status, answer.json()["reason"]) == (401, "bad_signature")


# ── client certificates ──────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["server", "gateway"])
async def tls_edge(
    request: pytest.FixtureRequest, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[str, DevAuthority]]:
    """The address of a listener with TLS that asks for client certificates, and their authority."""
    monkeypatch.setattr(server_module, "LISTENERS_S", 0.0)
    authority = DevAuthority(tmp_path / "certs")
    pair = authority.server()
    files = {"tls_cert": str(pair.cert), "tls_key": str(pair.key), "tls_client_ca": str(authority.cert)}
    own = files if request.param == "server" else {}
    trusting = ssl.create_default_context(cafile=str(authority.cert))
    async with AsyncExitStack() as stack:
        settings = settings_for(sqlite_url, internal_token=TOKEN, **own)
        server = await stack.enter_async_context(Server(settings))
        headers = {"authorization": f"Bearer {TOKEN}"}

        async def api(path: str, body: Any) -> Any:
            tls = trusting if own else None
            answer = await call(server.http_address, "POST", path, body, tls=tls, **headers)
            assert answer.status == 200, answer.body
            return answer.json()

        for document in (
            PLAYBOOK.format(path="domain/ingest_order"),
            PUSH.format(verify="{type: mtls, certificates: ['*.partner.example.com', 'spiffe://acme/*']}"),
        ):
            await api("/api/catalog/register", {"content": document})
        status = await api("/api/subscriptions/register", {"path": "subscriptions/hook"})
        await api(f"/api/subscriptions/{status['subscription_id']}/activate", {})
        if request.param == "server":
            yield server.http_address, authority
        else:
            tls = TlsFiles(files["tls_cert"], files["tls_key"], files["tls_client_ca"])
            url = f"http://{server.http_address}"
            gateway = await stack.enter_async_context(Gateway(url, TOKEN, fresh_s=0.0, tls=tls))
            yield gateway.address, authority


async def test_a_client_certificate_with_a_listed_name_proves_its_sender(tls_edge: tuple[str, DevAuthority]) -> None:
    address, authority = tls_edge

    async def send(name: str) -> tuple[int, str]:
        context = ssl.create_default_context(cafile=str(authority.cert))
        if name:
            pair = await asyncio.to_thread(authority.client, name)
            context.load_cert_chain(pair.cert, pair.key)
        answer = await call(address, "POST", "/ingress/hook", b"{}", tls=context)
        return answer.status, json.loads(answer.body).get("reason", "")

    assert await send("shop.partner.example.com") == (202, "")
    assert await send("spiffe://acme/shop") == (202, "")
    assert await send("a.b.partner.example.com") == (403, "certificate_unknown")
    assert await send("spiffe://acme/shop/x") == (403, "certificate_unknown")
    status, _ = await send("")
    assert status == 401


@at_server_and_gateway
async def test_without_tls_no_delivery_has_a_certificate(edge: Edge) -> None:
    await open_hook(edge, "{type: mtls, certificates: ['*.partner.example.com']}")
    answer = await edge.post(b"{}", "hook")
    assert (answer.status, answer.json()["reason"]) == (401, "missing_certificate")
