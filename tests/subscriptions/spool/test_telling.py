"""What happened while the server was away is told when it is back, in its order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tape.errors import InvalidInput, StoreUnavailable
from tape.subscriptions import events
from tape.subscriptions.events import About, Event
from tape.subscriptions.spool import telling as telling_module
from tape.subscriptions.spool.backend import SpoolBackend
from tape.subscriptions.spool.telling import Telling

ABOUT = About("orders", "subscriptions/orders", 7)


class Server:
    def __init__(self) -> None:
        self.is_up = True
        self.refuses = 0
        self.told: list[Event] = []
        self.calls = 0

    async def __call__(self, told: Sequence[Event]) -> None:
        self.calls += self.is_up
        if any(event.context["pending"] == self.refuses for event in told) and self.is_up:
            raise InvalidInput("not an event")
        if not self.is_up:
            raise StoreUnavailable("away")
        self.told += told


def drained(number: int) -> Event:
    return events.spool_draining(ABOUT, number)


async def test_events_are_told_at_once_while_that_is_possible(backend: SpoolBackend) -> None:
    server = Server()
    telling = Telling(backend, server)
    await telling.open()
    await telling([drained(1)])
    assert [event.context["pending"] for event in server.told] == [1]


async def test_what_could_not_be_told_survives_a_restart_and_keeps_its_order(backend: SpoolBackend) -> None:
    server = Server()
    first = Telling(backend, server)
    server.is_up = False
    await first([drained(1), drained(2)])
    await first([drained(3)])
    again = Telling(backend, server)
    await again.open()
    assert not await again.catch_up()
    server.is_up = True
    await again([drained(4)])  # behind those that wait
    assert server.told == []
    assert await again.catch_up()
    assert [event.context["pending"] for event in server.told] == [1, 2, 3, 4]
    await again([drained(5)])
    assert len(server.told) == 5


async def test_an_event_that_is_never_taken_keeps_no_other_back(
    backend: SpoolBackend, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server()
    telling = Telling(backend, server)
    server.is_up = False
    await telling([])
    await telling([drained(1)])
    await telling([drained(2)])
    server.is_up, server.refuses = True, 1
    assert await telling.catch_up()
    assert [event.context["pending"] for event in server.told] == [2]
    assert "not taken and let go" in caplog.text


async def test_however_much_was_kept_all_of_it_is_told(backend: SpoolBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling_module, "_AT_ONCE", 4)
    monkeypatch.setattr(telling_module, "_TOGETHER", 3)
    server = Server()
    telling = Telling(backend, server)
    server.is_up = False
    for number in range(1, 11):
        await telling([drained(number)])
    server.is_up = True
    assert await telling.catch_up()
    assert [event.context["pending"] for event in server.told] == list(range(1, 11))
    assert server.calls < 10
    await telling([drained(11)])
    assert len(server.told) == 11  # at once: nothing waits any more
