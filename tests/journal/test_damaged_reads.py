"""Readers beside damage that was silent once: lost numbers, heads and indexes, NULLs, and rows that crash a backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tape.errors import BackendCrashed, StoreDamaged
from tape.journal.entries import SELECT, entries_of
from tape.journal.identity_filter import IdentityFilter
from tape.journal.journal import Journal
from tape.journal.pages import EntryQuery, list_entries
from tape.journal.ranges import Found, read_range
from tape.journal.reader import read_head
from tape.journal.verifier import verify
from tape.model.checksum import COUNT
from tape.model.entry import COLUMNS, Draft
from tape.store import Reader, open_database
from tape.store.connection import Row
from tests.journal.test_entries import (
    CURSORS,
    ENTRIES,
    SUBJECT,
    VICTIM,
    change,
    fill,
    ranges,
    read_all,
    read_with,
)


async def test_a_run_whose_first_entry_lost_its_number_has_a_gap(journal: Journal) -> None:
    await fill(journal)
    await change(journal.database, "UPDATE tape_journal SET global_seq = 4000000000 WHERE global_seq = 1")
    for name in ("run", "run of a tenant"):
        found = await read_with(journal, name)
        assert [entry.seq for entry in found.entries] == list(range(2, ENTRIES + 1))
        assert ranges(found.gaps) == [(1, 1, "missing")], name


async def test_a_run_of_several_tenants_is_read_of_one_whose_head_is_gone(journal: Journal) -> None:
    for tenant in ("acme", "beta", "acme"):
        await journal.append([Draft(subject=SUBJECT, run_id="r", tenant=tenant)] * 3)
    await change(journal.database, "DELETE FROM tape_run_heads WHERE run_id = 'r' AND tenant = 'acme'")
    found = await read_with(journal, "run")
    assert [entry.global_seq for entry in found.entries] == list(range(1, 10))


class BrokenIndex(Reader):
    """A reader whose index of runs gives nothing, and an error from its other end."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.dialect = reader.dialect
        self.damage = reader.damage

    def query(self, sql: str, *params: Any) -> list[Row]:
        if "run_id = ?" in sql and "tape_journal" in sql:
            if "seq DESC" in sql:
                raise StoreDamaged("a page is damaged")
            return []
        return self._reader.query(sql, *params)

    def is_any(self, column: str, values: Sequence[str]) -> tuple[str, Any]:
        return self._reader.is_any(column, values)

    def pairs(self, values: Sequence[tuple[int, int]]) -> tuple[str, Any]:
        return self._reader.pairs(values)

    def texts(self, values: Sequence[str]) -> tuple[str, Any]:
        return self._reader.texts(values)

    def lookup(self, table: str, columns: str, keys: Sequence[str], wanted: Sequence[tuple[str, ...]]) -> list[Row]:
        return self._reader.lookup(table, columns, keys, wanted)


async def test_a_run_whose_index_is_empty_and_damaged_is_read_from_the_table(journal: Journal) -> None:
    whole = await fill(journal)
    for name in ("run", "run of a tenant"):
        found = await journal.database.read(lambda reader: read_all(CURSORS[name](), BrokenIndex(reader)))  # noqa: B023
        assert found.entries == whole, name


@pytest.mark.parametrize("column", ["subject", "chain", "ts_ms"])
async def test_an_entry_of_nulls_after_a_hole_is_damaged(sqlite_url: str, column: str) -> None:
    """SQLite gives NULL for the columns that the damaged header of a row does not have."""
    async with open_database(sqlite_url) as database:
        await fill(Journal(database))
        rows = await database.read(lambda reader: reader.query(f"{SELECT} ORDER BY global_seq"))
        row = list(rows[VICTIM - 1])
        row[[name.strip('"') for name in COLUMNS].index(column)] = row[COUNT] = None
        rows = [tuple(row)]  # the one before it is missing
        await change(database, "DELETE FROM tape_journal WHERE global_seq = ?", VICTIM - 1)
        entries, gaps = await database.read(lambda reader: entries_of(reader, rows))
        assert entries == []
        assert ranges(tuple(gaps)) == [(VICTIM, VICTIM, "damaged")]


