"""The port of a log: how far it reaches, and what stands between two offsets of a part of it.

Nothing is acknowledged: whoever reads remembers how far. So a log can be read in pieces, in parallel, and again.
"""

from __future__ import annotations

import abc
import importlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tape.brokers.settings import Settings
from tape.brokers.source import Delivery
from tape.errors import MessagesLost, SourceMisconfigured, SourceReplaced

log = logging.getLogger(__name__)

_KNOWN = {
    "kafka": "tape.brokers.kafka.log:KafkaLog",
    "nats": "tape.brokers.nats.log:NatsLog",
}
LOGS = tuple(_KNOWN)


class Extent(NamedTuple):
    """What is there of a part: offsets from `begin` on, up to and without `end`."""

    begin: int
    end: int


class Placed(NamedTuple):
    """A message and its offset."""

    offset: int
    delivery: Delivery


class Log(abc.ABC):
    """A source that is read by offset. What fails raises as `Source` does, and MessagesLost for what is gone."""

    @abc.abstractmethod
    def extents(self) -> dict[str, Extent]:
        """Every part by its name, and what is there of it now."""

    @abc.abstractmethod
    def standing(self) -> dict[str, int]:
        """The offset that each part was read up to before us, where the source knows of one."""

    @abc.abstractmethod
    def read(self, part: str, begin: int, end: int, *, fail_on_loss: bool = True) -> Iterator[list[Placed]]:
        """The messages of a stretch in the order of their offsets, some at a time. There may be none at an offset.

        Without `fail_on_loss`, what was removed meanwhile is logged and passed over.
        """

    def commit(self, positions: Mapping[str, int]) -> None:
        """Let others see how far each part is done, where the source can show it."""
        return

    @abc.abstractmethod
    def close(self) -> None:
        """Disconnect."""


def open_log(name: str, spec: Mapping[str, Any], credential: Mapping[str, Any] | str | None = None) -> Log:
    """A log, not connected yet: its settings are the keys of the spec, and behind them the credential's."""
    place = _KNOWN.get(name)
    if place is None:
        raise SourceMisconfigured(
            f"subscription[{name}] has no offsets that can be read again. Those that have are {', '.join(LOGS)}."
        )
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)(Settings(name, spec, credential))  # type: ignore[no-any-return]


def there_from(part: str, begin: int, end: int, there: Extent, where: str, *, fail_on_loss: bool = True) -> int:
    """Where a stretch can be read from: its beginning. Raises SourceReplaced if the part ends before that.

    If the beginning was removed, raises MessagesLost, or logs it and gives what is left.
    """
    if begin > there.end:
        raise SourceReplaced(
            f"{where}: {part} was read up to {begin}, but ends at {there.end}. It was made anew, or cut off. Register"
            " the subscription under another path to read it from its beginning."
        )
    if begin >= there.begin or begin >= end:
        return begin
    told = f"{where}: offsets {begin} to {min(there.begin, end) - 1} of {part} were removed before they were read"
    if fail_on_loss:
        raise MessagesLost(
            f"{told}; it begins at {there.begin} now. Keep messages longer than a stop can last. To go on with what is"
            " left, say --skip-lost (failOnDataLoss: false)."
        )
    log.warning("%s", told)
    return min(there.begin, end)
