"""`/api/credentials`: secrets, only for programs that hold the internal token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tape.engine.security.keyfile import KeyFile
from tape.engine.security.tokens import jwks_path, load_key
from tape.server.server import Server
from tests.conftest import settings_for
from tests.web import call

TOKEN = "int3rnal"
SECRET = "nats-p4ssw0rd"


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "wallet.key"
    KeyFile(path).create()
    return str(path)


@pytest.fixture
async def server(sqlite_url: str, key_file: str) -> AsyncIterator[Server]:
    async with Server(settings_for(sqlite_url, internal_token=TOKEN, wallet_key=key_file)) as server:
        await server.wallet.set("nats_main", {"url": "nats://x", "password": SECRET})
        yield server


async def journal(server: Server) -> list[tuple[str, str]]:
    query = "SELECT subject, payload_json FROM tape_journal ORDER BY global_seq"
    rows: Any = await server.database.read(lambda reader: reader.query(query))
    return [(subject, payload) for subject, payload in rows]


async def test_the_internal_token_reveals_a_secret_and_the_access_is_journaled(server: Server) -> None:
    answer = await call(
        server.http_address,
        "GET",
        "/api/credentials/nats_main?include_data=true&execution_id=0",
        authorization=f"Bearer {TOKEN}",
    )
    assert (answer.status, answer.headers["cache-control"]) == (200, "no-store")
    assert answer.json()["data"] == {"url": "nats://x", "password": SECRET}
    entries = await journal(server)
    assert entries[-1] == (
        "/tape/wallet/revealed/nats_main",
        '{"alias":"nats_main","to":"/api/credentials from 127.0.0.1","host":"x:4222"}',
    )
    assert SECRET not in str(entries)


async def test_without_include_data_only_metadata_is_returned(server: Server) -> None:
    answer = await call(server.http_address, "GET", "/api/credentials/nats_main", authorization=f"Bearer {TOKEN}")
    assert (answer.status, sorted(answer.json())) == (200, ["alias", "set_at", "version"])
    missing = await call(server.http_address, "GET", "/api/credentials/nats_min", authorization=f"Bearer {TOKEN}")
    assert (missing.status, "nearest is 'nats_main'" in missing.json()["error"]) == (404, True)


async def test_other_callers_are_rejected(server: Server) -> None:
    for headers in ({}, {"authorization": "Bearer no"}, {"authorization": f"Basic {TOKEN}"}):
        for query in ("", "?include_data=true"):
            answer = await call(server.http_address, "GET", f"/api/credentials/nats_main{query}", **headers)
            assert answer.status == 403
            assert SECRET not in answer.body.decode()


async def test_an_admin_gets_metadata_but_not_the_secret(sqlite_url: str, key_file: str, tmp_path: Path) -> None:
    key, _ = load_key(tmp_path / "dev.key")
    admin = f"Bearer {key.mint(tenant='t', user='u', session='s', scopes=['admin'])}"
    jwks = str(jwks_path(tmp_path / "dev.key"))
    async with Server(settings_for(sqlite_url, internal_token=TOKEN, wallet_key=key_file, auth_jwks=jwks)) as server:
        await server.wallet.set("~t/nats_main", SECRET)
        path = "/api/credentials/nats_main"
        assert (await call(server.http_address, "GET", path, authorization=admin)).status == 200
        assert (await call(server.http_address, "GET", f"{path}?include_data=true", authorization=admin)).status == 403
        path = "/api/credentials/~t/nats_main?include_data=true"
        shown = await call(server.http_address, "GET", path, authorization=f"Bearer {TOKEN}")
        assert shown.json()["data"] == SECRET


async def test_a_server_without_an_internal_token_rejects_all_requests_for_secrets(
    sqlite_url: str, key_file: str
) -> None:
    async with Server(settings_for(sqlite_url, wallet_key=key_file)) as server:
        await server.wallet.set("nats_main", SECRET)
        answer = await call(server.http_address, "GET", "/api/credentials/nats_main?include_data=true")
        assert (answer.status, answer.json()["code"]) == (503, "TAPE-2210")


async def test_a_wallet_whose_key_is_gone_says_so(sqlite_url: str, key_file: str) -> None:
    async with Server(settings_for(sqlite_url, internal_token=TOKEN, wallet_key=key_file)) as server:
        await server.wallet.set("nats_main", SECRET)
        Path(key_file).unlink()
        path = "/api/credentials/nats_main?include_data=true"
        answer = await call(server.http_address, "GET", path, authorization=f"Bearer {TOKEN}")
        assert (answer.status, answer.json()["code"]) == (422, "TAPE-2202")
