"""Databases of former versions, in which entries have apps or nothing as their tenant, are given to tenants with keys.

The files in `former_versions` have the rows of a database that a server of that version has written.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tape.client import AsyncTapeClient
from tape.engine.ledgers.tenant_migration import MAX_FORMER_NAMES, move_tenant
from tape.engine.security.tokens import SigningKey, jwks_path, load_key
from tape.errors import InvalidInput, NotFound, TokenRejected
from tape.journal.verifier import verify
from tape.model.entry import Draft
from tape.server.server import Server
from tape.store import Database, migrations, open_database
from tests.conftest import settings_for
from tests.web import Stream, call

FORMER = sorted((Path(__file__).parent / "former_versions").glob("*.json"))
# Entries of the run `orders` of each tenant: their seqs, and those without a tenant.
SHOP, BANK, NONE = [1, 4, 7, 10], [2, 5, 8], [3, 6, 9]


def load(url: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a database of the former version."""
    former = json.loads(file.read_text())
    known = migrations.known_migrations
    with monkeypatch.context() as patched:
        patched.setattr(
            migrations,
            "known_migrations",
            lambda dialect: [m for m in known(dialect) if m.number <= former["migration"]],
        )
        open_database(url).migrate()
    connection = open_database(url).connect()
    connection.begin()
    for table, content in former["tables"].items():
        connection.execute(f"DELETE FROM {table}")
        rows = [
            tuple(bytes.fromhex(value["hex"]) if isinstance(value, dict) else value for value in row)
            for row in content["rows"]
        ]
        connection.insert(table, [f'"{name}"' for name in content["columns"]], rows)
    connection.commit()
    connection.close()


