"""Listeners are cached, unknown names are cheap, and an unavailable source is not asked for each delivery."""

from __future__ import annotations

import asyncio

import pytest

from tape.errors import StoreUnavailable
from tape.subscriptions.ingress.listeners import NAMES_S, STALE_S, Listener, Listeners
from tests.subscriptions.specs import subscription


class Catalog:
    """A source that counts who asks."""

    def __init__(self, *names: str) -> None:
        self.known = {name: listener(name) for name in names}
        self.lists = 0
        self.fetches = 0
        self.is_up = True
        self.go = asyncio.Event()
        self.go.set()

    async def names(self) -> frozenset[str]:
        self.lists += 1
        await self._answer()
        return frozenset(self.known)

    async def fetch(self, name: str) -> Listener | None:
        self.fetches += 1
        await self._answer()
        return self.known.get(name)

    async def _answer(self) -> None:
        await self.go.wait()
        if not self.is_up:
            raise StoreUnavailable("away")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def listener(name: str, state: str = "ACTIVE") -> Listener:
    return Listener(name=name, subscription=subscription(f"subscriptions/{name}"), state=state, secrets=("s3cret",))


async def test_a_listener_is_asked_for_once_and_again_when_its_time_is_up() -> None:
    catalog, clock = Catalog("a"), Clock()
    listeners = Listeners(catalog, 30, clock)
    for _ in range(100):
        assert await listeners.find("a") == catalog.known["a"]
    assert (catalog.lists, catalog.fetches) == (1, 1)
    catalog.known["a"] = listener("a", "PAUSED")
    clock.now += 29
    assert (await listeners.find("a")).state == "ACTIVE"  # type: ignore[union-attr]
    clock.now += 1
    assert (await listeners.find("a")).state == "PAUSED"  # type: ignore[union-attr]
    del catalog.known["a"]
    clock.now += 30
    assert await listeners.find("a") is None


async def test_ten_thousand_strangers_cost_one_look_at_the_list_a_second() -> None:
    catalog, clock = Catalog("a"), Clock()
    listeners = Listeners(catalog, 30, clock)
    for n in range(10_000):
        assert await listeners.find(f"stranger-{n}") is None
    assert (catalog.lists, catalog.fetches) == (1, 0)
    assert len(listeners._known) == 0
    catalog.known["new"] = listener("new")
    assert await listeners.find("new") is None
    clock.now += NAMES_S
    assert await listeners.find("new") == catalog.known["new"]
    assert catalog.lists == 2


async def test_many_at_once_share_one_question() -> None:
    catalog = Catalog("a")
    listeners = Listeners(catalog, 30)
    catalog.go.clear()
    asking = [asyncio.create_task(listeners.find(name)) for name in ["a", "x"] * 50]
    await asyncio.sleep(0)
    # A cancelled caller does not cancel the lookup of the others.
    asking[0].cancel()
    catalog.go.set()
    found = await asyncio.gather(*asking[1:])
    assert found.count(None) == 50
    assert (catalog.lists, catalog.fetches) == (1, 1)


async def test_while_the_source_is_away_known_listeners_stay_as_they_were_for_a_while() -> None:
    catalog, clock = Catalog("a", "b"), Clock()
    listeners = Listeners(catalog, 30, clock)
    await listeners.find("a")
    catalog.is_up = False
    fetches = catalog.fetches
    for _ in range(10):
        clock.now += 31
        for _ in range(5):
            assert await listeners.find("a") == catalog.known["a"]
    assert catalog.fetches == fetches + 10
    with pytest.raises(StoreUnavailable):
        await listeners.find("b")
    assert await listeners.find("stranger") is None
    clock.now += STALE_S
    with pytest.raises(StoreUnavailable):
        await listeners.find("a")


async def test_an_unavailable_source_is_asked_once_per_second_and_callers_get_its_error() -> None:
    catalog, clock = Catalog("a"), Clock()
    catalog.is_up = False
    listeners = Listeners(catalog, 30, clock)
    for n in range(100):
        with pytest.raises(StoreUnavailable):
            await listeners.find(f"stranger-{n}")
    assert catalog.lists == 1
    catalog.is_up = True
    clock.now += NAMES_S
    assert await listeners.find("a") == catalog.known["a"]


def test_a_listener_does_not_show_its_secrets() -> None:
    assert repr(listener("a")) == "Listener('a', 'subscriptions/a', ACTIVE, 1 secrets)"
