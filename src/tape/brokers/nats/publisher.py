"""Publishes to NATS JetStream, or to core NATS."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from tape.brokers.nats.connection import addresses_of, connect, import_nats
from tape.brokers.publisher import Publisher
from tape.errors import PublishFailed, PublishRejected
from tape.model.message import Message

# nats.js.errors and nats.errors: errors that a retry cannot mend.
_PERMANENT = ("BadRequestError", "MaxPayloadError", "BadSubjectError")


class NatsPublisher(Publisher):
    """Publishes with `Nats-Msg-Id`, on which a stream drops duplicates, and returns when the stream has stored it.

    Without `jetstream`, a message goes to the subscribers of the moment, and `flush` returns when the server has it.
    JetStream does not keep the order of messages in flight together, so the caller waits for one after the other.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        jetstream: bool = True,
        timeout_s: float = 10.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        nats = import_nats("publishing to NATS")
        self.keeps_order = not jetstream
        self._no_stream = nats.js.errors.NoStreamResponseError
        self._servers = servers
        self._where = f"NATS at {addresses_of(servers)}"
        self._jetstream = jetstream
        self._timeout_s = timeout_s
        self._options = dict(options or {})
        self._connection: Any = None
        self._stream: Any = None
        self._connecting = asyncio.Lock()

    async def connect(self) -> None:
        # The lock is fair: messages that wait for the connection keep their order.
        async with self._connecting:
            if self._connection is not None and not self._connection.is_closed:
                return
            try:
                self._connection = await connect(self._servers, **self._options)
            except Exception as error:
                raise PublishFailed(f"{self._where} cannot be reached: {error!r}.") from error
            self._stream = self._connection.jetstream()

    async def publish(self, topic: str, message: Message) -> None:
        await self.connect()
        headers = {**message.headers, "Nats-Msg-Id": message.deduplication_id}
        try:
            if self._jetstream:
                await self._stream.publish(topic, message.body, timeout=self._timeout_s, headers=headers)
            else:
                await self._connection.publish(topic, message.body, headers=headers)
        except Exception as error:
            raise self._translate(error, topic) from error

    async def flush(self) -> None:
        if not self._jetstream:
            try:
                await self._connection.flush(self._timeout_s)
            except Exception as error:
                raise self._translate(error, "flush") from error

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    def _translate(self, error: Exception, topic: str) -> PublishFailed | PublishRejected:
        if isinstance(error, self._no_stream):
            # Also the answer while a stream has no leader: a retry may succeed.
            return PublishFailed(
                f"{self._where}: no JetStream stream has the subject {topic!r}. Is there a stream for it? Create one,"
                " so that messages are stored."
            )
        text = f"{self._where}: {topic}: {type(error).__name__}: {error}"
        return PublishRejected(text) if type(error).__name__ in _PERMANENT else PublishFailed(text)
