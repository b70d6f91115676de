"""The port of a pull source: fetch messages, and settle each one when its run is safe."""

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
    """A message in our hands. Until its receipt is settled, its source keeps it and will deliver it again.

    `headers` are pairs as the source has them: a name may come twice. `deliveries` counts this one: 1 is the first.
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

    Whatever fails raises one of three errors: SourceUnavailable when trying again may help (whoever calls waits, calls
    `open` and goes on), SourceMissing when the stream, topic or subscription is not there, SourceMisconfigured when
    a setting is wrong.
    """

    # Whether a receipt can be settled by another process than the one that fetched it.
    settles_elsewhere = True
    # Whether a message that was given up can still be found at the source, by its id.
    keeps_settled = False

    @abc.abstractmethod
    async def open(self) -> None:
        """Connect and check that what is to be read is there. Called again after a failure."""

    @abc.abstractmethod
    async def poll(self, limit: int, wait_s: float) -> list[Delivery]:
        """At most `limit` messages, as soon as there is one; none after `wait_s` seconds without any."""

    @abc.abstractmethod
    async def ack(self, receipts: Sequence[str]) -> None:
        """These are done: they are not delivered again. Returns when the source knows it."""

    @abc.abstractmethod
    async def nack(self, receipts: Sequence[str], delay_s: float = 0.0) -> None:
        """Deliver these again, after `delay_s` seconds if the source can wait."""

    def comes_again(self, receipt: str) -> bool:
        """Whether a message that was handed out is delivered again by itself, because an earlier one is.

        A source that keeps an order goes back to what was not taken, and what it gave meanwhile would overtake that.
        """
        return False

    async def term(self, receipts: Sequence[str]) -> None:
        """Never deliver these again, although nobody handled them."""
        await self.ack(receipts)

    async def release(self) -> None:
        """Give back what was fetched ahead and not handed out yet; called before a pause and before the end."""
        return

    async def lag(self) -> int | None:
        """How many messages wait behind the last one, where the source tells."""
        return None

    @abc.abstractmethod
    async def close(self) -> None:
        """Disconnect. What was not settled is delivered again."""