async def test_rows_without_a_number_are_damage(journal: Journal) -> None:
    """PostgreSQL gives NULL for any column if the bitmap of a row's NULLs is damaged."""
    await fill(journal)

    def read(reader: Reader) -> Found:
        def fetch(after: int, until: int, limit: int) -> list[Row]:
            sql = f"{SELECT} WHERE global_seq > ? AND global_seq <= ? ORDER BY global_seq LIMIT ?"
            rows = reader.query(sql, after, until, limit)
            return [(None, *row[1:]) if row[0] == VICTIM else row for row in rows]

        return read_range(reader, read_head(reader), fetch, 0, ENTRIES, 100)

    found = await journal.database.read(read)
    assert len(found.entries) == ENTRIES - 1
    assert ranges(tuple(found.gaps)) == [(VICTIM, VICTIM, "damaged")]


async def test_a_table_that_cannot_be_read_at_all_is_an_error_and_not_a_gap_for_each_entry(journal: Journal) -> None:
    await fill(journal)
    calls = []

    def fetch(after: int, until: int, limit: int) -> list[Row]:
        calls.append((after, until))
        raise StoreDamaged("the index is not a btree")

    with pytest.raises(StoreDamaged, match="not a btree"):
        await journal.database.read(lambda reader: read_range(reader, read_head(reader), fetch, 0, ENTRIES, 100))
    assert len(calls) == 4


async def test_an_entry_that_ends_the_process_of_postgres_is_read_once(journal: Journal) -> None:
    whole = await fill(journal)
    reads = []

    def read(reader: Reader) -> list[Found]:
        head = read_head(reader)

        def fetch(after: int, until: int, limit: int) -> list[Row]:
            reads.append((after, until))
            if after < VICTIM <= until:
                raise BackendCrashed("the connection is lost")
            sql = f"{SELECT} WHERE global_seq > ? AND global_seq <= ? ORDER BY global_seq LIMIT ?"
            return reader.query(sql, after, until, limit)

        found = [read_range(reader, head, fetch, 0, ENTRIES, 100)]
        reads.clear()
        position = 0
        while position < ENTRIES:
            found.append(read_range(reader, head, fetch, position, ENTRIES, 100))
            position = found[-1].position
        return found

    first, *others = await journal.database.read(read)
    for entries, gaps in (
        (first.entries, first.gaps),
        ([entry for part in others for entry in part.entries], [gap for part in others for gap in part.gaps]),
    ):
        assert entries == [entry for entry in whole if entry.global_seq != VICTIM]
        assert ranges(tuple(gaps)) == [(VICTIM, VICTIM, "damaged")]
    assert not any(after < VICTIM <= until for after, until in reads)


async def test_a_page_that_an_index_gives_out_of_order_is_read_anew(journal: Journal) -> None:
    whole = await fill(journal)

    class Disordered(BrokenIndex):
        def query(self, sql: str, *params: Any) -> list[Row]:
            rows = self._reader.query(sql, *params)
            return rows[1::2] + rows[::2] if " DESC LIMIT" in sql else rows

    query = EntryQuery(IdentityFilter(), limit=ENTRIES)
    page = await journal.database.read(lambda reader: list_entries(Disordered(reader), query))
    assert page.entries == whole


async def test_verify_names_a_damaged_checksum_of_a_whole_entry(journal: Journal) -> None:
    await fill(journal)
    await change(journal.database, "UPDATE tape_journal SET checksum = checksum + 1 WHERE global_seq = ?", VICTIM)
    await change(journal.database, "UPDATE tape_journal SET checksum = NULL WHERE global_seq = 1")  # from before
    (finding,) = (await journal.database.read(verify)).findings
    assert (finding.global_seq, finding.last, finding.problem) == (VICTIM, VICTIM, "altered")
    assert "its checksum is damaged; the entry is whole" in finding.detail


async def test_a_run_is_complete_if_its_index_leads_to_a_number_before_the_journal(journal: Journal) -> None:
    whole = await fill(journal)

    class Misled(BrokenIndex):
        def query(self, sql: str, *params: Any) -> list[Row]:
            if "seq DESC" in sql:
                return [(1, -70)]
            rows = self._reader.query(sql, *params)
            is_lookup = "run_id = ? AND tenant = ? AND seq >= ?" in sql
            return [row for row in rows if row[0] != 1] if is_lookup else rows

    for name in ("run", "run of a tenant"):
        found = await journal.database.read(lambda reader: read_all(CURSORS[name](), Misled(reader)))  # noqa: B023
        assert found.entries == whole, name
