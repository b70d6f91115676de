"""Events are buffered in order while the journal is unavailable; a rejected event blocks no others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tape.errors import PayloadTooLarge, ServerUnreachable
from tape.subscriptions import events
from tape.subscriptions.event_reporter import MAX_WAITING, EventReporter
from tape.subscriptions.events import SubscriptionEvent, SubscriptionRef

REF = SubscriptionRef("orders", "subscriptions/orders", 7)


class Journal:
    def __init__(self) -> None:
        self.is_away = False
        self.taken: list[str] = []

    async def write(self, emitted: Sequence[SubscriptionEvent]) -> None:
        if self.is_away:
            raise ServerUnreachable("away")
        if any(event.context["error"] == "huge" for event in emitted):
            raise PayloadTooLarge("too large")
        self.taken += [event.context["error"] for event in emitted]


def event(text: str) -> SubscriptionEvent:
    return events.source_lost(REF, "nats", text)


async def test_events_are_buffered_in_order_while_the_journal_is_unavailable() -> None:
    journal = Journal()
    reporter = EventReporter(journal.write)
    journal.is_away = True
    for text in "abc":
        await reporter.emit([event(text)])
    with pytest.raises(ServerUnreachable):
        await reporter.write([event("now")])
    journal.is_away = False
    await reporter.emit([event("d")])
    assert journal.taken == ["a", "b", "c", "d"]


async def test_what_must_be_written_comes_behind_what_waits() -> None:
    journal = Journal()
    reporter = EventReporter(journal.write)
    journal.is_away = True
    await reporter.emit([event("a")])
    journal.is_away = False
    await reporter.write([event("b")])
    assert journal.taken == ["a", "b"]


async def test_an_event_that_no_journal_takes_is_counted_and_passed_over() -> None:
    journal = Journal()
    reporter = EventReporter(journal.write)
    journal.is_away = True
    for text in ("a", "huge", "b", "huge"):
        await reporter.emit([event(text)])
    journal.is_away = False
    await reporter.flush()
    assert (journal.taken, reporter.lost) == (["a", "b"], 2)


async def test_not_more_waits_than_memory_allows_and_the_loss_is_counted() -> None:
    journal = Journal()
    journal.is_away = True
    reporter = EventReporter(journal.write)
    await reporter.emit([event(str(number)) for number in range(MAX_WAITING + 5)])
    journal.is_away = False
    await reporter.flush()
    assert (len(journal.taken), journal.taken[0], reporter.lost) == (MAX_WAITING, "5", 5)
