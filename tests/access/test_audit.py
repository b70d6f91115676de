"""Uses of scopes that reach beyond the caller's tenant are journaled over both protocols, and do not flood it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tape.base.config import Settings
from tape.client import AsyncTapeClient
from tape.engine.security.audit import MAX_SINGLE_READS
from tape.engine.security.tokens import SigningKey, jwks_path, load_key
from tape.model.entry import Draft, Entry
from tape.server.server import Server
from tests.web import Stream, call

TOKEN = "the-internal-token"
HOUR = 3_600_000_000_000


class Audited(NamedTuple):
    """A server with keys, and its signing key."""

    server: Server
    key: SigningKey

    def token(self, *scopes: str) -> str:
        return self.key.mint(tenant="ours", user="ada", session="s", scopes=scopes)

    def connect(self, *scopes: str) -> AsyncTapeClient:
        return AsyncTapeClient(f"tape://{self.server.grpc_address}", id_token=self.token(*scopes))

    async def ask(self, method: str, path: str, body: Any, *scopes: str) -> int:
        headers = {"authorization": f"Bearer {self.token(*scopes)}"}
        return (await call(self.server.http_address, method, path, body, **headers)).status

    async def entries(self, count: int) -> list[Entry]:
        """Audit entries, once they count so many uses."""
        found: list[Entry] = []
        async with AsyncTapeClient(f"tape://{self.server.grpc_address}", id_token=TOKEN) as system:
            async with asyncio.timeout(120):
                async for entry in system.follow("/tape/audit/**"):
                    found.append(entry)
                    if uses(found).total() >= count:
                        return found
        raise AssertionError


def uses(entries: list[Entry]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for entry in entries:
        counted[entry.payload["Method"]] += entry.payload.get("Count", 1)
    return counted


@pytest.fixture
async def audited(sqlite_url: str, tmp_path: Path) -> AsyncIterator[Audited]:
    key, _ = load_key(tmp_path / "dev.key")
    settings = Settings(
        store=sqlite_url,
        listen="127.0.0.1:0",
        http_listen="127.0.0.1:0",
        auth_jwks=str(jwks_path(tmp_path / "dev.key")),
        auth_issuer="tape-dev",
        auth_audience="tape",
        internal_token=TOKEN,
    )
    async with Server(settings) as server:
        yield Audited(server, key)


async def test_calls_with_the_scope_of_all_tenants_are_audited_over_grpc(audited: Audited) -> None:
    await audited.server.journal.append([Draft(subject="/tape/order/paid/1", tenant="theirs")])
    async with audited.connect("service", "tenant:*") as client:
        await client.list_runs()
        assert (await anext(client.follow("/tape/order/**"))).tenant == "theirs"
        await client.append("/tape/order/paid/2", tenant="theirs")
        await client.head()
    found = await audited.entries(3)
    assert uses(found) == {"ListRuns": 1, "Follow": 1, "AppendStream": 1}
    for entry in found:
        assert (entry.tenant, entry.payload["User"], entry.payload["Scope"]) == ("ours", "ada", "tenant:*")
        assert entry.payload["KeyID"].startswith("jwt:")


async def test_calls_with_the_scope_of_all_tenants_are_audited_over_http(audited: Audited) -> None:
    assert await audited.ask("GET", "/api/executions/1", b"", "operator", "tenant:*") == 404
    assert await audited.ask("POST", "/api/catalog/list", {}, "operator", "tenant:*") == 200
    found = await audited.entries(2)
    assert uses(found) == {"GET /api/executions/": 1, "POST /api/catalog/list": 1}


async def test_calls_of_a_bound_token_and_of_the_system_are_not_audited(audited: Audited) -> None:
    async with audited.connect("service", "admin") as client:
        await client.list_runs()
        await client.append("/tape/order/paid/1")
    async with AsyncTapeClient(f"tape://{audited.server.grpc_address}", id_token=TOKEN) as system:
        await system.list_runs()
    assert await audited.ask("POST", "/v1/events/list", {}, "admin") == 200
    await audited.server.audit.close()
    assert (await audited.server.journal.head()).global_seq == 1


async def test_many_calls_with_the_scope_of_all_tenants_are_few_entries_that_count_them(audited: Audited) -> None:
    async with audited.connect("service", "tenant:*") as client:
        await asyncio.gather(*(client.list_runs() for _ in range(200)))
        await client.list_reactions()
        await asyncio.gather(*(client.list_runs() for _ in range(200)))
    await audited.server.audit.close()
    found = await audited.entries(401)
    assert uses(found) == {"ListRuns": 400, "ListReactions": 1}
    assert len(found) <= 6


READS = {
    "list": ("POST", "/v1/events/list", {"filter": {"tenant_ids": ["theirs"]}}),
    "aggregate": (
        "POST",
        "/v1/events/aggregate",
        {"filter": {"tenant_ids": ["theirs"]}, "window": HOUR, "bucket": HOUR},
    ),
    "artifacts.get": ("GET", f"/v1/artifacts/{'0' * 64}.txt?tenant=theirs", b""),
}


@pytest.mark.parametrize("scope", ["admin", "console:fleet", "tenant:*"])
@pytest.mark.parametrize("name", READS)
async def test_a_read_of_another_tenant_is_audited_before_it_is_answered(
    audited: Audited, name: str, scope: str
) -> None:
    assert await audited.ask(*READS[name]) == 403
    assert (await audited.server.journal.head()).global_seq == 0
    assert await audited.ask(*READS[name], scope) in (200, 404)
    assert (await audited.server.journal.head()).global_seq == 1
    (entry,) = await audited.entries(1)
    assert entry.payload["Method"] in (f"events.{name}", name)


async def test_a_flood_of_reads_is_counted_in_few_entries(audited: Audited) -> None:
    answers = await asyncio.gather(*(audited.ask(*READS["list"], "admin") for _ in range(60)))
    assert set(answers) == {200}
    await audited.server.audit.close()
    found = await audited.entries(60)
    assert uses(found) == {"events.list": 60}
    single = sum("Count" not in entry.payload for entry in found)
    assert single >= MAX_SINGLE_READS
    assert single < 60


async def test_a_stream_of_all_identities_is_audited_each_time(audited: Audited) -> None:
    headers = {"authorization": f"Bearer {audited.token('console:fleet')}"}
    for count in (1, 2):
        async with Stream(audited.server.http_address, "/v1/events?admin=1", **headers) as stream:
            await stream.until("audit.admin_scope_used")
        found = await audited.entries(count)
        assert uses(found) == {"events.subscribe": count}
    assert len({entry.payload["SubscriberID"] for entry in found}) == 2
