"""NATS JetStream: a durable pull consumer."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from tape.brokers.nats.connection import (
    CONNECT_TIMEOUT_S,
    addresses_of,
    connect,
    disconnect,
    header_pairs,
    import_nats,
    login_options,
    new_client,
)
from tape.brokers.settings import SourceSettings
from tape.brokers.source import Delivery, RedeliveryLimits, Source
from tape.errors import SourceError, SourceMissing, SourceUnavailable

NANOSECONDS = 1_000_000_000
# How long NATS waits for an acknowledgement, unless the consumer says otherwise.
ACK_WAIT_S = 30.0
# Statuses of a pull without messages, and of one that has expired.
_END_STATUSES = ("404", "408")


class NatsSource(Source):
    """Reads `stream` through the durable `consumer`, which is created with `create: true`.

    One pull is open at a time. It returns available messages at once, without waiting for a full batch; later messages
    belong to the next poll. Needs `pip install 'tape[nats]'`.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._nats = import_nats("subscriptions to NATS")
        self.stream = settings.required("stream")
        self.consumer = settings.required("consumer")
        self._servers = settings.texts("url")
        if not self._servers:
            raise settings.wrong("requires 'url', or an 'auth' credential with a 'url'")
        self._should_create = settings.flag("create")
        self._filter = settings.text("subject")
        self._login = login_options(settings)
        self._address = addresses_of(self._servers)
        self._connection: Any = None
        self._inbox = ""
        self._arrived: deque[Any] = deque()
        self._news = asyncio.Event()
        self._pulls = 0
        self._outstanding = 0
        self._pull_error = ""
        self._max_deliver = 0
        self._max_age_ms = 0

    async def open(self) -> None:
        """Connect, and look up the consumer."""
        await self._disconnect()
        self._connection = connection = new_client(self._nats)
        try:
            with self._translate_errors("cannot be reached"):
                await connect(
                    self._servers,
                    connection,
                    name="tape-subscription",
                    error_cb=self._wake,
                    closed_cb=self._wake,
                    **self._login,
                )
            await self._find_consumer()
        except SourceError:
            await self._disconnect()
            raise
        with self._translate_errors("lost"):
            self._inbox = connection.new_inbox()
            # Never more than one pull of a thousand messages is on its way.
            await connection.subscribe(f"{self._inbox}.*", cb=self._take, pending_msgs_limit=0, pending_bytes_limit=0)

    async def poll(self, limit: int, wait_s: float) -> list[Delivery]:
        """Messages of the open pull, else of a new one."""
        if not self._arrived:
            await self._pull(limit, wait_s)
        found = [self._delivery(self._arrived.popleft()) for _ in range(min(limit, len(self._arrived)))]
        if not found and self._pull_error:
            raise SourceUnavailable(f"NATS at {self._address} ended the pull: {self._pull_error}.")
        if not found and not self._is_connected:
            raise SourceUnavailable(f"NATS at {self._address}: the connection was lost.")
        return found

    async def ack(self, receipts: Sequence[str]) -> None:
        await self._send_ack(receipts, b"+ACK")

    async def nack(self, receipts: Sequence[str], delay_s: float = 0.0) -> None:
        delay = json.dumps({"delay": int(delay_s * NANOSECONDS)}) if delay_s > 0 else ""
        await self._send_ack(receipts, f"-NAK {delay}".strip().encode())

    async def term(self, receipts: Sequence[str]) -> None:
        await self._send_ack(receipts, b"+TERM")

    async def renew(self, receipts: Sequence[str]) -> None:
        await self._send_ack(receipts, b"+WPI")

    async def release(self) -> None:
        """Return messages that were not polled."""
        waiting = [message.reply for message in self._arrived]
        self._arrived.clear()
        if waiting and self._is_connected:
            await self.nack(waiting)

    async def lag(self) -> int | None:
        """Messages that the consumer has not delivered yet."""
        with self._translate_errors("does not answer"):
            info = await self._connection.jetstream().consumer_info(self.stream, self.consumer)
        self._max_deliver = int(info.config.max_deliver or 0)
        return int(info.num_pending)

    async def close(self) -> None:
        with contextlib.suppress(SourceUnavailable):
            await self.release()
        await self._disconnect()

    async def _find_consumer(self) -> None:
        jetstream, api = self._connection.jetstream(), self._nats.js.api
        errors = self._nats.js.errors
        try:
            with self._translate_errors("does not answer"):
                stream = await jetstream.stream_info(self.stream)
                self.keeps_settled = stream.config.retention == api.RetentionPolicy.LIMITS
                self._max_age_ms = int((stream.config.max_age or 0) * 1_000)
        except errors.NotFoundError as error:
            raise SourceMissing(
                f"subscription[nats]: stream {self.stream!r} not found at {self._address}. Create it, or correct"
                " 'stream'."
            ) from error
        try:
            with self._translate_errors("does not answer"):
                info = await jetstream.consumer_info(self.stream, self.consumer)
        except errors.NotFoundError as error:
            if not self._should_create:
                raise SourceMissing(
                    f"subscription[nats]: consumer {self.consumer!r} on stream {self.stream!r} not found. Create a"
                    " durable pull consumer, or set 'create: true'."
                ) from error
            config = api.ConsumerConfig(
                durable_name=self.consumer,
                ack_policy=api.AckPolicy.EXPLICIT,
                filter_subject=self._filter or None,
            )
            with self._translate_errors("does not answer"):
                info = await jetstream.add_consumer(self.stream, config)
        config = info.config
        self._max_deliver = int(config.max_deliver or 0)
        self.renew_every_s = float(config.ack_wait or ACK_WAIT_S) / 3
        if config.deliver_subject or config.ack_policy != api.AckPolicy.EXPLICIT:
            raise SourceMissing(
                f"subscription[nats]: consumer {self.consumer!r} on stream {self.stream!r} is not a pull consumer with"
                " explicit acknowledgement, so messages could be lost. Create another one and name it in 'consumer'."
            )

    async def _pull(self, limit: int, wait_s: float) -> None:
        self._news.clear()
        if self._outstanding == 0:
            request = {"batch": limit, "expires": max(int(wait_s * NANOSECONDS), 1_000_000)}
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{self.consumer}"
            self._pulls += 1
            self._outstanding, self._pull_error = limit, ""
            with self._translate_errors("lost"):
                await self._connection.publish(subject, json.dumps(request).encode(), reply=self._reply)
        with contextlib.suppress(TimeoutError):
            while not self._arrived and self._outstanding and self._is_connected:
                self._news.clear()
                await asyncio.wait_for(self._news.wait(), wait_s)
        if not self._arrived:
            # The pull has expired at the server; messages that it sent before are returned by the next poll.
            self._outstanding = 0

    async def _take(self, message: Any) -> None:
        if message.reply.startswith("$JS.ACK."):
            self._outstanding = max(self._outstanding - 1, 0)
            self._arrived.append(message)
        elif message.subject == self._reply:  # a status: this pull is over
            self._outstanding = 0
            status = message.headers or {}
            if status.get("Status") not in _END_STATUSES:
                self._pull_error = f"{status.get('Status', '')} {status.get('Description', '')}".strip()
        self._news.set()

    async def _wake(self, *_: object) -> None:
        self._news.set()

    async def _send_ack(self, receipts: Sequence[str], word: bytes) -> None:
        for receipt in receipts:
            if not receipt.startswith("$JS.ACK."):
                raise SourceMissing(f"subscription[nats]: {receipt!r} is not a receipt; those begin with $JS.ACK.")
        if not receipts:
            return
        with self._translate_errors("lost"):
            for receipt in receipts:
                await self._connection.publish(receipt, word)
            await self._connection.flush(int(CONNECT_TIMEOUT_S))

    def _delivery(self, message: Any) -> Delivery:
        about = message.metadata
        return Delivery(
            message_id=str(about.sequence.stream),
            body=message.data,
            receipt=message.reply,
            headers=header_pairs(message),
            metadata={
                "subject": message.subject,
                "stream_seq": about.sequence.stream,
                "consumer_seq": about.sequence.consumer,
                "delivered": about.num_delivered,
                "pending": about.num_pending,
            },
            deliveries=about.num_delivered,
            redelivery=RedeliveryLimits(
                self._max_deliver - about.num_delivered if self._max_deliver > 0 else None,
                int(about.timestamp.timestamp() * 1_000) + self._max_age_ms if self._max_age_ms else None,
            ),
        )

    @property
    def _reply(self) -> str:
        """The reply subject of the open pull: each has its own, so that the end of an earlier one is ignored."""
        return f"{self._inbox}.{self._pulls}"

    @property
    def _is_connected(self) -> bool:
        return self._connection is not None and bool(self._connection.is_connected)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self._arrived.clear()
        self._outstanding = 0
        await disconnect(connection)

    @contextlib.contextmanager
    def _translate_errors(self, what: str) -> Iterator[None]:
        """Translate errors of the client into SourceUnavailable with the address."""
        if self._connection is None:
            raise SourceUnavailable(f"NATS at {self._address} is not connected.")
        try:
            yield
        except self._nats.js.errors.NotFoundError:
            raise
        except (self._nats.errors.Error, OSError, TimeoutError) as error:
            raise SourceUnavailable(f"NATS at {self._address} {what}: {str(error) or type(error).__name__}.") from error
