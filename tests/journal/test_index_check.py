"""The indexes of the journal against its table: what a reader would miss is named, and can be rebuilt."""

from __future__ import annotations

from pathlib import Path

import apsw
import psycopg
import pytest

from tape.journal.findings import VerifyReport
from tape.journal.index_check import _LOOKUP, _set, _unindexed_sql, indexes_of, rebuild_indexes
from tape.journal.journal import Journal
from tape.journal.key_index import KEY_INDEXES, index_entries
from tape.journal.verifier import verify
from tape.model.entry import Draft
from tape.store import open_database
from tests.journal.test_verify import report_of
from tests.services import Postgres


async def fill(journal: Journal, count: int = 300) -> None:
    await journal.append(
        [
            Draft(
                subject=f"/tape/order/created/{n % 7}",
                run_id=f"r{n % 11}",
                payload_json="{}",
                tenant="acme",
                user="u",
                session=f"s{n % 3}",
            )
            for n in range(count)
        ]
    )
    if journal.database.dialect == "sqlite":
        await journal.database.write(lambda tx: index_entries(tx, 0))


def remove_from_index(path: Path, index: str, where: str) -> None:
    """Remove some entries from an index: the table keeps them."""
    connection = apsw.Connection(str(path))
    if index in [each.table for each in KEY_INDEXES]:
        connection.execute(f"DELETE FROM {index} WHERE NOT ({where})")
        connection.close()
        return
    connection.execute("PRAGMA writable_schema=ON")
    # A partial index of the same columns has fewer entries; afterwards the schema calls it a full one.
    sql = connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (index,)).fetchall()[0][0]
    partial = f"{sql} AND {where}" if " WHERE " in sql else f"{sql} WHERE {where}"
    connection.execute(f"DROP INDEX {index}; {partial}")
    connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (sql, index))
    connection.execute("PRAGMA writable_schema=RESET")
    connection.close()


def index_findings(report: VerifyReport) -> list[tuple[int, int]]:
    return [(finding.global_seq, finding.last) for finding in report.findings if finding.problem == "index"]


async def test_the_indexes_of_a_sound_journal_agree_with_it(journal: Journal) -> None:
    await fill(journal)
    assert (await report_of(journal)).findings == []


async def test_every_index_of_the_journal_is_compared(journal: Journal) -> None:
    dialect = journal.database.dialect
    sql = (
        "SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'tape_journal'"
        if dialect == "sqlite"
        else "SELECT indexname FROM pg_indexes WHERE tablename = 'tape_journal' AND schemaname = current_schema()"
    )
    names = {name for (name,) in await journal.database.read(lambda reader: reader.query(sql))}
    assert names == {index.name for index in indexes_of(dialect) if not index.is_table}


@pytest.mark.parametrize("index", [index.name for index in indexes_of("sqlite")])
async def test_an_entry_that_an_index_of_sqlite_lacks_is_named(sqlite_url: str, index: str) -> None:
    async with open_database(sqlite_url) as database:
        await fill(Journal(database))
    path = Path(sqlite_url.removeprefix("sqlite:"))
    remove_from_index(path, index, "global_seq NOT IN (20, 21, 77)")
    async with open_database(sqlite_url) as database:
        report = await database.read(verify)
        assert [found for found in index_findings(report) if found != (0, 0)] == [(20, 21), (77, 77)]
        for finding in report.findings:
            assert finding.problem == "index"
            assert index in finding.detail
            assert "--repair-indexes" in finding.detail
        rebuild_indexes(database)
        assert (await database.read(verify)).ok


@pytest.mark.parametrize("index", [index.name for index in indexes_of("postgres")])
async def test_an_entry_that_an_index_of_postgres_lacks_is_named(postgres: Postgres, index: str) -> None:
    with postgres.migrated_database() as url:
        async with open_database(url) as database:
            await fill(Journal(database))
            with psycopg.connect(url, autocommit=True) as admin:
                # An index that is not ready gets no entries; afterwards the catalog calls it complete.
                ready = "UPDATE pg_index SET indisready = {0}, indisvalid = {0} WHERE indexrelid = %s::regclass"
                admin.execute(ready.format("false"), (index,))
                admin.execute("CREATE TABLE saved AS SELECT * FROM tape_journal WHERE global_seq = 300")
                admin.execute("DELETE FROM tape_journal WHERE global_seq = 300")
                admin.execute("INSERT INTO tape_journal SELECT * FROM saved")
                admin.execute(ready.format("true"), (index,))
            report = await database.read(verify)
            found = [finding for finding in report.findings if finding.problem == "index"]
            assert index_findings(report) == [(300, 300)]
            assert index in found[0].detail
            # Without its primary key the walk cannot find it either.
            assert len(report.findings) == (2 if index == "tape_journal_pkey" else 1)
            rebuild_indexes(database)
            assert (await database.read(verify)).ok


