"""Publishes to Google Cloud Pub/Sub."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from typing import Any

from tape.brokers.publisher import Publisher
from tape.errors import MissingExtra, PublishFailed, PublishRejected
from tape.model.message import EVENT_ID, Message

# The client sends a batch after this time.
BATCH_LATENCY_S = 0.002
# Pub/Sub rejects larger attributes.
MAX_ATTRIBUTE_BYTES = 1_024
# google.api_core.exceptions and pubsub_v1.publisher.exceptions: errors that a retry cannot mend.
_PERMANENT = frozenset(
    {
        "BadRequest",
        "NotFound",
        "Forbidden",
        "Unauthorized",
        "InvalidArgument",
        "PermissionDenied",
        "Unauthenticated",
        "MessageTooLargeError",
    }
)


class PubSubPublisher(Publisher):
    """Publishes with the run as the ordering key; a subscription needs message ordering to see a run in order.

    Topics are `projects/<project>/topics/<topic>`. An attribute of more than 1,024 bytes is left out, except the event
    id. `PUBSUB_EMULATOR_HOST` is honoured. `client` may be a PublisherClient with message ordering.
    """

    def __init__(self, *, timeout_s: float = 30.0, client: Any = None) -> None:
        import_pubsub()
        self._client = client
        self._timeout_s = timeout_s
        self._connecting = asyncio.Lock()

    async def connect(self) -> None:
        # The lock is fair: messages that wait for the connection keep their order.
        async with self._connecting:
            if self._client is None:
                # Looking for credentials may use the network: not on the event loop.
                self._client = await asyncio.to_thread(new_client)

    async def publish(self, topic: str, message: Message) -> None:
        await self.connect()
        attributes = {
            name: value
            for name, value in message.headers.items()
            if name == EVENT_ID or len(value.encode()) <= MAX_ATTRIBUTE_BYTES
        }
        try:
            stored = self._client.publish(topic, message.body, ordering_key=message.run_id, **attributes)
            await asyncio.wait_for(asyncio.wrap_future(stored), self._timeout_s)
        except Exception as error:
            with contextlib.suppress(RuntimeError):  # the client pauses a key after some errors, not after all
                self._client.resume_publish(topic, message.run_id)
            raise _translate(error, topic) from error

    async def close(self) -> None:
        if self._client is not None:
            await asyncio.to_thread(self._client.stop)


def import_pubsub() -> Any:
    """The module `google.cloud.pubsub_v1`. Raises MissingExtra if it is not installed."""
    try:
        importlib.import_module("google.cloud")
        return importlib.import_module("google.cloud.pubsub_v1")
    except ImportError as error:
        raise MissingExtra("publishing to Pub/Sub", "pubsub") from error


def new_client() -> Any:
    """A PublisherClient that keeps the order of an ordering key."""
    pubsub = import_pubsub()
    return pubsub.PublisherClient(
        batch_settings=pubsub.types.BatchSettings(max_latency=BATCH_LATENCY_S),
        publisher_options=pubsub.types.PublisherOptions(enable_message_ordering=True),
    )


def topic_path(project: str, topic: str) -> str:
    """The full name of a topic."""
    return f"projects/{project}/topics/{topic}"


def _translate(error: Exception, topic: str) -> PublishFailed | PublishRejected:
    text = f"Pub/Sub {topic}: {type(error).__name__}: {error}"
    names = {each.__name__ for each in type(error).__mro__}
    return PublishRejected(text) if names & _PERMANENT else PublishFailed(text)
