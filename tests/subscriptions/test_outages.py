"""An outage is reconstructed from the journal alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest

from tape.subscriptions import events
from tape.subscriptions.events import SubscriptionRef
from tape.subscriptions.outages import outages

REF = SubscriptionRef("orders", "subscriptions/orders", 7)


class Line(NamedTuple):
    subject: str
    ts_ms: int
    payload_json: str
    global_seq: int = 1


class Book:
    def __init__(self) -> None:
        self.lines: list[Line] = []

    def add(self, event: events.SubscriptionEvent, ts_ms: int) -> None:
        draft = event.draft()
        self.lines.append(Line(draft.subject, ts_ms, draft.payload_json))

    def spooled(self, number: int, ts_ms: int) -> None:
        self.add(events.spooled(REF, f"m{number}", number, f"ref/{number}", "00", "db", "circuit_open"), ts_ms)

    def replayed(self, number: int, ts_ms: int) -> None:
        self.add(events.replayed(REF, f"m{number}", number, f"ref/{number}", 100 + number), ts_ms)


def an_outage(book: Book, start: int, messages: int) -> None:
    book.add(events.circuit_opened(REF, "db", 5, 1), start)
    for number in range(messages):  # no place in the spool is used twice
        book.spooled(start + number, start + 10 + number)
    book.add(events.circuit_closed(REF, "db"), start + 1000)
    book.add(events.spool_draining(REF, messages), start + 1001)
    for number in range(messages):
        book.replayed(start + number, start + 1010 + number)


def test_an_outage_that_is_over() -> None:
    book = Book()
    an_outage(book, 0, 6)
    (outage,) = outages(book.lines)
    assert (outage.spooled, outage.replayed, outage.waiting) == (6, 6, 0)
    assert (outage.began_ms, outage.ended_ms, outage.downstreams) == (0, 1015, ["db"])
    assert [(moment.what, moment.count) for moment in outage.moments] == [
        ("circuit.opened", 1),
        ("message.spooled", 6),
        ("circuit.closed", 1),
        ("spool.draining", 1),
        ("message.replayed", 6),
    ]


def test_two_outages_are_two_stories() -> None:
    book = Book()
    an_outage(book, 0, 2)
    an_outage(book, 10_000, 3)
    assert [outage.spooled for outage in outages(book.lines)] == [2, 3]


def test_an_outage_that_goes_on_has_no_end() -> None:
    book = Book()
    book.add(events.circuit_opened(REF, "db", 5, 1), 0)
    book.spooled(1, 10)
    (outage,) = outages(book.lines)
    assert (outage.ended_ms, outage.waiting) == (None, 1)


def test_dead_letters_and_quarantine_end_the_waiting_too() -> None:
    book = Book()
    book.add(events.circuit_opened(REF, "db", 5, 1), 0)
    for number in range(3):
        book.spooled(number, 10)
    book.add(events.circuit_closed(REF, "db"), 20)
    book.replayed(0, 30)
    book.add(events.dead_lettered(REF, "m1", 1, "ref/1", 5, "max_replay_attempts"), 31)
    book.add(events.quarantined(REF, "ref/2", "torn"), 32)
    (outage,) = outages(book.lines)
    assert (outage.replayed, outage.dead_lettered, outage.quarantined) == (1, 1, 1)
    assert msgspec.json.decode(msgspec.json.encode(outage))["ended_ms"] == 32


def test_late_and_duplicate_events_count_once() -> None:
    book = Book()
    book.add(events.circuit_opened(REF, "db", 5, 1), 0)
    book.replayed(0, 10)
    book.replayed(0, 11)
    book.add(events.circuit_closed(REF, "db"), 12)
    book.spooled(0, 13)
    (outage,) = outages(book.lines)
    assert (outage.spooled, outage.replayed, outage.waiting, outage.ended_ms) == (1, 1, 0, 12)


def test_a_replay_event_before_its_spool_event_begins_no_outage() -> None:
    book = Book()
    an_outage(book, 0, 2)
    book.replayed(9, 5000)
    book.spooled(9, 5001)
    assert [outage.spooled for outage in outages(book.lines)] == [2]


def test_other_events_of_the_subscription_are_no_outage() -> None:
    book = Book()
    context: dict[str, Any] = {"max_in_flight": 1, "max_dispatch_per_sec": None}
    book.add(events.rate_limited(REF, "max_in_flight", **context), 0)
    assert list(outages(book.lines)) == []


def test_a_long_outage_is_read_in_one_pass() -> None:
    book = Book()
    an_outage(book, 0, 20_000)
    (outage,) = outages(book.lines)
    assert (outage.spooled, outage.replayed, outage.waiting) == (20_000, 20_000, 0)


def test_a_replayed_message_without_a_spool_event_counts_as_spooled() -> None:
    book = Book()
    book.add(events.circuit_opened(REF, "db", 5, 1), 0)
    book.spooled(0, 1)
    book.add(events.circuit_closed(REF, "db"), 2)
    book.replayed(0, 3)
    book.replayed(1, 4)
    book.spooled(1, 5)
    (outage,) = outages(book.lines)
    assert (outage.spooled, outage.replayed, outage.waiting, outage.ended_ms) == (1, 1, 0, 3)


def test_a_dead_letter_that_was_brought_back_is_counted_as_what_became_of_it_last() -> None:
    book = Book()
    book.add(events.circuit_opened(REF, "db", 5, 1), 0)
    book.spooled(0, 1)
    book.spooled(1, 2)
    book.add(events.dead_lettered(REF, "m0", 0, "ref/0", 5, "max_replay_attempts"), 3)
    book.add(events.spooled(REF, "m0", 0, "ref/0", "00", "db", "requeued"), 4)
    (outage,) = outages(book.lines)
    assert (outage.dead_lettered, outage.waiting) == (0, 2)
    book.replayed(0, 5)
    (outage,) = outages(book.lines)
    assert (outage.spooled, outage.replayed, outage.dead_lettered, outage.waiting) == (2, 1, 0, 1)


def test_a_drop_event_that_is_emitted_twice_counts_once() -> None:
    book = Book()
    book.add(events.circuit_opened(REF, "db", 5, 1), 0)
    dropped = events.dropped(REF, "m0", "db", "retention_full")
    book.add(dropped, 1)
    book.add(dropped, 2)
    (outage,) = outages(book.lines)
    assert outage.dropped == 1


def test_late_events_of_a_finished_outage_begin_no_second_one() -> None:
    book = Book()
    an_outage(book, 0, 3)
    for number in range(3):
        book.spooled(number, 3_000 + number)
    an_outage(book, 5_000, 1)
    book.add(events.circuit_opened(REF, "db", 5, 2), 9_000)
    book.spooled(9, 9_001)
    book.spooled(1, 9_002)
    book.replayed(1, 9_003)
    assert [(each.spooled, each.replayed, each.waiting) for each in outages(book.lines)] == [
        (3, 3, 0),
        (1, 1, 0),
        (1, 0, 1),
    ]


def test_malformed_entries_are_skipped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    book = Book()
    book.add(events.circuit_opened(REF, "db", 5, 1), 0)
    malformed = ("{}", "[]", "null", "7", '{"downstream": [], "reason": {}, "spool_ref": []}', '{"spool_ref": {}}')
    for verb in ("circuit.opened", "circuit.closed", "message.spooled", "message.dropped", "spool.alert"):
        book.lines += [Line(f"/tape/subscription/{verb}/orders", 1, payload, 41) for payload in malformed]
    (outage,) = outages(book.lines)
    assert (outage.downstreams, outage.spooled, outage.dropped) == (["db"], 0, 0)
    assert [moment.what for moment in outage.moments] == ["circuit.opened"]
    assert "skipped the malformed entry /tape/subscription/circuit.opened/orders at global_seq 41" in caplog.text
