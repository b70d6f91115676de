"""The port of a pull source: fetch messages, and settle each one when its run is stored."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

LAST_DELIVERIES = 1
EXPIRY_MS = 60_000


class RedeliveryLimits(NamedTuple):
    """How long a source redelivers a message that is not acknowledged. None: no limit, or not known.

    `deliveries_left` is the number of redeliveries after this one, `expires_at_ms` when the source drops the message.
    """

    deliveries_left: int | None = None
    expires_at_ms: int | None = None

    def is_ending(self, now_ms: int) -> bool:
        """Whether the source will soon stop: at most one redelivery is left, or the message expires within a minute."""
        if self.deliveries_left is not None and self.deliveries_left <= LAST_DELIVERIES:
            return True
        return self.expires_at_ms is not None and self.expires_at_ms - now_ms <= EXPIRY_MS


UNLIMITED_REDELIVERY = RedeliveryLimits()


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivered message. Until its receipt is settled, its source keeps it and will redeliver it.

    `headers` are the pairs of the source: a name may be repeated. `deliveries` counts this one: 1 is the first.
    """

    message_id: str
    body: bytes | None
    receipt: str
    headers: Sequence[tuple[str, str]] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    ordering_key: str = ""
    deliveries: int = 1
    redelivery: RedeliveryLimits = UNLIMITED_REDELIVERY


class Source(abc.ABC):
    """A connection to a broker. Its methods are called by one task at a time.

    Every failure raises one of three errors: SourceUnavailable when a retry may succeed (the caller waits, calls `open`
    and continues), SourceMissing when the stream, topic or subscription does not exist, SourceMisconfigured when a
    setting is invalid.
    """

    # Whether a receipt can be settled by another process than the one that fetched it.
    settles_elsewhere = True  # vocabulary: public attribute of sources
    # Whether a settled message can still be found at the source, by its id.
    keeps_settled = False
    # Seconds between two calls of `renew` while a message is processed; None if the source needs none.
    renew_every_s: float | None = None

    @abc.abstractmethod
    async def open(self) -> None:
        """Connect and check that the stream, topic or subscription exists. Called again after a failure."""

    @abc.abstractmethod
    async def poll(self, limit: int, wait_s: float) -> list[Delivery]:
        """Up to `limit` messages as soon as there is one; none after `wait_s` seconds without any."""

    @abc.abstractmethod
    async def ack(self, receipts: Sequence[str]) -> None:
        """Acknowledge messages, which are not redelivered. Returns when the source has recorded it."""

    @abc.abstractmethod
    async def nack(self, receipts: Sequence[str], delay_s: float = 0.0) -> None:
        """Redeliver messages, after `delay_s` seconds if the source supports delays."""

    async def renew(self, receipts: Sequence[str]) -> None:
        """Start the redelivery time of messages anew: they are still being processed."""
        return

    def will_redeliver(self, receipt: str) -> bool:
        """Whether the source redelivers a message on its own, because it redelivers an earlier one.

        A source that keeps an order seeks back to the message that was not acknowledged; the later ones that it has
        delivered meanwhile must not overtake it.
        """
        return False

    async def term(self, receipts: Sequence[str]) -> None:
        """Never redeliver messages, although they were not processed."""
        await self.ack(receipts)

    async def release(self) -> None:
        """Return prefetched messages to the source; called before a pause and before the end."""
        return

    async def lag(self) -> int | None:
        """The number of messages after the last one delivered, where the source reports it."""
        return None

    @abc.abstractmethod
    async def close(self) -> None:
        """Disconnect. Messages that were not settled are redelivered."""
