"""Events of an outage are emitted in order when the server is back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tape.errors import InvalidInput, SpoolUnavailable, StoreUnavailable
from tape.subscriptions import events
from tape.subscriptions.events import SubscriptionEvent, SubscriptionRef
from tape.subscriptions.spool import pending_events as pending_module
from tape.subscriptions.spool.backend import Area, SpoolBackend
from tape.subscriptions.spool.pending_events import PendingEvents

REF = SubscriptionRef("orders", "subscriptions/orders", 7)


class Server:
    def __init__(self) -> None:
        self.is_up = True
        self.refuses = 0
        self.emitted: list[SubscriptionEvent] = []
        self.calls = 0

    async def __call__(self, emitted: Sequence[SubscriptionEvent]) -> None:
        self.calls += self.is_up
        if any(event.context["pending"] == self.refuses for event in emitted) and self.is_up:
            raise InvalidInput("not an event")
        if not self.is_up:
            raise StoreUnavailable("away")
        self.emitted += emitted


def drained(number: int) -> SubscriptionEvent:
    return events.spool_draining(REF, number)


async def test_events_are_emitted_at_once_while_the_server_is_available(backend: SpoolBackend) -> None:
    server = Server()
    pending = PendingEvents(backend, server)
    await pending.open()
    await pending([drained(1)])
    assert [event.context["pending"] for event in server.emitted] == [1]


async def test_stored_events_survive_a_restart_in_order(backend: SpoolBackend) -> None:
    server = Server()
    first = PendingEvents(backend, server)
    server.is_up = False
    await first([drained(1), drained(2)])
    await first([drained(3)])
    again = PendingEvents(backend, server)
    await again.open()
    assert not await again.catch_up()
    server.is_up = True
    await again([drained(4)])  # behind those that wait
    assert server.emitted == []
    assert await again.catch_up()
    assert [event.context["pending"] for event in server.emitted] == [1, 2, 3, 4]
    await again([drained(5)])
    assert len(server.emitted) == 5


async def test_an_event_that_the_journal_rejects_blocks_no_others(
    backend: SpoolBackend, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server()
    pending = PendingEvents(backend, server)
    server.is_up = False
    await pending([])
    await pending([drained(1)])
    await pending([drained(2)])
    server.is_up, server.refuses = True, 1
    assert await pending.catch_up()
    assert [event.context["pending"] for event in server.emitted] == [2]
    assert "rejects events, dropped" in caplog.text


async def test_all_stored_events_are_emitted_however_many_there_are(
    backend: SpoolBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_module, "_AT_ONCE", 4)
    monkeypatch.setattr(pending_module, "_TOGETHER", 3)
    server = Server()
    pending = PendingEvents(backend, server)
    server.is_up = False
    for number in range(1, 11):
        await pending([drained(number)])
    server.is_up = True
    assert await pending.catch_up()
    assert [event.context["pending"] for event in server.emitted] == list(range(1, 11))
    assert server.calls < 10
    await pending([drained(11)])
    assert len(server.emitted) == 11  # at once: nothing waits any more


async def test_who_has_something_to_keep_does_not_wait_for_a_server_that_hangs(backend: SpoolBackend) -> None:
    server, begun, free = Server(), asyncio.Event(), asyncio.Event()
    pending = PendingEvents(backend, server)
    server.is_up = False
    await pending([drained(1)])
    server.is_up = True

    async def hang(emitted: Sequence[SubscriptionEvent]) -> None:
        begun.set()
        await free.wait()
        await server(emitted)

    pending._emit = hang
    catching_up = asyncio.create_task(pending.catch_up())
    await begun.wait()
    await pending([drained(2)])
    free.set()
    assert await catching_up
    assert [event.context["pending"] for event in server.emitted] == [1, 2]


async def test_a_server_that_does_not_answer_is_as_good_as_away(
    backend: SpoolBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()

    async def never(_: Sequence[SubscriptionEvent]) -> None:
        await asyncio.Event().wait()

    pending = PendingEvents(backend, never)
    monkeypatch.setattr(pending_module, "ANSWER_S", 0.01)
    await pending([drained(1)])
    assert not await pending.catch_up()
    pending._emit = server
    monkeypatch.setattr(pending_module, "ANSWER_S", 60)
    assert await pending.catch_up()
    assert len(server.emitted) == 1


async def test_damaged_stored_events_are_quarantined_and_block_no_others(
    backend: SpoolBackend, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server()
    pending = PendingEvents(backend, server)
    server.is_up = False
    for number in (1, 2):
        await pending([drained(number)])
    first, _ = await backend.page(Area.CONTROL, "events-", 10)
    await backend.put(Area.CONTROL, [(first.key, b'[{"torn')])
    server.is_up = True
    assert await pending.catch_up()
    assert [event.context["pending"] for event in server.emitted] == [2]
    assert await backend.get(Area.QUARANTINE, first.key) == b'[{"torn'
    assert first.key in caplog.text


async def test_events_wait_in_memory_if_server_and_backend_are_unavailable(backend: SpoolBackend) -> None:
    server = Server()
    pending = PendingEvents(backend, server)
    server.is_up = False
    put = backend.put

    async def full(*_: object) -> None:
        raise SpoolUnavailable("No space left on device")

    backend.put = full  # type: ignore[method-assign, assignment]
    await pending([drained(1)])
    await pending([drained(2)])
    backend.put = put  # type: ignore[method-assign]
    await pending([drained(3)])
    server.is_up = True
    assert await pending.catch_up()
    assert [event.context["pending"] for event in server.emitted] == [1, 2, 3]
