"""What a sink is, and what is published: the same body everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable
from urllib.parse import quote

import msgspec

# Everything printable except % stays, so that ordinary ids look as they are and no other id can look the same.
_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")


@runtime_checkable
class Sink(Protocol):
    """Takes entries of the journal somewhere.

    `publish` returns when the target has the entry. If it raises SinkRejected, the target will never take it; any
    other error is worth another try. What a sink buffers it hands over in `flush()`, which the relay calls before it
    moves its cursor.
    """

    def publish(self, entry: Any) -> None:
        """Hand one entry over."""

    def close(self) -> None:
        """Let go of connections."""


@runtime_checkable
class BatchSink(Sink, Protocol):
    """A sink that takes many entries at once."""

    def publish_batch(self, entries: Sequence[Any]) -> list[Exception | None]:
        """Hand entries over; for each what went wrong, or None.

        Entries of one run arrive in order: after one has failed, those behind it in its run are held back.
        """


class Body(msgspec.Struct):
    """What a receiver gets."""

    run_id: str
    seq: int
    kind: str
    payload_json: str
    ts_ms: int


_encode = msgspec.json.Encoder().encode


def body_of(entry: Any) -> bytes:
    """The body of an entry: run_id, seq, kind, payload_json and ts_ms as JSON."""
    return _encode(Body(entry.run_id, entry.seq, entry.kind, entry.payload_json, entry.ts_ms))


def event_id_of(entry: Any) -> str:
    """`<run_id>/<seq>`: what a receiver deduplicates on. What a header cannot carry is percent-encoded."""
    return f"{quote(entry.run_id, safe=_SAFE)}/{entry.seq}"
