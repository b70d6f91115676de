"""A Kafka topic as a log: its partitions are the parts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from tape.brokers.kafka.connection import connection_of
from tape.brokers.kafka.source import delivery_of
from tape.brokers.log import Extent, Log, Placed, there_from
from tape.brokers.settings import Settings
from tape.errors import MissingExtra, SourceMisconfigured, SourceMissing, SourceUnavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

ANSWER_S = 10.0
# How long a partition may give nothing although it has more.
SILENCE_S = 30.0
AT_ONCE = 1_000
PREFETCH = 10_000


class KafkaLog(Log):
    """Reads `topic` by partition and offset, without joining `group`, whose place is only shown and asked for.

    Needs `pip install 'tape[kafka]'`.
    """

    def __init__(self, settings: Settings) -> None:
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

    def extents(self) -> dict[str, Extent]:
        """The low and high watermarks of every partition."""
        found = {}
        for number in self._partitions():
            place = self._kafka.TopicPartition(self.topic, number)
            low, high = self._asked(lambda place=place: self._client.get_watermark_offsets(place, timeout=ANSWER_S))  # type: ignore[misc]
            found[self._part(number)] = Extent(low, high)
        return found

    def standing(self) -> dict[str, int]:
        """What the group has committed."""
        places = [self._kafka.TopicPartition(self.topic, number) for number in self._partitions()]
        found = self._asked(lambda: self._client.committed(places, timeout=ANSWER_S))
        return {self._part(place.partition): place.offset for place in found if place.offset >= 0}

    def read(self, part: str, begin: int, end: int, *, fail_on_loss: bool = True) -> Iterator[list[Placed]]:
        """Records by offset. Offsets without one (compacted, or the marks of transactions) are passed over."""
        number = self._number(part)
        place = self._kafka.TopicPartition(self.topic, number)
        there = Extent(*self._asked(lambda: self._client.get_watermark_offsets(place, timeout=ANSWER_S)))
        place.offset = begin = there_from(part, begin, end, there, self._where, fail_on_loss=fail_on_loss)
        self._asked(lambda: self._client.assign([place]))
        heard_at = time.monotonic()
        try:
            while begin < end:
                found, begin = self._some(begin, end)
                if found:
                    heard_at = time.monotonic()
                    yield found
                elif begin < end and time.monotonic() - heard_at > SILENCE_S:
                    raise SourceUnavailable(f"{self._where}: {part} gives nothing from {begin} on.")
        finally:
            self._client.unassign()

    def commit(self, positions: Mapping[str, int]) -> None:
        """Commit for the group, so that tools which watch its lag see how far we are. A group at work refuses that."""
        places = [self._kafka.TopicPartition(self.topic, self._number(part), at) for part, at in positions.items()]
        if places:
            self._asked(lambda: self._client.commit(offsets=places, asynchronous=False))

    def close(self) -> None:
        client, self._open = self._open, None
        if client is not None:
            client.close()

    @property
    def _client(self) -> Any:
        if self._open is None:
            try:
                self._open = self._kafka.Consumer(self._config)
            except (self._kafka.KafkaException, TypeError, ValueError) as error:
                raise SourceMisconfigured(
                    f"subscription[kafka] has settings that the client refuses: {error}."
                ) from error
        return self._open

    def _some(self, begin: int, end: int) -> tuple[list[Placed], int]:
        """What has arrived, and the offset to go on with."""
        first = self._asked(lambda: self._client.poll(1.0))
        messages = [] if first is None else [first, *self._asked(lambda: self._client.consume(AT_ONCE, timeout=0))]
        found = []
        for message in messages:
            offset, error = message.offset(), message.error()
            if error is not None:
                self._heed(error)
                # The end of the partition: nothing more comes, although the last offsets may have had no record.
                begin = max(begin, offset) if error.code() == self._kafka.KafkaError._PARTITION_EOF else begin
            elif offset < end:
                found.append(Placed(offset, delivery_of(message)))
                begin = offset + 1
            else:
                begin = end
        return found, begin

    def _heed(self, error: Any) -> None:
        codes = self._kafka.KafkaError
        passing = (codes._PARTITION_EOF, codes._TRANSPORT, codes._TIMED_OUT, codes._ALL_BROKERS_DOWN, codes._RESOLVE)
        if error.code() not in passing:
            raise SourceUnavailable(f"{self._where}: topic {self.topic!r}: {error.str()}.")

    def _partitions(self) -> list[int]:
        topic = self._asked(lambda: self._client.list_topics(self.topic, timeout=ANSWER_S)).topics[self.topic]
        if topic.error is not None:
            raise SourceMissing(f"{self._where}: topic {self.topic!r}: {topic.error.str()}.")
        return sorted(topic.partitions)

    def _part(self, number: int) -> str:
        return f"{self.topic}:{number}"

    def _number(self, part: str) -> int:
        topic, _, number = part.rpartition(":")
        if topic != self.topic or not number.isdecimal():
            raise SourceMissing(f"{self._where}: {part!r} is no partition of topic {self.topic!r}.")
        return int(number)

    def _asked(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except self._kafka.KafkaException as error:
            raise SourceUnavailable(f"{self._where}: {error.args[0].str()}.") from error
