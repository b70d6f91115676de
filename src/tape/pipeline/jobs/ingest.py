"""`ingest`: appends files of JSON lines, Parquet or any other source of Spark to the journal, once.

Tasks validate and redact rows and stage them in the store; the driver appends them. With an id column the store keeps
the ids, forever or for some days, and drops duplicates of this and of earlier runs. Rows that cannot be entries are
written to a file of rejects, with the reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812  (the usual name)

from tape.archive.location import resolve_url
from tape.base.clock import now_ms
from tape.base.ids import new_id
from tape.base.redaction_policy import RedactionPolicies
from tape.engine.security.redaction import TenantRedactors
from tape.errors import PipelineInput, TapeError
from tape.model.entry import Draft, checked, type_of
from tape.model.reserved import refuse_reserved
from tape.pipeline.batch_writer import StagedDrafts, append_batch, expire_ids, find_batch, finish_batches, stage_unique
from tape.pipeline.journal_reader import query_store
from tape.pipeline.journal_writer import FIELDS
from tape.pipeline.options import resolve_store
from tape.pipeline.rejects import Rejects
from tape.pipeline.row_mapping import CORRUPT, FieldMapping, fields_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY_MS = 24 * 3600 * 1000
_ROW_ID, _ROW = "_tape_row_id", "_tape_row"
_REPORT = "stage string, steps long, entries long, rejected long, file string, reason string"


class IngestTotals(msgspec.Struct):
    """The counts of an ingest: rows read, entries appended, duplicates by id, and rejected rows with a reason.

    `forgotten` is the number of expired ids, which are no longer recognized as duplicates.
    """

    rows: int = 0
    entries: int = 0
    duplicates: int = 0
    rejected: int = 0
    reason: str = ""
    is_repeated: bool = False
    forgotten: int = 0

    def add(self, other: IngestTotals) -> None:
        """Add the counts of another batch."""
        for name in ("rows", "entries", "duplicates", "rejected", "forgotten"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.reason = other.reason or self.reason


class IngestJob(msgspec.Struct, frozen=True):
    """The options of an ingest: the store, the mapping to fields, and the folder or URL for rejected rows.

    Ids of the column `unique` are kept for `unique_days`, or forever if that is 0.
    """

    store: str
    mapping: FieldMapping
    producer: str = "ingest"
    unique: str = ""
    rejects: str = ""
    redact: bool = True
    safe_types: tuple[str, ...] = ()
    unique_days: int = 0
    policies: RedactionPolicies = ()
    redaction_key: str = ""

    def resolved(self) -> IngestJob:
        """Return the job with absolute paths, which are valid in every process of a cluster."""
        rejects = resolve_url(self.rejects or f"rejects-{self.producer}")
        return msgspec.structs.replace(self, store=resolve_store(self.store), rejects=rejects)

    def append(self, rows: DataFrame, producer: str, batch: str, number: int = -1) -> IngestTotals:
        """Append the rows as one batch, unless that batch was appended before."""
        frame = self.prepared(rows)
        rejects, job = Rejects(self.rejects, batch), self

        def stage_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return job._stage_rows(batches, rejects)

        report = frame.mapInArrow(stage_rows, _REPORT).collect()
        stages = [StagedDrafts(row.stage, row.steps, row.entries) for row in report if row.steps]
        rejects.keep([row.file for row in report if row.file])
        appended = append_batch(self.store, producer, batch, stages, number=number)
        rejected, staged = sum(row.rejected for row in report), sum(one.entries for one in stages)
        reason = next((row.reason for row in report if row.reason), "")
        done = IngestTotals(staged + rejected, appended.entries, staged - appended.entries, rejected, reason)
        if appended.is_repeated:
            done = IngestTotals(staged + rejected, 0, staged, rejected, reason, is_repeated=True)
        done.forgotten = self._expire_ids()
        return done

    def _expire_ids(self) -> int:
        """Delete expired ids, after this batch has been checked against them."""
        if not self.unique_days:
            return 0
        return expire_ids(self.store, self.producer, now_ms() - self.unique_days * DAY_MS)

    def prepared(self, rows: DataFrame) -> DataFrame:
        """Return rows with a column for each field, one for the id, and one with the original row."""
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

    def _stage_rows(self, batches: Iterator[pa.RecordBatch], rejects: Rejects) -> Iterator[pa.RecordBatch]:
        """Stage the valid rows of a task and write the others to a file; yield the counts as one row."""
        redactors = TenantRedactors(self.safe_types, self.policies, self.redaction_key) if self.redact else None
        with rejects.open() as bad:

            def good() -> Iterator[tuple[Draft, str]]:
                for batch in batches:
                    for row in batch.to_pylist():
                        try:
                            yield self._draft(row, redactors), row[_ROW_ID]
                        except TapeError as error:
                            bad.add(row[CORRUPT] or row[_ROW], f"{type(error).__name__}: {error}")

            staged = stage_unique(self.store, good(), self.producer if self.unique else "")
        report = {
            "stage": staged.name,
            "steps": staged.steps,
            "entries": staged.entries,
            "rejected": bad.count,
            "file": bad.path if bad.count else "",
            "reason": bad.reason,
        }
        yield pa.RecordBatch.from_pylist([report])

    def _draft(self, row: Mapping[str, Any], redactors: TenantRedactors | None) -> Draft:
        if row[CORRUPT] is not None:
            raise PipelineInput("the line cannot be parsed.")
        if row[_ROW_ID] is None:
            raise PipelineInput(f"{self.unique} is null; every row needs an id.")
        fields = {name: row[name] for name in FIELDS if row.get(name) is not None}
        if "subject" not in fields:
            raise PipelineInput("subject is null; every entry needs one.")
        draft = checked(Draft(**fields))
        refuse_reserved(draft)
        if redactors is None:
            return draft
        redactor = redactors.of(draft.tenant)
        if redactor.is_safe(type_of(draft.kind, draft.subject)):
            return draft
        return msgspec.structs.replace(draft, payload_json=redactor.redact(draft.payload_json))


def ingest(
    spark: SparkSession,
    job: IngestJob,
    path: str,
    *,
    source: str = "json",
    schema: str = "",
    options: Mapping[str, str] | None = None,
    batch_id: str = "",
) -> IngestTotals:
    """Append the rows of files, or of another source of Spark.

    Without an id column, a second run with the same producer and batch id (by default the path) appends nothing. With
    an id column, rows are deduplicated by id, also if a file has grown.
    """
    job = job.resolved()
    finish_batches(job.store, job.producer)
    batch = batch_id or (f"{path}#{new_id()}" if job.unique else path)
    known = query_store(job.store, lambda reader: find_batch(reader, job.producer, batch))
    if known is not None:
        return IngestTotals(known.entries, 0, known.entries, is_repeated=True)
    with translate_read_errors(path, source):
        reader = spark.read.format(source).options(**dict(options or {}))
        rows = (reader.schema(schema) if schema else reader).load(*([path] if path else []))
    return job.append(rows, job.producer, batch)


@contextlib.contextmanager
def translate_read_errors(path: str, source: str) -> Iterator[None]:
    """Raise PipelineInput for an input that Spark cannot read."""
    try:
        yield
    except PySparkException as error:
        raise PipelineInput(f"{path} cannot be read as {source}: {str(error).splitlines()[0]}") from error


def names_of(texts: Sequence[str]) -> tuple[str, ...]:
    """Split names that are separated by commas."""
    return tuple(name.strip() for text in texts for name in text.split(",") if name.strip())


if __name__ == "__main__":
    from tape.pipeline.jobs.command import main

    main("ingest")
