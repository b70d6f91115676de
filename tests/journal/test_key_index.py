"""Entries by subject and by identity: what a lookup gives is what a scan gives, whatever is indexed so far."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tape.journal import appender, index_check, key_index
from tape.journal.appender import read_head
from tape.journal.index_check import rebuild_indexes
from tape.journal.journal import Journal
from tape.journal.key_index import (
    MAX_LAG,
    TABLES,
    KeyLookup,
    index_entries,
    look_up_identities,
    look_up_subject,
    look_up_subjects_below,
    read_watermark,
)
from tape.journal.reader import EntryIdentity, IdentityCursor, Selection, SubjectCursor
from tape.journal.retention import prune
from tape.journal.verifier import verify
from tape.model.entry import MAX_SEQ, Draft
from tape.model.pattern import Pattern
from tape.store import Reader, open_database

SUBJECTS = ("/tape/a/x", "/tape/a/x/1", "/tape/a/x/2", "/tape/a/y", "/tape/b/x")
Rows = list[tuple[int, str, str]]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 8 numbers, and an index that lags by 4 entries at most."""
    for module in (key_index, index_check):
        monkeypatch.setattr(module, "BLOCK_BITS", 3)
    monkeypatch.setattr(appender, "MAX_LAG", 5)


def draft(subject: str, session: str = "") -> Draft:
    return Draft(subject=subject, payload_json="{}", run_id="r", tenant="acme", user="u", session=session)


def scan(reader: Reader, matches: Callable[[str, str], bool]) -> Rows:
    rows = reader.query("SELECT global_seq, subject, session FROM tape_journal ORDER BY global_seq")
    return [row for row in rows if matches(row[1], row[2])]


LOOKUPS: list[tuple[KeyLookup, Callable[[str, str], bool]]] = [
    (look_up_subject("/tape/a/x"), lambda subject, _: subject == "/tape/a/x"),
    (look_up_subject("/tape/a/x", "/tape/b/x"), lambda subject, _: subject in ("/tape/a/x", "/tape/b/x")),
    (look_up_subjects_below("/tape/a/x"), lambda subject, _: subject.startswith("/tape/a/x")),
    (look_up_subjects_below("/tape/none"), lambda *_: False),
    (look_up_identities([("acme", "u", "s1"), ("acme", "u", "s2")]), lambda _, session: session in ("s1", "s2")),
    (
        look_up_subject("/tape/a/x", where="j.session = ?", where_params=("s1",)),
        lambda subject, session: (subject, session) == ("/tape/a/x", "s1"),
    ),
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(
    commits=st.lists(
        st.lists(st.tuples(st.sampled_from(SUBJECTS), st.sampled_from(["", "s1", "s2", "s3"])), min_size=1, max_size=9),
        min_size=1,
        max_size=12,
    ),
    pruned=st.integers(0, 40),
    bounds=st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(1, 30)),
)
async def test_a_lookup_gives_what_a_scan_gives(
    store_url: str,
    small_blocks: None,
    commits: list[list[tuple[str, str]]],
    pruned: int,
    bounds: tuple[int, int, int],
) -> None:
    after, until, limit = bounds
    async with open_database(store_url) as database:
        journal = Journal(database)
        before = (await database.read(read_head)).global_seq
        for commit in commits:
            await journal.append([draft(*each) for each in commit])
        head = (await database.read(read_head)).global_seq
        await prune(database, before_seq=min(before + 1 + pruned, head + 1))
        after, until = before + after, before + until
        for lookup, matches in LOOKUPS:

            def compare(reader: Reader, lookup: KeyLookup = lookup, matches: object = matches) -> None:
                assert callable(matches)
                expected = [row for row in scan(reader, matches) if after < row[0] <= until]
                columns = "global_seq, subject, session"
                assert lookup.select(reader, columns, after, until, limit) == expected[:limit]
                newest = lookup.select(reader, columns, after, until, limit, newest=True)
                assert newest == expected[::-1][:limit]

            await database.read(compare)
        assert (await database.read(verify)).ok