@pytest.fixture(params=FORMER, ids=lambda file: file.stem)
def former_url(request: pytest.FixtureRequest, bare_store_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a database of a former version."""
    load(bare_store_url, request.param, monkeypatch)
    return bare_store_url


@pytest.fixture
async def moved(former_url: str) -> str:
    """The database, after what belongs to the app `shop`, or to no tenant, was given to acme."""
    async with open_database(former_url) as database:
        for old in ("", "shop"):
            await database.write(lambda tx, old=old: move_tenant(tx, old, "acme"))  # type: ignore[misc]
    return former_url


class Keyed:
    """A server with keys on the database, and clients of tenants."""

    def __init__(self, server: Server, key: SigningKey, stack: AsyncExitStack) -> None:
        self.server = server
        self._key = key
        self._stack = stack

    def token(self, tenant: str) -> str:
        return self._key.mint(tenant=tenant, user="ada", session="s1", scopes=["service"])

    async def client(self, tenant: str) -> AsyncTapeClient:
        client = AsyncTapeClient(f"tape://{self.server.grpc_address}", id_token=self.token(tenant))
        return await self._stack.enter_async_context(client)

    def headers(self, tenant: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token(tenant)}"}


@pytest.fixture
async def keyed(moved: str, tmp_path: Path) -> AsyncIterator[Keyed]:
    key, _ = load_key(tmp_path / "dev.key")
    jwks = str(jwks_path(tmp_path / "dev.key"))
    settings = settings_for(moved, auth_jwks=jwks, auth_issuer="tape-dev", auth_audience="tape")
    async with AsyncExitStack() as stack:
        yield Keyed(await stack.enter_async_context(Server(settings)), key, stack)


async def read_on(client: AsyncTapeClient, **wanted: Any) -> list[Any]:
    """The entries that a client sees up to the head."""
    head, found = (await client.head()).global_seq, []
    async for batch in client.follow_batches(reconnect=False, **wanted):
        found += batch.entries
        if batch.position >= head:
            break
    return found


async def test_the_owner_sees_the_entries_of_its_former_names_and_another_tenant_its_own(keyed: Keyed) -> None:
    for tenant, names in (("acme", {"shop", "", "acme"}), ("bank", {"bank"}), ("stranger", set[str]())):
        client = await keyed.client(tenant)
        assert {entry.tenant for entry in await read_on(client)} <= names
    owner, bank, stranger = [await keyed.client(tenant) for tenant in ("acme", "bank", "stranger")]
    assert [entry.seq for entry in await read_on(owner, run_id="orders")] == sorted(SHOP + NONE)
    assert [entry.seq for entry in await read_on(bank, run_id="orders")] == BANK
    assert await read_on(stranger) == []
    with pytest.raises(NotFound):
        await anext(stranger.subscribe_run(run_id="orders"))
    assert not (await stranger.list_runs()).runs
    assert not (await stranger.get_value(namespace="limits", key="daily")).found


async def test_the_owner_goes_on_in_the_runs_of_its_former_names(keyed: Keyed) -> None:
    owner, bank, stranger = [await keyed.client(tenant) for tenant in ("acme", "bank", "stranger")]
    for client in (owner, bank, stranger):
        await client.append("/tape/order/paid/new", run_id="orders", user="ada", session="s1")
    followed = await read_on(owner, run_id="orders")
    assert [entry.seq for entry in followed] == [*sorted(SHOP + NONE), 11]
    assert followed[-1].tenant == "acme"
    # The run had entries of several tenants: no seq of it is given again, but a newcomer begins at 1.
    assert [entry.seq for entry in await read_on(bank, run_id="orders")] == [*BANK, 11]
    assert [entry.seq for entry in await read_on(stranger, run_id="orders")] == [1]

    (run,) = (await owner.list_runs()).runs
    before = run.seq_cursor
    await owner.record_decision(run_id=run.run_id, decision_index=1, model="m")
    assert [entry.seq for entry in await read_on(owner, run_id=run.run_id)] == list(range(1, before + 2))
    assert (await owner.get_run(run_id=run.run_id)).seq_cursor == before + 1
    subscribed = owner.subscribe_run(run_id=run.run_id, from_seq=before)
    assert [(await anext(subscribed)).seq for _ in range(2)] == [before, before + 1]
    with pytest.raises(NotFound):
        await stranger.get_run(run_id=run.run_id)
    assert (await keyed.server.database.read(verify)).ok


async def test_values_and_sessions_of_a_former_version_are_the_owners(keyed: Keyed) -> None:
    owner, stranger = await keyed.client("acme"), await keyed.client("stranger")
    assert (await owner.write_value(namespace="limits", key="daily", value_json="3")).version == 3
    watched = owner.watch_value(namespace="limits", key="daily")
    assert [(await anext(watched)).value.version for _ in range(3)] == [1, 2, 3]
    assert (await stranger.write_value(namespace="limits", key="daily", value_json="1")).version == 1
    assert [entry.tenant for entry in await read_on(stranger)] == ["stranger"]


async def test_http_shows_the_owner_the_entries_of_its_former_names(keyed: Keyed) -> None:
    address, owner, stranger = keyed.server.http_address, keyed.headers("acme"), keyed.headers("stranger")
    listed = (await call(address, "POST", "/v1/events/list", {"limit": 100}, **owner)).json()["events"]
    assert {event["tenant"] for event in listed} == {"shop"}  # user and session are the caller's too
    by_run = {"filter": {"run_ids": ["orders"]}}
    assert len((await call(address, "POST", "/v1/events/list", by_run, **owner)).json()["events"]) == len(SHOP)
    window = {"window": 100 * 86_400 * 10**9, "bucket": 100 * 86_400 * 10**9}
    for asked, count in (({}, len(listed)), (by_run, len(SHOP))):
        counted = await call(address, "POST", "/v1/events/aggregate", window | asked, **owner)
        assert sum(counted.json()["buckets"][0]["counts"].values()) == count
    async with Stream(address, last_event_id="0", x_harbor_run="orders", **owner) as stream:
        assert [frame.data["tenant"] for frame in await stream.frames(len(SHOP))] == ["shop"] * len(SHOP)
    async with Stream(address, last_event_id="0", **owner) as stream:
        await stream.frames(len(listed))
        await (await keyed.client("acme")).append("/tape/order/paid/live", run_id="orders", user="ada", session="s1")
        assert (await stream.frames(1))[0].data["tenant"] == "acme"
    assert (await call(address, "POST", "/v1/events/list", {}, **stranger)).json()["events"] == []
    counted = await call(address, "POST", "/v1/events/aggregate", window, **stranger)
    assert counted.json()["buckets"][0]["counts"] == {}


async def test_a_token_of_a_former_name_is_rejected(keyed: Keyed) -> None:
    client = await keyed.client("shop")
    with pytest.raises(TokenRejected, match="tenant_moved"):
        await client.head()
    answer = await call(keyed.server.http_address, "POST", "/v1/events/list", {}, **keyed.headers("shop"))
    assert answer.status == 401


async def test_what_the_server_writes_for_itself_does_not_go_to_the_owner_of_entries_without_a_tenant(
    keyed: Keyed,
) -> None:
    await keyed.server.journal.append([Draft(subject="/tape/wallet/revealed/theirs", run_id="wallet")])
    owner = await keyed.client("acme")
    assert not [entry for entry in await read_on(owner) if entry.subject == "/tape/wallet/revealed/theirs"]
    with pytest.raises(TokenRejected, match="tenant_reserved"):
        await (await keyed.client("tape-system")).head()
    async with open_database(keyed.server.settings.store) as database:
        sql = "SELECT tenant FROM tape_journal WHERE kind = 'audit' OR subject = '/tape/wallet/revealed/theirs'"
        assert set(await database.read(lambda reader: reader.query(sql))) == {("tape-system",)}


async def test_reactions_documents_and_secrets_are_kept(moved: str) -> None:
    async with open_database(moved) as database:
        for table in ("tape_reactions", "tape_catalog", "tape_secrets"):
            count = await database.read(lambda reader, table=table: reader.one(f"SELECT count(*) FROM {table}"))  # type: ignore[misc]
            assert count == (1,)


async def test_running_servers_learn_of_a_move_and_number_the_runs_on(database: Database, store_url: str) -> None:
    async with (
        Server(settings_for(store_url)) as server,
        AsyncTapeClient(f"tape://{server.grpc_address}") as client,
    ):
        for tenant in ("shop", "acme", "shop", "shop"):
            await client.append("/tape/order/paid/1", run_id="orders", tenant=tenant)
        await database.write(lambda tx: move_tenant(tx, "shop", "acme"))
        await client.append("/tape/order/paid/1", run_id="orders", tenant="acme")
        entries = await read_on(client, run_id="orders")
        assert [(entry.tenant, entry.seq) for entry in entries][-2:] == [("shop", 4), ("acme", 5)]
        await server.aliases.refresh()
        mine = {"x_harbor_tenant": "acme"}
        listed = await call(server.http_address, "POST", "/v1/events/list", {}, **mine)
        assert [event["tenant"] for event in listed.json()["events"]] == ["shop", "acme", "shop", "shop", "acme"]


async def test_a_name_has_one_owner_and_an_owner_is_no_former_name(database: Database) -> None:
    async def move(old: str, new: str) -> None:
        await database.write(lambda tx: move_tenant(tx, old, new))

    await move("a", "b")
    await move("a", "b")  # the same again
    with pytest.raises(InvalidInput, match="belong to 'b' already"):
        await move("a", "c")
    with pytest.raises(InvalidInput, match="was itself given to 'b'"):
        await move("c", "a")
    await move("b", "c")
    rows = await database.read(lambda reader: reader.query("SELECT tenant, owner FROM tape_tenant_aliases"))
    assert sorted(rows) == [("a", "c"), ("b", "c")]
    for number in range(MAX_FORMER_NAMES - 2):
        await move(f"old-{number}", "c")
    with pytest.raises(InvalidInput, match="64 is the limit"):
        await move("one-more", "c")
    with pytest.raises(InvalidInput, match="tape-system"):
        await move("tape-system", "c")
