"""Gaps of the journal: a subscription ends at one after everything before it, or goes on and names it."""

from __future__ import annotations

import asyncio

import pytest

from tape.cel import compile_predicate
from tape.engine.fanout.hub import Hub
from tape.engine.fanout.subscription import Batch, JournalSubscription
from tape.errors import CursorDiverged, EntryDamaged
from tape.journal.damage import read_damage
from tape.journal.journal import Journal
from tape.journal.reader import EVERYTHING, Slice, open_cursor
from tape.model.entry import Draft
from tape.model.gap import GapReason, JournalGap
from tape.store import Reader, Transaction, open_database
from tests.services import Postgres


class GappedCursor:
    """Reads everything but the numbers of some gaps."""

    def __init__(self, *gaps: JournalGap) -> None:
        self._gaps = gaps
        self._cursor = open_cursor(EVERYTHING)

    def read(self, reader: Reader, after: int) -> Slice:
        found = self._cursor.read(reader, after)
        gaps = tuple(gap for gap in self._gaps if gap.last > after and gap.first <= found.position)
        left = [e for e in found.entries if not any(gap.first <= e.global_seq <= gap.last for gap in gaps)]
        return Slice(left, max([found.position, *(gap.last for gap in gaps)]), found.head, gaps)


def gap(first: int, last: int | None = None, reason: GapReason = "damaged") -> JournalGap:
    return JournalGap(first, last or first, reason, "its checksum differs")


async def fill(journal: Journal, hub: Hub, count: int) -> None:
    await journal.append([Draft(subject=f"/tape/order/created/{n}", payload_json=f'{{"n":{n}}}') for n in range(count)])
    hub.ring.clear()  # subscriptions that are behind read the journal


async def read_to(subscription: JournalSubscription, position: int) -> tuple[list[int], list[JournalGap]]:
    numbers: list[int] = []
    gaps: list[JournalGap] = []
    async with asyncio.timeout(60):
        while subscription.position < position:
            batch = await subscription.next()
            numbers += [entry.global_seq for entry in batch.entries]
            gaps += batch.gaps
    return numbers, gaps


async def test_a_gap_in_the_middle_of_a_batch_ends_the_stream_after_everything_before_it(
    journal: Journal, hub: Hub
) -> None:
    await fill(journal, hub, 20)
    subscription = await hub.subscribe(EVERYTHING, 0, GappedCursor(gap(7, 9), gap(15)))
    batch = await subscription.next()
    assert [entry.global_seq for entry in batch.entries] == [1, 2, 3, 4, 5, 6]
    assert (batch.position, batch.gaps) == (6, ())
    for _ in range(2):  # it stays ended
        with pytest.raises(EntryDamaged, match="Entries 7 to 9 are damaged: its checksum differs") as ended:
            await subscription.next()
        assert (ended.value.first, ended.value.last) == (7, 9)
    resumed = await hub.subscribe(EVERYTHING, ended.value.last, GappedCursor(gap(7, 9), gap(15)))
    assert [entry.global_seq for entry in (await resumed.next()).entries] == [10, 11, 12, 13, 14]


async def test_a_gap_at_the_beginning_ends_the_stream_at_once(journal: Journal, hub: Hub) -> None:
    await fill(journal, hub, 5)
    subscription = await hub.subscribe(EVERYTHING, 0, GappedCursor(gap(1, reason="missing")))
    with pytest.raises(EntryDamaged, match="Entry 1 is"):
        await subscription.next()


async def test_with_skip_gaps_the_stream_goes_on_and_names_them(journal: Journal, hub: Hub) -> None:
    await fill(journal, hub, 20)
    gaps = [gap(1), gap(7, 9), gap(20)]
    subscription = await hub.subscribe(EVERYTHING, 0, GappedCursor(*gaps), skip_gaps=True)
    numbers, named = await read_to(subscription, 20)
    assert numbers == [2, 3, 4, 5, 6, *range(10, 20)]
    assert named == gaps
    await fill(journal, hub, 3)
    numbers, named = await read_to(subscription, 26)  # three of them are `journal.damaged`
    assert (numbers, named) == (list(range(21, 27)), [])


async def test_a_reader_before_a_lost_range_goes_on_over_it_and_one_inside_does_not(journal: Journal, hub: Hub) -> None:
    await fill(journal, hub, 20)
    lost = GappedCursor(gap(7, 12, "diverged"))
    before = await hub.subscribe(EVERYTHING, 6, lost)
    assert (await read_to(before, 20))[0] == list(range(13, 21))
    after = await hub.subscribe(EVERYTHING, 12, lost)
    assert (await read_to(after, 20))[0] == list(range(13, 21))
    inside = await hub.subscribe(EVERYTHING, 9, lost)
    with pytest.raises(CursorDiverged, match="entries 7 to 12 were lost") as ended:
        await inside.next()
    assert (ended.value.cursor, ended.value.first, ended.value.last) == (9, 7, 12)
    skipping = await hub.subscribe(EVERYTHING, 9, lost, skip_gaps=True)
    assert await read_to(skipping, 20) == (list(range(13, 21)), [gap(7, 12, "diverged")])


