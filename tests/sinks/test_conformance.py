"""What every sink does: the same body and id everywhere, each run in its order, nothing left behind."""

from __future__ import annotations

from tape.sinks import BatchSink, Sink
from tape.sinks.batch_publisher import BatchPublisher
from tape.sinks.dead_letters import DeadLetterPolicy
from tape.sinks.metrics import RelayMetrics
from tests.sinks.conftest import SPAN_ID, TRACE_ID, Target, entry


def test_it_is_a_sink(target: Target) -> None:
    assert isinstance(target.sink, Sink)


def test_an_entry_arrives_with_its_id_and_the_fields_of_the_body(target: Target) -> None:
    target.sink.publish(entry(42, "r-1234", '{"amount": "5 €"}'))
    getattr(target.sink, "flush", lambda: None)()
    (got,) = target.received(1)
    assert got.event_id == "r-1234/42"
    assert got.body == {
        "run_id": "r-1234",
        "seq": 42,
        "kind": "effect",
        "payload_json": '{"amount": "5 €"}',
        "ts_ms": 1_714_900_800_042,
        "global_seq": 42,
        "subject": "/tape/effect/confirmed/pay.card/r-1234",
        "type": "effect.confirmed",
        "schema_version": 2,
        "trace_id": TRACE_ID,
        "span_id": SPAN_ID,
    }
    # The log shows the position and the subject of an entry first.
    names = [name for name in got.body if name not in ("global_seq", "subject")]
    assert names[:5] == ["run_id", "seq", "kind", "payload_json", "ts_ms"]
    assert got.headers.get("kind", "effect") == "effect"


def test_each_run_arrives_in_its_order_whole(target: Target) -> None:
    entries = [entry(number, f"run-{number % 3}") for number in range(1, 61)]
    dead_letters = DeadLetterPolicy("block", "", "", "")
    error, left = BatchPublisher(target.sink, dead_letters, RelayMetrics()).publish(entries)
    assert (error, left) == (None, [])
    got = target.received(60)
    for run in range(3):
        seqs = [each.body["seq"] for each in got if each.body["run_id"] == f"run-{run}"]
        assert seqs == [number for number in range(1, 61) if number % 3 == run]


def test_one_after_the_other_they_arrive_as_well(target: Target) -> None:
    for number in range(1, 6):
        target.sink.publish(entry(number))
    getattr(target.sink, "flush", lambda: None)()
    assert [each.event_id for each in target.received(5)] == [f"r-1/{number}" for number in range(1, 6)]


def test_ids_that_no_header_can_carry_arrive_encoded(target: Target) -> None:
    target.sink.publish(entry(1, "käse\r\n100%"))
    getattr(target.sink, "flush", lambda: None)()
    (got,) = target.received(1)
    assert got.body["run_id"] == "käse\r\n100%"
    if got.headers:
        assert got.event_id == "k%C3%A4se%0D%0A100%25/1"


def test_batches_say_what_became_of_each(target: Target) -> None:
    if isinstance(target.sink, BatchSink):
        assert target.sink.publish_batch([entry(1), entry(2)]) == [None, None]
        assert target.sink.publish_batch([]) == []
