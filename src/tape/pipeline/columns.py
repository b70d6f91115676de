"""The columns of `format("tape")`: every field of an entry, its `type`, and its time as a timestamp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from tape.archive.schema import TYPES, arrow_schema
from tape.errors import PipelineInput
from tape.store.connection import Dialect

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["COLUMNS", "arrow_schema", "full_schema", "select_list", "shaped", "wanted_columns"]

COLUMNS = tuple(TYPES)

_VERB = {
    "postgres": "split_part(subject, '/', 4)",
    # The segment after `/tape/<kind>/`.
    "sqlite": "substr(substr(subject, length(kind) + 8), 1, instr(substr(subject, length(kind) + 8) || '/', '/') - 1)",
}


def full_schema() -> StructType:
    """Return the Spark schema of all columns, in their order."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(arrow_schema(COLUMNS))


def wanted_columns(schema: StructType) -> tuple[str, ...]:
    """Return the columns of a schema that a user gave to read only some of them. Raises PipelineInput."""
    known = {field.name: field.dataType for field in full_schema().fields}
    for field in schema.fields:
        wanted = known.get(field.name)
        if wanted is None:
            raise PipelineInput(f"The schema has the column {field.name!r}; known are {', '.join(COLUMNS)}.")
        if field.dataType != wanted:
            raise PipelineInput(
                f"The schema has {field.name} as {field.dataType.simpleString()}; it is {wanted.simpleString()}."
            )
    return tuple(field.name for field in schema.fields)


def select_list(names: Sequence[str], dialect: Dialect) -> str:
    """Return the select list of these columns for a SQL dialect."""
    verb = _VERB[dialect]
    derived = {
        "type": f"CASE {verb} WHEN '' THEN kind ELSE kind || '.' || {verb} END AS type",
        "ts": "ts_ms * 1000 AS ts",
        "user": '"user"',
    }
    return ", ".join(derived.get(name, name) for name in names)


def shaped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Cast a batch from the database to exactly the columns and types of a schema."""
    arrays = [batch.column(field.name).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
