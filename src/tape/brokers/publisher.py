"""The port of a publisher: a connection to one broker that sends messages."""

from __future__ import annotations

import abc
import asyncio

from tape.model.message import Message


class Publisher(abc.ABC):
    """Publishes messages. Used by one event loop; it connects when it is first used.

    Every failure is one of two errors: PublishFailed when a retry may succeed, PublishRejected when it never will.
    """

    # Whether the broker keeps the order of a run while several of its messages are in flight.
    keeps_order = True

    async def connect(self) -> None:
        """Connect unless connected."""
        return

    @abc.abstractmethod
    async def publish(self, topic: str, message: Message) -> None:
        """Return when the broker has stored the message. Messages are sent in the order of the calls."""

    def start(self, topic: str, message: Message) -> asyncio.Future[None]:
        """Begin to publish; the future is done when `publish` would return."""
        return asyncio.ensure_future(self.publish(topic, message))

    async def flush(self) -> None:
        """Return when the broker has received every message whose `publish` has returned."""
        return

    @abc.abstractmethod
    async def close(self) -> None:
        """Wait for messages in flight, then disconnect."""
