"""The store's contract: every database passes it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from tape.errors import Overloaded, SchemaOutdated, SchemaTooNew, ServerStopping, StoreUnavailable, UnknownStore
from tape.model.ledger_states import RunStatus
from tape.model.principal import Principal, acting_as
from tape.store import Database, Transaction, WriterLimits, migrations, open_database

Operation = Callable[[Transaction], str]


def put(key: str, value: str = "x") -> Operation:
    """An operation that stores one row."""

    def operation(tx: Transaction) -> str:
        tx.execute(
            "INSERT INTO tape_values (namespace, key, value_json, ts_ms) VALUES (?, ?, ?, ?)", "test", key, value, 1
        )
        return key

    return operation


async def keys(database: Database) -> list[str]:
    rows = await database.read(lambda reader: reader.query("SELECT key FROM tape_values ORDER BY key"))
    return [key for (key,) in rows]


async def test_what_was_written_is_there_for_readers_and_after_reopening(store_url: str) -> None:
    async with open_database(store_url) as database:
        assert await database.write(put("a")) == "a"
        assert await keys(database) == ["a"]
    async with open_database(store_url) as database:
        assert await keys(database) == ["a"]


async def test_an_operation_that_raises_fails_alone(database: Database) -> None:
    def fails(tx: Transaction) -> None:
        put("lost")(tx)
        raise ValueError("on purpose")

    results = await asyncio.gather(
        database.write(put("a")), database.write(fails), database.write(put("b")), return_exceptions=True
    )
    assert results[0] == "a"
    assert isinstance(results[1], ValueError)
    assert results[2] == "b"
    assert await keys(database) == ["a", "b"]


async def test_a_broken_statement_fails_alone(database: Database) -> None:
    results = await asyncio.gather(
        database.write(put("a")),
        database.write(lambda tx: tx.execute("INSERT INTO no_such_table VALUES (1)")),
        database.write(put("a")),  # a duplicate key
        database.write(put("b")),
        return_exceptions=True,
    )
    assert [type(result).__name__ for result in results] == ["str", "StoreError", "StoreError", "str"]
    assert await keys(database) == ["a", "b"]


async def test_operations_that_wait_share_one_commit(database: Database) -> None:
    release, first = await keep_busy(database)
    rest = [asyncio.create_task(database.write(put(f"k{n:03d}"))) for n in range(100)]
    await until_queue_is(database, 100)
    release.set()
    await asyncio.gather(first, *rest)
    assert database.metrics.registry.get_sample_value("tape_commits_total") == 2
    assert len(await keys(database)) == 100


async def test_bulk_operations_run_as_one_call(database: Database) -> None:
    calls: list[int] = []

    def store_all(tx: Transaction, items: list[str]) -> list[str]:
        calls.append(len(items))
        for item in items:
            put(item)(tx)
        return [item.upper() for item in items]

    release, first = await keep_busy(database)
    rest = [asyncio.create_task(database.write_bulk(store_all, f"k{n}", 10)) for n in range(50)]
    await until_queue_is(database, 50)
    release.set()
    await first
    assert await asyncio.gather(*rest) == [f"K{n}" for n in range(50)]
    assert calls == [50]


async def test_a_full_queue_refuses_at_once_and_recovers(store_url: str) -> None:
    limits = WriterLimits(queue_operations=5, queue_bytes=10_000)
    async with open_database(store_url, limits=limits) as database:
        release, first = await keep_busy(database)
        waiting = [asyncio.create_task(database.write(put(f"k{n}"))) for n in range(5)]
        await until_queue_is(database, 5)
        with pytest.raises(Overloaded, match="Nothing was written"):
            await database.write(put("too many"))
        release.set()
        await asyncio.gather(first, *waiting)
        await database.write(put("later"))
        with pytest.raises(Overloaded, match="10000 bytes"):
            await database.write(put("too large"), size=10_001)
        assert await keys(database) == ["k0", "k1", "k2", "k3", "k4", "later"]
        assert database.metrics.registry.get_sample_value("tape_write_overloaded_total") == 2


async def test_an_operation_is_committed_before_those_that_another_tenant_queued_earlier(store_url: str) -> None:
    limits = WriterLimits(batch_operations=100, batch_bytes=100_000)
    async with open_database(store_url, limits=limits) as database:
        release, first = await keep_busy(database)
        done: list[str] = []

        async def write_as(tenant: str, key: str) -> None:
            with acting_as(Principal(tenant=tenant)):
                await database.write(put(key))
            done.append(tenant)

        flood = [asyncio.create_task(write_as("flood", f"f{number:04d}")) for number in range(1_000)]
        await until_queue_is(database, 1_000)
        victim = asyncio.create_task(write_as("victim", "v"))
        await until_queue_is(database, 1_001)
        release.set()
        await asyncio.gather(first, *flood, victim)
        assert done.index("victim") < 100
        assert len(await keys(database)) == 1_001


async def test_a_full_queue_refuses_the_tenant_that_fills_it_and_accepts_another(store_url: str) -> None:
    async with open_database(store_url, limits=WriterLimits(queue_operations=5)) as database:
        release, first = await keep_busy(database)
        with acting_as(Principal(tenant="flood")):
            flood = [asyncio.create_task(database.write(put(f"f{number}"))) for number in range(5)]
            await until_queue_is(database, 5)
            with pytest.raises(Overloaded, match="this tenant holds most"):
                await database.write(put("too many"))
        with acting_as(Principal(tenant="victim")):
            victim = asyncio.create_task(database.write(put("v")))
            with pytest.raises(Overloaded):
                await flood[-1]
        release.set()
        await asyncio.gather(first, victim, *flood[:-1])
        assert await keys(database) == ["f0", "f1", "f2", "f3", "v"]


async def test_batches_are_bounded_in_count_and_bytes(store_url: str) -> None:
    limits = WriterLimits(batch_operations=10, batch_bytes=1_000)
    async with open_database(store_url, limits=limits) as database:
        release, first = await keep_busy(database)
        many = [asyncio.create_task(database.write(put(f"m{n:02d}"), size=1)) for n in range(30)]
        large = [asyncio.create_task(database.write(put(f"z{n}"), size=600)) for n in range(3)]
        await until_queue_is(database, 33)
        release.set()
        await asyncio.gather(first, *many, *large)
        assert database.metrics.registry.get_sample_value("tape_commits_total") == 1 + 3 + 3


async def test_readers_do_not_wait_for_the_writer(database: Database) -> None:
    await database.write(put("before"))
    release, writing = await keep_busy(database, put("during"))
    assert await keys(database) == ["before"]
    release.set()
    await writing
    assert await keys(database) == ["before", "during"]


async def test_closing_finishes_what_is_queued_and_refuses_the_rest(store_url: str) -> None:
    database = open_database(store_url)
    await database.open()
    release, first = await keep_busy(database)
    waiting = [asyncio.create_task(database.write(put(f"k{n}"))) for n in range(3)]
    await until_queue_is(database, 3)
    closing = asyncio.create_task(database.close())
    await asyncio.sleep(0)
    with pytest.raises(ServerStopping):
        await database.write(put("too late"))
    release.set()
    await asyncio.gather(closing, first, *waiting)
    async with open_database(store_url) as again:
        assert await keys(again) == ["k0", "k1", "k2"]


async def test_several_processes_may_migrate_at_once(bare_store_url: str) -> None:
    databases = [open_database(bare_store_url) for _ in range(4)]
    applied = await asyncio.gather(*(asyncio.to_thread(database.migrate) for database in databases))
    assert sorted(len(migrations) > 0 for migrations in applied) == [False, False, False, True]
    assert databases[0].pending() == []


async def test_an_outdated_schema_is_refused_when_migrating_is_not_wanted(bare_store_url: str) -> None:
    with pytest.raises(SchemaOutdated, match="tape migrate --store"):
        await open_database(bare_store_url, migrate=False).open()


async def test_runs_that_failed_with_their_command_keep_its_task_id_when_the_column_is_added(
    bare_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    details = {
        "dead": '{"error":{"type":"DeadLetter","message":"after 3 attempts: \\"x\\"","task_id":"t-1"}}',
        "own": '{"error":"ValueError","message":"DeadLetter"}',
        "damaged": '{"error":{"type":"DeadLetter",',
        "none": "",
    }

    def insert(tx: Transaction) -> None:
        for run_id, detail_json in details.items():
            tx.execute(
                "INSERT INTO tape_runs (run_id, app_name, user_id, session_id, invocation_id, status, detail_json,"
                " started_at_ms)"
                f" VALUES (?, 'app', 'user', 'session', ?, {RunStatus.FAILED}, ?, 1)",
                run_id,
                run_id,
                detail_json,
            )

    with monkeypatch.context() as patched:
        known = migrations.known_migrations
        patched.setattr(migrations, "known_migrations", lambda dialect: [m for m in known(dialect) if m.number < 19])
        async with open_database(bare_store_url) as database:
            await database.write(insert)
    async with open_database(bare_store_url) as database:
        rows = await database.read(lambda reader: reader.query("SELECT run_id, dead_task_id FROM tape_runs"))
    assert dict(rows) == {"dead": "t-1", "own": "", "damaged": "", "none": ""}


async def test_a_database_from_the_future_is_refused(store_url: str) -> None:
    async with open_database(store_url) as database:
        await database.write(
            lambda tx: tx.execute("INSERT INTO tape_migrations VALUES (?, ?, ?)", 9_999, "from_the_future", 0)
        )
    with pytest.raises(SchemaTooNew, match="9999_from_the_future"):
        await open_database(store_url).open()


@pytest.mark.parametrize("url", ["mysql://localhost/x", "spanner://p/i/d", "http://example"])
def test_the_error_for_an_unknown_scheme_names_the_known_ones(url: str) -> None:
    with pytest.raises(UnknownStore, match="sqlite:<path>, a bare path, memory, postgres://"):
        open_database(url)


@pytest.mark.parametrize("spelling", ["{}", "sqlite:{}", "sqlite://{}"])
async def test_a_file_has_three_spellings(spelling: str, tmp_path: object) -> None:
    async with open_database(spelling.format(f"{tmp_path}/some.db")) as database:
        await database.write(put("a"))
    async with open_database(f"{tmp_path}/some.db") as database:
        assert await keys(database) == ["a"]


@pytest.mark.parametrize("spelling", ["memory", ":memory:", "sqlite::memory:"])
async def test_memory_is_gone_when_closed(spelling: str) -> None:
    async with open_database(spelling) as database:
        await database.write(put("a"))
        assert await keys(database) == ["a"]
    async with open_database(spelling) as database:
        assert await keys(database) == []


async def test_alloydb_is_a_postgres(postgres: object) -> None:
    with postgres.fresh_database() as url:  # type: ignore[attr-defined]
        async with open_database(url.replace("postgresql://", "alloydb://")) as database:
            await database.write(put("a"))
            assert await keys(database) == ["a"]


async def test_a_missing_folder_is_unavailable_with_a_remedy(tmp_path: object) -> None:
    with pytest.raises(StoreUnavailable, match="Check that its folder exists"):
        await open_database(f"sqlite:{tmp_path}/no/such/folder/tape.db").open()


async def test_an_unreachable_postgres_is_unavailable() -> None:
    with pytest.raises(StoreUnavailable, match="Is it running"):
        await open_database("postgres://127.0.0.1:1/nothing").open()


async def keep_busy(
    database: Database, operation: Operation = lambda tx: ""
) -> tuple[threading.Event, asyncio.Task[None]]:
    """Occupy the writer until the event is set."""
    started, release = threading.Event(), threading.Event()

    def wait(tx: Transaction) -> None:
        operation(tx)
        started.set()
        assert release.wait(120)

    task = asyncio.create_task(database.write(wait))
    await asyncio.to_thread(started.wait, 120)
    return release, task


async def until_queue_is(database: Database, length: int) -> None:
    """Wait until exactly so many operations wait."""
    async with asyncio.timeout(120):
        while database.metrics.registry.get_sample_value("tape_write_queue_operations") != length:
            await asyncio.sleep(0.001)


async def test_a_notice_reaches_those_who_listen_in_the_same_process_once_it_is_committed(database: Database) -> None:
    heard: list[str] = []
    database.on_notice("here", lambda: heard.append("here"))
    database.on_notice("there", lambda: heard.append("there"))
    await database.write(lambda tx: tx.notify("here"))
    assert heard == ["here"]


async def test_rows_are_found_and_changed_by_keys_of_several_columns(database: Database) -> None:
    keys = ("scope", "key")
    columns = (*keys, "execution_id", "claimed_at_ms", "expires_at_ms")
    rows = [("a", "1", "x", 1, 9), ("a", "2", "x", 2, 9), ("b", "1", "x", 3, 9)]
    await database.write(lambda tx: tx.insert("tape_dedup", columns, rows))
    changes = [("a", "2", "y", 20), ("b", "1", "z", 30), ("b", "2", "missing", 40)]
    await database.write(lambda tx: tx.update("tape_dedup", keys, columns[:4], changes))
    await database.write(lambda tx: tx.update("tape_dedup", keys, columns[:4], []))
    wanted = [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2")]
    found = await database.read(lambda reader: reader.lookup("tape_dedup", ", ".join(columns), keys, wanted))
    assert sorted(found) == [("a", "1", "x", 1, 9), ("a", "2", "y", 20, 9), ("b", "1", "z", 30, 9)]
    assert await database.read(lambda reader: reader.lookup("tape_dedup", "key", keys, [])) == []
