"""The bytes of entries: on gRPC those of the protobuf library, in groups as one by one; on HTTP those of the docs."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tape.engine.fanout.subscription import Batch
from tape.model.entry import Entry
from tape.proto import tape_pb2 as pb
from tape.server.grpc import frames
from tape.server.grpc.frames import Frames, encode_batches, encode_event
from tape.server.http.frames import SseFormat, event_json

HEAD = 100_000

numbers = st.integers(0, (1 << 63) - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
optional = st.just("") | texts
entries = st.builds(
    Entry,
    numbers,
    texts,
    numbers,
    texts,
    texts,
    texts,
    st.integers(0, 32_767),
    optional,
    optional,
    optional,
    numbers,
    optional,
    optional,
    optional,
    st.binary(max_size=32),
)


def to_event(entry: Entry) -> pb.EventEntry:
    return pb.EventEntry(**msgspec.structs.asdict(entry))


@given(entries)
def test_an_entry_is_encoded_as_the_library_does(entry: Entry) -> None:
    assert encode_event(entry) == to_event(entry).SerializeToString()


@given(st.lists(entries, max_size=5, unique_by=lambda entry: entry.global_seq), st.integers(1, 9), st.integers(1, HEAD))
def test_a_batch_is_encoded_as_the_library_does(found: list[Entry], max_entries: int, position: int) -> None:
    batch = Batch(found, position)
    messages = encode_batches(batch, max_entries, HEAD)
    assert messages == list(Frames().batches(batch, max_entries, HEAD))
    decoded = [pb.EntryBatch.FromString(message) for message in messages]
    assert [event for one in decoded for event in one.entries] == list(map(to_event, found))
    assert messages[-1] == decoded[-1].SerializeToString()
    assert (decoded[-1].position, decoded[-1].head) == (position, HEAD)
    assert all(len(one.entries) <= max_entries for one in decoded)


@pytest.mark.parametrize("size", [10, 3_000, 70_000, 600_000])
def test_a_message_has_a_mebibyte_at_most_whatever_the_entries_are(size: int) -> None:
    payload = '"' + "é" * (size // 2) + '"'
    found = [
        Entry(n, "r", n, "order", "/tape/order/a", payload, 1, "", "", "", 1, "", "", "", b"") for n in range(1, 301)
    ]
    messages = encode_batches(Batch(found, 300), 1_024, HEAD)
    assert max(map(len, messages)) <= frames.MAX_MESSAGE_BYTES
    assert len(messages) <= max(2 * 300 * size // frames.MAX_MESSAGE_BYTES, 1)
    decoded = [pb.EntryBatch.FromString(message) for message in messages]
    assert [event.global_seq for one in decoded for event in one.entries] == list(range(1, 301))
    assert [one.position for one in decoded] == [one.entries[-1].global_seq for one in decoded]


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("a", "<b>", "\u2028")), inner),
    max_leaves=5,
)


@given(values, st.sampled_from((None, 1)), st.booleans(), texts, st.sampled_from(("", "a" * 32)))
def test_a_frame_has_four_lines_and_its_data_is_the_entry(
    payload: Any, indent: int | None, ascii_only: bool, name: str, trace_id: str
) -> None:
    text = json.dumps(payload, indent=indent, ensure_ascii=ascii_only)
    span_id = trace_id[:16]
    entry = Entry(
        7, "r", 1, "order", "/tape/order/paid/a%3Cb", text, 2, trace_id, span_id, "", 1_001, name, "ann", "s", b""
    )
    event, number, data, *end = SseFormat().entry(entry).decode().split("\n")
    assert (event, number, end) == ("event: order.paid", "id: 7", ["", ""])
    found = json.loads(data.removeprefix("data: "))
    extra = {"schema_version": "2", "span_id": span_id, "subject": "/tape/order/paid/a%3Cb", "trace_id": trace_id}
    expected = {
        "type": "order.paid",
        "sequence": 7,
        "occurred_at": "1970-01-01T00:00:01.001000000Z",
        "tenant": name,
        "user": "ann",
        "session": "s",
        "run": "r",
        "payload": payload if isinstance(payload, dict) else {"value": payload},
        "extra": {key: value for key, value in extra.items() if value},
    }
    assert found == expected
    assert list(found) == list(expected)
    assert not set(data) & set("<>&\r\u2028\u2029")
    assert data == f"data: {event_json(entry)}"
