"""Entries are checked on every read: what is not what was written is a gap, and everything else is delivered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tape.engine.fanout.hub import Hub
from tape.errors import EntryDamaged, StoreUnavailable
from tape.journal.entries import SELECT, entries_of, read_entry
from tape.journal.identity_filter import IdentityFilter
from tape.journal.journal import Journal
from tape.journal.pages import EntryQuery, list_entries
from tape.journal.ranges import read_indexed, read_range
from tape.journal.reader import (
    EVERYTHING,
    Cursor,
    EntryIdentity,
    ExactCursor,
    RunCursor,
    Selection,
    Slice,
    has_run,
    open_cursor,
    open_identity_cursor,
    position_before,
    read_head,
)
from tape.journal.retention import prune
from tape.model.checksum import COUNT, checksum
from tape.model.entry import COLUMNS, Draft, Entry
from tape.model.gap import JournalGap
from tape.model.pattern import Pattern
from tape.store import Database, Reader, open_database
from tape.store.connection import Row
from tests.history import write_past

SUBJECT = "/tape/order/paid/7"
IDENTITY = EntryIdentity(("acme",), "ann", "s-1")
DRAFT = Draft(
    subject=SUBJECT,
    payload_json='{"text":"größer als 7"}',
    run_id="r",
    trace_id="a" * 32,
    span_id="b" * 16,
    parent_span_id="c" * 16,
    tenant="acme",
    user="ann",
    session="s-1",
)
ENTRIES = 12
VICTIM = 5

CURSORS: dict[str, Callable[[], Cursor]] = {
    "everything": lambda: open_cursor(EVERYTHING),
    "tenant": lambda: open_cursor(Selection(Pattern(""), tenants=("acme",))),
    "subject": lambda: open_cursor(Selection(Pattern(SUBJECT))),
    "exact": lambda: ExactCursor((SUBJECT,)),
    "run": lambda: RunCursor(Selection(Pattern(""), "r")),
    "run of a tenant": lambda: RunCursor(Selection(Pattern(""), "r", tenants=("acme",))),
    "identity": lambda: open_identity_cursor(IDENTITY),
    "identity and run": lambda: open_identity_cursor(IDENTITY, "r"),
}
# Readers that prove that they got every entry; the others are only sure of what an index gives them.
COMPLETE = ("everything", "tenant", "run", "run of a tenant", "identity and run")

ALTERATIONS: dict[str, Any] = {
    "run_id": "s",
    "seq": 99,
    "kind": "orders",
    "subject": "/tape/order/paid/8",
    "payload_json": '{"text":"größer als 8"}',
    "schema_version": 2,
    "trace_id": "a" * 31 + "b",
    "span_id": "",
    "parent_span_id": "d" * 16,
    "ts_ms": 1,
    "tenant": "acne",
    "user": "",
    "session": "s-2",
    "chain": bytes(32),
}


async def fill(journal: Journal, count: int = ENTRIES) -> list[Entry]:
    await journal.append([DRAFT] * count)
    return await journal.database.read(lambda reader: read_all(open_cursor(EVERYTHING), reader).entries)


def read_all(cursor: Cursor, reader: Reader, after: int = 0) -> Slice:
    entries: list[Entry] = []
    gaps: tuple[JournalGap, ...] = ()
    while True:
        found = cursor.read(reader, after)
        entries, gaps, after = entries + found.entries, gaps + found.gaps, found.position
        if after >= found.head:
            return Slice(entries, after, found.head, gaps)


async def read_with(journal: Journal, name: str) -> Slice:
    return await journal.database.read(lambda reader: read_all(CURSORS[name](), reader))


def ranges(gaps: tuple[JournalGap, ...]) -> list[tuple[int, int, str]]:
    return [(gap.first, gap.last, gap.reason) for gap in gaps]


async def change(database: Database, sql: str, *params: Any) -> None:
    await database.write(lambda tx: tx.execute(sql, *params))


def test_the_alterations_name_every_column() -> None:
    assert {name.strip('"') for name in COLUMNS} == {"global_seq", *ALTERATIONS}


@pytest.mark.parametrize("column", ALTERATIONS)
async def test_an_altered_entry_is_a_gap_and_the_others_are_delivered(journal: Journal, column: str) -> None:
    whole = await fill(journal)
    sql = f'UPDATE tape_journal SET "{column}" = ? WHERE global_seq = ?'
    await change(journal.database, sql, ALTERATIONS[column], VICTIM)
    for name in CURSORS:
        found = await read_with(journal, name)
        assert found.entries == [entry for entry in whole if entry.global_seq != VICTIM], name
        # What goes by an index alone does not miss an entry that was altered to be none of its own.
        is_hidden = name not in COMPLETE and column in ("subject", "tenant", "user", "session")
        assert ranges(found.gaps) == [(VICTIM, VICTIM, "damaged")] or (is_hidden and not found.gaps), name


async def test_an_entry_that_was_removed_is_a_gap_of_readers_that_can_prove_it(journal: Journal) -> None:
    whole = await fill(journal)
    for victim in (1, VICTIM, VICTIM + 1, ENTRIES):
        await change(journal.database, "DELETE FROM tape_journal WHERE global_seq = ?", victim)
    for name in COMPLETE:
        found = await read_with(journal, name)
        assert found.entries == [whole[number - 1] for number in (2, 3, 4, 7, 8, 9, 10, 11)], name
        assert ranges(found.gaps) == [(1, 1, "missing"), (5, 6, "missing"), (12, 12, "missing")], name


async def test_an_entry_of_which_only_the_checksum_is_damaged_is_delivered_and_counted(journal: Journal) -> None:
    whole = await fill(journal)
    await change(journal.database, "UPDATE tape_journal SET checksum = checksum + 1 WHERE global_seq = ?", VICTIM)
    for name in CURSORS:
        found = await read_with(journal, name)
        assert (found.entries, found.gaps) == (whole, ())
    value = journal.database.metrics.registry.get_sample_value
    assert value("tape_journal_recovered_entries_total", {"part": "checksum"}) == len(CURSORS)


async def test_entries_without_a_checksum_are_checked_against_the_chain(journal: Journal) -> None:
    whole = await fill(journal)
    await change(journal.database, "UPDATE tape_journal SET checksum = NULL")
    for name in CURSORS:
        found = await read_with(journal, name)
        assert (found.entries, found.gaps) == (whole, ())
    await change(journal.database, "UPDATE tape_journal SET payload_json = '{}' WHERE global_seq = ?", VICTIM)
    await change(journal.database, "UPDATE tape_journal SET chain = ? WHERE global_seq = ?", bytes(32), VICTIM + 3)
    for name in CURSORS:
        found = await read_with(journal, name)
        assert ranges(found.gaps) == [(VICTIM, VICTIM, "damaged"), (VICTIM + 3, VICTIM + 3, "damaged")]
        assert len(found.entries) == ENTRIES - 2


async def test_the_oldest_entry_after_a_prune_is_checked_against_the_anchor(journal: Journal) -> None:
    whole = await fill(journal)
    await prune(journal.database, before_seq=4)
    await change(journal.database, "UPDATE tape_journal SET checksum = NULL")
    found = await journal.database.read(lambda reader: read_all(open_cursor(EVERYTHING), reader, 3))
    assert found.entries[:9] == whole[3:]
    assert found.gaps == ()
    await change(journal.database, "UPDATE tape_journal SET session = 'x' WHERE global_seq = 4")
    found = await journal.database.read(lambda reader: read_all(open_cursor(EVERYTHING), reader, 3))
    assert ranges(found.gaps) == [(4, 4, "damaged")]


async def test_pages_name_altered_entries(journal: Journal) -> None:
    await fill(journal)
    await change(journal.database, "UPDATE tape_journal SET payload_json = '{}' WHERE global_seq = ?", VICTIM)
    query = EntryQuery(IdentityFilter(["acme"], ["ann"], ["s-1"]), limit=4, before_seq=8)
    page = await journal.database.read(lambda reader: list_entries(reader, query))
    assert [entry.global_seq for entry in page.entries] == [3, 4, 6, 7]
    assert ranges(page.gaps) == [(VICTIM, VICTIM, "damaged")]


async def test_one_entry_that_is_altered_is_refused(journal: Journal) -> None:
    await fill(journal)
    await change(journal.database, "UPDATE tape_journal SET kind = 'x' WHERE global_seq = ?", VICTIM)
    with pytest.raises(EntryDamaged, match=f"Entry {VICTIM} is damaged"):
        await journal.database.read(lambda reader: read_entry(reader, VICTIM))
    assert await journal.database.read(lambda reader: read_entry(reader, VICTIM + 1)) is not None
    assert await journal.database.read(lambda reader: read_entry(reader, 99)) is None


async def test_a_time_is_found_although_entries_are_damaged(database: Database) -> None:
    await write_past(database, [(1_000 + number, "a", "b", "", "", "") for number in range(100)])
    await change(database, "UPDATE tape_journal SET ts_ms = 5 WHERE global_seq BETWEEN 40 AND 60")
    assert await database.read(lambda reader: position_before(reader, 1_070)) == 70
    assert await database.read(lambda reader: position_before(reader, 1_020)) == 20


def test_a_flip_of_any_bit_of_any_column_changes_the_checksum() -> None:
    row: tuple[Any, ...] = (
        *(7, "run", 3, "order", SUBJECT, '{"größe":"' + "x" * 300 + '"}', 1, "a" * 32, "b" * 16, ""),
        *(1_790_000_000_000, "acme", "ann", "s-1", random.Random(7).randbytes(32)),
    )
    assert len(row) == COUNT
    right = checksum(row)
    for index, value in enumerate(row):
        raw = to_bytes(value)
        for bit in range(8 * len(raw)):
            changed = bytearray(raw)
            changed[bit // 8] ^= 1 << bit % 8
            try:
                flipped = from_bytes(type(value), bytes(changed))
            except UnicodeDecodeError:
                continue  # the driver refuses it
            assert checksum((*row[:index], flipped, *row[index + 1 :])) != right


def to_bytes(value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return value.to_bytes(8, "big", signed=True)
    return value.encode() if isinstance(value, str) else value


def from_bytes(kind: type, raw: bytes) -> int | str | bytes:
    if kind is int:
        return int.from_bytes(raw, "big", signed=True)
    return raw.decode() if kind is str else raw


async def test_both_stores_give_the_same_checksum(journal: Journal) -> None:
    await fill(journal, 1)
    rows = await journal.database.read(lambda reader: reader.query(SELECT))
    assert checksum(rows[0][:COUNT]) == rows[0][COUNT]
    assert await journal.database.read(lambda reader: entries_of(reader, rows)) == ([Entry(*rows[0][:COUNT])], [])


async def test_a_read_error_that_is_no_damage_is_not_reported_as_damage(journal: Journal) -> None:
    await fill(journal)

    def fetch(low: int, high: int, limit: int) -> list[Row]:
        raise StoreUnavailable("The disk is not there.")

    with pytest.raises(StoreUnavailable):
        await journal.database.read(lambda reader: read_range(reader, read_head(reader), fetch, 0, ENTRIES, 100))


async def test_rows_that_come_out_of_order_are_read_one_by_one(journal: Journal) -> None:
    whole = await fill(journal)

    def read(reader: Reader) -> Any:
        rows = reader.query(f"{SELECT} ORDER BY global_seq")

        def fetch(low: int, high: int, limit: int) -> list[Row]:
            found = [row for row in rows if low < row[0] <= high]
            return found[::-1]

        return read_range(reader, read_head(reader), fetch, 0, ENTRIES, 100)

    found = await journal.database.read(read)
    assert (found.entries, found.gaps, found.position) == (whole, [], ENTRIES)


async def test_the_hub_goes_on_after_a_hole_and_does_not_take_it_for_retention(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_damaged = asyncio.Event()

    async def changes(*_: object) -> AsyncIterator[None]:
        await is_damaged.wait()
        yield
        await asyncio.Event().wait()

    async with open_database(store_url) as database, open_database(store_url) as other:
        monkeypatch.setattr(database, "changes", changes)
        hub = Hub(database)
        await hub.start()
        try:
            subscription = await hub.subscribe(EVERYTHING, 0, skip_gaps=True)
            await Journal(other).append([DRAFT] * 10)
            await change(other, "DELETE FROM tape_journal WHERE global_seq = 4")
            await change(other, "UPDATE tape_journal SET payload_json = '{}' WHERE global_seq = 7")
            is_damaged.set()
            seen: list[int] = []
            gaps: list[tuple[int, int, str]] = []
            while len(seen) < 8:
                batch = await asyncio.wait_for(subscription.next(), 20)
                # The server journals the damage by itself, above these.
                seen += [entry.global_seq for entry in batch.entries if entry.global_seq <= 10]
                gaps += ranges(batch.gaps)
            assert seen == [1, 2, 3, 5, 6, 8, 9, 10]
            assert gaps == [(4, 4, "missing"), (7, 7, "damaged")]
            assert hub.head >= 10
        finally:
            await hub.close()


# ── the file of SQLite ───────────────────────────────────────────────────────────────────────────


async def test_every_flip_in_the_file_is_named_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "tape.db"
    async with open_database(f"sqlite:{path}") as database:
        journal = Journal(database)
        for number in range(300):
            await journal.append(
                [
                    Draft(
                        subject=f"/tape/order/paid/{number}",
                        payload_json='{"text":"' + "m" * 90 + '"}',
                        run_id=f"r{number % 3}",
                    )
                ]
            )
        whole = {
            e.global_seq: e
            for e in (await database.read(lambda reader: read_all(open_cursor(EVERYTHING), reader))).entries
        }
    content = path.read_bytes()
    chance = random.Random(16)
    spots = [spot for spot in range(len(content)) if content[spot : spot + 4] == b"mmmm"]
    named = 0
    for _ in range(60):
        damaged = bytearray(content)
        spot = max(chance.choice(spots) - chance.randrange(200), 4096)
        damaged[spot] ^= 1 << chance.randrange(8)
        other = tmp_path / "damaged.db"
        other.write_bytes(damaged)
        connection = open_database(f"sqlite:{other}").connect(read_only=True)
        try:
            found = read_all(open_cursor(EVERYTHING), connection)
        finally:
            connection.close()
        lost = {number for gap in found.gaps for number in range(gap.first, gap.last + 1)}
        for entry in found.entries:
            assert entry == whole[entry.global_seq], f"flip at {spot}"
        assert {entry.global_seq for entry in found.entries} | lost >= set(whole), f"flip at {spot}"
        named += bool(lost)
    assert named > 30


@pytest.mark.parametrize("seq", [1, 4, 9])
async def test_an_entry_that_the_index_of_runs_lacks_is_read_from_the_table(tmp_path: Path, seq: int) -> None:
    path = tmp_path / "tape.db"
    async with open_database(f"sqlite:{path}") as database:
        await Journal(database).append(
            [Draft(subject="/tape/order/paid/1", run_id="r-one"), Draft(subject="/tape/x", run_id="s")] * 9
        )
    content = bytearray(path.read_bytes())
    # The key of the index: run id, an empty tenant, the seq (0 and 1 have types of their own), the number.
    type_of_seq = bytes([9]) if seq == 1 else bytes([1])
    key = bytes([5, 23, 13]) + type_of_seq
    number = 2 * seq - 1
    record = (
        key
        + (b"\x09" if number == 1 else b"\x01")
        + b"r-one"
        + (b"" if seq == 1 else bytes([seq]))
        + (b"" if number == 1 else bytes([number]))
    )
    spot = content.index(record)
    content[content.index(b"r-one", spot)] ^= 2  # "p-one"
    path.write_bytes(content)
    async with open_database(f"sqlite:{path}") as database:
        for selection in (Selection(Pattern(""), "r-one"), Selection(Pattern(""), "r-one", tenants=("",))):
            found = await database.read(lambda reader: read_all(RunCursor(selection), reader))  # noqa: B023
            assert [entry.seq for entry in found.entries] == list(range(1, 10))
            assert found.gaps == ()
        value = database.metrics.registry.get_sample_value
        assert value("tape_journal_recovered_entries_total", {"part": "index"}) >= 2


async def test_a_page_names_a_missing_entry(journal: Journal) -> None:
    await fill(journal)
    await change(journal.database, "DELETE FROM tape_journal WHERE global_seq = ?", VICTIM)
    for identity in (IdentityFilter(), IdentityFilter(["acme"], ["ann"], ["s-1"])):
        query = EntryQuery(identity, limit=4, before_seq=8)
        page = await journal.database.read(lambda reader: list_entries(reader, query))  # noqa: B023
        assert [entry.global_seq for entry in page.entries] == [3, 4, 6, 7]
        assert ranges(page.gaps) == [(VICTIM, VICTIM, "missing")]
        query = EntryQuery(identity, limit=4)
        page = await journal.database.read(lambda reader: list_entries(reader, query))  # noqa: B023
        assert page.gaps == ()


async def test_a_run_whose_heads_are_gone_is_read_by_its_index(journal: Journal) -> None:
    whole = await fill(journal)
    await change(journal.database, "DELETE FROM tape_run_heads WHERE run_id = ?", "r")
    for name in ("run", "run of a tenant"):
        assert (await read_with(journal, name)).entries == whole, name
    assert await journal.database.read(lambda reader: has_run(reader, "r"))
    assert await journal.database.read(lambda reader: has_run(reader, "r", ["acme"]))
    assert not await journal.database.read(lambda reader: has_run(reader, "s", ["acme"]))


@pytest.mark.parametrize("victim", [3, 8, 9, 16])
async def test_a_hole_of_one_tenant_is_not_explained_by_the_seqs_of_another(journal: Journal, victim: int) -> None:
    for _ in range(10):
        await journal.append([Draft(subject=SUBJECT, run_id="r", tenant=tenant) for tenant in ("acme", "beta")])
    await change(journal.database, "DELETE FROM tape_journal WHERE global_seq = ?", victim)
    for tenants in (None, ("acme", "beta"), (("beta", "acme")[victim % 2],)):
        cursor = RunCursor(Selection(Pattern(""), "r", tenants=tenants))
        found = await journal.database.read(lambda reader: read_all(cursor, reader))  # noqa: B023
        assert ranges(found.gaps) == [(victim, victim, "missing")], tenants


async def test_an_index_that_leads_to_another_entry_is_not_believed(journal: Journal) -> None:
    whole = await fill(journal)

    def read(reader: Reader) -> list[Entry]:
        def fetch(after: int, until: int, limit: int) -> list[Row]:
            return reader.query(f"{SELECT} WHERE global_seq > ? AND global_seq <= ? LIMIT ?", after, until, limit)

        head = read_head(reader)
        return read_indexed(reader, head, fetch, 0, 100, lambda entry: entry.seq != VICTIM).entries

    assert await journal.database.read(read) == [entry for entry in whole if entry.seq != VICTIM]
