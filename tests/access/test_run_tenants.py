"""Run ids are unique per tenant: two tenants that choose the same id have two runs, and cannot learn of each other."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tape.client import AsyncTapeClient
from tape.engine.security.tokens import SigningKey, jwks_path, load_key
from tape.errors import InvalidInput, NotFound, TapeError
from tape.journal import reader as journal_reader
from tape.journal.appender import Appender, append
from tape.journal.journal import Journal
from tape.journal.reader import RunCursor, Selection, has_run, has_run_from
from tape.journal.verifier import verify
from tape.model.chain import canonical, link
from tape.model.entry import Draft, Entry, checked
from tape.model.pattern import Pattern
from tape.server.server import Server
from tape.store import Database, Reader, Transaction, migrations, open_database
from tests.archive.conftest import archive, forget
from tests.conftest import settings_for
from tests.services import ServerProcess
from tests.web import Stream, call

RUN = "nightly"


class Tenants(NamedTuple):
    """A server with keys, a client of each of two tenants, and their headers for HTTP."""

    server: Server
    ours: AsyncTapeClient
    theirs: AsyncTapeClient
    our_headers: dict[str, str]
    their_headers: dict[str, str]


def token(key: SigningKey, tenant: str) -> str:
    return key.mint(tenant=tenant, user="u", session="s", scopes=["service"])


@pytest.fixture
async def tenants(store_url: str, tmp_path: Path) -> AsyncIterator[Tenants]:
    key, _ = load_key(tmp_path / "dev.key")
    settings = settings_for(
        store_url,
        lake=str(tmp_path / "lake"),
        auth_jwks=str(jwks_path(tmp_path / "dev.key")),
        auth_issuer="tape-dev",
        auth_audience="tape",
    )
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server(settings))
        tokens = [token(key, tenant) for tenant in ("ours", "theirs")]
        clients = [AsyncTapeClient(f"tape://{server.grpc_address}", id_token=each) for each in tokens]
        for client in clients:
            await stack.enter_async_context(client)
        yield Tenants(server, *clients, *({"authorization": f"Bearer {each}"} for each in tokens))


def order(number: int, tenant: str = "", run_id: str = RUN) -> Draft:
    return checked(Draft(subject=f"/tape/order/paid/{number}", run_id=run_id, tenant=tenant))


async def first(stream: Any, count: int) -> list[Any]:
    found = []
    async for each in stream:
        found.append(each)
        if len(found) == count:
            break
    await stream.aclose()
    return found


async def fill_alternating(tenants: Tenants, entries: int = 3) -> None:
    for number in range(entries):
        await tenants.theirs.append(f"/tape/order/paid/theirs-{number}", {"of": "theirs"}, run_id=RUN)
        await tenants.ours.append(f"/tape/order/paid/ours-{number}", run_id=RUN, user="u", session="s")


# ── over the wire ────────────────────────────────────────────────────────────────────────────────


async def test_two_tenants_number_the_same_run_id_each_for_itself(tenants: Tenants) -> None:
    await fill_alternating(tenants)
    for client, name in ((tenants.ours, "ours"), (tenants.theirs, "theirs")):
        followed = await first(client.follow(run_id=RUN), 3)
        assert [(entry.seq, entry.tenant) for entry in followed] == [(1, name), (2, name), (3, name)]
        subscribed = await first(client.subscribe_run(run_id=RUN, from_seq=2), 2)
        assert [(entry.seq, "theirs" in entry.payload_json) for entry in subscribed] == [
            (2, name == "theirs"),
            (3, name == "theirs"),
        ]
        events = await first(client.subscribe_events(run_id=RUN), 3)
        assert {event.run_id for event in events} == {RUN}
    assert (await tenants.server.database.read(verify)).ok


async def test_live_streams_of_a_run_carry_their_own_tenants_entries(tenants: Tenants) -> None:
    await fill_alternating(tenants, 1)
    streams = [tenants.ours.follow(run_id=RUN, from_global_seq=-1), tenants.ours.subscribe_run(run_id=RUN, from_seq=2)]
    waiting = [asyncio.create_task(anext(stream)) for stream in streams]  # type: ignore[arg-type]
    while tenants.server.metrics.registry.get_sample_value("tape_subscriptions") != 2:
        await asyncio.sleep(0.005)
    await tenants.theirs.append("/tape/order/paid/theirs", run_id=RUN)
    await tenants.ours.append("/tape/order/paid/ours", run_id=RUN)
    found = await asyncio.gather(*waiting)
    assert [(entry.seq, entry.subject) for entry in found] == [(2, "/tape/order/paid/ours")] * 2
    for stream in streams:
        await stream.aclose()  # type: ignore[attr-defined]


async def test_a_run_of_another_tenant_is_answered_like_one_that_does_not_exist(tenants: Tenants) -> None:
    await tenants.theirs.append("/tape/order/paid/1", run_id=RUN)
    answers = []
    for run_id in (RUN, "missing"):
        with pytest.raises(NotFound) as raised:
            await anext(tenants.ours.subscribe_run(run_id=run_id))
        answers.append(str(raised.value).replace(run_id, "RUN"))
    assert answers[0] == answers[1]
    # The name is not taken: the first entry of our own run has the seq 1.
    await tenants.ours.append("/tape/order/paid/2", run_id=RUN)
    assert (await anext(tenants.ours.subscribe_run(run_id=RUN))).seq == 1


async def test_http_streams_lists_and_counts_of_a_run_are_the_callers_own(tenants: Tenants) -> None:
    await fill_alternating(tenants)
    address, ours = tenants.server.http_address, tenants.our_headers

    async def check_replay_list_and_count() -> None:
        async with Stream(address, last_event_id="0", x_harbor_run=RUN, **ours) as stream:
            frames = await stream.frames(3)
            assert [frame.data["tenant"] for frame in frames] == ["ours"] * 3
            assert b"theirs" not in stream.raw
        body = {"filter": {"run_ids": [RUN]}}
        listed = await call(address, "POST", "/v1/events/list", body, **ours)
        assert [event["tenant"] for event in listed.json()["events"]] == ["ours"] * 3
        body |= {"window": 3_600 * 10**9, "bucket": 3_600 * 10**9}
        counted = await call(address, "POST", "/v1/events/aggregate", body, **ours)
        assert [bucket["counts"] for bucket in counted.json()["buckets"]] == [{"order.paid": 3}]

    await check_replay_list_and_count()
    async with Stream(address, x_harbor_run=RUN, **ours) as stream:
        await tenants.theirs.append("/tape/order/paid/theirs", run_id=RUN, user="u", session="s")
        await tenants.ours.append("/tape/order/paid/ours", run_id=RUN, user="u", session="s")
        assert (await stream.frames(1))[0].data["tenant"] == "ours"


async def test_a_run_is_read_from_the_archive_for_its_own_tenant(tenants: Tenants, tmp_path: Path) -> None:
    await fill_alternating(tenants)
    database = tenants.server.database
    head = (await tenants.ours.head()).global_seq
    await archive(database, str(tmp_path / "lake"), head)
    await forget(database, head + 1)
    tenants.server.hub.ring.clear()
    await tenants.ours.append("/tape/order/paid/after", run_id=RUN, user="u", session="s")
    subscribed = await first(tenants.ours.subscribe_run(run_id=RUN), 4)
    assert [(entry.seq, entry.payload_json) for entry in subscribed] == [(number, "{}") for number in (1, 2, 3, 4)]
    followed = await first(tenants.ours.follow(run_id=RUN), 4)
    assert [entry.seq for entry in followed] == [1, 2, 3, 4]
    async with Stream(
        tenants.server.http_address, last_event_id="0", x_harbor_run=RUN, **tenants.our_headers
    ) as stream:
        assert [frame.data["tenant"] for frame in await stream.frames(4)] == ["ours"] * 4
    body = {"filter": {"run_ids": [RUN]}}
    listed = await call(tenants.server.http_address, "POST", "/v1/events/list", body, **tenants.our_headers)
    assert [event["tenant"] for event in listed.json()["events"]] == ["ours"] * 4


async def test_an_entry_that_names_a_foreign_ledger_run_does_not_touch_it(tenants: Tenants) -> None:
    ids = {"app_name": "shop", "user_id": "u", "session_id": "s", "invocation_id": "i"}
    run = await tenants.theirs.begin_run(**ids)
    before = await tenants.theirs.get_run(run_id=run.run_id)
    await tenants.ours.append("/tape/order/paid/1", run_id=run.run_id)
    assert await tenants.theirs.get_run(run_id=run.run_id) == before
    await tenants.theirs.record_decision(run_id=run.run_id, decision_index=0, model="m")
    entries = await first(tenants.theirs.subscribe_run(run_id=run.run_id), 2)
    assert [(entry.seq, entry.kind) for entry in entries] == [(1, "run"), (2, "decision")]
    assert (await tenants.theirs.get_run(run_id=run.run_id)).seq_cursor == 2
    assert [entry.seq for entry in await first(tenants.ours.follow(run_id=run.run_id), 1)] == [1]


# ── numbering ────────────────────────────────────────────────────────────────────────────────────


class _Refused(Exception):
    """What a failing operation raises after it has appended."""


@pytest.mark.parametrize("seed", range(4))
async def test_every_tenants_run_is_numbered_without_a_gap(database: Database, seed: int) -> None:
    chance = random.Random(seed)

    def operation() -> Callable[[Transaction], list[Entry]]:
        drafts = [
            order(chance.randrange(9), chance.choice(["", "a", "b"]), chance.choice("xyz"))
            for _ in range(chance.randint(1, 6))
        ]
        fails = chance.random() < 0.3

        def run(tx: Transaction) -> list[Entry]:
            entries = append(tx, drafts)
            if fails:
                raise _Refused
            return entries

        return run

    answered: list[Entry] = []
    for _ in range(10):  # each round is one commit, or a few
        results = await asyncio.gather(
            *(database.write(operation()) for _ in range(chance.randint(1, 20))), return_exceptions=True
        )
        answered += [entry for result in results if isinstance(result, list) for entry in result]
        assert all(isinstance(result, list | _Refused) for result in results)

    rows = await database.read(
        lambda reader: reader.query("SELECT run_id, tenant, seq FROM tape_journal ORDER BY global_seq")
    )
    assert [(entry.run_id, entry.tenant, entry.seq) for entry in sorted(answered, key=lambda e: e.global_seq)] == rows
    last: Counter[tuple[str, str]] = Counter()
    for run_id, tenant, seq in rows:
        last[run_id, tenant] += 1
        assert seq == last[run_id, tenant]
    heads = await database.read(lambda reader: reader.query("SELECT run_id, tenant, seq FROM tape_run_heads"))
    assert {(run_id, tenant): seq for run_id, tenant, seq in heads} == last
    assert (await database.read(verify)).ok


@pytest.mark.timeout(300)
async def test_a_killed_open_server_numbers_a_run_of_two_tenants_on(store_url: str) -> None:
    server = ServerProcess(store_url)
    server.start()
    listen = server.url.removeprefix("tape://")
    try:
        async with AsyncTapeClient(server.url) as client:
            for _ in range(3):
                for _ in range(20):
                    for tenant in ("a", "b"):
                        await client.append("/tape/order/paid/1", run_id=RUN, tenant=tenant)
                server.kill()
                await asyncio.to_thread(server.start, listen)
    finally:
        server.kill()
    async with open_database(store_url) as database:
        sql = "SELECT tenant, count(*), min(seq), max(seq) FROM tape_journal WHERE run_id = ? GROUP BY tenant"
        assert sorted(await database.read(lambda reader: reader.query(sql, RUN))) == [
            ("a", 60, 1, 119),
            ("b", 60, 2, 120),
        ]
        assert (await database.read(verify)).ok


# ── tenants that a draft does not name ───────────────────────────────────────────────────────────


async def seqs_of(database: Database, run_id: str) -> list[tuple[str, int]]:
    sql = "SELECT tenant, seq FROM tape_journal WHERE run_id = ? ORDER BY global_seq"
    return await database.read(lambda reader: reader.query(sql, run_id))  # type: ignore[return-value]


async def test_on_an_open_server_a_draft_without_a_tenant_gets_that_of_its_run(
    client: AsyncTapeClient, server: Server
) -> None:
    await client.append("/tape/order/paid/1", run_id="sole", tenant="shop")
    await client.append("/tape/order/paid/2", run_id="sole")
    await call(
        server.http_address,
        "POST",
        "/v1/events",
        {"specversion": "1.0", "id": "1", "source": "/s", "type": "order.paid", "partitionkey": "sole"},
        content_type="application/cloudevents+json",
    )
    assert await seqs_of(server.database, "sole") == [("shop", 1), ("shop", 2), ("shop", 3)]
    assert (await server.database.read(verify)).ok


async def test_a_draft_of_a_run_of_several_tenants_or_of_none_keeps_no_tenant(
    client: AsyncTapeClient, server: Server
) -> None:
    await client.append("/tape/order/paid/1", run_id="new")
    await client.append("/tape/order/paid/2", run_id="new", tenant="shop")
    await client.append("/tape/order/paid/3", run_id="new")
    assert await seqs_of(server.database, "new") == [("", 1), ("shop", 2), ("", 3)]
    for tenant in ("shop", "bank"):
        await client.append("/tape/order/paid/1", run_id="shared", tenant=tenant)
    await client.append("/tape/order/paid/3", run_id="shared")
    assert await seqs_of(server.database, "shared") == [("shop", 1), ("bank", 2), ("", 3)]


async def test_drafts_of_one_request_inherit_from_each_other(client: AsyncTapeClient, server: Server) -> None:
    drafts = [Draft(subject="/tape/order/paid/1", run_id=RUN, tenant=tenant) for tenant in ("shop", "")]
    assert await client.append_many(drafts, request_id="r") == await client.append_many(drafts, request_id="r")
    assert await seqs_of(server.database, RUN) == [("shop", 1), ("shop", 2)]


async def test_a_draft_without_a_tenant_gets_that_of_the_ledgers_run(client: AsyncTapeClient, server: Server) -> None:
    run = await client.begin_run(app_name="shop", user_id="u", session_id="s", invocation_id="i")
    await client.append("/tape/order/paid/1", run_id=run.run_id, tenant="bank")
    await client.append("/tape/order/paid/2", run_id=run.run_id)
    await server.journal.append([Draft(subject="/tape/order/paid/3", run_id=run.run_id)])
    assert await seqs_of(server.database, run.run_id) == [("shop", 1), ("bank", 2), ("shop", 3), ("shop", 4)]
    assert (await client.get_run(run_id=run.run_id)).seq_cursor == 4


async def test_a_tenant_does_not_get_what_the_server_writes_by_taking_its_run_id(tenants: Tenants) -> None:
    for run_id in ("journal", "wallet", "audit"):
        await tenants.ours.append("/tape/order/paid/1", run_id=run_id)
        await tenants.server.journal.append([Draft(subject="/tape/order/paid/2", run_id=run_id)])
        assert await seqs_of(tenants.server.database, run_id) == [("ours", 1), ("", 1)]


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


def read_all(reader: Reader, cursor: RunCursor) -> list[Entry]:
    found: list[Entry] = []
    position, head = 0, 1
    while position < head:
        step = cursor.read(reader, position)
        found, position, head = found + step.entries, step.position, step.head
    return found


@pytest.mark.parametrize("most_tenants", [64, 2])
async def test_a_caller_that_sees_all_tenants_reads_their_runs_in_the_global_order(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, most_tenants: int
) -> None:
    monkeypatch.setattr(journal_reader, "MAX_RUN_TENANTS", most_tenants)
    monkeypatch.setattr(journal_reader, "FIRST_LIMIT", 8)
    chance = random.Random(7)
    drafts = [order(n, chance.choice("abc"), chance.choice([RUN, "other"])) for n in range(300)]
    await journal.append(drafts)
    selection = Selection(Pattern(""), RUN)
    entries = await journal.database.read(lambda reader: read_all(reader, RunCursor(selection)))
    assert [entry.global_seq for entry in entries] == [n for n, draft in enumerate(drafts, 1) if draft.run_id == RUN]
    later = await journal.database.read(lambda reader: read_all(reader, RunCursor(selection, from_seq=20)))
    assert [entry.global_seq for entry in later] == [entry.global_seq for entry in entries if entry.seq >= 20]
    both = Selection(Pattern(""), RUN, tenants=("a", "c"))
    of_two = await journal.database.read(lambda reader: read_all(reader, RunCursor(both)))
    assert of_two == [entry for entry in entries if entry.tenant in "ac"]


async def test_the_entries_of_another_tenant_in_a_run_are_not_read(database: Database) -> None:
    """The index leads to the tenant's own entries, however many the other one has."""
    if database.dialect != "sqlite":
        pytest.skip("SQLite shows its plan without statistics")
    queries: list[str] = []

    def record(reader: Reader) -> list[Any]:
        class Recorder:
            dialect, lookup, damage = reader.dialect, reader.lookup, reader.damage

            def query(self, sql: str, *params: Any) -> list[Any]:
                queries.append(sql)
                return reader.query(sql, *params)

            def one(self, sql: str, *params: Any) -> Any:
                return reader.one(sql, *params)

        RunCursor(Selection(Pattern(""), RUN, tenants=("ours",))).read(Recorder(), 0)  # type: ignore[arg-type]
        (sql,) = queries
        return reader.query(f"EXPLAIN QUERY PLAN {sql}", RUN, "ours", 0, 0, 9, 9)

    (step,) = await database.read(record)
    assert "tape_journal_run (run_id=? AND tenant=? AND seq>?)" in step[3]