async def test_the_index_lags_by_a_bound_and_a_lone_append_writes_no_page_of_it(sqlite_url: str) -> None:
    async with open_database(sqlite_url) as database:
        journal = Journal(database)
        for _ in range(3):
            await journal.append([draft("/tape/a/x")] * 600)
        assert await database.read(read_watermark) == 0
        rows = [await database.read(lambda reader: reader.query(f"SELECT * FROM {table}")) for table in TABLES]  # noqa: B023
        assert rows == [[], [], []]
        await journal.append([draft("/tape/a/x")] * 600)
        assert await database.read(read_watermark) == 2_400
        await journal.append([draft("/tape/a/x")] * (MAX_LAG - 1))
        assert await database.read(read_watermark) == 2_400


async def test_readers_by_subject_and_session_page_through_blocks_and_the_rest(
    store_url: str, small_blocks: None
) -> None:
    async with open_database(store_url) as database:
        journal = Journal(database)
        for n in range(40):
            await journal.append([draft(SUBJECTS[n % 5], f"s{n % 3}")])
        identity = IdentityCursor(EntryIdentity(("acme",), "u", "s1"))
        by_subject = SubjectCursor(Selection(Pattern("/tape/a/x")))
        for cursor, expected in (
            (identity, [n + 1 for n in range(40) if n % 3 == 1]),
            (by_subject, [n + 1 for n in range(40) if n % 5 == 0]),
        ):
            found, position = [], 0
            while position < 40:
                part = await database.read(lambda reader, at=position, of=cursor: of.read(reader, at))  # type: ignore[misc]
                assert part.position > position
                found += [entry.global_seq for entry in part.entries]
                position = part.position
            assert found == expected


async def test_blocks_without_entries_are_dropped_when_entries_are_pruned(sqlite_url: str, small_blocks: None) -> None:
    async with open_database(sqlite_url) as database:
        journal = Journal(database)
        for _ in range(30):
            await journal.append([draft("/tape/a/x", "s1")])
        await prune(database, before_seq=21)
        blocks = await database.read(lambda reader: reader.query("SELECT block FROM tape_journal_blocks ORDER BY 1"))
        assert [block for (block,) in blocks] == [2, 3]
        for table in TABLES:
            lowest = await database.read(lambda reader: reader.one(f"SELECT min(block) FROM {table}"))  # noqa: B023
            assert lowest == (2,)
        assert (await database.read(verify)).ok


async def test_an_index_whose_watermark_is_damaged_keeps_nothing_from_being_appended(
    sqlite_url: str, small_blocks: None
) -> None:
    async with open_database(sqlite_url) as database:
        journal = Journal(database)
        for _ in range(20):
            await journal.append([draft("/tape/a/x")])
        await database.write(lambda tx: tx.execute("UPDATE tape_journal_blocks SET last_seq = 3"))
        for _ in range(10):
            await journal.append([draft("/tape/a/x")])
        found = await database.read(lambda r: look_up_subject("/tape/a/x").select(r, "global_seq", 0, MAX_SEQ, 99))
        assert [number for (number,) in found] == list(range(1, 31))
        assert (await database.read(verify)).ok


async def test_the_index_is_rebuilt_from_the_journal(sqlite_url: str) -> None:
    async with open_database(sqlite_url) as database:
        await Journal(database).append([draft(SUBJECTS[n % 5], f"s{n % 2}") for n in range(100)])
        await database.write(lambda tx: index_entries(tx, 0))
        before = [await database.read(lambda r: r.query(f"SELECT * FROM {table}")) for table in TABLES]  # noqa: B023
        await database.write(lambda tx: tx.execute("DELETE FROM tape_journal_subjects"))
        await database.write(lambda tx: tx.execute("UPDATE tape_journal_identities SET session = 'other'"))
        assert not (await database.read(verify)).ok
        rebuild_indexes(database)
        assert before == [await database.read(lambda r: r.query(f"SELECT * FROM {table}")) for table in TABLES]  # noqa: B023
        assert (await database.read(verify)).ok
