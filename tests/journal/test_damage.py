"""Damage of the journal: each range is recorded and journaled once, and never floods the journal."""

from __future__ import annotations

import msgspec
import pytest

from tape.journal import damage
from tape.journal.damage import clear_damage, count_damaged, read_damage, record_damage
from tape.journal.journal import Journal
from tape.journal.reader import Selection, open_cursor
from tape.journal.retention import prune
from tape.model.entry import Draft
from tape.model.gap import GapReason, JournalGap
from tape.model.pattern import Pattern


def gap(first: int, last: int | None = None, reason: GapReason = "damaged") -> JournalGap:
    return JournalGap(first, last or first, reason, "its checksum differs")


async def record(journal: Journal, *gaps: JournalGap) -> int:
    return await journal.database.write(lambda tx: record_damage(tx, *gaps))


async def ranges(journal: Journal) -> list[tuple[int, int]]:
    return [(each.first, each.last) for each in await journal.database.read(read_damage)]


async def journaled(journal: Journal) -> list[dict[str, object]]:
    selection = Selection(Pattern("/tape/journal/damaged"))
    found = await journal.database.read(lambda reader: open_cursor(selection).read(reader, 0))
    return [msgspec.json.decode(entry.payload_json) for entry in found.entries]


async def test_a_damaged_range_is_recorded_and_journaled_once(journal: Journal) -> None:
    assert await record(journal, gap(7, 9)) == 1
    assert await record(journal, gap(7, 9)) == 0
    assert await record(journal, gap(8)) == 0
    assert await ranges(journal) == [(7, 9)]
    assert await journaled(journal) == [
        {"first": 7, "last": 9, "problem": "damaged", "detail": "its checksum differs", "more": False}
    ]


async def test_ranges_that_touch_are_one_row_and_each_new_one_is_journaled(journal: Journal) -> None:
    assert await record(journal, gap(1), gap(3), gap(9), gap(2, reason="missing")) == 4
    assert await ranges(journal) == [(1, 3), (9, 9)]
    assert [(each["first"], each["problem"]) for each in await journaled(journal)] == [
        (1, "damaged"),
        (3, "damaged"),
        (9, "damaged"),
        (2, "missing"),
    ]
    assert await journal.database.read(count_damaged) == 4


async def test_a_range_that_an_epoch_explains_is_no_damage(journal: Journal) -> None:
    assert await record(journal, gap(5, 900, "diverged")) == 0
    assert await ranges(journal) == []


async def test_a_totally_damaged_journal_does_not_flood_itself(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damage, "MAX_ENTRIES_PER_HOUR", 10)
    assert await record(journal, *(gap(n) for n in range(1, 50, 2))) == 25
    assert await record(journal, gap(101)) == 1
    entries = await journaled(journal)
    assert [each["more"] for each in entries] == [False] * 9 + [True]
    assert len(await ranges(journal)) == 26


async def test_the_number_of_ranges_is_bounded_and_those_known_still_grow(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damage, "MAX_RANGES", 3)
    assert await record(journal, *(gap(n) for n in (1, 3, 5, 7, 9))) == 3
    assert await record(journal, gap(6)) == 1
    assert await ranges(journal) == [(1, 1), (3, 3), (5, 6)]


async def test_what_was_found_whole_again_is_no_longer_recorded(journal: Journal) -> None:
    await record(journal, gap(10, 20), gap(30))
    await journal.database.write(lambda tx: clear_damage(tx, 12, 30))
    assert await ranges(journal) == [(10, 11)]


async def test_retention_removes_what_is_recorded_of_removed_entries(journal: Journal) -> None:
    await journal.append([Draft(subject="/tape/order/created") for _ in range(20)])
    await record(journal, gap(3), gap(8, 12))
    await prune(journal.database, before_seq=10)
    assert await ranges(journal) == [(10, 12)]
