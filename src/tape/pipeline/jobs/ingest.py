"""`ingest`: files of JSON lines, Parquet or any other source of Spark into the journal, once.

Tasks check and redact rows and stage them in the store; the driver appends. With an id column the store remembers
ids, for good or for some days: a row that comes again, in this run or in another, is appended once. A row that cannot
be an entry is kept in a file of rejects, with the reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from tape.archive.location import resolve_url
from tape.base.clock import now_ms
from tape.base.ids import new_id
from tape.engine.security.redaction import Redactor
from tape.errors import PipelineInput, TapeError
from tape.model.entry import Draft, checked, type_of
from tape.model.reserved import refuse_reserved
from tape.pipeline.batches import Stage, append_batch, find_batch, finish_batches, forget_ids, stage_known
from tape.pipeline.journal_batches import ask_patiently
from tape.pipeline.options import resolve_store
from tape.pipeline.rejects import Rejects
from tape.pipeline.row_mapping import CORRUPT, FieldMapping, fields_of
from tape.pipeline.sink import FIELDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY_MS = 24 * 3600 * 1000
_ROW_ID, _ROW = "_tape_row_id", "_tape_row"
_REPORT = "stage string, steps long, entries long, rejected long, file string, reason string"


class Ingested(msgspec.Struct):
    """What became of the rows: entries appended, duplicates by id, and rejects. `reason` is the last of those.

    `forgotten` is how many ids were remembered for long enough and are no longer recognized.
    """

    rows: int = 0
    entries: int = 0
    duplicates: int = 0
    rejected: int = 0
    reason: str = ""
    is_repeated: bool = False
    forgotten: int = 0

    def add(self, other: Ingested) -> None:
        """Count another batch in."""
        for name in ("rows", "entries", "duplicates", "rejected", "forgotten"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.reason = other.reason or self.reason


class Ingesting(msgspec.Struct, frozen=True):
    """Where rows go, and how they become entries. `rejects` is a folder or URL for those that cannot.

    Ids of the column `unique` are remembered for `unique_days`, or for good if that is 0.
    """

    store: str
    mapping: FieldMapping
    producer: str = "ingest"
    unique: str = ""
    rejects: str = ""
    redact: bool = True
    safe_types: tuple[str, ...] = ()
    unique_days: int = 0

    def resolved(self) -> Ingesting:
        """The same with places that mean the same in every process of a cluster."""
        place = resolve_url(self.rejects or f"rejects-{self.producer}")
        return msgspec.structs.replace(self, store=resolve_store(self.store), rejects=place)

    def take(self, rows: DataFrame, producer: str, batch: str, number: int = -1) -> Ingested:
        """Append the rows as one batch, unless it is appended already."""
        frame = self.prepared(rows)
        rejects, job = Rejects(self.rejects, batch), self

        def hand_over(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return job._hand_over(batches, rejects)

        report = frame.mapInArrow(hand_over, _REPORT).collect()
        stages = [Stage(row.stage, row.steps, row.entries) for row in report if row.steps]
        rejects.keep([row.file for row in report if row.file])
        appended = append_batch(self.store, producer, batch, stages, number=number)
        rejected, staged = sum(row.rejected for row in report), sum(one.entries for one in stages)
        reason = next((row.reason for row in report if row.reason), "")
        done = Ingested(staged + rejected, appended.entries, staged - appended.entries, rejected, reason)
        if appended.is_repeated:
            done = Ingested(staged + rejected, 0, staged, rejected, reason, is_repeated=True)
        done.forgotten = self._forget()
        return done

    def _forget(self) -> int:
        """Forget ids that are old enough; this batch has recognized them still."""
        if not self.unique_days:
            return 0
        return forget_ids(self.store, self.producer, now_ms() - self.unique_days * DAY_MS)

    def prepared(self, rows: DataFrame) -> DataFrame:
        """Rows with a column for each field, one for the id, and one that shows the row as it came."""
        if self.unique and self.unique not in rows.columns:
            raise PipelineInput(
                f"--unique {self.unique!r} is no column of the input; it has {', '.join(rows.columns)}."
            )
        fields = fields_of(rows, self.mapping)
        shown = F.to_json(F.struct(*(F.col(f"`{name}`") for name in rows.columns)))
        corrupt = F.col(CORRUPT) if CORRUPT in rows.columns else F.lit(None).cast("string")
        row_id = F.col(f"`{self.unique}`").cast("string") if self.unique else F.lit("")
        named = [column.alias(name) for name, column in fields.items()]
        return rows.select(*named, row_id.alias(_ROW_ID), shown.alias(_ROW), corrupt.alias(CORRUPT))

    def _hand_over(self, batches: Iterator[pa.RecordBatch], rejects: Rejects) -> Iterator[pa.RecordBatch]:
        """Stage the good rows of a task and write the bad ones to a file; what was done, as one row."""
        redactor = Redactor(self.safe_types) if self.redact else None
        with rejects.open() as bad:

            def good() -> Iterator[tuple[Draft, str]]:
                for batch in batches:
                    for row in batch.to_pylist():
                        try:
                            yield self._draft(row, redactor), row[_ROW_ID]
                        except TapeError as error:
                            bad.add(row[CORRUPT] or row[_ROW], f"{type(error).__name__}: {error}")

            staged = stage_known(self.store, good(), self.producer if self.unique else "")
        report = {
            "stage": staged.name,
            "steps": staged.steps,
            "entries": staged.entries,
            "rejected": bad.count,
            "file": bad.path if bad.count else "",
            "reason": bad.reason,
        }
        yield pa.RecordBatch.from_pylist([report])

    def _draft(self, row: Mapping[str, Any], redactor: Redactor | None) -> Draft:
        if row[CORRUPT] is not None:
            raise PipelineInput("the line cannot be read.")
        if row[_ROW_ID] is None:
            raise PipelineInput(f"{self.unique} is null; every row needs one to be recognized.")
        fields = {name: row[name] for name in FIELDS if row.get(name) is not None}
        if "subject" not in fields:
            raise PipelineInput("subject is null; every entry needs one.")
        draft = checked(Draft(**fields))
        refuse_reserved(draft)
        if redactor is None or redactor.is_safe(type_of(draft.kind, draft.subject)):
            return draft
        return msgspec.structs.replace(draft, payload_json=redactor.redact(draft.payload_json))


def ingest(
    spark: SparkSession,
    job: Ingesting,
    path: str,
    *,
    source: str = "json",
    schema: str = "",
    options: Mapping[str, str] | None = None,
    batch_id: str = "",
) -> Ingested:
    """Append what is in files, or in another source of Spark, now.

    Without an id column a repetition with the same producer and batch id, which is the path unless given, appends
    nothing. With one, rows are recognized by it, also where a file has grown.
    """
    job = job.resolved()
    finish_batches(job.store, job.producer)
    batch = batch_id or (f"{path}#{new_id()}" if job.unique else path)
    known = ask_patiently(job.store, lambda reader: find_batch(reader, job.producer, batch))
    if known is not None:
        return Ingested(known.entries, 0, known.entries, is_repeated=True)
    with readable(path, source):
        reader = spark.read.format(source).options(**dict(options or {}))
        rows = (reader.schema(schema) if schema else reader).load(*([path] if path else []))
    return job.take(rows, job.producer, batch)


@contextlib.contextmanager
def readable(path: str, source: str) -> Iterator[None]:
    """Say in a sentence what Spark cannot read."""
    try:
        yield
    except PySparkException as error:
        raise PipelineInput(f"{path} cannot be read as {source}: {str(error).splitlines()[0]}") from error


def names_of(texts: Sequence[str]) -> tuple[str, ...]:
    """Names that are given one by one or with commas between them."""
    return tuple(name.strip() for text in texts for name in text.split(",") if name.strip())


if __name__ == "__main__":
    from tape.pipeline.jobs.command import main

    main("ingest")