async def test_a_predicate_that_matches_nothing_does_not_hide_a_gap(journal: Journal, hub: Hub) -> None:
    await fill(journal, hub, 20)
    wanted = compile_predicate("payload.n > 1000")
    subscription = await hub.subscribe(EVERYTHING, 0, GappedCursor(gap(7)), wanted, skip_gaps=True)
    assert await read_to(subscription, 20) == ([], [gap(7)])
    subscription = await hub.subscribe(EVERYTHING, 0, GappedCursor(gap(7)), wanted)
    with pytest.raises(EntryDamaged):
        await subscription.next()


async def test_what_readers_meet_is_recorded_and_journaled_once(journal: Journal, hub: Hub) -> None:
    await fill(journal, hub, 20)
    for _ in range(3):
        subscription = await hub.subscribe(EVERYTHING, 0, GappedCursor(gap(7, 9)), skip_gaps=True)
        await read_to(subscription, 20)
        subscription.close()
    journaled = await hub.subscribe(EVERYTHING, 20)
    async with asyncio.timeout(60):
        batch = await journaled.next()
    assert [entry.subject for entry in batch.entries] == ["/tape/journal/damaged"]
    found = await journal.database.read(read_damage)
    assert [(each.first, each.last, each.problem) for each in found] == [(7, 9, "damaged")]
    metrics = hub.metrics.render().decode()
    assert 'tape_journal_gaps_total{reason="damaged"} 3.0' in metrics
    async with asyncio.timeout(60):
        while "tape_journal_damaged_entries 3.0" not in hub.metrics.render().decode():
            await asyncio.sleep(0.01)


async def test_live_subscriptions_meet_a_gap_that_the_hub_meets(journal: Journal, hub: Hub) -> None:
    await fill(journal, hub, 5)
    gapped = GappedCursor(gap(7, 9))
    stopping = await hub.subscribe(EVERYTHING, 5, GappedCursor(gap(7, 9)))
    skipping = await hub.subscribe(EVERYTHING, 5, GappedCursor(gap(7, 9)), skip_gaps=True)
    reading = asyncio.create_task(read_to(skipping, 12))
    waiting = asyncio.create_task(stopping.next())
    await asyncio.sleep(0)
    hub._cursor = gapped  # type: ignore[assignment]  # as if another process had written what is damaged
    hub.database._listeners.clear()  # what this process commits comes from the journal only, as another's does
    await fill(journal, hub, 7)
    hub._stale.set()
    numbers, gaps = await reading  # the entry about the damage may follow at once
    assert ([number for number in numbers if number <= 12], gaps) == ([6, *range(10, 13)], [gap(7, 9)])
    assert [entry.global_seq for entry in (await waiting).entries] == [6]
    with pytest.raises(EntryDamaged):
        await stopping.next()
    assert hub.head >= 12


def test_the_parts_of_a_batch_name_a_gap_where_their_position_is_behind_it() -> None:
    numbered = [_Numbered(n) for n in (1, 2, 5, 6)]
    batch = Batch(numbered, 9, (gap(3, 4), gap(7)))  # type: ignore[arg-type]
    parts = [([each.global_seq for each in part.entries], part.position, part.gaps) for part in batch.split(2)]
    assert parts == [([1, 2], 2, ()), ([5, 6], 9, (gap(3, 4), gap(7)))]
    parts = [([each.global_seq for each in part.entries], part.position, part.gaps) for part in batch.split(3)]
    assert parts == [([1, 2, 5], 5, (gap(3, 4),)), ([6], 9, (gap(7),))]
    assert [part.gaps for part in Batch([], 9, (gap(9),)).split(2)] == [(gap(9),)]


class _Numbered:
    def __init__(self, global_seq: int) -> None:
        self.global_seq = global_seq


async def test_a_row_that_crashes_the_database_is_a_gap_and_the_reader_goes_on(postgres: Postgres) -> None:
    with postgres.migrated_database() as url:
        async with open_database(url) as database:
            await Journal(database).append([Draft(subject="/tape/order/paid")] * 9)

            def spoil(tx: Transaction) -> None:
                # A view stands for a damaged row: to read entry 6 ends the connection.
                tx.execute(
                    "CREATE FUNCTION read_entry(n bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN"
                    " IF n = 6 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN true; END $$"
                )
                tx.execute("ALTER TABLE tape_journal RENAME TO stored_journal")
                tx.execute("CREATE VIEW tape_journal AS SELECT * FROM stored_journal WHERE read_entry(global_seq)")

            await database.write(spoil)
        async with open_database(url) as database:
            hub = Hub(database)
            await hub.start()
            try:
                subscription = await hub.subscribe(EVERYTHING, 0, skip_gaps=True)
                seen: list[int] = []
                gaps: list[JournalGap] = []
                while len(seen) < 8:
                    batch = await asyncio.wait_for(subscription.next(), 60)
                    seen += [entry.global_seq for entry in batch.entries if entry.global_seq <= 9]
                    gaps += batch.gaps
                assert seen == [1, 2, 3, 4, 5, 7, 8, 9]
                assert [(each.first, each.last, each.reason) for each in gaps] == [(6, 6, "damaged")]
            finally:
                await hub.close()
