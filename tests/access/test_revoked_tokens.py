"""One token can be revoked by its `jti`: on every server, for its tenant alone, until it has expired anyway."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519

from tape.base.clock import now_ms
from tape.base.config import Settings
from tape.cli import doctor
from tape.client import AsyncTapeClient
from tape.engine.security import revoked_tokens
from tape.engine.security.key_ring import KeyRing
from tape.errors import InvalidInput, ScopeRequired, TokenRejected, TooManyKeys
from tape.model.principal import ADMIN, Principal, acting_as
from tape.server.server import Server
from tape.store import Database
from tests.conftest import settings_for
from tests.web import Answer, Stream, call

DAY_MS = 86_400_000
KEY = ed25519.Ed25519PrivateKey.generate()
ADMIN_OF_A = Principal(tenant="a", user="ann", session="s", scopes=frozenset({ADMIN}))


def token(jti: Any, tenant: str = "a", *scopes: str) -> str:
    claims = {"tenant": tenant, "user": "ada", "session": "s", "scopes": scopes, "exp": time.time() + 600}
    return jwt.encode(claims | ({"jti": jti} if jti is not None else {}), KEY, algorithm="EdDSA", headers={"kid": "k"})


@pytest.fixture
async def guarded(store_url: str, tmp_path: Path) -> AsyncIterator[Server]:
    entry = {**jwt.algorithms.OKPAlgorithm.to_jwk(KEY.public_key(), as_dict=True), "kid": "k"}
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [entry]}))
    async with Server(settings_for(store_url, auth_jwks=str(tmp_path / "keys.json"))) as server:
        yield server


async def revoke(database: Database, jti: str, tenant: str = "a", for_ms: int = DAY_MS) -> None:
    await database.write(lambda tx: revoked_tokens.revoke_token(tx, jti, tenant, for_ms=for_ms))


async def send(server: Server, path: str, body: Any, text: str) -> Answer:
    return await call(server.http_address, "POST", path, body, Authorization=f"Bearer {text}")


async def test_a_revoked_token_is_rejected_and_its_streams_end_while_others_go_on(guarded: Server) -> None:
    gone, kept, admin = token("gone", "a", "agent"), token("kept", "a", "agent"), token("root", "a", "admin")
    url = f"tape://{guarded.grpc_address}"
    async with (
        Stream(guarded.http_address, Authorization=f"Bearer {gone}") as ended,
        Stream(guarded.http_address, Authorization=f"Bearer {kept}") as open_stream,
        AsyncTapeClient(url, id_token=gone) as one,
        AsyncTapeClient(url, id_token=kept) as other,
    ):
        await other.append("/tape/order/paid/1", user="ada", session="s")
        feeds = [one.follow("/tape/order/**"), other.follow("/tape/order/**")]
        for feed in feeds:
            await anext(feed)
        for stream in (ended, open_stream):
            await stream.frames(1)
        answer = await send(guarded, "/api/tokens/revoke", {"jti": "gone"}, admin)
        assert (answer.status, answer.json()["tenant"]) == (200, "a")
        assert answer.json()["until_ms"] > now_ms() + DAY_MS
        async with asyncio.timeout(20):
            with pytest.raises(TokenRejected):
                await anext(feeds[0])
            while await ended.frame() is not None:
                pass
        rejected = await send(guarded, "/v1/events/list", {}, gone)
        assert (rejected.status, rejected.json()["message"]) == (401, "jwt rejected: token_revoked")
        with pytest.raises(TokenRejected, match="token_revoked"):
            await one.head()
        await other.append("/tape/order/paid/2", user="ada", session="s")
        assert (await anext(feeds[1])).subject == "/tape/order/paid/2"
        assert (await open_stream.until("order.paid"))[-1].data["extra"]["subject"] == "/tape/order/paid/2"


async def test_a_revocation_by_another_process_reaches_the_server(guarded: Server) -> None:
    text = token("gone")
    assert (await send(guarded, "/v1/events/list", {}, text)).status == 200
    await revoke(guarded.database, "gone")
    async with asyncio.timeout(20):
        while (await send(guarded, "/v1/events/list", {}, text)).status != 401:
            await asyncio.sleep(0.01)


async def test_an_admin_revokes_tokens_of_its_own_tenant_alone(guarded: Server) -> None:
    theirs = token("x", "b")
    admin = token("root", "a", "admin")
    assert (await send(guarded, "/api/tokens/revoke", {"jti": "x"}, admin)).status == 200
    assert (await send(guarded, "/api/tokens/revoke", {"jti": "x", "tenant": "b"}, admin)).status == 403
    assert (await send(guarded, "/v1/events/list", {}, theirs)).status == 200
    assert (await send(guarded, "/v1/events/list", {}, token("x", "a"))).status == 401


@pytest.mark.parametrize("jti", [None, 7, "", ["x"], {"a": 1}])
async def test_a_token_without_a_text_as_jti_cannot_be_revoked_by_it(guarded: Server, jti: Any) -> None:
    await revoke(guarded.database, "x")
    await guarded.keys.refresh()
    assert (await send(guarded, "/v1/events/list", {}, token(jti))).status == 200


async def test_a_revocation_lasts_until_its_time_and_is_then_deleted(database: Database) -> None:
    await revoke(database, "x", for_ms=DAY_MS)
    await revoke(database, "x", for_ms=1)  # a shorter one does not shorten it
    keys = KeyRing(database)
    await keys.refresh()
    bearer = Principal(tenant="a", token_id="x", key_id="jwt:k")
    with pytest.raises(TokenRejected, match="token_revoked"):
        keys.check_token(bearer)
    keys.check_token(Principal(tenant="b", token_id="x", key_id="jwt:k"))
    assert await database.write(lambda tx: revoked_tokens.delete_expired(tx, now_ms())) == 0
    assert await database.write(lambda tx: revoked_tokens.delete_expired(tx, now_ms() + 2 * DAY_MS)) == 1


async def test_the_housekeeping_of_a_server_deletes_expired_revocations(store_url: str) -> None:
    async with Server(settings_for(store_url)) as server:
        await revoke(server.database, "x", for_ms=1)
    async with Server(settings_for(store_url)) as server:
        async with asyncio.timeout(60):
            while await server.database.read(lambda reader: reader.one("SELECT 1 FROM tape_revoked_tokens")):
                await asyncio.sleep(0.01)


async def test_bad_revocations_are_refused(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for jti, tenant, for_ms, named in (
        ("", "a", 1, "jti is empty"),
        ("x", "", 1, "tenant is empty"),
        ("x\0", "a", 1, "NUL"),
        ("x" * 5000, "a", 1, "more than"),
        ("x", "a", 0, "until must be after now"),
        ("x", "a", 1 << 62, "10 years"),
    ):
        with pytest.raises(InvalidInput, match=named):
            await revoke(database, jti, tenant, for_ms)
    with acting_as(ADMIN_OF_A), pytest.raises(ScopeRequired):
        await revoke(database, "x", "b")
    monkeypatch.setattr(revoked_tokens, "MAX_OF_TENANT", 1)
    await revoke(database, "one")
    with pytest.raises(TooManyKeys, match="Withdraw the key"):
        await revoke(database, "two")
    await revoke(database, "two", "b")
    monkeypatch.setattr(revoked_tokens, "MAX_TOKENS", 2)
    with pytest.raises(TooManyKeys, match="database has 2"):
        await revoke(database, "three", "c")


def test_the_doctor_names_the_claims_that_tokens_need_not_carry(tmp_path: Path) -> None:
    def found(**changes: str) -> list[str]:
        settings = Settings(store=f"sqlite:{tmp_path / 'tape.db'}", auth_jwks="keys.json", **changes)  # type: ignore[arg-type]
        return [check.found for check in doctor._checks(settings) if check.name == "Tokens"]

    assert found()[0].startswith("auth_issuer and auth_audience not set")
    assert found(auth_issuer="us")[0].startswith("auth_audience not set")
    assert found(auth_issuer="us", auth_audience="tape") == []
