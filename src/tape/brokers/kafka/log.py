"""A Kafka topic as a log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from tape.brokers.kafka.connection import connection_of
from tape.brokers.kafka.deadline import DEADLINE_S, call_within
from tape.brokers.kafka.source import delivery_of
from tape.brokers.log import Log, LogRange, OffsetDelivery, first_offset
from tape.brokers.settings import SourceSettings
from tape.errors import MissingExtra, SourceMisconfigured, SourceMissing, SourceUnavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

REQUEST_TIMEOUT_S = 10.0
# A partition that has more records and delivers none for this time is unavailable.
IDLE_TIMEOUT_S = 30.0
BATCH = 1_000
PREFETCH = 10_000


class KafkaLog(Log):
    """Reads `topic` by partition and offset, without joining `group`; only its committed offsets are used.

    Needs `pip install 'tape[kafka]'`.
    """

    def __init__(self, settings: SourceSettings) -> None:
        try:
            import confluent_kafka
        except ImportError as error:
            raise MissingExtra("subscriptions to Kafka", "kafka") from error
        self._kafka = confluent_kafka
        self.topic = settings.required("topic")
        self._config = {
            "queued.min.messages": PREFETCH,
            **connection_of(settings),
            "group.id": settings.required("group"),
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "logger": log,
        }
        self._where = f"subscription[kafka] at {self._config['bootstrap.servers']}"
        self._open: Any = None

    def ranges(self) -> dict[str, LogRange]:
        """The low and high watermarks of every partition."""
        found = {}
        for number in self._partitions():
            position = self._kafka.TopicPartition(self.topic, number)
            low, high = self._call(partial(self._client.get_watermark_offsets, position, timeout=REQUEST_TIMEOUT_S))
            found[self._part(number)] = LogRange(low, high)
        return found

    def committed_offsets(self) -> dict[str, int]:
        """The offsets that the group has committed."""
        positions = [self._kafka.TopicPartition(self.topic, number) for number in self._partitions()]
        found = self._call(lambda: self._client.committed(positions, timeout=REQUEST_TIMEOUT_S))
        return {self._part(position.partition): position.offset for position in found if position.offset >= 0}

    def read(
        self, partition: str, begin: int, end: int, *, fail_on_loss: bool = True
    ) -> Iterator[list[OffsetDelivery]]:
        """Records by offset. Offsets without a record (compacted, or transaction markers) are skipped."""
        number = self._number(partition)
        position = self._kafka.TopicPartition(self.topic, number)
        available = LogRange(
            *self._call(lambda: self._client.get_watermark_offsets(position, timeout=REQUEST_TIMEOUT_S))
        )
        position.offset = begin = first_offset(partition, begin, end, available, self._where, fail_on_loss=fail_on_loss)
        self._call(lambda: self._client.assign([position]))
        received_at = time.monotonic()
        try:
            while begin < end:
                found, begin = self._poll_batch(begin, end)
                if found:
                    received_at = time.monotonic()
                    yield found
                elif begin < end and time.monotonic() - received_at > IDLE_TIMEOUT_S:
                    raise SourceUnavailable(f"{self._where}: {partition} delivers no records from {begin} on.")
        finally:
            self._client.unassign()

    def commit(self, positions: Mapping[str, int]) -> None:
        """Commit for the group, so that tools show its lag. Kafka rejects this while the group has active members."""
        offsets = [
            self._kafka.TopicPartition(self.topic, self._number(partition), at) for partition, at in positions.items()
        ]
        if offsets:
            commit = partial(self._client.commit, offsets=offsets, asynchronous=False)
            try:
                self._call(lambda: call_within(DEADLINE_S, commit))
            except TimeoutError:
                raise SourceUnavailable(f"{self._where} does not answer a commit within {DEADLINE_S:.0f} s.") from None

    def close(self) -> None:
        client, self._open = self._open, None
        if client is not None:
            try:
                call_within(DEADLINE_S, client.close)
            except TimeoutError:
                log.warning("%s: the consumer is not closed after %.0f s", self._where, DEADLINE_S)

    @property
    def _client(self) -> Any:
        if self._open is None:
            try:
                self._open = self._kafka.Consumer(self._config)
            except (self._kafka.KafkaException, TypeError, ValueError) as error:
                raise SourceMisconfigured(
                    f"subscription[kafka] has settings that the client rejects: {error}."
                ) from error
        return self._open

    def _poll_batch(self, begin: int, end: int) -> tuple[list[OffsetDelivery], int]:
        """The records that have arrived, and the next offset to read."""
        first = self._call(lambda: self._client.poll(1.0))
        messages = [] if first is None else [first, *self._call(lambda: self._client.consume(BATCH, timeout=0))]
        found = []
        for message in messages:
            offset, error = message.offset(), message.error()
            if error is not None:
                self._check_error(error)
                # The end of the partition: the last offsets may have no record.
                begin = max(begin, offset) if error.code() == self._kafka.KafkaError._PARTITION_EOF else begin
            elif offset < end:
                found.append(OffsetDelivery(offset, delivery_of(message)))
                begin = offset + 1
            else:
                begin = end
        return found, begin

    def _check_error(self, error: Any) -> None:
        codes = self._kafka.KafkaError
        transient = (codes._PARTITION_EOF, codes._TRANSPORT, codes._TIMED_OUT, codes._ALL_BROKERS_DOWN, codes._RESOLVE)
        if error.code() not in transient:
            raise SourceUnavailable(f"{self._where}: topic {self.topic!r}: {error.str()}.")

    def _partitions(self) -> list[int]:
        topic = self._call(lambda: self._client.list_topics(self.topic, timeout=REQUEST_TIMEOUT_S)).topics[self.topic]
        if topic.error is not None:
            raise SourceMissing(f"{self._where}: topic {self.topic!r}: {topic.error.str()}.")
        return sorted(topic.partitions)

    def _part(self, number: int) -> str:
        return f"{self.topic}:{number}"

    def _number(self, partition: str) -> int:
        topic, _, number = partition.rpartition(":")
        if topic != self.topic or not number.isdecimal():
            raise SourceMissing(f"{self._where}: {partition!r} is not a partition of topic {self.topic!r}.")
        return int(number)

    def _call(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except self._kafka.KafkaException as error:
            raise SourceUnavailable(f"{self._where}: {error.args[0].str()}.") from error
