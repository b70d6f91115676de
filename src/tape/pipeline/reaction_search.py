"""Runs the servers' matcher in Spark tasks: each reads a range of the journal and returns the matches of a reaction.

Tasks match where they read, so that only matches are transferred. Each record batch also yields one row with counts
of the entries read and of predicate errors; its global_seq is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from tape.cel import compile_predicate
from tape.engine.reactions.backfill import index_reaction, match_all
from tape.engine.reactions.compiled import ReactionIndex
from tape.engine.reactions.reaction import Reaction
from tape.pipeline.columns import COLUMNS, arrow_schema
from tape.pipeline.combined_reader import read_range
from tape.pipeline.journal_source import JournalReader
from tape.pipeline.options import read_options
from tape.pipeline.predicate_columns import SOURCES
from tape.pipeline.selection import EntrySelection, entries_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ENTRY_COLUMNS = tuple(name for name in COLUMNS if name not in ("type", "ts", "chain"))
# The columns that a backtest needs of a match.
LEAN_COLUMNS = ("global_seq", "run_id", "ts_ms", "tenant", "subject")
_COUNTS = {"shard": pa.int32(), "seen": pa.int64(), "errors": pa.int64(), "error": pa.string()}
# Several partitions per core keep all cores busy until the end.
PARTITIONS_PER_CORE = 4


def search(
    spark: SparkSession,
    store: str,
    reaction: Reaction,
    *,
    since: str = "earliest",
    until: str = "latest",
    lake: str = "",
    columns: Sequence[str] = ENTRY_COLUMNS,
) -> DataFrame:
    """Return the entries that a reaction matches, with their shards, and one row of counts per record batch."""
    given = {"store": store, "subject": reaction.subject_pattern, "startingOffsets": since, "endingOffsets": until}
    given |= {"minPartitions": str(PARTITIONS_PER_CORE * spark.sparkContext.defaultParallelism)}
    options = read_options(given | ({"lake": lake} if lake else {}), streaming=False)
    read = tuple(dict.fromkeys((*columns, *_required_columns(reaction))))
    ranges = [part.value for part in JournalReader(options, read).partitions()]
    selection = EntrySelection(options.subject, options.where)
    kept = tuple(columns)

    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        catalog = index_reaction(reaction)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for entries in read_range(options, read, selection, *ranges[number]):
                    yield _keep_matches(catalog, entries, kept)

    schema = from_arrow_schema(pa.schema([*arrow_schema(kept), *(pa.field(*count) for count in _COUNTS.items())]))
    return spark.range(0, len(ranges), 1, max(len(ranges), 1)).mapInArrow(find, schema)


def _required_columns(reaction: Reaction) -> set[str]:
    """Return the columns that the matcher of a reaction reads."""
    names = compile_predicate(reaction.predicate_cel).variables
    own = {"subject", "run_id", "global_seq"} | ({"tenant"} if reaction.tenant else set())
    return {column for name in names for column in SOURCES.get(name, (name,))} | own


def _keep_matches(catalog: ReactionIndex, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Return the matching rows of a batch and the row with its counts."""
    findings = match_all(catalog, list(entries_of(batch)))
    shards = {found.entry.global_seq: found.shard for found in findings.matches}
    fires = pa.array([number in shards for number in batch.column("global_seq").to_pylist()], pa.bool_())
    matches = batch.filter(fires).select(columns)
    errors = sum(failure.count for failure in findings.predicate_errors.values())
    error = next((failure.last_error for failure in findings.predicate_errors.values()), "")
    blank = [_blank(field.type) for field in matches.schema]
    filled = [pa.concat_arrays([have, one]) for have, one in zip(matches.columns, blank, strict=True)]
    rows = matches.num_rows
    counts = {
        "shard": [*shards.values(), -1],
        "seen": [0] * rows + [batch.num_rows],
        "errors": [0] * rows + [errors],
        "error": [""] * rows + [error],
    }
    filled += [pa.array(counts[name], kind) for name, kind in _COUNTS.items()]
    return pa.RecordBatch.from_arrays(filled, names=[*columns, *_COUNTS])


def _blank(kind: pa.DataType) -> pa.Array:
    return pa.array(["" if pa.types.is_string(kind) else 0], kind)
