"""What a task does with its rows, and the outlets that it hands them to: without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tape.base.retry import RetryPolicy
from tape.base.telemetry.metrics import Metrics
from tape.brokers.log import Extent, Placed
from tape.brokers.source import Delivery
from tape.documents.document import Document
from tape.engine import catalog
from tape.engine.executions.offsets import OffsetRange, executed_ranges
from tape.errors import MessagesLost, PipelineInput, ServerUnreachable, SourceReplaced, SourceUnavailable, TapeError
from tape.pipeline.batches import transact
from tape.pipeline.failures import raised_in
from tape.pipeline.jobs.subscription import Halted, How, Streamed
from tape.pipeline.journal_batches import ask
from tape.pipeline.messages import advanced, check_same, message_options, rows_of, stretches
from tape.pipeline.outlets import Answer, Offered, Outlet, StoreOutlet
from tape.pipeline.subscription_task import Report, Taking, total
from tape.subscriptions.events import subscription_ref
from tape.subscriptions.runtime.flow_limits import FlowLimiter
from tests.subscriptions.specs import subscription

PATH = "subscriptions/orders"
AT_ONCE = RetryPolicy(max_attempts=3, initial_interval_s=0.0)


def placed(offset: int, body: bytes = b"{}", **headers: str) -> Placed:
    pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return Placed(offset, Delivery(str(offset), body, "", pairs, {"offset": offset}))


class Shelf:
    """An outlet that keeps what it is given, and refuses what a test wants."""

    def __init__(self, refuses: Callable[[Offered], str] = lambda record: "") -> None:
        self.calls: list[tuple[str, int, int, list[int]]] = []
        self.executions: list[dict[str, Any]] = []
        self.letters: list[dict[str, Any]] = []
        self.is_closed = False
        self._refuses = refuses

    def take(self, stretch: OffsetRange, records: Sequence[Offered]) -> Answer:
        self.calls.append((stretch.part, stretch.begin, stretch.end, [record.offset for record in records]))
        statuses = []
        for number, record in enumerate(records):
            if reason := self._refuses(record):
                held = ["held"] * (len(records) - number - 1)
                return Answer([*statuses, "refused", *held], record.offset, reason)
            if record.letter is None:
                self.executions.append(json.loads(record.execution))
                statuses.append("started")
            else:
                self.letters.append(record.letter.record()["context"])
                statuses.append("told")
        return Answer(statuses, stretch.end)

    def close(self) -> None:
        self.is_closed = True


def done_by(outlet: Outlet, *stretched: tuple[str, Extent, list[Placed]], **spec: Any) -> Report:
    taking = Taking(subscription(PATH, **spec), subscription_ref(PATH, 7), lambda: outlet, AT_ONCE)
    batches = [rows_of(messages, part, extent) for part, extent, messages in stretched]
    return total([row for batch in taking(iter(batches)) for row in batch.column("report").to_pylist()])


def test_rows_become_requests_in_order_and_the_offsets_between_them_are_covered() -> None:
    shelf = Shelf()
    messages = [placed(offset) for offset in (3, 4, 7, 9, 12)]
    done = done_by(shelf, ("p:0", Extent(2, 20), messages), runtime={"batch": 2})
    assert shelf.calls == [("p:0", 2, 7, [3, 4]), ("p:0", 7, 12, [7, 9]), ("p:0", 12, 20, [12])]
    assert [each["message_id"] for each in shelf.executions] == ["3", "4", "7", "9", "12"]
    assert (done.received, done.started, done.requests, done.stuck) == (5, 5, 3, "")
    assert shelf.is_closed


def test_stretches_of_several_parts_in_one_task_are_kept_apart() -> None:
    shelf = Shelf()
    one, other = [placed(0), placed(1)], [placed(5)]
    done_by(shelf, ("p:0", Extent(0, 3), one), ("p:1", Extent(4, 8), other))
    assert shelf.calls == [("p:0", 0, 3, [0, 1]), ("p:1", 4, 8, [5])]


def test_a_message_is_planned_as_a_live_one_is() -> None:
    shelf = Shelf()
    rules = [
        {"header": "X-Route", "controls": "dispatch.playbook", "allowed": ["domain/special"]},
        {"header": "X-Key", "controls": "idempotency_key"},
    ]
    message = placed(1, b'{"a": 1}', X_Route="domain/special", x_key="k", other="data")
    refused = placed(2, b"text", X_Route="domain/evil")
    done = done_by(
        shelf,
        ("p", Extent(0, 3), [message, refused]),
        headers={"directives": rules},
        dedup={"enabled": True, "window_secs": 60},
    )
    routed, default = shelf.executions
    assert (routed["path"], default["path"]) == ("domain/special", "domain/ingest_order")
    assert routed["dedup"] == {"key": "k", "window_secs": 60}
    assert (routed["subscription"], routed["parent_execution_id"]) == (PATH, 7)
    assert routed["payload"]["a"] == 1
    assert routed["payload"]["message"]["headers"] == {"x-route": "domain/special", "x-key": "k", "other": "data"}
    assert default["payload"]["body"] == "text"
    assert [event["subject"] for event in routed["events"]] == ["/tape/subscription/message.directives_applied/orders"]
    assert done.applied == {"dispatch.playbook": 1, "idempotency_key": 1}


def test_what_is_refused_is_tried_again_then_told_whole_and_the_rest_goes_on_in_order() -> None:
    shelf = Shelf(lambda record: "no such playbook" if record.offset in (1, 2) and record.letter is None else "")
    done = done_by(shelf, ("p", Extent(0, 4), [placed(offset, b'"body"') for offset in range(4)]))
    assert [each["message_id"] for each in shelf.executions] == ["0", "3"]
    first, second = shelf.letters
    assert (first["message_id"], first["attempts"], first["reason"]) == ("1", 3, "refused: no such playbook")
    assert first["message"]["data"] == "body"
    assert (second["message_id"], second["attempts"]) == ("2", 1)  # a task is patient once, not for each
    assert (done.started, done.dead, done.refusals) == (2, 2, 4)


def test_a_dead_letter_that_is_too_large_is_told_without_its_body() -> None:
    def refuses(record: Offered) -> str:
        shown = record.letter.context["message"]["data"] if record.letter else record.execution
        return "too large" if shown is not None else ""

    shelf = Shelf(refuses)
    done = done_by(shelf, ("p", Extent(0, 1), [placed(0, b'"long"')]))
    assert (done.dead, shelf.letters[0]["message"]["data"], shelf.letters[0]["message"]["bytes"]) == (1, None, 6)
    nothing = Shelf(lambda record: "never")
    assert "cannot even be told as a dead letter: never" in done_by(nothing, ("p", Extent(0, 1), [placed(0)])).stuck


def test_a_task_that_cannot_hand_over_says_so_and_leaves_the_rest() -> None:
    class Away(Shelf):
        def take(self, stretch: OffsetRange, records: Sequence[Offered]) -> Answer:
            if self.calls:
                raise ServerUnreachable("nobody is there")
            return super().take(stretch, records)

    away = Away()
    done = done_by(away, ("p", Extent(0, 9), [placed(0), placed(1)]), runtime={"batch": 1})
    assert (done.started, done.stuck) == (1, "ServerUnreachable: nobody is there")
    assert away.is_closed


def test_a_store_takes_records_once(store_url: str) -> None:
    playbook = (
        "kind: Playbook\nmetadata: {path: domain/ingest_order}\nworkflow:\n"
        "  - {step: a, tool: {kind: value, value: 1}}\n"
    )
    transact(store_url, lambda tx: catalog.register(tx, Document(playbook)))
    rows = ("p:0", Extent(0, 5), [placed(offset) for offset in range(5)])
    first = done_by(StoreOutlet(store_url), rows, runtime={"batch": 2})
    again = done_by(StoreOutlet(store_url), rows, runtime={"batch": 3})
    assert (first.started, again.started, again.known) == (5, 0, 5)
    rules = [{"header": "x", "controls": "dispatch.playbook", "allowed": ["domain/nowhere"]}]
    bad = ("p:0", Extent(5, 7), [placed(5, x="domain/nowhere"), placed(6)])
    put_aside = done_by(StoreOutlet(store_url), bad, headers={"directives": rules})
    assert (put_aside.started, put_aside.dead) == (1, 1)
    assert ask(store_url, lambda reader: executed_ranges(reader, PATH)) == {"p:0": [(0, 7)]}


def test_a_micro_batch_gives_each_part_its_share() -> None:
    start, ends = {"a": 0, "b": 10}, {"a": 100, "b": 20, "c": 10}
    assert advanced(start, ends, None) == ends
    assert advanced(start, ends, 120) == ends
    some = advanced(start, ends, 12)
    assert sum(some.values()) - sum(start.values()) == 12
    assert advanced(start, ends, 1) == {"a": 1, "b": 10, "c": 0}
    while some != ends:
        some, before = advanced(some, ends, 7), some
        assert all(before.get(part, 0) <= at <= ends[part] for part, at in some.items())


def test_a_part_is_cut_into_stretches_only_if_more_tasks_are_wanted() -> None:
    there = {"a": Extent(0, 4_000), "b": Extent(5, 6)}
    assert stretches(there, 1) == [("a", Extent(0, 4_000)), ("b", Extent(5, 6))]
    cut = stretches(there, 4)
    assert [extent for part, extent in cut if part == "a"] == [Extent(n * 1_000, n * 1_000 + 1_000) for n in range(4)]
    assert stretches({"a": Extent(0, 700)}, 4) == [("a", Extent(0, 700))]
    assert stretches({}, 4) == []


def test_a_source_that_lost_a_part_or_became_shorter_is_not_the_same() -> None:
    check_same({"a": 5}, {"a": 5, "b": 1})
    with pytest.raises(SourceReplaced, match="a was read up to 5, but ends at 4"):
        check_same({"a": 5}, {"a": 4})
    with pytest.raises(SourceReplaced, match="a was read up to 5 and is not there any more; there is b"):
        check_same({"a": 5}, {"b": 9})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "The option source is missing"),
        ({"source": "kafka", "topics": "t"}, "has no option 'topics' here. Did you mean topic?"),
        ({"source": "kafka", "tls": "x"}, "The option tls must be a JSON object"),
        ({"source": "kafka", "startingOffsets": "middle"}, "startingOffsets is 'middle'; use committed, earliest"),
        ({"source": "kafka", "failOnDataLoss": "maybe"}, "must be true or false"),
    ],
)
def test_options_of_messages_are_checked(given: dict[str, str], said: str) -> None:
    with pytest.raises(PipelineInput, match=said):
        message_options(given)


def test_an_error_of_tape_is_found_in_what_spark_says() -> None:
    text = "Traceback:\n  File x\ntape.errors.SourceUnavailable: Kafka is away.\n\nSome more of Spark"
    found = raised_in(RuntimeError(text))
    assert (type(found), str(found)) == (SourceUnavailable, "Kafka is away.")
    assert raised_in(RuntimeError("tape.errors.Nonsense: x\n")) is None
    lost = MessagesLost("gone")
    assert raised_in(lost) is lost
    assert raised_in(TapeError("x")) is not None


def test_a_rate_is_kept_by_waiting_before_a_micro_batch_and_is_told_once() -> None:
    now, waits, told = [0.0], list[float](), list[str]()

    def wait(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    steering = SimpleNamespace(
        state="ACTIVE",
        about=subscription_ref(PATH, 7),
        path=PATH,
        tell=lambda events: told.extend(e.event_type for e in events),
    )
    running = SimpleNamespace(is_stopping=False, wait=wait, noted=lambda *_: None)
    spec = subscription(PATH, limits={"max_dispatch_per_sec": 10, "max_in_flight": 100})
    streamed: Any = Streamed(None, spec, steering, None, running, How("x"), Metrics())  # type: ignore[arg-type]
    streamed._governor = FlowLimiter(100, 10, clock=lambda: now[0])
    for _ in range(4):
        streamed._hold()
        streamed._count(Report(received=10, started=10))
    assert now[0] == pytest.approx(3.0, abs=0.3)  # forty messages: ten at once, then a second for each further ten
    assert told == ["subscription.rate_limited"]
    running.is_stopping = True
    with pytest.raises(Halted):
        streamed._hold()
