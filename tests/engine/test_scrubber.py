"""The scrubber: finds damage in the background, heals checksums, and goes on where it ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tape.engine.scrubber import LEASE_MS, Scrubber, read_state
from tape.errors import InvalidConfig, StoreUnavailable
from tape.journal import epochs
from tape.journal.damage import read_damage
from tape.journal.history import EntryFilter
from tape.journal.journal import Journal
from tape.journal.retention import prune
from tape.journal.scrub import ScrubPosition, scrub_window
from tape.model.entry import COLUMNS, Draft, Entry
from tape.store import Database
from tests.conftest import settings_for


async def fill(journal: Journal, count: int = 60) -> None:
    drafts = [
        Draft(subject=f"/tape/order/created/{n}", run_id=f"r{n % 3}", payload_json=f'{{"n":{n}}}', session="s")
        for n in range(count)
    ]
    await journal.append(drafts)


@asynccontextmanager
async def scrubbing(database: Database, **options: Any) -> AsyncIterator[Scrubber]:
    defaults = {"entries_per_s": 1e6, "interval_h": 24, "first_s": 0}
    scrubber = Scrubber(database, "server-1", **(defaults | options))
    task = asyncio.create_task(scrubber.run())
    try:
        yield scrubber
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await scrubber.close()


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(30):
        while not await condition():
            await asyncio.sleep(0.01)


async def scrub_once(database: Database, **options: Any) -> None:
    before = (await database.read(read_state)).rounds

    async def is_finished() -> bool:
        return (await database.read(read_state)).rounds > before

    async with scrubbing(database, **({"interval_h": 0} | options)):
        await until(is_finished)


async def count_checksums(database: Database) -> int:
    row = await database.read(lambda reader: reader.one("SELECT count(checksum) FROM tape_journal"))
    assert row is not None
    return int(row[0])


async def test_a_sound_journal_gets_its_checksums_and_no_damage(journal: Journal) -> None:
    await fill(journal)
    await journal.database.write(lambda tx: tx.execute("UPDATE tape_journal SET checksum = NULL"))
    await scrub_once(journal.database)
    assert await count_checksums(journal.database) == 60
    assert await journal.database.read(read_damage) == []
    assert (await journal.head()).global_seq == 60
    metrics = journal.database.metrics.render().decode()
    assert "tape_scrubbed_seq 60.0" in metrics
    assert 'tape_scrub_checksums_total{outcome="filled"} 60.0' in metrics
    assert "tape_scrub_rounds_total" in metrics


async def test_a_damaged_entry_is_recorded_and_journaled_once(journal: Journal) -> None:
    await fill(journal)
    await journal.database.write(
        lambda tx: tx.execute("UPDATE tape_journal SET payload_json = '{}' WHERE global_seq = 20")
    )
    await scrub_once(journal.database)
    await scrub_once(journal.database)
    damage = await journal.database.read(read_damage)
    assert [(each.first, each.last, each.problem) for each in damage] == [(20, 20, "damaged")]
    told = await journal.database.read(
        lambda reader: reader.query("SELECT payload_json FROM tape_journal WHERE subject = '/tape/journal/damaged'")
    )
    assert len(told) == 1
    assert '"first":20' in told[0][0]


async def test_damage_that_was_repaired_is_forgotten(journal: Journal) -> None:
    await fill(journal)
    change = "UPDATE tape_journal SET payload_json = ? WHERE global_seq = 20"
    await journal.database.write(lambda tx: tx.execute(change, "{}"))
    await scrub_once(journal.database)
    await journal.database.write(lambda tx: tx.execute(change, '{"n":19}'))
    await scrub_once(journal.database)
    assert await journal.database.read(read_damage) == []


async def test_missing_entries_are_one_range_and_a_lost_range_is_none(journal: Journal) -> None:
    await fill(journal)
    await journal.database.write(lambda tx: epochs.close_cut(tx, last_known=70, margin=1_000_000, cause="test"))
    await fill(journal)
    await journal.database.write(lambda tx: tx.execute("DELETE FROM tape_journal WHERE global_seq BETWEEN 10 AND 15"))
    await scrub_once(journal.database)
    damage = await journal.database.read(read_damage)
    assert [(each.first, each.last, each.problem) for each in damage] == [(10, 15, "missing")]


async def test_a_checksum_that_alone_is_damaged_is_repaired(journal: Journal) -> None:
    await fill(journal)
    await scrub_once(journal.database)
    before = await journal.database.read(
        lambda reader: reader.query("SELECT checksum FROM tape_journal ORDER BY global_seq")
    )
    await journal.database.write(lambda tx: tx.execute("UPDATE tape_journal SET checksum = 7 WHERE global_seq = 20"))
    await scrub_once(journal.database)
    after = await journal.database.read(
        lambda reader: reader.query("SELECT checksum FROM tape_journal ORDER BY global_seq")
    )
    assert before == after
    assert await journal.database.read(read_damage) == []
    assert 'outcome="repaired"} 1.0' in journal.database.metrics.render().decode()


async def test_the_checksum_of_an_altered_entry_is_not_written(journal: Journal) -> None:
    await fill(journal)
    await journal.database.write(
        lambda tx: tx.execute("UPDATE tape_journal SET payload_json = '{}', checksum = NULL WHERE global_seq = 20")
    )
    await scrub_once(journal.database)
    row = await journal.database.read(
        lambda reader: reader.one("SELECT checksum FROM tape_journal WHERE global_seq = 20")
    )
    assert row == (None,)


async def test_scrubbing_continues_where_it_ended(journal: Journal) -> None:
    await fill(journal)
    window = await journal.database.read(lambda reader: scrub_window(reader, ScrubPosition(0, b""), 25))
    assert window is not None
    assert window.end.global_seq == 25
    await journal.database.write(
        lambda tx: tx.execute("UPDATE tape_scrub SET global_seq = 25, chain = ?", window.end.chain)
    )
    await journal.database.write(
        lambda tx: tx.execute("UPDATE tape_journal SET payload_json = '{}' WHERE global_seq IN (20, 30)")
    )
    await scrub_once(journal.database, entries_per_s=10_000)
    # The round that was begun ends without 20, the next one begins with 1.
    assert 30 in {each.first for each in await journal.database.read(read_damage)}


async def test_entries_that_retention_removed_are_passed_over(journal: Journal) -> None:
    await fill(journal)
    await journal.database.write(lambda tx: tx.execute("UPDATE tape_scrub SET global_seq = 5, chain = ?", b"\1" * 32))
    await prune(journal.database, before_seq=31)
    await scrub_once(journal.database)
    assert await journal.database.read(read_damage) == []


async def test_one_server_scrubs_at_a_time(journal: Journal) -> None:
    await fill(journal)
    far = 4_102_444_800_000
    await journal.database.write(
        lambda tx: tx.execute("UPDATE tape_scrub SET lease_owner = 'other', lease_until_ms = ?", _soon())
    )
    other = Scrubber(journal.database, "server-1", entries_per_s=1e6, interval_h=0, first_s=0)
    assert not await other._lease()
    await journal.database.write(lambda tx: tx.execute("UPDATE tape_scrub SET lease_until_ms = 1"))
    assert await other._lease()
    await other.close()
    assert (await journal.database.read(read_state)).lease_owner == ""
    # A lease that ends later than one can be granted is void: a clock was ahead.
    await journal.database.write(
        lambda tx: tx.execute("UPDATE tape_scrub SET lease_owner = 'other', lease_until_ms = ?", far)
    )
    assert await other._lease()


def _soon() -> int:
    from tape.base.clock import now_ms

    return now_ms() + LEASE_MS // 2


async def test_a_scrubber_whose_lease_was_taken_stops_and_writes_nothing(journal: Journal) -> None:
    await fill(journal)
    async with scrubbing(journal.database, entries_per_s=20):

        async def is_leased() -> bool:
            return (await journal.database.read(read_state)).lease_owner == "server-1"

        await until(is_leased)
        await journal.database.write(
            lambda tx: tx.execute("UPDATE tape_scrub SET lease_owner = 'other', lease_until_ms = ?", _soon())
        )
    state = await journal.database.read(read_state)
    assert (state.lease_owner, state.global_seq) == ("other", 0)


async def test_the_scrubber_pauses_while_the_store_is_unavailable(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(journal)
    read = journal.database.read
    failures = iter([True, True, True])

    async def fail_at_first(question: Any) -> Any:
        if next(failures, False):
            raise StoreUnavailable("PostgreSQL is not available.")
        return await read(question)

    monkeypatch.setattr(journal.database, "read", fail_at_first)
    await_round = Scrubber(journal.database, "server-1", entries_per_s=1e6, interval_h=24, first_s=0)
    task = asyncio.create_task(await_round.run())

    async def is_finished() -> bool:
        return (await read(read_state)).rounds == 1

    await until(is_finished)
    assert not task.done()
    task.cancel()


class StoredArchive:
    """An archive in memory."""

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries

    def extent(self, at_least: int = 0) -> range:
        return range(1, len(self.entries) + 1)

    def read(
        self, entry_filter: EntryFilter, after: int, until: int, limit: int, *, newest: bool = False
    ) -> list[Entry]:
        return self.entries[after : min(until, after + limit)]

    def position_before(self, ts_ms: int) -> int:
        return 0


@pytest.mark.parametrize(("victim", "expected"), [(0, 0.0), (20, 1.0), (59, 1.0)])
async def test_the_archive_is_scrubbed_up_to_its_seam(journal: Journal, victim: int, expected: float) -> None:
    import msgspec

    await fill(journal)
    rows = await journal.database.read(
        lambda reader: reader.query(f"SELECT {','.join(COLUMNS)} FROM tape_journal ORDER BY global_seq")
    )
    entries = [Entry(*row) for row in rows]
    if victim == 59:
        entries[59] = msgspec.structs.replace(entries[59], chain=b"\1" * 32)
    elif victim:
        entries[victim] = msgspec.structs.replace(entries[victim], payload_json="{}")
    await scrub_once(journal.database, archive=StoredArchive(entries))
    metrics = journal.database.metrics.render().decode()
    found = 'tape_scrub_damaged_entries_total{location="archive"}' in metrics
    assert found is bool(expected)
    # The journal still has the entries, so that nothing is lost.
    assert await journal.database.read(read_damage) == []


@pytest.mark.parametrize("name", ["scrub_entries_per_s", "scrub_interval_h"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_rate_or_interval_that_is_no_number_is_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidConfig, match=name):
        settings_for("memory", **{name: value})


async def test_a_rate_of_zero_turns_the_scrubber_off(journal: Journal) -> None:
    scrubber = Scrubber(journal.database, "server-1", entries_per_s=0, interval_h=24, first_s=0)
    await asyncio.wait_for(scrubber.run(), 5)
    await scrubber.close()
    assert (await journal.database.read(read_state)).lease_owner == ""
