"""The bytes of entries on gRPC streams are those of the protobuf library, in groups as one by one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tape.engine.fanout.subscription import Batch
from tape.model.entry import Entry
from tape.proto import tape_pb2 as pb
from tape.server.grpc import frames
from tape.server.grpc.frames import Frames, encode_batches, encode_event

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
