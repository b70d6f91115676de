"""Entries as bytes on the wire: each is encoded once and shared by all subscribers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tape.model.entry import Entry
from tape.model.gap import JournalGap
from tape.proto import tape_pb2 as pb

# Entries this close to the head stay encoded in memory: other subscribers are about to receive them.
KEPT = 8_192
MAX_MESSAGE_BYTES = 1 << 20

# Field tags of EntryBatch: number and wire type.
_ENTRIES = b"\x0a"
_POSITION = b"\x10"
_HEAD = b"\x18"

MAX_DETAIL = 200


def encode_event(entry: Entry) -> bytes:
    """An entry as an EventEntry."""
    return pb.EventEntry(
        run_id=entry.run_id,
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
        tenant=entry.tenant,
        user=entry.user,
        session=entry.session,
        chain=entry.chain,
    ).SerializeToString()


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

    def batches(
        self, entries: Sequence[Entry], position: int, head: int, gaps: Sequence[JournalGap] = ()
    ) -> Iterator[bytes]:
        """EntryBatch messages of about a mebibyte at most; each carries the cursor to resume from.

        A gap is in the first message whose cursor is behind it: a client that resumes misses no gap.
        """
        parts: list[bytes] = []
        size = 0
        for index, entry in enumerate(entries):
            frame = self.event(entry, head)
            if parts and size + len(frame) > MAX_MESSAGE_BYTES:
                until = entries[index - 1].global_seq
                passed = [gap for gap in gaps if gap.last <= until] if gaps else ()
                gaps = gaps[len(passed) :]
                yield _batch(parts, until, head, passed)
                parts, size = [], 0
            parts += (_ENTRIES, varint(len(frame)), frame)
            size += len(frame)
        yield _batch(parts, position, head, gaps)


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


def _batch(parts: list[bytes], position: int, head: int, gaps: Sequence[JournalGap]) -> bytes:
    batch = b"".join((*parts, _POSITION, varint(position), _HEAD, varint(head)))
    # A message may be written in parts: its fields are merged.
    return batch + pb.EntryBatch(gaps=map(to_gap, gaps)).SerializeToString() if gaps else batch
