"""An AMQP 0-9-1 queue as a source, for example of RabbitMQ."""

from __future__ import annotations

import contextlib
import json
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tape.brokers.amqp.connection import CALL_TIMEOUT_S, AmqpConnection
from tape.brokers.inbox import Inbox
from tape.brokers.settings import SourceSettings
from tape.brokers.source import Delivery, Source
from tape.errors import SourceError, SourceMissing, SourceUnavailable

log = logging.getLogger(__name__)

# Unacknowledged messages that the broker may send, unless the document has a limit.
PREFETCH = 1_000
MAX_PREFETCH = 65_535
# Headers that RabbitMQ adds: shown as metadata, not as headers of the message.
_BROKER_HEADERS = ("x-death", "x-delivery-count", "x-first-death-", "x-last-death-", "x-acquired-count")
_SHOWN = ("content_type", "content_encoding", "correlation_id", "reply_to", "message_type", "app_id", "priority")


class AmqpSource(Source):
    """Reads `queue`. With `create: true` a missing queue is declared: durable, a quorum queue, bound to `exchange`.

    `limits.max_in_flight` is the prefetch (1,000 without it). `nack` redelivers from memory, because the broker would
    redeliver at once; `release` and `close` requeue. `deliveries` counts `x-delivery-count` of quorum queues, `x-death`
    of this queue, and what this process has redelivered; a classic queue only says that it has redelivered. Needs
    `pip install 'tape[amqp]'`.
    """

    settles_elsewhere = False  # vocabulary: public attribute of sources

    def __init__(self, settings: SourceSettings) -> None:
        self._connection = AmqpConnection(settings)
        self.queue = settings.required("queue")
        self._should_create = settings.flag("create")
        self._exchange = settings.text("exchange")
        self._routing_key = settings.text("routing_key")
        self._prefetch = min(settings.whole("max_in_flight", PREFETCH, 1), MAX_PREFETCH)
        self._where = self._connection.where
        self._inbox = Inbox()
        self._channels = 0
        self._consumer = ""
        self._cancelled = ""

    async def open(self) -> None:
        """Connect, and check that the queue exists."""
        self._inbox.clear()
        self._consumer = self._cancelled = ""
        self._channels += 1
        try:
            await self._connection.open()
            await self._find_queue()
            with self._connection.translate_errors("does not answer"):
                await self._connection.channel.basic_qos(prefetch_count=self._prefetch, timeout=CALL_TIMEOUT_S)
        except SourceError:
            await self._connection.close()
            raise
        self._connection.channel.on_consumer_cancel_callbacks.add(self._note_cancelled)
        self._connection.channel.closing.add_done_callback(lambda _: self._inbox.wake())

    async def poll(self, limit: int, wait_s: float) -> list[Delivery]:
        if self._connection.is_open and not self._consumer and not self._cancelled:
            with self._connection.translate_errors("does not answer"):
                started = await self._connection.channel.basic_consume(self.queue, self._take, timeout=CALL_TIMEOUT_S)
                self._consumer = str(started.consumer_tag)
        found = await self._inbox.take(limit, wait_s, lambda: not self._connection.is_open or bool(self._cancelled))
        if not found and self._cancelled:
            raise SourceUnavailable(
                f"{self._where} has cancelled the consumer of queue {self.queue!r}. Was it deleted?"
            )
        if not found and not self._connection.is_open:
            raise SourceUnavailable(f"{self._where}: the connection was lost.")
        return found

    async def ack(self, receipts: Sequence[str]) -> None:
        await self._settle(receipts, "ack")

    async def term(self, receipts: Sequence[str]) -> None:
        """Reject messages without requeueing them: the queue's dead-letter exchange gets them, if it has one."""
        await self._settle(receipts, "reject")

    async def nack(self, receipts: Sequence[str], delay_s: float = 0.0) -> None:
        for receipt in receipts:
            self._tag_of(receipt)
        self._inbox.redeliver(list(receipts), delay_s)

    def will_redeliver(self, receipt: str) -> bool:
        """Whether it was put back with an earlier message of the same routing key."""
        return self._inbox.is_put_back(receipt)

    async def release(self) -> None:
        """Stop consuming and requeue messages that were not polled; the next poll consumes again."""
        if not self._connection.is_open:
            self._inbox.drain()
            return
        consumer, self._consumer = self._consumer, ""
        with self._connection.translate_errors("lost"):
            if consumer:
                await self._connection.channel.basic_cancel(consumer, timeout=CALL_TIMEOUT_S)
            for each in self._inbox.drain():
                tag = self._tag_of(each.receipt)[1]
                await self._connection.channel.basic_nack(tag, requeue=True, wait=False)
            await self._barrier()

    async def lag(self) -> int | None:
        """Messages that are ready in the queue, those of this process not included."""
        with self._translate_missing(), self._connection.translate_errors("does not answer"):
            found = await self._connection.channel.queue_declare(self.queue, passive=True, timeout=CALL_TIMEOUT_S)
        return int(found.message_count)

    async def close(self) -> None:
        with contextlib.suppress(SourceUnavailable):
            await self.release()
        await self._connection.close()
        self._inbox.clear()

    async def _find_queue(self) -> None:
        try:
            with self._connection.translate_errors("does not answer"):
                await self._connection.channel.queue_declare(self.queue, passive=True, timeout=CALL_TIMEOUT_S)
            return
        except self._connection.library.ChannelNotFoundEntity as error:
            if not self._should_create:
                raise SourceMissing(
                    f"subscription[amqp]: queue {self.queue!r} not found in virtual host {self._connection.vhost!r} at"
                    f" {self._connection.address.shown}. Declare it, or set 'create: true'."
                ) from error
        with self._connection.translate_errors("cannot create the queue"), self._translate_missing():
            channel = await self._connection.new_channel()
            arguments = {"x-queue-type": "quorum"}
            await channel.queue_declare(self.queue, durable=True, arguments=arguments, timeout=CALL_TIMEOUT_S)
            if self._exchange:
                await channel.queue_bind(self.queue, self._exchange, self._routing_key, timeout=CALL_TIMEOUT_S)

    async def _take(self, message: Any) -> None:
        self._inbox.put(self._delivery(message))

    def _delivery(self, message: Any) -> Delivery:
        properties, given = message.header.properties, message.header.properties.headers or {}
        by_broker = {name: value for name, value in given.items() if name.startswith(_BROKER_HEADERS)}
        metadata: dict[str, Any] = {
            "exchange": message.exchange,
            "routing_key": message.routing_key,
            "redelivered": bool(message.redelivered),
            **{name: value for name in _SHOWN if (value := getattr(properties, name, None)) is not None},
            **{name: json.loads(_json(value)) for name, value in by_broker.items()},
        }
        if properties.timestamp is not None:
            metadata["timestamp"] = properties.timestamp.isoformat()
        return Delivery(
            message_id=properties.message_id or uuid.uuid4().hex,
            body=message.body,
            receipt=f"{self._channels}:{message.delivery_tag}",
            headers=tuple(
                pair for name, value in given.items() if name not in by_broker for pair in _pairs(name, value)
            ),
            metadata=metadata,
            # A message to the default exchange is routed by the name of the queue, which orders nothing.
            ordering_key=(message.routing_key or "") if message.exchange else "",
            deliveries=1 + max(int(bool(message.redelivered)), self._redeliveries(by_broker)),
        )

    def _redeliveries(self, by_broker: Mapping[str, Any]) -> int:
        count, deaths = by_broker.get("x-delivery-count", 0), by_broker.get("x-death")
        ours: list[int] = [
            each["count"]
            for each in (deaths if isinstance(deaths, list) else [])
            if isinstance(each, dict) and each.get("queue") == self.queue and isinstance(each.get("count"), int)
        ]
        return max(count if isinstance(count, int) else 0, sum(ours))

    async def _settle(self, receipts: Sequence[str], how: str) -> None:
        tags = [(receipt, *self._tag_of(receipt)) for receipt in receipts]
        if not receipts:
            return
        late = 0
        with self._connection.translate_errors("lost"):
            channel = self._connection.channel
            for receipt, number, tag in tags:
                if self._inbox.settle(receipt) is None or number != self._channels:
                    late += 1
                elif how == "ack":
                    await channel.basic_ack(tag, wait=False)
                else:
                    await channel.basic_reject(tag, requeue=False, wait=False)
            await self._barrier()
        if late:
            log.warning("%s: %d messages of an earlier connection are redelivered", self._where, late)

    async def _barrier(self) -> None:
        """Return when the broker has processed what was sent before: a channel answers in order."""
        await self._connection.channel.basic_qos(prefetch_count=self._prefetch, timeout=CALL_TIMEOUT_S)

    def _tag_of(self, receipt: str) -> tuple[int, int]:
        number, colon, tag = receipt.partition(":")
        if not (colon and number.isdecimal() and tag.isdecimal()):
            raise SourceMissing(f"subscription[amqp]: {receipt!r} is not a receipt of queue {self.queue!r}.")
        return int(number), int(tag)

    def _note_cancelled(self, _: Any) -> None:
        self._cancelled = self._consumer or "consumer"
        self._inbox.wake()

    @contextlib.contextmanager
    def _translate_missing(self) -> Iterator[None]:
        try:
            yield
        except self._connection.library.ChannelNotFoundEntity as error:
            raise SourceMissing(f"subscription[amqp]: {', '.join(map(str, error.args))}.") from error


def _pairs(name: str, value: Any) -> list[tuple[str, str]]:
    """A header with one value, or one pair for each element of an array."""
    return [(name, _text(each)) for each in (value if isinstance(value, list) else [value])]


def _text(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(
        value, default=lambda each: each.decode(errors="replace") if isinstance(each, bytes) else str(each)
    )
