"""`format("tape-messages")`: the messages of a Kafka topic or a JetStream stream as a stream of rows, by offset.

spark.readStream.format("tape-messages").option("source", "kafka").option("brokers", …).option("topic", …).load()

The stream acknowledges nothing; its position is in its checkpoint. Tasks read ranges of offsets in parallel.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tape.base import structs
from tape.brokers.log import LOGS, Log, LogRange, OffsetDelivery, first_offset, open_log
from tape.errors import PipelineInput, SourceReplaced
from tape.pipeline.options import count_option, flag_option, known_options
from tape.subscriptions.document.spec import CONNECTION_KEYS

log = logging.getLogger(__name__)

NAME = "tape-messages"
# The smallest range that a partition of the source is split into.
MIN_RANGE_OFFSETS = 500
_OWN = ("source", "secretSettings", "startingOffsets", "maxOffsetsPerTrigger", "minPartitions", "failOnDataLoss")
_CONNECTION = tuple(key for key, sources in CONNECTION_KEYS.items() if {*sources} & {*LOGS} and key != "create")
_MAPPINGS = ("tls", "options")
_HEADER = pa.struct([("name", pa.string()), ("value", pa.string())])
SCHEMA = pa.schema(
    [
        ("message_id", pa.string()),
        ("part", pa.string()),
        ("offset", pa.int64()),
        ("ordering_key", pa.string()),
        ("headers", pa.list_(_HEADER)),
        ("body", pa.binary()),
        ("metadata", pa.string()),
        # The range of offsets that the task read: its rows are all the messages between these two.
        ("stretch_begin", pa.int64()),  # vocabulary: a released column
        ("stretch_end", pa.int64()),  # vocabulary: a released column
    ]
)

Offsets = dict[str, int]


class MessageOptions(msgspec.Struct, frozen=True):
    """The options of a reader. `starting` is where a stream without a checkpoint starts."""

    source: str
    connection: dict[str, Any]
    secrets: dict[str, Any] = {}
    starting: str | Offsets = "committed"
    max_per_trigger: int = 0
    min_partitions: int = 1
    fail_on_data_loss: bool = True


def message_options(given: Mapping[str, str]) -> MessageOptions:
    """Parse the options of `format("tape-messages")`. Raises PipelineInput."""
    options = known_options(given, (*_OWN, *_CONNECTION), NAME)
    if "source" not in options:
        raise PipelineInput('The option source is missing: .option("source", "kafka") or "nats".')
    connection: dict[str, Any] = {key: options[key] for key in _CONNECTION if key in options}
    for key in _MAPPINGS:
        if key in connection:
            connection[key] = _mapping(key, options[key])
    return MessageOptions(
        options["source"],
        connection,
        _mapping("secretSettings", options.get("secretsettings", "{}")),
        _starting(options.get("startingoffsets", "committed")),
        count_option(options, "maxOffsetsPerTrigger", 0),
        count_option(options, "minPartitions", 1),
        flag_option(options, "failOnDataLoss", True),
    )


class MessageSource(DataSource):
    """The data source of one topic or stream."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(dict(options))

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return NAME

    def schema(self) -> StructType:
        """All columns."""
        return from_arrow_schema(SCHEMA)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        """Return a reader that follows the source."""
        if schema != self.schema():
            raise PipelineInput(f'format("{NAME}") has a fixed schema; select the columns you need after load().')
        return MessageReader(message_options(self.options))


class MessagePartition(InputPartition):
    """A range of offsets for one task: a partition of the source, the first offset, and the end (exclusive)."""

    def __init__(self, part: str, begin: int, end: int) -> None:
        super().__init__((part, begin, end))


class MessageReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a log. The offset of a stream is the next offset of every partition of the source."""

    def __init__(self, options: MessageOptions) -> None:
        self._options = options
        self._open: Log | None = None
        self._stop_at: Offsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": None}  # a task opens its own connection

    def initialOffset(self) -> Offsets:  # noqa: N802  (Spark's name)
        """Return where a stream without a checkpoint starts: the option, or the committed offsets if they are higher.

        Spark asks again after an interrupted first micro-batch, so `latest` is not supported: it would have moved.
        """
        ranges, starting = self._log.ranges(), self._options.starting
        if starting == "earliest":
            return {part: there.begin for part, there in ranges.items()}
        requested = starting if isinstance(starting, dict) else {}
        standing = self._log.committed_offsets()
        first = {part: max(requested.get(part, 0), standing.get(part, 0)) for part in ranges}
        return {part: first[part] or there.begin for part, there in ranges.items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  (Spark's name)
        """Return the limit of the option `maxOffsetsPerTrigger`."""
        limit = self._options.max_per_trigger
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  (Spark's name)
        """Record the end of the log; the stream ends there."""
        self._stop_at = {part: there.end for part, there in self._log.ranges().items()}

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802  (Spark's name)
        """Return the end of the next micro-batch. Raises SourceReplaced if the source was recreated."""
        ends = self._stop_at or {part: there.end for part, there in self._log.ranges().items()}
        check_same_source(start, ends)
        return next_offsets(start, ends, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802  (Spark's name)
        """Return the end of the log, for the lag in progress reports."""
        return {part: there.end for part, there in self._log.ranges().items()}

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Split one micro-batch into ranges of offsets. Raises if the source has deleted messages of it."""
        ranges = self._log.ranges()
        check_same_source(end, {part: there.end for part, there in ranges.items()})
        wanted: dict[str, LogRange] = {}
        for part, until in end.items():
            fail = self._options.fail_on_data_loss
            begin = first_offset(part, start.get(part, 0), until, ranges[part], self._options.source, fail_on_loss=fail)
            if begin < until:
                wanted[part] = LogRange(begin, until)
        return [MessagePartition(part, *piece) for part, piece in split_ranges(wanted, self._options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of one range, on an executor."""
        if partition.value is None:
            return  # Spark's placeholder if there are no partitions
        part, begin, end = partition.value
        opened = open_log(self._options.source, self._options.connection, self._options.secrets)
        try:
            for some in opened.read(part, begin, end, fail_on_loss=self._options.fail_on_data_loss):
                if some:
                    yield rows_of(some, part, LogRange(begin, end))
        finally:
            opened.close()

    def stop(self) -> None:
        """Close the connection when the stream has ended."""
        if self._open is not None:
            self._open.close()
            self._open = None

    @property
    def _log(self) -> Log:
        if self._open is None:
            self._open = open_log(self._options.source, self._options.connection, self._options.secrets)
        return self._open


def rows_of(messages: Sequence[OffsetDelivery], part: str, offsets: LogRange) -> pa.RecordBatch:
    """Convert messages to rows."""
    encode = msgspec.json.Encoder().encode
    columns: list[Sequence[Any]] = [
        [each.delivery.message_id for each in messages],
        [part] * len(messages),
        [each.offset for each in messages],
        [each.delivery.ordering_key for each in messages],
        [[{"name": name, "value": value} for name, value in each.delivery.headers] for each in messages],
        [each.delivery.body for each in messages],
        [encode(each.delivery.metadata).decode() for each in messages],
        [offsets.begin] * len(messages),
        [offsets.end] * len(messages),
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def check_same_source(start: Offsets, ends: Offsets) -> None:
    """Raise SourceReplaced unless every partition that was read still exists and is as long."""
    for part, at in start.items():
        if part not in ends:
            raise SourceReplaced(
                f"{part} was read up to {at} and no longer exists; the source has {', '.join(ends) or 'nothing'}."
                " Start with a new checkpoint, and another path for the subscription."
            )
        if at > ends[part]:
            first_offset(part, at, at, LogRange(0, ends[part]), "the stream")


def next_offsets(start: Offsets, ends: Offsets, limit: int | None) -> Offsets:
    """Return the next offset of every partition: its end, or its share of `limit` offsets in all."""
    waiting = {part: end - start.get(part, 0) for part, end in ends.items()}
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return dict(ends)
    shares = {part: limit * count // total for part, count in waiting.items()}
    left = limit - sum(shares.values())
    for part, count in sorted(waiting.items(), key=lambda item: -item[1]):
        more = min(left, count - shares[part], 1)
        shares[part] += more
        left -= more
    return {part: start.get(part, 0) + share for part, share in shares.items()}


def split_ranges(wanted: Mapping[str, LogRange], at_least: int) -> list[tuple[str, LogRange]]:
    """Split the source's partitions into ranges for tasks, at least so many if the ranges are large enough."""
    total = sum(there.end - there.begin for there in wanted.values())
    found = []
    for part, (begin, end) in wanted.items():
        pieces = 1
        if at_least > len(wanted):
            pieces = max(1, min(round(at_least * (end - begin) / total), (end - begin) // MIN_RANGE_OFFSETS))
        edges = [begin + (end - begin) * number // pieces for number in range(pieces + 1)]
        found += [(part, LogRange(*edges[number : number + 2])) for number in range(pieces)]
    return found


def _mapping(name: str, text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise PipelineInput(f"The option {name} must be a JSON object: {error}.") from None


def _starting(text: str) -> str | Offsets:
    if text in ("committed", "earliest"):
        return text
    try:
        return structs.decode(text, Offsets)
    except msgspec.MsgspecError:
        raise PipelineInput(
            f"startingOffsets is {text!r}; use committed, earliest, or a JSON object of partitions and offsets."
        ) from None
