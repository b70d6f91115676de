"""The inbox of brokers that push: order within a key, delays, and batches by bytes."""

from __future__ import annotations

import time

import pytest

from tape.brokers import inbox as inbox_module
from tape.brokers.inbox import Inbox
from tape.brokers.source import Delivery


def message(name: str, key: str = "", body: bytes = b"") -> Delivery:
    return Delivery(name, body, name, ordering_key=key)


async def take(inbox: Inbox, limit: int = 10, wait_s: float = 0.0) -> list[str]:
    return [each.message_id for each in await inbox.take(limit, wait_s, lambda: False)]


async def test_a_delayed_message_holds_its_key_and_no_other() -> None:
    inbox = Inbox()
    for name, key in (("a1", "a"), ("b1", "b"), ("a2", "a"), ("free", "")):
        inbox.put(message(name, key))
    assert await take(inbox) == ["a1", "b1", "a2", "free"]
    began = time.monotonic()
    inbox.redeliver(["a1", "free"], 0.2)
    assert [inbox.is_put_back(name) for name in ("a1", "b1", "a2", "free")] == [True, False, True, True]
    inbox.put(message("a3", "a"))
    inbox.put(message("b2", "b"))
    assert await take(inbox) == ["b2"]
    again = await inbox.take(10, 20, lambda: False)
    assert time.monotonic() - began >= 0.2
    assert [(each.message_id, each.deliveries) for each in again] == [("a1", 2), ("a2", 1), ("free", 2), ("a3", 1)]


async def test_a_batch_ends_at_its_size_in_bytes_and_has_at_least_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "MAX_POLL_BYTES", 100)
    inbox = Inbox()
    for name, size in (("large", 1_000), ("one", 60), ("two", 60), ("three", 60)):
        inbox.put(message(name, body=b"x" * size))
    assert [await take(inbox), await take(inbox), await take(inbox)] == [["large"], ["one", "two"], ["three"]]


async def test_a_message_that_was_put_back_can_still_be_settled() -> None:
    inbox = Inbox()
    inbox.put(message("one"))
    assert await take(inbox) == ["one"]
    inbox.redeliver(["one"], 60)
    assert inbox.settle("one") is not None
    assert inbox.settle("one") is None
    assert not inbox.is_put_back("one")
    assert await take(inbox) == []


async def test_a_lost_connection_ends_a_wait() -> None:
    inbox = Inbox()
    assert await inbox.take(1, 60, lambda: True) == []
