"""What a server does when the database under it no longer has what the server knows."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from tape.base.retry import WHILE_UNAVAILABLE, retry_async
from tape.engine.fanout.hub import Hub
from tape.engine.ledgers.counts import fold
from tape.errors import CursorBeyondHead, CursorDiverged, StoreFull, StoreReplaced
from tape.journal.appender import Head, read_head
from tape.journal.continuity import Known, Remembered, find_common, judge
from tape.journal.epochs import Epoch, close_cut, read_epochs, read_run_gaps
from tape.journal.journal import Journal
from tape.journal.reader import EVERYTHING, RunCursor, Selection, SubjectCursor, position_before, select_visible
from tape.journal.retention import prune
from tape.journal.verifier import verify
from tape.model.entry import Draft, Entry
from tape.model.principal import SYSTEM
from tape.store import open_database
from tests.snapshot import Snapshot

MARGIN = 1_000


class Node:
    """What a server has of the journal: a database, the journal and a hub."""

    def __init__(self, journal: Journal, hub: Hub) -> None:
        self.journal = journal
        self.hub = hub
        self.database = hub.database

    async def append(self, count: int, run: str = "work") -> list[int]:
        """Append entries of a run one by one; retried while the database is unavailable."""
        numbers = []
        for _ in range(count):
            draft = Draft(subject=f"/tape/step/done/{run}", run_id=run)
            numbers += await retry_async(lambda: self.journal.append([draft]), WHILE_UNAVAILABLE)  # noqa: B023
        return numbers


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Node]:
    """A node on a database."""
    async with open_database(url) as database:
        hub = Hub(database, epoch_margin=MARGIN)
        await hub.start()
        try:
            yield Node(Journal(database), hub)
        finally:
            await hub.close()


@asynccontextmanager
async def cut(url: str, kept: int, lost: int) -> AsyncIterator[tuple[Node, Snapshot]]:
    """A node that has acknowledged `kept` entries before a snapshot, and `lost` after it."""
    async with opened(url) as node:
        await node.append(kept)
    snapshot = Snapshot(url)
    async with opened(url) as node:
        await node.append(lost)
        yield node, snapshot


async def take(subscription: object, count: int) -> list[Entry]:
    """The next entries of a subscription."""
    found: list[Entry] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found += (await subscription.next()).entries  # type: ignore[attr-defined]
    return found


async def test_numbers_go_on_above_what_a_lost_entry_had(store_url: str) -> None:
    async with cut(store_url, 10, 5) as (node, snapshot):
        snapshot.put_back()
        (number,) = await node.append(1)
        opening = 15 + MARGIN + 1
        assert number == opening + 1
        (epoch,) = await node.database.read(read_epochs)
        assert (epoch.epoch, epoch.cut_after, epoch.resumes_at, epoch.last_known) == (2, 10, opening, 15)
        assert node.hub.metrics.cuts_closed._value.get() == 1
        assert node.hub.metrics.epoch._value.get() == 2


async def test_a_run_goes_on_above_the_seqs_of_its_lost_entries(store_url: str) -> None:
    async with cut(store_url, 10, 5) as (node, snapshot):
        snapshot.put_back()
        (number,) = await node.append(1)
        entries = await node.database.read(lambda reader: SubjectCursor(EVERYTHING).read(reader, number - 1))
        assert [entry.seq for entry in entries.entries] == [16 + MARGIN]
        (gap,) = await node.database.read(lambda reader: read_run_gaps(reader, "work", ""))
        assert (gap.after_seq, gap.resumes_at) == (10, 16 + MARGIN)
        run = RunCursor(Selection(EVERYTHING.pattern, "work"))
        found = await node.database.read(lambda reader: run.read(reader, 0))
        assert [entry.seq for entry in found.entries] == [*range(1, 11), 16 + MARGIN]
        assert [gap.reason for gap in found.gaps] == ["diverged"]
        assert (await node.database.read(verify)).ok


async def test_a_live_reader_of_lost_entries_gets_the_range_and_one_below_the_cut_goes_on(store_url: str) -> None:
    async with cut(store_url, 10, 5) as (node, snapshot):
        ahead = await node.hub.subscribe(EVERYTHING, 0)
        assert len(await take(ahead, 15)) == 15
        below = await node.hub.subscribe(EVERYTHING, 4)
        snapshot.put_back()
        await node.append(1)
        async with asyncio.timeout(60):
            with pytest.raises(CursorDiverged) as caught:
                await ahead.next()
        assert (caught.value.first, caught.value.last) == (11, 15 + MARGIN)
        resumed = await node.hub.subscribe(EVERYTHING, caught.value.last)
        assert [entry.global_seq for entry in await take(resumed, 2)] == [16 + MARGIN, 17 + MARGIN]
        found = await take(below, 8)
        assert [entry.global_seq for entry in found] == [*range(5, 11), 16 + MARGIN, 17 + MARGIN]
        assert found[-2].type == "journal.diverged"


async def test_a_server_that_only_reads_notices_the_cut_by_itself(store_url: str) -> None:
    async with cut(store_url, 10, 5) as (node, snapshot):
        reader = await node.hub.subscribe(EVERYTHING, 0)
        await take(reader, 15)
        snapshot.put_back()
        async with asyncio.timeout(60):
            with pytest.raises(CursorDiverged):
                await reader.next()


async def test_a_cursor_inside_of_the_lost_range_is_refused_and_one_beyond_the_head_too(store_url: str) -> None:
    async with cut(store_url, 10, 5) as (node, snapshot):
        snapshot.put_back()
        await node.append(1)
        for inside in (11, 15, 15 + MARGIN - 1):
            with pytest.raises(CursorDiverged) as caught:
                await (await node.hub.subscribe(EVERYTHING, inside)).next(timeout=30)
            assert (caught.value.first, caught.value.last) == (11, 15 + MARGIN)
        with pytest.raises(CursorBeyondHead):
            await node.hub.subscribe(EVERYTHING, 100 + MARGIN)


async def test_two_servers_close_one_cut_once(store_url: str) -> None:
    async with cut(store_url, 10, 5) as (one, snapshot), opened(store_url) as two:
        await two.append(5)
        await asyncio.gather(*(reached(node, 20) for node in (one, two)))
        snapshot.put_back()
        given = await asyncio.gather(one.append(3), two.append(3))
        numbers = sorted(given[0] + given[1])
        assert numbers == list(range(numbers[0], numbers[0] + 6))
        assert numbers[0] == 20 + MARGIN + 2
        assert len(await one.database.read(read_epochs)) == 1
        await asyncio.gather(*(reached(node, numbers[-1]) for node in (one, two)))


async def test_what_only_a_second_server_knows_of_a_run_is_not_given_out_again(store_url: str) -> None:
    async with cut(store_url, 10, 5) as (one, snapshot), opened(store_url) as two:
        two.hub.continuity._memory.clear()  # it knows numbers and no runs
        snapshot.put_back()
        (number,) = await two.append(1)  # the first server has not noticed yet, or never comes back
        await one.append(1)
        found = await one.database.read(lambda reader: SubjectCursor(EVERYTHING).read(reader, number - 1))
        assert [entry.seq for entry in found.entries] == [16 + MARGIN, 17 + MARGIN]
        (gap,) = await one.database.read(lambda reader: read_run_gaps(reader, "work", ""))
        assert (gap.after_seq, gap.resumes_at) == (10, 16 + MARGIN)
        epochs = await one.database.read(read_epochs)
        assert [epoch.resumes_at - epoch.cut_after for epoch in epochs] == [MARGIN + 6]


async def test_runs_go_on_above_what_an_accepted_loss_may_have_given_out(store_url: str) -> None:
    async with opened(store_url) as node:
        await node.append(3, "a")
        await node.append(2, "b")
    async with open_database(store_url) as database:
        journal = Journal(database)
        seqs = {("b", ""): 4, ("c", ""): 2}
        close = partial(close_cut, last_known=12, margin=0, cause="accepted", run_seqs=seqs)
        await database.write(lambda tx: close(tx))
        for run in ("a", "b", "c", "d"):
            await journal.append([Draft(subject=f"/tape/step/done/{run}", run_id=run)])
        found = await database.read(lambda reader: SubjectCursor(EVERYTHING).read(reader, 13))
        # Seven entries were lost: a run has lost seven at most, and one that nothing is known of none.
        assert [(entry.run_id, entry.seq) for entry in found.entries] == [("a", 11), ("b", 10), ("c", 8), ("d", 1)]
        assert (await database.read(verify)).ok


async def test_a_server_that_did_not_know_has_given_out_numbers_again_and_that_is_named(store_url: str) -> None:
    async with cut(store_url, 10, 5) as (node, snapshot):
        reader = await node.hub.subscribe(EVERYTHING, 0)
        await take(reader, 15)
        snapshot.put_back()
        async with open_database(store_url, witness="off") as other:  # of another machine
            await Journal(other).append([Draft(subject="/tape/step/done/b", run_id="b")] * 8)
            head = await other.read(read_head)
        await node.append(1)
        async with asyncio.timeout(60):
            with pytest.raises(CursorDiverged) as caught:
                await reader.next()
        assert caught.value.first == 11
        assert caught.value.last >= max(head.global_seq, 15) + MARGIN


async def test_a_database_that_was_cut_twice_gets_two_epochs(store_url: str) -> None:
    async with cut(store_url, 10, 5) as (node, snapshot):
        snapshot.put_back()
        first = await node.append(1)
    again = Snapshot(store_url)
    async with opened(store_url) as node:
        await node.append(2)
        again.put_back()
        second = await node.append(1)
        assert second[0] == first[0] + 2 + MARGIN + 2
        assert [epoch.epoch for epoch in await node.database.read(read_epochs)] == [2, 3]
        found = await take(await node.hub.subscribe(EVERYTHING, 0), 14)
        assert len({entry.global_seq for entry in found}) == 14


@pytest.mark.parametrize("margin", [30_000])
async def test_readers_jump_over_a_range_that_is_longer_than_their_window(
    store_url: str, margin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cut(store_url, 10, 5) as (node, snapshot):
        monkeypatch.setattr(node.hub.continuity, "_margin", margin)
        snapshot.put_back()
        (number,) = await node.append(1)
        cursor, position, found = SubjectCursor(select_visible(SYSTEM, "/tape/step/**")), 0, []
        reads = 0
        while position < number:
            slice_ = await node.database.read(lambda reader: cursor.read(reader, position))  # noqa: B023
            position = slice_.position
            found += slice_.entries
            reads += 1
        assert [entry.global_seq for entry in found] == [*range(1, 11), number]
        assert reads <= 3


async def test_a_time_is_found_before_and_after_a_lost_range(store_url: str) -> None:
    async with cut(store_url, 10, 5) as (node, snapshot):
        snapshot.put_back()
        (number,) = await node.append(1)
        head = await node.database.read(read_head)
        entries = (await node.database.read(lambda reader: SubjectCursor(EVERYTHING).read(reader, 0))).entries
        for entry in entries:
            found = await node.database.read(lambda reader: position_before(reader, entry.ts_ms))  # noqa: B023
            assert found < entry.global_seq
            assert all(each.ts_ms < entry.ts_ms for each in entries if each.global_seq <= found)
        assert await node.database.read(lambda reader: position_before(reader, head.ts_ms + 1)) == number


async def test_the_named_range_is_no_finding_of_verify(store_url: str) -> None:
    async with cut(store_url, 10, 5) as (node, snapshot):
        snapshot.put_back()
        await node.append(1)
        report = await node.database.read(verify)
        assert report.findings == []
        assert report.entries == 12


async def test_an_empty_database_under_a_server_is_refused(store_url: str) -> None:
    async with cut(store_url, 3, 1) as (node, snapshot):
        snapshot.empty()
        with pytest.raises(StoreReplaced, match="Restart the server"):
            async with asyncio.timeout(60):
                await retry_async(
                    lambda: node.journal.append([Draft(subject="/tape/step/done/x")]),
                    WHILE_UNAVAILABLE,
                    can_retry=lambda error: not isinstance(error, StoreReplaced),
                )


async def test_another_journal_under_a_server_is_refused_and_the_former_one_is_taken_back(store_url: str) -> None:
    async with cut(store_url, 3, 1) as (node, _):

        def rename(journal_id: str) -> None:
            connection = node.database.connect()
            connection.execute("UPDATE tape_head SET journal_id = ? WHERE id = 1", journal_id)
            connection.close()

        own = (await node.database.read(read_head)).journal_id
        await asyncio.to_thread(rename, "another")
        with pytest.raises(StoreReplaced):
            await node.database.renew()
        with pytest.raises(StoreReplaced):
            await node.database.read(read_head)
        await asyncio.to_thread(rename, own)
        assert await node.append(1) == [5]


async def test_a_new_connection_to_the_same_database_changes_nothing(store_url: str) -> None:
    async with cut(store_url, 3, 1) as (node, _):
        await node.database.renew()
        assert await node.append(1) == [5]
        assert await node.database.read(read_epochs) == []


async def reached(node: Node, head: int) -> None:
    """Wait until the hub of a node has passed an entry on."""
    async with asyncio.timeout(60):
        while node.hub.head < head:
            await asyncio.sleep(0.01)


# ── the comparison itself ────────────────────────────────────────────────────────────────────────


def head_of(entries: dict[int, bytes], oldest: int = 1, epoch: int = 1, journal_id: str = "j") -> Head:
    """A head of a simulated journal."""
    last = max(entries, default=0)
    return Head(last, entries.get(last, b""), 0, oldest, b"", journal_id, epoch)


def test_every_loss_is_seen_and_the_last_common_entry_is_found() -> None:
    for seed in range(1_000):
        check_comparison(random.Random(seed))


def check_comparison(chance: random.Random) -> None:
    """Cut a journal somewhere, let another process write to it or not, and compare."""
    known = {number: b"old%d" % number for number in range(1, chance.randint(2, 60))}
    common = chance.randint(0, len(known))
    added = chance.choice([0, 0, chance.randint(1, 80)])
    database = {number: known[number] for number in range(1, common + 1)}
    database |= {number: b"new%d" % number for number in range(common + 1, common + added + 1)}
    if common == len(known):  # nothing is lost
        database |= {number: b"old%d" % number for number in range(common + 1, common + added + 1)}
    oldest = chance.randint(1, max(common, 1))
    last = Known("j", 1, len(known), known[len(known)])
    head = head_of(database, oldest)
    verdict = judge(last, head, [], database.get(last.global_seq) if last.global_seq >= oldest else None)
    if common == len(known):
        assert verdict == "same"
        return
    assert verdict == ("cut" if head.global_seq < len(known) else "diverged")
    size = chance.randint(1, len(known))
    memory = [Remembered(number, chain) for number, chain in known.items() if number > len(known) - size]
    found = find_common(head, memory, lambda number: database.get(number) if number >= oldest else None)
    if added == 0 or memory[0].global_seq <= common + 1:
        assert found == common
    else:  # what is remembered begins later: no entry that is remembered differently is taken for common
        assert found < memory[0].global_seq


@pytest.mark.parametrize(
    ("known", "verdict"),
    [(9, "adopted"), (10, "adopted"), (11, "adopted"), (499, "adopted"), (500, "diverged"), (600, "cut")],
)
def test_an_epoch_that_another_server_began_is_adopted_if_it_explains_the_loss(known: int, verdict: str) -> None:
    epochs = [Epoch(2, 10, 500, 20, "", 0)]
    database = {number: b"%d" % number for number in (*range(1, 11), 500, 501)}
    last = Known("j", 1, known, b"%d" % known if known <= 10 else b"lost")
    assert judge(last, head_of(database, epoch=2), epochs, database.get(known)) == verdict


def test_another_journal_is_never_compared() -> None:
    assert judge(Known("a", 1, 5, b"5"), head_of({5: b"5"}, journal_id="b"), [], b"5") == "replaced"


async def test_a_prune_up_to_a_lost_range_keeps_the_chain(store_url: str) -> None:
    async with cut(store_url, 10, 5) as (node, snapshot):
        snapshot.put_back()
        (number,) = await node.append(1)
        assert await prune(node.database, before_seq=12) == 10
        head = await node.database.read(read_head)
        assert head.oldest == number - 1
        report = await node.database.read(verify)
        assert (report.findings, report.entries) == ([], 3)
        found = await take(await node.hub.subscribe(EVERYTHING, 0), 3)
        assert [entry.global_seq for entry in found] == [number - 1, number, number + 1]


async def test_counts_go_on_over_a_lost_range(store_url: str) -> None:
    async with cut(store_url, 10, 5) as (node, snapshot):
        node.hub.continuity._margin = 10_000_000
        snapshot.put_back()
        await node.append(1)
        assert [await fold(node.database) for _ in range(3)] == [True, True, False]


async def test_a_pooler_that_goes_to_an_older_state_without_a_new_connection_is_noticed(store_url: str) -> None:
    async with cut(store_url, 10, 5) as (node, _):

        def go_back() -> None:
            connection = node.database.connect()
            connection.begin()
            connection.execute("DELETE FROM tape_journal WHERE global_seq > 10")
            connection.execute("UPDATE tape_run_heads SET seq = 10 WHERE run_id = 'work'")
            connection.execute(
                "UPDATE tape_head SET global_seq = 10, chain = (SELECT chain FROM tape_journal WHERE global_seq = 10)"
            )
            connection.commit()
            connection.close()

        await asyncio.to_thread(go_back)
        (number,) = await node.append(1)
        assert number == 15 + MARGIN + 2


async def test_a_commit_that_failed_is_not_taken_for_a_loss(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(store_url) as node:
        await node.append(3)
        connection = await asyncio.to_thread(node.database.connect)
        kind = type(connection)
        connection.close()
        monkeypatch.setattr(kind, "commit", fail_once(kind.commit))
        with pytest.raises(StoreFull):
            await node.journal.append([Draft(subject="/tape/step/done/x")])
        assert list(await node.journal.append([Draft(subject="/tape/step/done/x")])) == [4]


def fail_once(commit: Callable[..., None]) -> Callable[..., None]:
    """A commit that writes what there is to write and then fails, once."""
    failures = iter([True])

    def failing(connection: Any, flush: Callable[[], None] = lambda: None) -> None:
        if next(failures, False):
            flush()
            raise StoreFull("The disk is full.")
        commit(connection, flush)

    return failing
