"""The columns that `format("tape")` offers: every field of an entry, its `type`, and its time as a timestamp."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StringType, StructType, TimestampType

from tape.errors import PipelineInput
from tape.store.connection import Dialect

_VERB = {
    "postgres": "split_part(subject, '/', 4)",
    # What stands between `/tape/<kind>/` and the next slash.
    "sqlite": "substr(substr(subject, length(kind) + 8), 1, instr(substr(subject, length(kind) + 8) || '/', '/') - 1)",
}


class Column(msgspec.Struct, frozen=True):
    """One column: its types, and the SQL that it is read with where that is more than its name."""

    name: str
    spark: DataType
    arrow: pa.DataType
    expression: str = ""

    def sql(self, dialect: Dialect) -> str:
        """What to select."""
        if self.name == "type":
            return f"CASE {_VERB[dialect]} WHEN '' THEN kind ELSE kind || '.' || {_VERB[dialect]} END AS type"
        return self.expression or self.name


_LONG, _INT, _TEXT, _BYTES = LongType(), IntegerType(), StringType(), BinaryType()

COLUMNS: dict[str, Column] = {
    column.name: column
    for column in (
        Column("global_seq", _LONG, pa.int64()),
        Column("run_id", _TEXT, pa.string()),
        Column("seq", _LONG, pa.int64()),
        Column("kind", _TEXT, pa.string()),
        Column("type", _TEXT, pa.string()),
        Column("subject", _TEXT, pa.string()),
        Column("payload_json", _TEXT, pa.string()),
        Column("schema_version", _INT, pa.int32()),
        Column("trace_id", _TEXT, pa.string()),
        Column("span_id", _TEXT, pa.string()),
        Column("parent_span_id", _TEXT, pa.string()),
        Column("ts_ms", _LONG, pa.int64()),
        Column("ts", TimestampType(), pa.timestamp("us", "UTC"), "ts_ms * 1000 AS ts"),
        Column("tenant", _TEXT, pa.string()),
        Column("user", _TEXT, pa.string(), '"user"'),
        Column("session", _TEXT, pa.string()),
        Column("chain", _BYTES, pa.binary()),
    )
}


def full_schema() -> StructType:
    """All columns, in the order in which they are shown."""
    schema = StructType()
    for column in COLUMNS.values():
        schema.add(column.name, column.spark)
    return schema


def wanted_columns(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that a user gave to read fewer of them. Raises PipelineInput."""
    for field in schema.fields:
        column = COLUMNS.get(field.name)
        if column is None:
            raise PipelineInput(f"The schema has the column {field.name!r}; known are {', '.join(COLUMNS)}.")
        if field.dataType != column.spark:
            raise PipelineInput(
                f"The schema has {field.name} as {field.dataType.simpleString()}; it is {column.spark.simpleString()}."
            )
    return tuple(field.name for field in schema.fields)


def select_list(names: Sequence[str], dialect: Dialect) -> str:
    """The columns as SQL selects them."""
    return ", ".join(COLUMNS[name].sql(dialect) for name in names)


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """The columns as Arrow has them."""
    return pa.schema([pa.field(name, COLUMNS[name].arrow) for name in names])


def shaped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch as the database gave it, with exactly the columns and types of a schema."""
    arrays = [batch.column(field.name).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
