"""The port of a log: the offsets of its partitions, and the messages between two offsets.

Nothing is acknowledged: the reader stores its offsets. So a log can be read in ranges, in parallel, and again.
"""

from __future__ import annotations

import abc
import importlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tape.brokers.settings import SourceSettings
from tape.brokers.source import Delivery
from tape.errors import MessagesLost, SourceMisconfigured, SourceReplaced

log = logging.getLogger(__name__)

_KNOWN = {
    "kafka": "tape.brokers.kafka.log:KafkaLog",
    "nats": "tape.brokers.nats.log:NatsLog",
}
LOGS = tuple(_KNOWN)


class LogRange(NamedTuple):
    """Offsets of a partition from `begin` up to and without `end`."""

    begin: int
    end: int


class OffsetDelivery(NamedTuple):
    """A message and its offset."""

    offset: int
    delivery: Delivery


class Log(abc.ABC):
    """A source that is read by offset. Errors are those of `Source`, and MessagesLost for removed messages."""

    @abc.abstractmethod
    def ranges(self) -> dict[str, LogRange]:
        """The available offsets of every partition, by its name."""

    @abc.abstractmethod
    def committed_offsets(self) -> dict[str, int]:
        """The offset that a consumer has committed for each partition, where the source has one."""

    @abc.abstractmethod
    def read(
        self, partition: str, begin: int, end: int, *, fail_on_loss: bool = True
    ) -> Iterator[list[OffsetDelivery]]:
        """The messages of a range in the order of their offsets, in batches. An offset may have no message.

        Without `fail_on_loss`, messages that were removed meanwhile are logged and skipped.
        """

    def commit(self, positions: Mapping[str, int]) -> None:
        """Show the processed offset of each partition at the source, where it can store one."""
        return

    @abc.abstractmethod
    def close(self) -> None:
        """Disconnect."""


def open_log(name: str, spec: Mapping[str, Any], credential: Mapping[str, Any] | str | None = None) -> Log:
    """A log, not connected yet. Its settings are the keys of the spec; the credential has defaults for them."""
    path = _KNOWN.get(name)
    if path is None:
        raise SourceMisconfigured(
            f"subscription[{name}] has no offsets that can be read again. Those that have are {', '.join(LOGS)}."
        )
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)(SourceSettings(name, spec, credential))  # type: ignore[no-any-return]


def first_offset(
    partition: str, begin: int, end: int, available: LogRange, where: str, *, fail_on_loss: bool = True
) -> int:
    """The first offset of a range that can be read. Raises SourceReplaced if the partition ends before the range.

    If the beginning was removed, raises MessagesLost, or logs the loss and returns the first offset that is left.
    """
    if begin > available.end:
        raise SourceReplaced(
            f"{where}: {partition} was read up to {begin}, but ends at {available.end}. It was recreated or truncated."
            " Register the subscription under another path to read it from its beginning."
        )
    if begin >= available.begin or begin >= end:
        return begin
    loss = (
        f"{where}: offsets {begin} to {min(available.begin, end) - 1} of {partition} were removed before they were read"
    )
    if fail_on_loss:
        raise MessagesLost(
            f"{loss}; it begins at {available.begin} now. Use a retention longer than an outage. To go on with what is"
            " left, use --skip-lost (failOnDataLoss: false)."
        )
    log.warning("%s", loss)
    return min(available.begin, end)
