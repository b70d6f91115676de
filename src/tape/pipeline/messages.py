"""`format("tape-messages")`: the messages of a Kafka topic or a JetStream stream as a stream of rows, by offset.

spark.readStream.format("tape-messages").option("source", "kafka").option("brokers", …).option("topic", …).load()

Nothing is acknowledged: how far a stream has read is in its checkpoint. Tasks read stretches of offsets in parallel.
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

from tape.brokers.log import LOGS, Extent, Log, Placed, open_log, there_from
from tape.errors import PipelineInput, SourceReplaced
from tape.pipeline.options import count_option, flag_option, known_options
from tape.subscriptions.document.spec import CONNECTION_KEYS

log = logging.getLogger(__name__)

NAME = "tape-messages"
# A part that is read in several stretches is not cut into smaller ones than this.
LEAST_STRETCH = 500
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
        # The stretch that the message was read with: whoever has all of its rows has all there is between these.
        ("stretch_begin", pa.int64()),
        ("stretch_end", pa.int64()),
    ]
)

Offsets = dict[str, int]


class MessageOptions(msgspec.Struct, frozen=True):
    """What to read. `starting` is where a stream without a checkpoint begins."""

    source: str
    connection: dict[str, Any]
    secrets: dict[str, Any] = {}
    starting: str | Offsets = "committed"
    max_per_trigger: int = 0
    min_partitions: int = 1
    fail_on_data_loss: bool = True


def message_options(given: Mapping[str, str]) -> MessageOptions:
    """The options of `format("tape-messages")`. Raises PipelineInput."""
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
    """The messages of one source."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(dict(options))

    @classmethod
    def name(cls) -> str:
        """What stands in `format(…)`."""
        return NAME

    def schema(self) -> StructType:
        """The columns, always all of them."""
        return from_arrow_schema(SCHEMA)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        """A reader of what is there and of what comes."""
        if schema != self.schema():
            raise PipelineInput(f'format("{NAME}") has a schema of its own; select the columns you want behind it.')
        return MessageReader(message_options(self.options))


class Part(InputPartition):
    """A stretch for one task: the part, where it begins, and where it ends."""

    def __init__(self, part: str, begin: int, end: int) -> None:
        super().__init__((part, begin, end))


class MessageReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a log. The offset of a stream is the next offset of every part."""

    def __init__(self, options: MessageOptions) -> None:
        self._options = options
        self._open: Log | None = None
        self._stop_at: Offsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": None}  # a task opens a connection of its own

    def initialOffset(self) -> Offsets:  # noqa: N802  (Spark's name)
        """Where a stream without a checkpoint begins: where told, else where the group or consumer stands.

        Spark asks again when the first micro-batch was cut short, so nothing that moves by itself can be meant.
        """
        extents, starting = self._log.extents(), self._options.starting
        if starting == "earliest":
            return {part: there.begin for part, there in extents.items()}
        told = starting if isinstance(starting, dict) else {}
        standing = self._log.standing()
        first = {part: max(told.get(part, 0), standing.get(part, 0)) for part in extents}
        return {part: first[part] or there.begin for part, there in extents.items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  (Spark's name)
        """`maxOffsetsPerTrigger`, if it was given."""
        limit = self._options.max_per_trigger
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  (Spark's name)
        """Remember where the log ends now; the stream ends there."""
        self._stop_at = {part: there.end for part, there in self._log.extents().items()}

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802  (Spark's name)
        """How far the next micro-batch reads. Raises SourceReplaced when the source is not what it was."""
        ends = self._stop_at or {part: there.end for part, there in self._log.extents().items()}
        check_same(start, ends)
        return advanced(start, ends, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802  (Spark's name)
        """Where the log ends, so that progress reports show how far the stream is behind."""
        return {part: there.end for part, there in self._log.extents().items()}

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """One micro-batch in stretches. What is gone from the source is an error here already."""
        extents = self._log.extents()
        check_same(end, {part: there.end for part, there in extents.items()})
        wanted: dict[str, Extent] = {}
        for part, until in end.items():
            fail = self._options.fail_on_data_loss
            begin = there_from(part, start.get(part, 0), until, extents[part], self._options.source, fail_on_loss=fail)
            if begin < until:
                wanted[part] = Extent(begin, until)
        return [Part(part, *piece) for part, piece in stretches(wanted, self._options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one stretch, on an executor."""
        if partition.value is None:
            return  # Spark's stand-in where there are no parts
        part, begin, end = partition.value
        opened = open_log(self._options.source, self._options.connection, self._options.secrets)
        try:
            for some in opened.read(part, begin, end, fail_on_loss=self._options.fail_on_data_loss):
                if some:
                    yield rows_of(some, part, Extent(begin, end))
        finally:
            opened.close()

    def stop(self) -> None:
        """The stream has ended."""
        if self._open is not None:
            self._open.close()
            self._open = None

    @property
    def _log(self) -> Log:
        if self._open is None:
            self._open = open_log(self._options.source, self._options.connection, self._options.secrets)
        return self._open


def rows_of(placed: Sequence[Placed], part: str, stretch: Extent) -> pa.RecordBatch:
    """Messages as rows."""
    encode = msgspec.json.Encoder().encode
    columns: list[Sequence[Any]] = [
        [each.delivery.message_id for each in placed],
        [part] * len(placed),
        [each.offset for each in placed],
        [each.delivery.ordering_key for each in placed],
        [[{"name": name, "value": value} for name, value in each.delivery.headers] for each in placed],
        [each.delivery.body for each in placed],
        [encode(each.delivery.metadata).decode() for each in placed],
        [stretch.begin] * len(placed),
        [stretch.end] * len(placed),
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def check_same(start: Offsets, ends: Offsets) -> None:
    """Raise SourceReplaced unless every part that was read is still there and reaches as far."""
    for part, at in start.items():
        if part not in ends:
            raise SourceReplaced(
                f"{part} was read up to {at} and is not there any more; there is {', '.join(ends) or 'nothing'}."
                " Begin with a new checkpoint, and another path for the subscription."
            )
        if at > ends[part]:
            there_from(part, at, at, Extent(0, ends[part]), "the stream")


def advanced(start: Offsets, ends: Offsets, limit: int | None) -> Offsets:
    """The next offsets of every part: the ends, or so that they have `limit` offsets in all, each part its share."""
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


def stretches(wanted: Mapping[str, Extent], at_least: int) -> list[tuple[str, Extent]]:
    """What each task reads: a part, or if there are fewer parts than wanted, a piece of one of about the same size."""
    total = sum(there.end - there.begin for there in wanted.values())
    found = []
    for part, (begin, end) in wanted.items():
        pieces = 1
        if at_least > len(wanted):
            pieces = max(1, min(round(at_least * (end - begin) / total), (end - begin) // LEAST_STRETCH))
        edges = [begin + (end - begin) * number // pieces for number in range(pieces + 1)]
        found += [(part, Extent(*edges[number : number + 2])) for number in range(pieces)]
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
        return msgspec.json.decode(text, type=Offsets)
    except msgspec.MsgspecError:
        raise PipelineInput(
            f"startingOffsets is {text!r}; use committed, earliest, or a JSON object of parts and offsets."
        ) from None
