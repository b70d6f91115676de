"""The task of a subscription and its record writers, without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tape.base.retry import RetryPolicy
from tape.base.telemetry.metrics import Metrics
from tape.brokers.log import LogRange, OffsetDelivery
from tape.brokers.source import Delivery
from tape.documents.document import Document
from tape.engine import catalog
from tape.engine.executions.offsets import OffsetRange, executed_ranges
from tape.errors import MessagesLost, PipelineInput, ServerUnreachable, SourceReplaced, SourceUnavailable, TapeError
from tape.pipeline.batch_writer import transact
from tape.pipeline.jobs.subscription import JobStopped, StreamOptions, SubscriptionStream
from tape.pipeline.journal_reader import query_store_once
from tape.pipeline.message_source import check_same_source, message_options, next_offsets, rows_of, split_ranges
from tape.pipeline.record_writers import PendingRecord, RecordWriter, StoreRecordWriter, WriteResult
from tape.pipeline.spark_errors import find_tape_error
from tape.pipeline.subscription_task import ExecutionReport, SubscriptionTask, sum_reports
from tape.subscriptions.events import subscription_ref
from tape.subscriptions.runtime.flow_limits import FlowLimiter
from tests.subscriptions.specs import subscription

PATH = "subscriptions/orders"
AT_ONCE = RetryPolicy(max_attempts=3, initial_interval_s=0.0)


def message_at(offset: int, body: bytes = b"{}", **headers: str) -> OffsetDelivery:
    pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return OffsetDelivery(offset, Delivery(str(offset), body, "", pairs, {"offset": offset}))


class FakeWriter:
    """A writer that keeps its records in memory and rejects those that a test selects."""

    def __init__(self, refuses: Callable[[PendingRecord], str] = lambda record: "") -> None:
        self.calls: list[tuple[str, int, int, list[int]]] = []
        self.executions: list[dict[str, Any]] = []
        self.dead_letters: list[dict[str, Any]] = []
        self.is_closed = False
        self._refuses = refuses

    def write(self, offsets: OffsetRange, records: Sequence[PendingRecord]) -> WriteResult:
        self.calls.append((offsets.part, offsets.begin, offsets.end, [record.offset for record in records]))
        statuses = []
        for number, record in enumerate(records):
            if reason := self._refuses(record):
                held = ["held"] * (len(records) - number - 1)
                return WriteResult([*statuses, "refused", *held], record.offset, reason)
            if record.dead_letter is None:
                self.executions.append(json.loads(record.execution))
                statuses.append("started")
            else:
                self.dead_letters.append(record.dead_letter.record()["context"])
                statuses.append("told")  # vocabulary: a status of the API
        return WriteResult(statuses, offsets.end)

    def close(self) -> None:
        self.is_closed = True


def run_task(writer: RecordWriter, *ranges: tuple[str, LogRange, list[OffsetDelivery]], **spec: Any) -> ExecutionReport:
    task = SubscriptionTask(subscription(PATH, **spec), subscription_ref(PATH, 7), lambda: writer, AT_ONCE)
    batches = [rows_of(messages, part, extent) for part, extent, messages in ranges]
    return sum_reports([row for batch in task(iter(batches)) for row in batch.column("report").to_pylist()])


def test_rows_become_requests_in_order_and_the_offsets_between_them_are_covered() -> None:
    writer = FakeWriter()
    messages = [message_at(offset) for offset in (3, 4, 7, 9, 12)]
    done = run_task(writer, ("p:0", LogRange(2, 20), messages), runtime={"batch": 2})
    assert writer.calls == [("p:0", 2, 7, [3, 4]), ("p:0", 7, 12, [7, 9]), ("p:0", 12, 20, [12])]
    assert [each["message_id"] for each in writer.executions] == ["3", "4", "7", "9", "12"]
    assert (done.received, done.started, done.requests, done.stuck) == (5, 5, 3, "")
    assert writer.is_closed


def test_ranges_of_several_partitions_in_one_task_are_written_separately() -> None:
    writer = FakeWriter()
    one, other = [message_at(0), message_at(1)], [message_at(5)]
    run_task(writer, ("p:0", LogRange(0, 3), one), ("p:1", LogRange(4, 8), other))
    assert writer.calls == [("p:0", 0, 3, [0, 1]), ("p:1", 4, 8, [5])]


def test_a_message_is_planned_as_a_live_one_is() -> None:
    writer = FakeWriter()
    rules = [
        {"header": "X-Route", "controls": "dispatch.playbook", "allowed": ["domain/special"]},
        {"header": "X-Key", "controls": "idempotency_key"},
    ]
    message = message_at(1, b'{"a": 1}', X_Route="domain/special", x_key="k", other="data")
    refused = message_at(2, b"text", X_Route="domain/evil")
    done = run_task(
        writer,
        ("p", LogRange(0, 3), [message, refused]),
        headers={"directives": rules},
        dedup={"enabled": True, "window_secs": 60},
    )
    routed, default = writer.executions
    assert (routed["path"], default["path"]) == ("domain/special", "domain/ingest_order")
    assert routed["dedup"] == {"key": "k", "window_secs": 60}
    assert (routed["subscription"], routed["parent_execution_id"]) == (PATH, 7)
    assert routed["payload"]["a"] == 1
    assert routed["payload"]["message"]["headers"] == {"x-route": "domain/special", "x-key": "k", "other": "data"}
    assert default["payload"]["body"] == "text"
    assert [event["subject"] for event in routed["events"]] == ["/tape/subscription/message.directives_applied/orders"]
    assert done.applied == {"dispatch.playbook": 1, "idempotency_key": 1}


def test_a_rejected_record_is_retried_then_dead_lettered_and_the_others_are_written_in_order() -> None:
    writer = FakeWriter(
        lambda record: "no such playbook" if record.offset in (1, 2) and record.dead_letter is None else ""
    )
    done = run_task(writer, ("p", LogRange(0, 4), [message_at(offset, b'"body"') for offset in range(4)]))
    assert [each["message_id"] for each in writer.executions] == ["0", "3"]
    first, second = writer.dead_letters
    assert (first["message_id"], first["attempts"], first["reason"]) == ("1", 3, "refused: no such playbook")
    assert first["message"]["data"] == "body"
    assert (second["message_id"], second["attempts"]) == ("2", 1)  # retries are per task, not per record
    assert (done.started, done.dead, done.refusals) == (2, 2, 4)


def test_a_dead_letter_that_is_too_large_is_written_without_its_body() -> None:
    def refuses(record: PendingRecord) -> str:
        shown = record.dead_letter.context["message"]["data"] if record.dead_letter else record.execution
        return "too large" if shown is not None else ""

    writer = FakeWriter(refuses)
    done = run_task(writer, ("p", LogRange(0, 1), [message_at(0, b'"long"')]))
    assert (done.dead, writer.dead_letters[0]["message"]["data"], writer.dead_letters[0]["message"]["bytes"]) == (
        1,
        None,
        6,
    )
    rejecting = FakeWriter(lambda record: "never")
    assert "cannot be dead-lettered: never" in run_task(rejecting, ("p", LogRange(0, 1), [message_at(0)])).stuck


def test_a_task_that_cannot_write_reports_the_error_and_stops() -> None:
    class UnavailableWriter(FakeWriter):
        def write(self, offsets: OffsetRange, records: Sequence[PendingRecord]) -> WriteResult:
            if self.calls:
                raise ServerUnreachable("connection refused")
            return super().write(offsets, records)

    unavailable = UnavailableWriter()
    done = run_task(unavailable, ("p", LogRange(0, 9), [message_at(0), message_at(1)]), runtime={"batch": 1})
    assert (done.started, done.stuck) == (1, "ServerUnreachable: connection refused")
    assert unavailable.is_closed


def register_playbook(store_url: str, path: str) -> None:
    workflow = "workflow:\n  - {step: a, tool: {kind: value, value: 1}}\n"
    content = f"kind: Playbook\nmetadata: {{path: {path}}}\n{workflow}"
    transact(store_url, lambda tx: catalog.register(tx, Document(content)))


def test_the_store_writer_writes_records_once(store_url: str) -> None:
    register_playbook(store_url, "domain/ingest_order")
    rows = ("p:0", LogRange(0, 5), [message_at(offset) for offset in range(5)])
    first = run_task(StoreRecordWriter(store_url), rows, runtime={"batch": 2})
    again = run_task(StoreRecordWriter(store_url), rows, runtime={"batch": 3})
    assert (first.started, again.started, again.known) == (5, 0, 5)


def test_a_missing_playbook_holds_the_records_until_it_is_registered(store_url: str) -> None:
    register_playbook(store_url, "domain/ingest_order")
    rules = [{"header": "x", "controls": "dispatch.playbook", "allowed": ["domain/later"]}]
    rows = ("p:0", LogRange(0, 2), [message_at(0, x="domain/later"), message_at(1)])
    held = run_task(StoreRecordWriter(store_url), rows, headers={"directives": rules})
    assert (held.started, held.dead, held.is_held) == (0, 0, True)
    assert query_store_once(store_url, lambda reader: executed_ranges(reader, PATH)) == {}
    register_playbook(store_url, "domain/later")
    done = run_task(StoreRecordWriter(store_url), rows, headers={"directives": rules})
    assert (done.started, done.dead, done.is_held) == (2, 0, False)
    assert query_store_once(store_url, lambda reader: executed_ranges(reader, PATH)) == {"p:0": [(0, 2)]}


def test_a_micro_batch_gives_each_partition_its_share() -> None:
    start, ends = {"a": 0, "b": 10}, {"a": 100, "b": 20, "c": 10}
    assert next_offsets(start, ends, None) == ends
    assert next_offsets(start, ends, 120) == ends
    some = next_offsets(start, ends, 12)
    assert sum(some.values()) - sum(start.values()) == 12
    assert next_offsets(start, ends, 1) == {"a": 1, "b": 10, "c": 0}
    while some != ends:
        some, before = next_offsets(some, ends, 7), some
        assert all(before.get(part, 0) <= at <= ends[part] for part, at in some.items())


def test_a_partition_is_split_only_if_there_are_fewer_partitions_than_tasks() -> None:
    there = {"a": LogRange(0, 4_000), "b": LogRange(5, 6)}
    assert split_ranges(there, 1) == [("a", LogRange(0, 4_000)), ("b", LogRange(5, 6))]
    cut = split_ranges(there, 4)
    assert [extent for part, extent in cut if part == "a"] == [LogRange(n * 1_000, n * 1_000 + 1_000) for n in range(4)]
    assert split_ranges({"a": LogRange(0, 700)}, 4) == [("a", LogRange(0, 700))]
    assert split_ranges({}, 4) == []


def test_a_source_without_a_known_partition_or_with_a_shorter_one_was_replaced() -> None:
    check_same_source({"a": 5}, {"a": 5, "b": 1})
    with pytest.raises(SourceReplaced, match="a was read up to 5, but ends at 4"):
        check_same_source({"a": 5}, {"a": 4})
    with pytest.raises(SourceReplaced, match="a was read up to 5 and no longer exists; the source has b"):
        check_same_source({"a": 5}, {"b": 9})


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
def test_options_of_tape_messages_are_validated(given: dict[str, str], said: str) -> None:
    with pytest.raises(PipelineInput, match=said):
        message_options(given)


def test_a_tape_error_is_found_in_a_spark_traceback() -> None:
    text = "Traceback:\n  File x\ntape.errors.SourceUnavailable: Kafka is unavailable.\n\nSome more of Spark"
    found = find_tape_error(RuntimeError(text))
    assert (type(found), str(found)) == (SourceUnavailable, "Kafka is unavailable.")
    assert find_tape_error(RuntimeError("tape.errors.Nonsense: x\n")) is None
    lost = MessagesLost("gone")
    assert find_tape_error(lost) is lost
    assert find_tape_error(TapeError("x")) is not None


def test_a_rate_limit_delays_micro_batches_and_emits_one_event() -> None:
    now, waits, emitted = [0.0], list[float](), list[str]()

    def wait(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    control = SimpleNamespace(
        state="ACTIVE",
        ref=subscription_ref(PATH, 7),
        path=PATH,
        emit=lambda events: emitted.extend(e.event_type for e in events),
    )
    context = SimpleNamespace(is_stopping=False, wait=wait, report_count=lambda *_: None)
    circuits = SimpleNamespace(open=())
    spec = subscription(PATH, limits={"max_dispatch_per_sec": 10, "max_in_flight": 100})
    stream: Any = SubscriptionStream(None, spec, control, circuits, None, context, StreamOptions("x"), Metrics())  # type: ignore[arg-type]
    stream._limiter = FlowLimiter(100, 10, clock=lambda: now[0])
    for _ in range(4):
        stream._wait_until_allowed()
        stream._count(ExecutionReport(received=10, started=10))
    assert now[0] == pytest.approx(3.0, abs=0.3)  # 40 messages at 10/s: the first 10 at once
    assert emitted == ["subscription.rate_limited"]
    context.is_stopping = True
    with pytest.raises(JobStopped):
        stream._wait_until_allowed()
