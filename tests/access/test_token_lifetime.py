"""How long a token is valid, and what ends with it."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519

from tape.base.config import Settings
from tape.client import AsyncTapeClient
from tape.errors import TokenRejected
from tape.server.server import Server
from tests.web import Stream, call

DAY_S = 86_400
KEYS = {name: ed25519.Ed25519PrivateKey.generate() for name in ("old", "new")}
CLAIMS = {"iss": "us", "aud": "tape", "tenant": "shop", "user": "ada", "session": "s"}


def token(kid: str = "old", **claims: Any) -> str:
    body = CLAIMS | {"exp": time.time() + 60, "scopes": ["service"]} | claims
    return jwt.encode(body, KEYS[kid], algorithm="EdDSA", headers={"kid": kid})


def publish(file: Path, *names: str) -> None:
    entries = [
        {**jwt.algorithms.OKPAlgorithm.to_jwk(KEYS[name].public_key(), as_dict=True), "kid": name} for name in names
    ]
    file.write_text(json.dumps({"keys": entries}))


class Guarded(NamedTuple):
    """A server with tokens, and the file of its keys."""

    server: Server
    keys: Path

    async def status(self, text: str) -> int:
        answer = await call(self.server.http_address, "POST", "/v1/events/list", {}, Authorization=f"Bearer {text}")
        return answer.status


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    file = tmp_path / "keys.json"
    publish(file, "old", "new")
    settings = Settings(
        store=f"sqlite:{tmp_path / 'tape.db'}",
        listen="127.0.0.1:0",
        http_listen="127.0.0.1:0",
        auth_jwks=str(file),
        auth_issuer="us",
        auth_audience="tape",
        auth_refresh_s=0.05,
    )
    async with Server(settings) as server:
        yield Guarded(server, file)


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": 10**400}, "token_expired"),
        ({"exp": -(10**400)}, "token_expired"),
        ({"exp": 1 << 60}, "token_expired"),
        ({"exp": True}, "token_expired"),
        ({"exp": [1]}, "token_expired"),
        ({"nbf": 10**400}, "token_not_yet_valid"),
        ({"aud": 7}, "audience_mismatch"),
        ({"exp": 4_102_444_800}, "lifetime_too_long"),
    ],
)
async def test_a_claim_that_makes_no_sense_is_a_rejected_token_and_never_500(
    guarded: Guarded, claims: dict[str, Any], reason: str
) -> None:
    text = token(**claims)
    answer = await call(guarded.server.http_address, "POST", "/v1/events/list", {}, Authorization=f"Bearer {text}")
    assert (answer.status, answer.json()["message"]) == (401, f"jwt rejected: {reason}")


async def test_a_token_header_of_many_levels_is_malformed(guarded: Guarded) -> None:
    header = b'{"alg":"EdDSA","kid":"old","x":' + b"[" * 20_000 + b"]" * 20_000 + b"}"
    text = jwt.utils.base64url_encode(header).decode() + ".e30.AA"
    assert await guarded.status(text) in (401, 431)


async def test_a_token_is_valid_for_a_day_at_most_unless_the_server_is_configured(guarded: Guarded) -> None:
    assert await guarded.status(token(exp=time.time() + DAY_S)) == 200
    assert await guarded.status(token(exp=time.time() + DAY_S + 120)) == 401
    guarded.server._authenticator._max_lifetime_s = 7 * DAY_S  # type: ignore[union-attr]
    assert await guarded.status(token(exp=time.time() + 6 * DAY_S)) == 200


async def test_the_open_streams_of_a_withdrawn_key_end_and_those_of_others_go_on(guarded: Guarded) -> None:
    server = guarded.server
    async with (
        Stream(server.http_address, Authorization=f"Bearer {token('old')}") as ended,
        Stream(server.http_address, Authorization=f"Bearer {token('new')}") as kept,
        AsyncTapeClient(f"tape://{server.grpc_address}", id_token=token("old")) as old,
        AsyncTapeClient(f"tape://{server.grpc_address}", id_token=token("new")) as new,
    ):
        await new.append("/tape/order/paid/1", {"n": 1}, user="ada", session="s")
        old_feed, new_feed = old.follow("/tape/order/**"), new.follow("/tape/order/**")
        await anext(old_feed)
        await anext(new_feed)
        await ended.frames(1)
        await kept.frames(1)
        publish(guarded.keys, "new")
        async with asyncio.timeout(10):
            while await ended.frame() is not None:
                pass
            with pytest.raises(TokenRejected, match="unknown_key"):
                await anext(old_feed)
        await new.append("/tape/order/paid/2", {"n": 2}, user="ada", session="s")
        async with asyncio.timeout(10):
            assert (await anext(new_feed)).payload == {"n": 2}
            assert "order.paid" in str(await kept.frame())
        assert await guarded.status(token("old")) == 401


async def test_a_silent_rpc_stream_ends_when_its_token_expires(guarded: Guarded) -> None:
    text = token(exp=time.time() + 1)
    async with AsyncTapeClient(f"tape://{guarded.server.grpc_address}", id_token=text) as client:
        feed = client.follow("/tape/order/**")
        async with asyncio.timeout(10):
            with pytest.raises(TokenRejected, match="token_expired"):
                await anext(feed)


async def test_a_server_without_issuer_or_audience_warns_at_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish(tmp_path / "keys.json", "old")
    with caplog.at_level(logging.WARNING):
        Server(
            Settings(
                store=f"sqlite:{tmp_path / 'tape.db'}", listen="127.0.0.1:0", auth_jwks=str(tmp_path / "keys.json")
            )
        )
    assert "auth_issuer is not set" in caplog.text
    assert "auth_audience is not set" in caplog.text