@pytest.mark.parametrize("index", [index.name for index in indexes_of("sqlite")])
async def test_an_entry_in_excess_of_an_index_is_named(sqlite_url: str, index: str) -> None:
    async with open_database(sqlite_url) as database:
        await fill(Journal(database))
    connection = apsw.Connection(sqlite_url.removeprefix("sqlite:"))
    # Entry 300 stays in the index, and the journal ends with 299 everywhere else.
    connection.execute("PRAGMA writable_schema=ON; CREATE TABLE copy AS SELECT sql FROM sqlite_schema WHERE name = 'x'")
    row = connection.execute("SELECT * FROM sqlite_schema WHERE name = ?", (index,)).fetchall()[0]
    connection.execute("DELETE FROM sqlite_schema WHERE name = ?", (index,))
    connection.execute("PRAGMA writable_schema=RESET")
    chain = connection.execute("SELECT chain FROM tape_journal WHERE global_seq = 299").fetchall()[0][0]
    connection.execute("DELETE FROM tape_journal WHERE global_seq = 300; DROP TABLE copy")
    connection.execute("UPDATE tape_head SET global_seq = 299, chain = ?", (chain,))
    connection.execute("UPDATE tape_run_heads SET seq = seq - 1 WHERE run_id = 'r2'")
    for other in KEY_INDEXES:
        if other.table != index:
            connection.execute(f"DELETE FROM {other.table} WHERE global_seq = 300")
    connection.execute("PRAGMA writable_schema=ON")
    connection.execute("INSERT INTO sqlite_schema VALUES (?, ?, ?, ?, ?)", row)
    connection.execute("PRAGMA writable_schema=RESET")
    connection.close()
    reader = open_database(sqlite_url).connect(read_only=True)
    report = verify(reader)
    reader.close()
    assert {finding.problem for finding in report.findings} == {"index"}
    assert any("1 entries in excess" in finding.detail for finding in report.findings)


async def test_a_block_that_the_list_of_blocks_lacks_is_named_and_can_be_rebuilt(sqlite_url: str) -> None:
    async with open_database(sqlite_url) as database:
        await fill(Journal(database), 300)
        await database.write(lambda tx: tx.execute("INSERT INTO tape_journal_blocks VALUES (7, 200)"))
        await database.write(lambda tx: tx.execute("DELETE FROM tape_journal_blocks WHERE block = 0"))
        report = await database.read(verify)
        assert (1, 200) in index_findings(report)
        rebuild_indexes(database)
        assert (await database.read(verify)).ok


@pytest.mark.parametrize("sessions", [299, 10])
async def test_lookups_in_postgres_use_the_index_that_they_are_for(postgres: Postgres, sessions: int) -> None:
    with postgres.migrated_database() as url:
        async with open_database(url) as database:
            await fill(Journal(database), sessions)
            await Journal(database).append([Draft(subject="/tape/x", payload_json="{}")] * (300 - sessions))
            with psycopg.connect(url, autocommit=True) as admin:
                admin.execute("VACUUM ANALYZE tape_journal")
            connection = database.connect(read_only=True)
            _set(connection, _LOOKUP)
            for index in indexes_of("postgres"):
                plan = "\n".join(
                    line for (line,) in connection.query(f"EXPLAIN {_unindexed_sql(index, 'postgres', 0, 9, 'block')}")
                )
                assert f"using {index.name} on tape_journal b" in plan
                assert "Tid Range Scan on tape_journal a" in plan
            connection.close()


async def test_a_verification_leaves_the_settings_of_its_connection_as_they_were(postgres: Postgres) -> None:
    with postgres.migrated_database() as url:
        async with open_database(url, readers=1) as database:
            await fill(Journal(database), 10)
            await database.read(verify)
            found = await database.read(
                lambda reader: reader.query(
                    "SELECT name FROM pg_settings WHERE starts_with(name, 'enable_') AND setting <> reset_val"
                )
            )
            assert found == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("UPDATE tape_run_heads SET seq = seq - 3 WHERE run_id = 'r1'", [277 + 11 - 22, 277, 288, 299]),
        ("DELETE FROM tape_run_heads WHERE run_id = 'r1'", []),
        ("UPDATE tape_run_heads SET seq = seq + 1000 WHERE run_id = 'r1'", []),
    ],
)
async def test_a_wrong_head_of_a_run_is_named(journal: Journal, change: str, expected: list[int]) -> None:
    await fill(journal)
    await journal.database.write(lambda tx: tx.execute(change))
    report = await report_of(journal)
    assert {finding.problem for finding in report.findings} == {"head"}
    assert all("tape_run_heads" in finding.detail for finding in report.findings)
    numbers = {finding.global_seq for finding in report.findings}
    run = {number for number in range(1, 301) if (number - 1) % 11 == 1}
    assert numbers <= run
    if "DELETE" in change:
        assert numbers == run
