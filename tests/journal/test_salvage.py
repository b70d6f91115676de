"""Verification of damaged journals: it never crashes, ends in bounded time and names ranges."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tape.journal import epochs
from tape.journal.findings import MAX_FINDINGS, Finding, VerifyReport
from tape.journal.journal import Journal
from tape.journal.retention import prune
from tape.journal.verifier import verify
from tape.model.entry import Draft
from tape.store import Reader, Transaction, open_database
from tape.store.reconnection import ReconnectingReader
from tests.journal.test_verify import fill, problems, report_of
from tests.services import Postgres

HUGE = 1 << 62


async def change(journal: Journal, *statements: str) -> None:
    def run(tx: Transaction) -> None:
        for statement in statements:
            tx.execute(statement)

    await journal.database.write(run)


def ranges(report: VerifyReport) -> list[tuple[int, int, str]]:
    return [(finding.global_seq, finding.last, finding.problem) for finding in report.findings]


async def test_a_forged_head_ends_the_walk_at_once_and_is_one_range(journal: Journal) -> None:
    await fill(journal)
    await change(journal, f"UPDATE tape_head SET global_seq = {HUGE}")
    started = time.monotonic()
    report = await report_of(journal)
    assert time.monotonic() - started < 5
    assert ranges(report) == [(51, HUGE, "missing")]
    assert report.entries == 50


async def test_a_number_that_was_changed_to_billions_is_two_ranges(journal: Journal) -> None:
    await fill(journal)
    await change(journal, "UPDATE tape_journal SET global_seq = 4000000000 WHERE global_seq = 20")
    assert ranges(await report_of(journal)) == [
        (20, 20, "missing"),
        (21, 21, "unproven"),
        (4_000_000_000, 4_000_000_000, "altered"),
    ]


async def test_a_wide_hole_is_one_range_and_what_follows_is_unproven_once(journal: Journal) -> None:
    await fill(journal, 9_000)
    await change(journal, "DELETE FROM tape_journal WHERE global_seq > 100 AND global_seq < 8000")
    assert ranges(await report_of(journal)) == [(101, 7_999, "missing"), (8_000, 8_000, "unproven")]


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM tape_head",
        "UPDATE tape_head SET global_seq = -5",
        "UPDATE tape_head SET oldest = -5",
        f"UPDATE tape_head SET oldest = {HUGE}",
        "UPDATE tape_head SET oldest = 0, global_seq = 9223372036854775807",
    ],
)
async def test_a_damaged_head_row_is_named(journal: Journal, damage: str) -> None:
    await fill(journal)
    await change(journal, damage)
    report = await report_of(journal)
    assert "head" in {finding.problem for finding in report.findings} or report.head > HUGE
    assert not report.ok


@pytest.mark.parametrize("column", ["chain", "anchor"])
async def test_a_chain_value_of_another_length_is_named(journal: Journal, column: str) -> None:
    await fill(journal)
    await journal.database.write(lambda tx: tx.execute(f"UPDATE tape_head SET {column} = ?", b"\1\2"))
    report = await report_of(journal)
    assert [finding.problem for finding in report.findings] == ["head"]
    assert report.entries == 50


async def test_an_entry_whose_chain_value_has_another_length_is_named_alone(journal: Journal) -> None:
    await fill(journal)
    await journal.database.write(
        lambda tx: tx.execute("UPDATE tape_journal SET chain = ? WHERE global_seq = 20", b"\1\2")
    )
    assert problems(await report_of(journal)) == [(20, "altered")]


@pytest.mark.parametrize("table", ["tape_head", "tape_journal", "tape_epochs"])
async def test_a_missing_table_is_named(journal: Journal, table: str) -> None:
    await fill(journal)
    await change(journal, f"ALTER TABLE {table} RENAME TO gone")
    assert not (await report_of(journal)).ok


async def test_a_named_hole_is_no_problem(journal: Journal) -> None:
    await fill(journal)
    await journal.database.write(lambda tx: epochs.close_cut(tx, last_known=60, margin=1_000_000, cause="test"))
    await fill(journal)
    report = await report_of(journal)
    assert report.findings == []
    assert report.entries == 101


@pytest.mark.parametrize(
    "forgery",
    [
        "DELETE FROM tape_epochs",
        "UPDATE tape_epochs SET cut_after = cut_after - 5",
        "UPDATE tape_epochs SET last_known = last_known + 1",
        "DELETE FROM tape_journal WHERE global_seq BETWEEN 45 AND 50",
    ],
)
async def test_a_hole_that_its_entry_does_not_confirm_is_missing(journal: Journal, forgery: str) -> None:
    await fill(journal)
    await journal.database.write(lambda tx: epochs.close_cut(tx, last_known=60, margin=100, cause="test"))
    await change(journal, forgery)
    assert "missing" in {finding.problem for finding in (await report_of(journal)).findings}


async def test_a_text_that_is_not_utf8_is_named_alone(sqlite_url: str) -> None:
    async with open_database(sqlite_url) as database:
        journal = Journal(database)
        await fill(journal)
        await change(
            journal,
            "UPDATE tape_journal SET payload_json = CAST(x'7b80ff7d' AS TEXT) WHERE global_seq IN (20, 50)",
        )
        report = await report_of(journal)
    assert problems(report) == [(20, "altered"), (50, "altered")]
    assert "not UTF-8" in report.findings[0].detail


async def test_the_kept_findings_are_bounded_and_the_others_counted() -> None:
    report = VerifyReport(1, 1)
    for number in range(MAX_FINDINGS + 7):
        report.add(Finding(number * 2, "altered", str(number)))
    assert len(report.findings) == MAX_FINDINGS
    assert (report.omitted, report.problems, report.ok) == (7, MAX_FINDINGS + 7, False)


async def test_large_entries_are_read_in_small_windows(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tape.journal.salvage.WINDOW_BYTES", 10_000)
    await journal.append([Draft(subject="/tape/a/b", payload_json=f'"{"x" * 4_000}"') for _ in range(40)])
    seen: list[int] = []
    report = await journal.database.read(lambda reader: verify(reader, lambda done, total: seen.append(done)))
    assert report.ok
    assert max(later - before for before, later in zip([0, *seen], seen, strict=False)) <= 2


async def test_what_is_pruned_meanwhile_is_not_missing(sqlite_url: str) -> None:
    async with open_database(sqlite_url) as database:
        await fill(Journal(database), 5_000)
        cut = threading.Event()

        def verify_slowly(reader: Reader) -> VerifyReport:
            return verify(reader, lambda done, total: [cut.wait(), None][1])

        verifying = asyncio.create_task(database.read(verify_slowly))
        await prune(database, before_seq=4_000)
        cut.set()
        assert (await verifying).ok


def test_a_range_that_retention_cut_keeps_the_rest() -> None:
    report = VerifyReport(1, 100)
    report.add(Finding(1, "missing", "gone", 60))
    report.add(Finding(61, "unproven", "follows a hole"))
    report.drop_below(50)
    assert ranges(report) == [(50, 60, "missing"), (61, 61, "unproven")]
    report.drop_below(61)
    assert report.ok


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b"this is not a database, it is a text of some length" * 100),
        lambda path: path.write_bytes(path.read_bytes()[:5_000]),
        lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
        lambda path: path.write_bytes(b"\xff" * 100 + path.read_bytes()[100:]),
    ],
)
async def test_a_file_that_is_not_a_whole_database_is_named(sqlite_url: str, spoil: Callable[[Path], object]) -> None:
    from tape.cli.verify import _verify

    async with open_database(sqlite_url) as database:
        await fill(Journal(database), 2_000)
    spoil(Path(sqlite_url.removeprefix("sqlite:")))
    report = _verify(open_database(sqlite_url, migrate=False, create=False))
    assert not report.ok


async def test_a_statement_that_ends_the_connection_is_damage_and_a_lost_connection_is_not(postgres: Postgres) -> None:
    from tape.errors import StoreDamaged

    with postgres.migrated_database() as url:
        database = open_database(url)
        with ReconnectingReader(lambda: database.connect(read_only=True)) as reader:
            backend = reader.one("SELECT pg_backend_pid()")
            assert backend is not None
            other = database.connect()
            other.query("SELECT pg_terminate_backend(?)", backend[0])
            assert reader.query("SELECT 1") == [(1,)]
            with pytest.raises(StoreDamaged, match="whenever this is read"):
                reader.query("SELECT pg_terminate_backend(pg_backend_pid())")
            assert reader.query("SELECT 1") == [(1,)]
            other.close()


async def test_a_row_that_ends_the_connection_is_named_and_the_others_are_proven(postgres: Postgres) -> None:
    with postgres.migrated_database() as url:
        async with open_database(url) as database:
            await fill(Journal(database))
            # A policy stands for a damaged row: to read entry 20 ends the connection.
            await change(
                Journal(database),
                "CREATE FUNCTION read_entry(n bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN"
                " IF n = 20 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN true; END $$",
                "ALTER TABLE tape_journal RENAME TO stored_journal",
                "CREATE VIEW tape_journal AS SELECT * FROM stored_journal WHERE read_entry(global_seq)",
            )
        with ReconnectingReader(lambda: database.connect(read_only=True)) as reader:
            report = verify(reader)
        found = [(number, problem) for number, problem in problems(report) if number == 20]
        assert (20, "unreadable") in found
        assert report.entries == 49
