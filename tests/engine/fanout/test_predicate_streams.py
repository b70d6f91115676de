"""Streams whose predicates are expensive: slowed down without a loss, or ended, and never beside others' streams."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tape.cel import compile_predicate
from tape.engine import predicate_budget
from tape.engine.fanout.hub import Hub
from tape.engine.fanout.subscription import JournalSubscription
from tape.engine.predicate_budget import PredicateBudget
from tape.errors import PredicateOverBudget
from tape.journal.journal import Journal
from tape.journal.reader import EVERYTHING
from tape.model.entry import Draft
from tape.model.principal import Principal, acting_as
from tests.engine.costly import Clocks, CostlyPredicate
from tests.engine.fanout.test_hub import drafts, take

MS = 1e-3


@pytest.fixture
def clocks(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Clocks:
    """CPU that the predicates of a test use, and a budget of 2 s of it per second that saves 40 ms."""
    clocks = Clocks()
    monkeypatch.setattr(predicate_budget, "_wall", clocks.read_cpu)
    monkeypatch.setattr(predicate_budget, "_cpu", clocks.read_cpu)
    monkeypatch.setattr(predicate_budget, "SAVED_S", 0.02)
    monkeypatch.setattr(predicate_budget, "RESUMED_S", 0.01)
    hub.predicate_budget = PredicateBudget(hub.metrics, 2_000)
    return clocks


async def subscribe(hub: Hub, predicate: Any, after: int = 0, tenant: str = "") -> JournalSubscription:
    with acting_as(Principal(tenant=tenant, is_open=True)):
        return await hub.subscribe(EVERYTHING, after, predicate=predicate)


def times_over_budget(hub: Hub) -> float:
    return hub.metrics.registry.get_sample_value("tape_predicate_over_budget_total", {"kind": "stream"}) or 0


async def test_a_replay_without_budget_is_slowed_down_and_gets_every_entry_once(
    journal: Journal, hub: Hub, clocks: Clocks
) -> None:
    await journal.append(drafts(500))
    subscription = await subscribe(hub, CostlyPredicate(clocks, 0.9 * MS))
    assert await take(subscription, 500) == list(range(1, 501))
    assert times_over_budget(hub) >= 5


async def test_a_live_stream_without_budget_leaves_the_live_path_and_gets_every_entry_once(
    journal: Journal, hub: Hub, clocks: Clocks
) -> None:
    predicate = CostlyPredicate(clocks, 0.9 * MS)
    subscription = await subscribe(hub, predicate)
    waiting = asyncio.create_task(take(subscription, 400))
    await asyncio.sleep(0)
    for _ in range(20):
        await journal.append(drafts(20))
    assert await waiting == list(range(1, 401))
    assert times_over_budget(hub) >= 3
    assert predicate.evaluated == 400  # none twice


async def test_a_stream_whose_predicate_takes_more_than_a_millisecond_ends_and_another_tenant_gets_everything(
    journal: Journal, hub: Hub, clocks: Clocks
) -> None:
    cheap, hostile = CostlyPredicate(clocks, 0), CostlyPredicate(clocks, 50 * MS)
    honest = await subscribe(hub, cheap, tenant="honest")
    streams = [await subscribe(hub, hostile, tenant="hostile") for _ in range(20)]
    waiting = [asyncio.create_task(take(honest, 100))]
    ends = [asyncio.create_task(take(stream, 1_000_000)) for stream in streams]
    await asyncio.sleep(0)
    await journal.append(drafts(100))
    assert await waiting[0] == list(range(1, 101))
    assert cheap.evaluated == 100
    assert hostile.evaluated <= 2  # 40 ms are saved for all twenty
    clocks_run = asyncio.create_task(_append_slowly(journal))
    async with asyncio.timeout(60):
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    clocks_run.cancel()
    assert any(isinstance(end.exception(), PredicateOverBudget) for end in ends if end.done())
    for end in ends:
        end.cancel()


async def _append_slowly(journal: Journal) -> None:
    while True:
        await journal.append(drafts(1))
        await asyncio.sleep(0.05)


async def test_closing_the_hub_ends_a_stream_that_waits_for_its_budget(
    journal: Journal, hub: Hub, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predicate_budget, "RESUMED_S", 3_600.0)
    monkeypatch.setattr(predicate_budget, "MAX_AVERAGE_S", 3_600.0)
    await journal.append(drafts(10))
    subscription = await subscribe(hub, CostlyPredicate(clocks, 50 * MS))
    assert await take(subscription, 1) == [1]
    waiting = asyncio.create_task(subscription.next())
    while subscription._waiter is None:
        await asyncio.sleep(0)
    subscription.fail(PredicateOverBudget("over"))
    with pytest.raises(PredicateOverBudget):
        async with asyncio.timeout(60):
            await waiting


async def test_entries_that_take_long_are_evaluated_off_the_event_loop(journal: Journal, hub: Hub) -> None:
    subscription = await subscribe(hub, compile_predicate("payload.l.all(x, x >= 0)"))
    waiting = asyncio.create_task(take(subscription, 3))
    await asyncio.sleep(0)
    short, long = '{"l": [1]}', '{"l": [' + "1," * 5_000 + "1]}"
    await journal.append([Draft(subject="/tape/order/made", payload_json=text) for text in (short, long, short)])
    assert await waiting == [1, 2, 3]
    assert subscription.predicate is not None
    assert subscription.predicate.errors == 0
