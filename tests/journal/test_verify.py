"""Verifying and pruning: damage is named exactly, and retention keeps the rest provable."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tape.errors import InvalidInput
from tape.journal.journal import Journal
from tape.journal.retention import prune
from tape.journal.verifier import VerifyReport, verify
from tape.model.entry import Draft


async def fill(journal: Journal, count: int = 50) -> None:
    await journal.append(
        [
            Draft(subject=f"/tape/order/created/{n}", run_id=f"r{n % 3}", payload_json=f'{{"n":{n}}}')
            for n in range(count)
        ]
    )


async def report_of(journal: Journal) -> VerifyReport:
    return await journal.database.read(verify)


def problems(report: VerifyReport) -> list[tuple[int, str]]:
    return [
        (number, finding.problem)
        for finding in report.findings
        for number in range(finding.global_seq, finding.last + 1)
    ]


async def test_an_untouched_journal_is_proven(journal: Journal) -> None:
    await fill(journal)
    await fill(journal)
    report = await report_of(journal)
    assert report.ok
    assert (report.oldest, report.head, report.entries) == (1, 100, 100)


async def test_an_empty_journal_is_proven(journal: Journal) -> None:
    assert (await report_of(journal)).ok


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("UPDATE tape_journal SET payload_json = '{\"n\":-1}' WHERE global_seq = 20", [(20, "altered")]),
        ("UPDATE tape_journal SET subject = subject || 'x' WHERE global_seq = 20", [(20, "altered")]),
        ("UPDATE tape_journal SET ts_ms = ts_ms + 1 WHERE global_seq = 20", [(20, "altered")]),
        ("UPDATE tape_journal SET tenant = 'other' WHERE global_seq = 1", [(1, "altered")]),
        ("UPDATE tape_journal SET trace_id = 'x' WHERE global_seq IN (7, 8, 50)", [(n, "altered") for n in (7, 8, 50)]),
        ("UPDATE tape_journal SET schema_version = -5 WHERE global_seq = 20", [(20, "altered")]),
        ("DELETE FROM tape_journal WHERE global_seq = 20", [(20, "missing"), (21, "unproven")]),
        ("DELETE FROM tape_journal WHERE global_seq IN (20, 21)", [(20, "missing"), (21, "missing"), (22, "unproven")]),
        ("DELETE FROM tape_journal WHERE global_seq = 50", [(50, "missing")]),
        ("UPDATE tape_head SET global_seq = 48 WHERE id = 1", [(48, "head"), (49, "altered"), (50, "altered")]),
        ("UPDATE tape_head SET oldest = 3 WHERE id = 1", [(1, "altered"), (2, "altered"), (3, "altered")]),
    ],
)
async def test_damage_is_named_exactly(journal: Journal, change: str, expected: list[tuple[int, str]]) -> None:
    await fill(journal)
    await journal.database.write(lambda tx: tx.execute(change))
    assert problems(await report_of(journal)) == expected


@pytest.mark.parametrize("table", ["tape_journal", "tape_head"])
async def test_a_changed_chain_value_is_named_once(journal: Journal, table: str) -> None:
    await fill(journal)
    where = "global_seq = 20" if table == "tape_journal" else "id = 1"
    await journal.database.write(lambda tx: tx.execute(f"UPDATE {table} SET chain = ? WHERE {where}", b"\1" * 32))
    assert problems(await report_of(journal)) == ([(20, "altered")] if table == "tape_journal" else [(50, "head")])


async def test_a_forged_entry_at_the_end_is_named(journal: Journal) -> None:
    await fill(journal)
    await journal.database.write(
        lambda tx: tx.execute(
            "INSERT INTO tape_journal (global_seq, run_id, seq, kind, payload_json, ts_ms, chain)"
            " VALUES (51, 'forged', 1, 'order', '{}', 0, ?)",
            bytes(32),
        )
    )
    assert problems(await report_of(journal)) == [(51, "altered")]


async def test_pruning_keeps_the_rest_provable_and_is_journaled(journal: Journal) -> None:
    await fill(journal)
    seen: list[tuple[int, int]] = []
    assert await prune(journal.database, before_seq=31, progress=lambda done, total: seen.append((done, total))) == 30
    assert seen[-1] == (30, 30)
    report = await report_of(journal)
    assert report.ok
    assert (report.oldest, report.head, report.entries) == (31, 51, 21)
    row = await journal.database.read(
        lambda reader: reader.one("SELECT subject, payload_json FROM tape_journal WHERE global_seq = 51")
    )
    assert row is not None
    assert row[0] == "/tape/journal/pruned"
    assert '"removed":30' in row[1]


async def test_an_entry_altered_before_the_cut_does_not_hide_one_after_it(journal: Journal) -> None:
    await fill(journal)
    await prune(journal.database, before_seq=31)
    await journal.database.write(
        lambda tx: tx.execute("UPDATE tape_journal SET payload_json = '{}' WHERE global_seq = 31")
    )
    assert problems(await report_of(journal)) == [(31, "altered")]


async def test_pruning_by_time_removes_only_what_is_older(journal: Journal) -> None:
    await fill(journal)
    row = await journal.database.read(lambda reader: reader.one("SELECT ts_ms FROM tape_journal WHERE global_seq = 1"))
    assert row is not None
    assert await prune(journal.database, before_ms=row[0]) == 0
    assert await prune(journal.database, before_ms=row[0] + 1) == 50
    assert (await report_of(journal)).ok


async def test_a_run_counts_on_after_its_beginning_was_pruned(journal: Journal) -> None:
    await fill(journal, 9)
    await prune(journal.database, before_seq=10)
    await fill(journal, 3)
    rows = await journal.database.read(
        lambda reader: reader.query("SELECT run_id, seq FROM tape_journal WHERE run_id <> 'journal' ORDER BY run_id")
    )
    assert rows == [("r0", 4), ("r1", 4), ("r2", 4)]
    assert (await report_of(journal)).ok


async def test_pruning_beyond_the_head_is_refused(journal: Journal) -> None:
    await fill(journal)
    with pytest.raises(InvalidInput, match="before_seq 1000 is beyond the head of the journal"):
        await prune(journal.database, before_seq=1000)


async def test_a_damaged_file_is_read_as_far_as_it_can_be(sqlite_url: str) -> None:
    from tape.store import open_database

    async with open_database(sqlite_url) as database:
        journal = Journal(database)
        await journal.append(
            [Draft(subject="/tape/order/created/1", payload_json=f'"{"x" * 3000}"') for _ in range(200)]
        )
        await database.write(lambda tx: None)
        page = await database.read(page_of_entry(100))
    path = sqlite_url.removeprefix("sqlite:")
    with open(path, "r+b") as file:  # noqa: PTH123
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)
    async with open_database(sqlite_url) as database:
        report = await database.read(verify)
    assert not report.ok
    assert {finding.problem for finding in report.findings} <= {"unreadable", "missing", "unproven"}
    # What is said about the file as a whole has the number 0.
    named = {number for number, problem in problems(report) if problem != "unproven" and number}
    assert 100 in named
    assert report.entries + len(named) == 200


def page_of_entry(global_seq: int) -> Callable[[object], int]:
    """Finds a leaf page of the journal's table by looking for a page that dbstat attributes to it."""

    def find(reader: object) -> int:
        rows = reader.query(  # type: ignore[attr-defined]
            "SELECT pageno, ncell FROM dbstat WHERE name = 'tape_journal' AND pagetype = 'leaf' ORDER BY path"
        )
        seen = 0
        for page, cells in rows:
            seen += cells
            if seen >= global_seq:
                return int(page)
        raise AssertionError("no such page")

    return find
