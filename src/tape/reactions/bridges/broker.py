"""What a bridge needs of a broker."""

from __future__ import annotations

import abc

from tape.reactions.bridges.message import Message
from tape.reactions.bridges.target import Target


class Broker(abc.ABC):
    """A connection that publishes. Messages of one run that are begun in order arrive in order."""

    @abc.abstractmethod
    async def publish(self, target: Target, message: Message) -> None:
        """Return when the broker has the message for good; raise PublishFailed if it does not take it."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Disconnect."""


def open_broker(target: Target) -> Broker:
    """A broker for targets like this one. Its client is an extra of the package, imported here."""
    if target.scheme == "nats":
        from tape.reactions.bridges.nats import Nats

        return Nats(target.broker)
    if target.scheme == "kafka":
        from tape.reactions.bridges.kafka import Kafka

        return Kafka(target.broker)
    from tape.reactions.bridges.pubsub import PubSub

    return PubSub()
