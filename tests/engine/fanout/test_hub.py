"""The hub: committed entries reach subscriptions in order, once, from any writer and to slow readers."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tape.engine.fanout import subscription as subscription_module
from tape.engine.fanout.hub import Hub
from tape.engine.fanout.subscription import Batch, JournalSubscription
from tape.errors import CursorBeyondHead, CursorExpired, ServerStopping
from tape.journal.journal import Journal
from tape.journal.reader import EVERYTHING, Selection
from tape.journal.retention import prune
from tape.model.entry import Draft
from tape.model.pattern import Pattern
from tape.store import open_database


def drafts(count: int, subject: str = "/tape/order/created/{}", **fields: str) -> list[Draft]:
    return [Draft(subject=subject.format(n), **fields) for n in range(count)]


async def take(subscription: JournalSubscription, count: int) -> list[int]:
    """The next global_seqs, exactly so many."""
    found: list[int] = []
    async with asyncio.timeout(120):
        while len(found) < count:
            found += [entry.global_seq for entry in (await subscription.next()).entries]
    assert len(found) == count
    return found


async def test_history_then_live_without_a_seam(journal: Journal, hub: Hub) -> None:
    await journal.append(drafts(10))
    subscription = await hub.subscribe(EVERYTHING, 0)
    assert await take(subscription, 10) == list(range(1, 11))
    waiting = asyncio.create_task(take(subscription, 5))
    await journal.append(drafts(5))
    assert await waiting == list(range(11, 16))


async def test_an_encoder_gets_what_is_read_from_the_journal_on_its_thread(journal: Journal, hub: Hub) -> None:
    await journal.append(drafts(10))
    hub.ring.clear()  # as after a start: older entries are in the journal only
    threads: set[int] = set()

    def encode(batch: Batch) -> list[bytes]:
        threads.add(threading.get_ident())
        return [str(entry.global_seq).encode() for entry in batch.entries]

    subscription = await hub.subscribe(EVERYTHING, 0, encoder=encode)
    history = await subscription.next()
    assert (history.entries, history.position) == ([], 10)
    assert history.encoded == [str(number).encode() for number in range(1, 11)]
    assert threading.get_ident() not in threads
    await journal.append(drafts(2))
    live = await subscription.next()
    assert ([entry.global_seq for entry in live.entries], live.encoded) == ([11, 12], None)


async def test_from_now_on_means_nothing_older(journal: Journal, hub: Hub) -> None:
    await journal.append(drafts(10))
    subscription = await hub.subscribe(EVERYTHING, -1)
    waiting = asyncio.create_task(take(subscription, 1))
    await asyncio.sleep(0)
    await journal.append(drafts(1))
    assert await waiting == [11]


async def test_live_entries_come_from_memory(journal: Journal, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    subscription = await hub.subscribe(EVERYTHING, -1)
    waiting = asyncio.create_task(take(subscription, 3))
    await asyncio.sleep(0)

    async def no_reading(question: object) -> None:
        raise AssertionError("a live subscription must not read the database")

    monkeypatch.setattr(subscription._hub, "database", type("Closed", (), {"read": staticmethod(no_reading)}))
    await journal.append(drafts(3))
    assert await waiting == [1, 2, 3]


async def test_only_matching_entries_arrive_and_the_position_moves_on_regardless(journal: Journal, hub: Hub) -> None:
    subscription = await hub.subscribe(Selection(Pattern("/tape/order/**")), -1)
    assert (await subscription.next(timeout=0.01)).position == 0
    await journal.append(drafts(4, "/tape/invoice/paid/{}"))
    assert (await subscription.next(timeout=0.01)).position == 4
    await journal.append(drafts(1))
    batch = await subscription.next()
    assert [entry.kind for entry in batch.entries] == ["order"]
    assert batch.position == 5


async def test_a_run_can_be_followed(journal: Journal, hub: Hub) -> None:
    await journal.append(drafts(3, run_id="mine") + drafts(3, run_id="other"))
    subscription = await hub.subscribe(Selection(Pattern(""), run_id="mine"), 0)
    assert await take(subscription, 3) == [1, 2, 3]
    waiting = asyncio.create_task(take(subscription, 2))
    await asyncio.sleep(0)
    await journal.append(drafts(2, run_id="other") + drafts(2, run_id="mine"))
    assert await waiting == [9, 10]
    subscription.close()
    assert not hub._by_run


async def test_a_kind_can_be_followed(journal: Journal, hub: Hub) -> None:
    subscription = await hub.subscribe(Selection(Pattern(""), kind="order"), -1)
    waiting = asyncio.create_task(take(subscription, 2))
    await asyncio.sleep(0)
    await journal.append(drafts(2, "/tape/invoice/paid/{}") + drafts(2))
    assert await waiting == [3, 4]


async def test_a_slow_subscription_loses_nothing(journal: Journal, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_module, "MAX_PENDING", 10)
    hub.ring._max_entries = 20  # so that it must go back to the journal as well
    slow = await hub.subscribe(EVERYTHING, -1)
    assert (await slow.next(timeout=0.01)).entries == []
    for _ in range(20):
        await journal.append(drafts(5))
    assert await take(slow, 100) == list(range(1, 101))
    assert hub.metrics.registry.get_sample_value("tape_subscriptions_fell_behind_total") >= 1
    waiting = asyncio.create_task(take(slow, 1))
    await journal.append(drafts(1))
    assert await waiting == [101]


async def test_entries_of_another_process_arrive_in_order_among_our_own(store_url: str) -> None:
    async with open_database(store_url) as ours, open_database(store_url) as theirs:
        hub = Hub(ours)
        await hub.start()
        subscription = await hub.subscribe(EVERYTHING, -1)
        receiving = asyncio.create_task(take(subscription, 300))

        async def write(journal: Journal) -> None:
            for _ in range(30):
                await journal.append(drafts(5))

        await asyncio.gather(write(Journal(ours)), write(Journal(theirs)))
        assert await receiving == list(range(1, 301))
        assert hub.metrics.registry.get_sample_value("tape_journal_foreign_entries_total") >= 1
        await hub.close()


async def test_cursors_outside_the_journal_are_refused(journal: Journal, hub: Hub) -> None:
    await journal.append(drafts(10))
    await prune(journal.database, before_seq=6)
    with pytest.raises(CursorBeyondHead):
        await hub.subscribe(EVERYTHING, 99)
    with pytest.raises(CursorExpired):
        await hub.subscribe(EVERYTHING, 2)
    assert (await take(await hub.subscribe(EVERYTHING, 0), 6))[0] == 6


async def test_a_subscription_overtaken_by_retention_gets_an_error(journal: Journal, hub: Hub) -> None:
    hub.ring._max_entries = 1
    await journal.append(drafts(300))
    subscription = await hub.subscribe(EVERYTHING, 5)
    first = await subscription.next()
    assert first.entries[0].global_seq == 6
    await prune(journal.database, before_seq=299)
    with pytest.raises(CursorExpired):
        await take(subscription, 1_000)


async def test_closing_the_hub_ends_subscriptions_with_a_reason(journal: Journal, hub: Hub) -> None:
    subscription = await hub.subscribe(EVERYTHING, 0)
    waiting = asyncio.create_task(subscription.next())
    await asyncio.sleep(0)
    await hub.close()
    with pytest.raises(ServerStopping, match="resume"):
        await waiting
    with pytest.raises(ServerStopping):
        await hub.subscribe(EVERYTHING, 0)


async def test_subscriptions_that_left_cost_nothing(journal: Journal, hub: Hub) -> None:
    for _ in range(50):
        subscription = await hub.subscribe(Selection(Pattern("/tape/order/*/*")), -1)
        await subscription.next(timeout=0)
        subscription.close()
    assert len(hub._by_subject) == 0
    assert not hub._open
    assert hub.metrics.registry.get_sample_value("tape_subscriptions") == 0


async def test_the_ring_is_bounded_in_bytes(journal: Journal, hub: Hub) -> None:
    hub.ring._max_bytes = 100
    await journal.append([Draft(subject="/tape/order/created/1", payload_json='"' + "x" * 60 + '"')] * 10)
    assert hub.ring.after(9, 10) is not None
    assert hub.ring.after(5, 10) is None
