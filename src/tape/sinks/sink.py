"""The port of a sink."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Sink(Protocol):
    """Delivers entries of the journal to a target.

    `publish` returns when the target has stored the entry. SinkRejected means that the target will never accept it;
    the relay retries after any other error. A sink that buffers entries sends them in `flush()`, which the relay calls
    before it moves its cursor.
    """

    def publish(self, entry: Any) -> None:
        """Deliver one entry."""

    def close(self) -> None:
        """Disconnect."""


@runtime_checkable
class BatchSink(Sink, Protocol):
    """A sink that accepts many entries at once."""

    def publish_batch(self, entries: Sequence[Any]) -> list[Exception | None]:
        """Deliver entries; for each its error, or None.

        Entries of one run arrive in order: after one has failed, the later ones of its run are held back.
        """
