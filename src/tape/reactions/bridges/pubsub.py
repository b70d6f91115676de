"""Google Cloud Pub/Sub: published with the run as the ordering key."""

from __future__ import annotations

import asyncio
from typing import Any

from tape.errors import MissingExtra, PublishFailed
from tape.reactions.bridges.broker import Broker
from tape.reactions.bridges.message import Message
from tape.reactions.bridges.target import Target

PUBLISH_S = 30.0


class PubSub(Broker):
    """One publisher for all projects and topics. `PUBSUB_EMULATOR_HOST` is honoured."""

    def __init__(self) -> None:
        try:
            from google.cloud import pubsub_v1
        except ImportError as error:
            raise MissingExtra("publishing to Pub/Sub", "pubsub") from error
        self._module = pubsub_v1
        self._publisher: Any = None
        # Everyone goes through here, one after the other: who waited for the connection is not overtaken.
        self._turn = asyncio.Lock()

    async def publish(self, target: Target, message: Message) -> None:
        """Publish; a key whose message failed is paused by the client, and resumed here for the retry."""
        publisher = await self._connect()
        topic = publisher.topic_path(target.broker, target.name)
        try:
            future = publisher.publish(topic, message.body, ordering_key=message.run_id, **message.headers)
            await asyncio.wait_for(asyncio.wrap_future(future), PUBLISH_S)
        except Exception as error:
            publisher.resume_publish(topic, message.run_id)
            raise PublishFailed(f"{target}: {type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Wait for what is on its way, then disconnect."""
        if self._publisher is not None:
            await asyncio.to_thread(self._publisher.stop)

    async def _connect(self) -> Any:
        async with self._turn:
            if self._publisher is None:
                # Finding credentials may ask the network: not on the loop.
                self._publisher = await asyncio.to_thread(self._make)
            return self._publisher

    def _make(self) -> Any:
        types = self._module.types
        return self._module.PublisherClient(
            batch_settings=types.BatchSettings(max_latency=0.002),
            publisher_options=types.PublisherOptions(enable_message_ordering=True),
        )