async def test_whether_a_run_exists_is_known_per_tenant(journal: Journal) -> None:
    await journal.append([order(1, "a"), order(2, "b"), order(3, "b")])
    await journal.database.write(lambda tx: tx.execute("DELETE FROM tape_journal WHERE global_seq <= 2"))

    def ask(reader: Reader) -> list[bool]:
        return [
            has_run(reader, RUN),
            has_run(reader, RUN, ("a",)),  # its entries are pruned; the run is known
            has_run(reader, RUN, ("c",)),
            has_run_from(reader, RUN, ("a",)),
            has_run_from(reader, RUN, ("b",)),
            has_run_from(reader, RUN, ("b",), 2),
            has_run_from(reader, RUN, None, 2),
            has_run_from(reader, RUN, ("c",)),
        ]

    assert await journal.database.read(ask) == [True, True, False, False, False, True, False, False]


# ── data from before ─────────────────────────────────────────────────────────────────────────────


async def test_a_run_of_several_tenants_from_before_goes_on_above_all_of_them(
    bare_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def insert(tx: Transaction) -> None:
        columns = "global_seq, run_id, seq, kind, payload_json, ts_ms, tenant, chain"
        chain = bytes(32)
        for number, tenant in ((3, "a"), (4, "b"), (5, "a"), (6, "b")):
            texts = ("mixed", "order", "", "{}", "", "", "", tenant, "", "")
            chain = link(chain, canonical(number, number - 2, 1, 1, texts))
            tx.execute(
                f"INSERT INTO tape_journal ({columns}) VALUES (?, 'mixed', ?, 'order', '{{}}', 1, ?, ?)",
                number,
                number - 2,
                tenant,
                chain,
            )
        tx.execute("INSERT INTO tape_run_heads VALUES ('mixed', 4)")
        tx.execute("INSERT INTO tape_run_heads VALUES ('pruned', 2)")
        tx.execute("UPDATE tape_head SET global_seq = 6, oldest = 3")

    with monkeypatch.context() as patched:
        known = migrations.known_migrations
        patched.setattr(migrations, "known_migrations", lambda dialect: [m for m in known(dialect) if m.number < 25])
        async with open_database(bare_store_url) as database:
            await database.write(insert)
    async with open_database(bare_store_url) as database:
        journal = Journal(database)
        await journal.append([order(1, tenant, "mixed") for tenant in "abc"])
        await journal.append([order(1, tenant, "pruned") for tenant in "ab"])
        assert await seqs_of(database, "mixed") == [
            *zip("abab", (1, 2, 3, 4), strict=True),
            ("a", 5),
            ("b", 5),
            ("c", 1),
        ]
        # Whose the pruned entries were is not known: no tenant repeats a seq of them.
        assert await seqs_of(database, "pruned") == [("a", 3), ("b", 3)]
        assert await database.read(lambda reader: has_run(reader, "pruned"))
        selection = Selection(Pattern(""), "mixed", tenants=("b",))
        entries = await database.read(lambda reader: RunCursor(selection).read(reader, 2).entries)
        assert [entry.seq for entry in entries] == [2, 4, 5]
        assert not await database.read(lambda reader: has_run_from(reader, "pruned"))


def test_a_journal_with_an_unexpected_table_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:{tmp_path / 'tape.db'}"
    known = migrations.known_migrations
    with monkeypatch.context() as patched:
        patched.setattr(migrations, "known_migrations", lambda dialect: [m for m in known(dialect) if m.number < 25])
        open_database(url).migrate()
    connection = open_database(url).connect()
    connection.run_script(
        "PRAGMA writable_schema = ON;"
        "UPDATE sqlite_schema SET sql = replace(sql, 'UNIQUE (run_id, seq)', 'UNIQUE (seq, run_id)')"
        " WHERE name = 'tape_journal'; PRAGMA writable_schema = RESET"
    )
    before = connection.query("SELECT name, sql FROM sqlite_schema ORDER BY name")
    connection.close()
    with pytest.raises(TapeError):
        open_database(url).migrate()
    connection = open_database(url).connect()
    assert connection.query("SELECT name, sql FROM sqlite_schema ORDER BY name") == before
    assert connection.query("PRAGMA integrity_check") == [("ok",)]
    connection.close()


# ── an open server: `(run_id, seq)` names one entry ──────────────────────────────────────────────


async def test_entries_of_a_shared_run_are_numbered_over_all_tenants_also_by_ledgers(
    client: AsyncTapeClient, server: Server
) -> None:
    run = await client.begin_run(app_name="shop", user_id="u", session_id="s", invocation_id="i")
    drafts = [
        Draft(subject="/tape/order/paid/1", run_id=run.run_id, tenant=tenant) for tenant in ("bank", "shop", "bank")
    ]
    await client.append_many(drafts)
    await client.record_decision(run_id=run.run_id, decision_index=0, model="m")
    await client.append("/tape/order/paid/2", run_id=run.run_id, tenant="bank")
    found = await seqs_of(server.database, run.run_id)
    assert found == [("shop", 1), ("bank", 2), ("shop", 3), ("bank", 4), ("shop", 5), ("bank", 6)]


async def test_an_operation_that_is_undone_leaves_no_hole_in_a_shared_run(database: Database) -> None:
    journal = Journal(database)
    journal.shares_runs = True
    drafts = [Draft(subject="/tape/order/paid/1", run_id=RUN, tenant=tenant) for tenant in ("a", "b")]
    await journal.append(drafts)

    def fail(tx: Transaction) -> None:
        tx.enlist(Appender).share_runs(drafts)
        tx.enlist(Appender).number(drafts)
        raise InvalidInput("undone")

    results = await asyncio.gather(
        journal.append(drafts), database.write(fail), journal.append(drafts), return_exceptions=True
    )
    assert isinstance(results[1], InvalidInput)
    assert [seq for _, seq in await seqs_of(database, RUN)] == [1, 2, 3, 4, 5, 6]
