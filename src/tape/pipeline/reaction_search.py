"""The servers' matcher inside of Spark: every task reads a stretch of history and keeps what a reaction fires on.

Matching happens where the entries are read, so that only matches travel. Each stretch also gives a row that counts
what was looked at; it has the global_seq 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from tape.cel import compile_predicate
from tape.engine.reactions.backfill import alone, match_all
from tape.engine.reactions.compiled import Catalog
from tape.engine.reactions.reaction import Reaction
from tape.pipeline.columns import COLUMNS, arrow_schema
from tape.pipeline.options import read_options
from tape.pipeline.predicate_columns import SOURCES
from tape.pipeline.selection import Selecting, entries_of
from tape.pipeline.sequence import read_stretch
from tape.pipeline.source import JournalReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ENTRY_COLUMNS = tuple(name for name in COLUMNS if name not in ("type", "ts", "chain"))
# What is counted about a match, or about a stretch.
LEAN_COLUMNS = ("global_seq", "run_id", "ts_ms", "tenant", "subject")
_COUNTS = {"shard": pa.int32(), "seen": pa.int64(), "errors": pa.int64(), "error": pa.string()}
# Stretches per core: the last ones to be read keep all cores busy.
PARTS_PER_CORE = 4


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
    """The entries that a reaction fires on, with its shard, and rows with the counts of what was looked at."""
    given = {"store": store, "subject": reaction.subject_pattern, "startingOffsets": since, "endingOffsets": until}
    given |= {"minPartitions": str(PARTS_PER_CORE * spark.sparkContext.defaultParallelism)}
    options = read_options(given | ({"lake": lake} if lake else {}), streaming=False)
    read = tuple(dict.fromkeys((*columns, *_looked_at(reaction))))
    stretches = [part.value for part in JournalReader(options, read).partitions()]
    selecting = Selecting(options.subject, options.where)
    kept = tuple(columns)

    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        catalog = alone(reaction)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for entries in read_stretch(options, read, selecting, *stretches[number]):
                    yield _keep(catalog, entries, kept)

    schema = from_arrow_schema(pa.schema([*arrow_schema(kept), *(pa.field(*count) for count in _COUNTS.items())]))
    return spark.range(0, len(stretches), 1, max(len(stretches), 1)).mapInArrow(find, schema)


def _looked_at(reaction: Reaction) -> set[str]:
    """The columns that the reaction's matcher looks at."""
    names = compile_predicate(reaction.predicate_cel).variables
    return {column for name in names for column in SOURCES.get(name, (name,))} | {"subject", "run_id", "global_seq"}


def _keep(catalog: Catalog, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """The rows that fire, and one more that counts."""
    findings = match_all(catalog, list(entries_of(batch)))
    shards = {found.entry.global_seq: found.shard for found in findings.matches}
    fires = pa.array([number in shards for number in batch.column("global_seq").to_pylist()], pa.bool_())
    matches = batch.filter(fires).select(columns)
    errors = sum(mishap.count for mishap in findings.mishaps.values())
    error = next((mishap.error for mishap in findings.mishaps.values()), "")
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
