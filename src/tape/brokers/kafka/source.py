"""A Kafka topic as a source, read by a member of a consumer group."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from tape.brokers.kafka.connection import connection_of
from tape.brokers.kafka.deadline import DEADLINE_S, call_within
from tape.brokers.kafka.offsets import Offsets
from tape.brokers.settings import SourceSettings
from tape.brokers.source import Delivery, Source
from tape.errors import MissingExtra, SourceMisconfigured, SourceMissing, SourceUnavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

REQUEST_TIMEOUT_S = 5.0
# Another member has the partition now and gets the records: nothing is lost.
_MOVED = (
    "ILLEGAL_GENERATION",
    "UNKNOWN_MEMBER_ID",
    "REBALANCE_IN_PROGRESS",
    "_STATE",
    "_NO_OFFSET",
    "_ASSIGNMENT_LOST",
)
# Transient errors, and errors that another call reports.
_TRANSIENT = ("_PARTITION_EOF", "_TRANSPORT", "_RESOLVE", "_TIMED_OUT", "_ALL_BROKERS_DOWN")


class KafkaSource(Source):
    """Reads `topic` as a member of `group`; a new group begins with the oldest record.

    After `nack` a record is fetched again, with the later unsettled ones; its partition is paused for the delay. The
    deliveries of a record are counted by this process: Kafka has no such count. `options` has more properties of
    librdkafka. Needs `pip install 'tape[kafka]'`.
    """

    settles_elsewhere = False  # vocabulary: public attribute of sources
    keeps_settled = True

    def __init__(self, settings: SourceSettings) -> None:
        try:
            import confluent_kafka
        except ImportError as error:
            raise MissingExtra("subscriptions to Kafka", "kafka") from error
        self._kafka = confluent_kafka
        connection = connection_of(settings)
        self._brokers = connection["bootstrap.servers"]
        self.topic = settings.required("topic")
        self.group = settings.required("group")
        self._config = {
            **connection,
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "error_cb": self._note,
            "logger": log,
        }
        self._moved = tuple(getattr(confluent_kafka.KafkaError, name, None) for name in _MOVED)
        self._transient = tuple(getattr(confluent_kafka.KafkaError, name) for name in _TRANSIENT)
        self._consumer: Any = None
        self._offsets: dict[int, Offsets] = {}
        self._arrived: deque[Delivery] = deque()
        self._paused_until: dict[int, float] = {}
        self._is_down = False
        # The client is synchronous: all its calls run on one thread.
        self._thread = ThreadPoolExecutor(1, "tape-kafka")

    async def open(self) -> None:
        """Check that the topic exists, and join the group."""
        await self._on_thread(self._join)

    async def poll(self, limit: int, wait_s: float) -> list[Delivery]:
        if not self._arrived:
            await self._on_thread(lambda: self._fetch(limit, wait_s))
        return [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]

    async def ack(self, receipts: Sequence[str]) -> None:
        """Settle records, and commit up to the first unsettled one."""
        for partition, offset in map(self._offset_of, receipts):
            if (offsets := self._offsets.get(partition)) is not None:
                offsets.settle(offset)
        if receipts:
            await self._on_thread(self._commit)

    async def nack(self, receipts: Sequence[str], delay_s: float = 0.0) -> None:
        """Seek to the oldest of them in each partition, which is paused for the delay."""
        oldest: dict[int, int] = {}
        for partition, offset in map(self._offset_of, receipts):
            oldest[partition] = min(offset, oldest.get(partition, offset))
        if oldest:
            await self._on_thread(lambda: self._go_back(oldest, delay_s))

    def will_redeliver(self, receipt: str) -> bool:
        """Whether its partition was sought to an earlier record."""
        partition, offset = self._offset_of(receipt)
        offsets = self._offsets.get(partition)
        return offsets is not None and offsets.is_owed(offset)

    async def lag(self) -> int | None:
        """Records between the position and the end of the assigned partitions."""
        return await self._on_thread(self._count_lag)

    async def close(self) -> None:
        """Leave the group."""
        if self._consumer is not None:
            await self._on_thread(self._leave)

    # ── on the client's thread ───────────────────────────────────────────────────────────────────

    def _join(self) -> None:
        self._leave()
        self._is_down = False
        try:
            self._consumer = self._kafka.Consumer(self._config)
        except (self._kafka.KafkaException, TypeError, ValueError) as error:
            raise SourceMisconfigured(f"subscription[kafka] has settings that the client rejects: {error}.") from error
        try:
            topics = self._consumer.list_topics(self.topic, timeout=REQUEST_TIMEOUT_S).topics
            if (problem := topics[self.topic].error) is not None:
                raise SourceMissing(f"subscription[kafka]: topic {self.topic!r} at {self._brokers}: {problem.str()}.")
            self._consumer.subscribe([self.topic], on_revoke=self._forget, on_lost=self._forget)
            self._wait_for_partitions()
        except self._kafka.KafkaException as error:
            self._leave()
            raise SourceUnavailable(f"Kafka at {self._brokers} cannot be reached: {error.args[0].str()}.") from error
        except SourceMissing:
            self._leave()
            raise

    def _wait_for_partitions(self) -> None:
        """Wait for an assignment, up to 5 s, which a short poll would miss; a group may have no partition left."""
        until = time.monotonic() + REQUEST_TIMEOUT_S
        while not self._consumer.assignment() and time.monotonic() < until:
            if (message := self._consumer.poll(0.1)) is not None:
                self._take(message)

    def _fetch(self, limit: int, wait_s: float) -> None:
        if self._consumer is None:
            raise SourceUnavailable(f"Kafka at {self._brokers} is not connected.")
        if self._is_down:
            self._probe(wait_s)
        wait_s = self._resume_partitions(wait_s)
        try:
            first = self._consumer.poll(wait_s)
            messages = [] if first is None else [first]
            if messages and limit > 1:
                messages += self._consumer.consume(limit - 1, timeout=0)
        except self._kafka.KafkaException as error:
            raise SourceUnavailable(f"Kafka at {self._brokers}: {error}.") from error
        for message in messages:
            self._take(message)
        if self._is_down and not messages:
            self._probe(0.1)

    def _take(self, message: Any) -> None:
        if (error := message.error()) is not None:
            if error.code() in self._transient:
                return
            raise SourceUnavailable(f"Kafka topic {self.topic!r} at {self._brokers}: {error.str()}.")
        count = self._offsets.setdefault(message.partition(), Offsets()).hand_out(message.offset())
        if count:
            self._arrived.append(delivery_of(message, count))

    def _commit(self) -> None:
        moved = {
            number: position for number, each in self._offsets.items() if (position := each.position()) is not None
        }
        if not moved or self._consumer is None:
            return
        positions = [self._kafka.TopicPartition(self.topic, number, position) for number, position in moved.items()]
        try:
            commit = partial(self._consumer.commit, offsets=positions, asynchronous=False)
            call_within(DEADLINE_S, commit)
        except TimeoutError:
            raise SourceUnavailable(
                f"Kafka at {self._brokers} does not answer a commit within {DEADLINE_S:.0f} s."
            ) from None
        except self._kafka.KafkaException as error:
            if error.args[0].code() not in self._moved:
                raise SourceUnavailable(
                    f"Kafka at {self._brokers} rejects the commit: {error.args[0].str()}."
                ) from error
            log.warning(
                "Kafka topic %s: commit rejected, the records are redelivered: %s", self.topic, error.args[0].str()
            )
        for number, position in moved.items():
            self._offsets[number].committed(position)

    def _go_back(self, oldest: dict[int, int], delay_s: float) -> None:
        for number, nacked in oldest.items():
            if number not in self._offsets or self._consumer is None:
                continue  # another member has the partition
            offset = self._offsets[number].go_back(nacked)
            self._arrived = deque(each for each in self._arrived if each.metadata["partition"] != number)
            try:
                self._consumer.seek(self._kafka.TopicPartition(self.topic, number, offset))
                if delay_s > 0:
                    self._consumer.pause([self._kafka.TopicPartition(self.topic, number)])
                    self._paused_until[number] = time.monotonic() + delay_s
            except self._kafka.KafkaException as error:
                raise SourceUnavailable(f"Kafka at {self._brokers} cannot seek: {error.args[0].str()}.") from error

    def _resume_partitions(self, wait_s: float) -> float:
        """Resume partitions whose pause is over; the time until the next one, or `wait_s`."""
        now = time.monotonic()
        for number in [number for number, until in self._paused_until.items() if until <= now]:
            del self._paused_until[number]
            self._consumer.resume([self._kafka.TopicPartition(self.topic, number)])
        return min([wait_s, *(until - now for until in self._paused_until.values())])

    def _probe(self, wait_s: float) -> None:
        try:
            self._consumer.list_topics(self.topic, timeout=max(wait_s, 0.1))
        except self._kafka.KafkaException as error:
            raise SourceUnavailable(f"Kafka at {self._brokers} does not answer: {error.args[0].str()}.") from error
        self._is_down = False

    def _count_lag(self) -> int | None:
        if self._consumer is None:
            return None
        total = 0
        try:
            for position in self._consumer.position(self._consumer.assignment()):
                low, high = self._consumer.get_watermark_offsets(position, timeout=REQUEST_TIMEOUT_S)
                total += high - (position.offset if position.offset >= 0 else low)
        except self._kafka.KafkaException as error:
            raise SourceUnavailable(f"Kafka at {self._brokers} does not answer: {error.args[0].str()}.") from error
        return total

    def _forget(self, _: Any, partitions: list[Any]) -> None:
        for each in partitions:
            self._offsets.pop(each.partition, None)
            self._paused_until.pop(each.partition, None)
        gone = {each.partition for each in partitions}
        self._arrived = deque(each for each in self._arrived if each.metadata["partition"] not in gone)

    def _leave(self) -> None:
        consumer, self._consumer = self._consumer, None
        self._offsets.clear()
        self._paused_until.clear()
        self._arrived.clear()
        if consumer is not None:
            try:
                call_within(DEADLINE_S, consumer.close)
            except TimeoutError:
                log.warning("Kafka at %s: the consumer is not closed after %.0f s", self._brokers, DEADLINE_S)

    def _note(self, error: Any) -> None:
        if error.code() == self._kafka.KafkaError._ALL_BROKERS_DOWN:
            self._is_down = True
        log.debug("Kafka: %s", error)

    # ── on the event loop ────────────────────────────────────────────────────────────────────────

    def _offset_of(self, receipt: str) -> tuple[int, int]:
        topic, _, rest = receipt.rpartition(":")[0].rpartition(":")[0], "", receipt.split(":")[-2:]
        if topic != self.topic or not all(part.isdecimal() for part in rest):
            raise SourceMissing(f"subscription[kafka]: {receipt!r} is not a receipt of topic {self.topic!r}.")
        return int(rest[0]), int(rest[1])

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def delivery_of(message: Any, deliveries: int = 1) -> Delivery:
    """A record of librdkafka as a delivery, with topic, partition and offset as id and receipt."""
    topic, partition, offset, key = message.topic(), message.partition(), message.offset(), message.key()
    shown = None if key is None else key.decode(errors="replace")
    offset_id = f"{topic}:{partition}:{offset}"
    return Delivery(
        message_id=offset_id,
        body=message.value(),
        receipt=offset_id,
        headers=[(name, _text(value)) for name, value in message.headers() or ()],
        metadata={"topic": topic, "partition": partition, "offset": offset, "key": shown},
        ordering_key=shown or str(partition),
        deliveries=deliveries,
    )


def _text(value: bytes | str | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
