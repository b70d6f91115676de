"""Entries as bytes on the wire: a new one is encoded once and shared by all subscribers, old ones in groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tape.engine.fanout.subscription import Batch
from tape.model.entry import Entry
from tape.model.gap import JournalGap
from tape.proto import tape_pb2 as pb

# Entries this close to the head stay encoded in memory: other subscribers are about to receive them.
KEPT = 8_192
MAX_MESSAGE_BYTES = 1 << 20
# Entries that are encoded together, and the characters of their payloads, which have a mebibyte at most.
GROUP_ENTRIES = 128
GROUP_CHARACTERS = MAX_MESSAGE_BYTES // 4

# Field tags of EntryBatch: number and wire type.
_ENTRIES = b"\x0a"
_POSITION = b"\x10"
_HEAD = b"\x18"

MAX_DETAIL = 200


def encode_event(entry: Entry) -> bytes:
    """An entry as an EventEntry."""
    return _add_event(pb.EntryBatch().entries.add, entry).SerializeToString()


def _add_event(add: Callable[..., pb.EventEntry], entry: Entry) -> pb.EventEntry:
    event = add(
        run_id=entry.run_id,
        seq=entry.seq,
        kind=entry.kind,
        payload_json=entry.payload_json,
        ts_ms=entry.ts_ms,
        global_seq=entry.global_seq,
        subject=entry.subject,
        schema_version=entry.schema_version,
        chain=entry.chain,
    )
    # To set an empty field takes as long as to set another one.
    if entry.trace_id or entry.span_id or entry.parent_span_id:
        event.trace_id, event.span_id, event.parent_span_id = entry.trace_id, entry.span_id, entry.parent_span_id
    if entry.tenant or entry.user or entry.session:
        event.tenant, event.user, event.session = entry.tenant, entry.user, entry.session
    return event


def encode_journal_entry(entry: Entry) -> bytes:
    """An entry as a JournalEntry, the form that SubscribeRun sends."""
    return pb.JournalEntry(
        seq=entry.seq,
        kind=entry.kind,
        payload_json=entry.payload_json,
        ts_ms=entry.ts_ms,
        global_seq=entry.global_seq,
        subject=entry.subject,
        schema_version=entry.schema_version,
        trace_id=entry.trace_id,
        span_id=entry.span_id,
        parent_span_id=entry.parent_span_id,
    ).SerializeToString()


class Frames:
    """A cache of the newest entries, encoded; older ones are encoded on request."""

    def __init__(self) -> None:
        self._kept: dict[int, bytes] = {}

    def event(self, entry: Entry, head: int) -> bytes:
        """The EventEntry of an entry."""
        if entry.global_seq <= head - KEPT:
            return encode_event(entry)
        frame = self._kept.get(entry.global_seq)
        if frame is None:
            frame = self._kept[entry.global_seq] = encode_event(entry)
            if len(self._kept) > 2 * KEPT:
                self._kept = {seq: kept for seq, kept in self._kept.items() if seq > head - KEPT}
        return frame

    def batches(self, batch: Batch, max_entries: int, head: int) -> Iterator[bytes]:
        """EntryBatch messages of a batch near the head, like those of `encode_batches`."""

        def encode(entries: Sequence[Entry]) -> Iterator[_Encoded]:
            for entry in entries:
                frame = self.event(entry, head)
                yield b"".join((_ENTRIES, varint(len(frame)), frame)), entry.global_seq

        return _join(batch, max_entries, head, encode)


def encode_batches(batch: Batch, max_entries: int, head: int) -> list[bytes]:
    """EntryBatch messages of `max_entries` and about a mebibyte at most; each carries the cursor to resume from.

    A gap is in the first message whose cursor is behind it: a client that resumes misses no gap.
    """
    return list(_join(batch, max_entries, head, _encode_groups))


# One or more entries as a part of an EntryBatch, and the number of the last one.
_Encoded = tuple[bytes, int]


def _encode_groups(entries: Sequence[Entry]) -> Iterator[_Encoded]:
    for start in range(0, len(entries), GROUP_ENTRIES):
        group = entries[start : start + GROUP_ENTRIES]
        if sum(len(entry.payload_json) for entry in group) <= GROUP_CHARACTERS:
            yield _encode_group(group), group[-1].global_seq
        else:
            for entry in group:
                yield _encode_group((entry,)), entry.global_seq


def _encode_group(entries: Sequence[Entry]) -> bytes:
    batch = pb.EntryBatch()
    add = batch.entries.add
    for entry in entries:
        _add_event(add, entry)
    return batch.SerializeToString()


def _join(
    batch: Batch, max_entries: int, head: int, encode: Callable[[Sequence[Entry]], Iterator[_Encoded]]
) -> Iterator[bytes]:
    for part in batch.split(max_entries):
        gaps: Sequence[JournalGap] = part.gaps
        fields: list[bytes] = []
        size = until = 0
        for field, last in encode(part.entries):
            if fields and size + len(field) > MAX_MESSAGE_BYTES:
                passed = [gap for gap in gaps if gap.last <= until] if gaps else ()
                gaps = gaps[len(passed) :]
                yield _message(fields, until, head, passed)
                fields, size = [], 0
            fields.append(field)
            size += len(field)
            until = last
        yield _message(fields, part.position, head, gaps)


def to_gap(gap: JournalGap) -> pb.JournalGap:
    """A gap as a message."""
    return pb.JournalGap(first=gap.first, last=gap.last, reason=gap.reason, detail=gap.detail[:MAX_DETAIL])


def varint(number: int) -> bytes:
    """A non-negative number in protobuf's variable-length form."""
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _message(fields: Sequence[bytes], position: int, head: int, gaps: Sequence[JournalGap]) -> bytes:
    batch = b"".join((*fields, _POSITION, varint(position), _HEAD, varint(head)))
    # A message may be written in parts: its fields are merged.
    return batch + pb.EntryBatch(gaps=map(to_gap, gaps)).SerializeToString() if gaps else batch
