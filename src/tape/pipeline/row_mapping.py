"""Maps rows of any schema to drafts: fields by SQL expressions or templates over the input columns."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812  (the usual name)

from tape.base import structs
from tape.errors import PipelineInput
from tape.pipeline.journal_writer import FIELDS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Fields that make up the subject after `/tape/<kind>/`.
VERB, DIMS = "verb", "dims"
_COLUMN = re.compile(r"\{([^{}]+)\}")


class FieldMapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of a draft by SQL expressions (`map`) and by texts with `{column}` in them (`template`)."""

    map: dict[str, str] = {}
    template: dict[str, str] = {}

    def both(self, other: FieldMapping) -> FieldMapping:
        """Return the union; where both map a field, the other mapping wins."""
        kept = {name: text for name, text in self.map.items() if name not in other.template}
        texts = {name: text for name, text in self.template.items() if name not in other.map}
        return FieldMapping(kept | other.map, texts | other.template)


def read_mapping(path: str) -> FieldMapping:
    """Read a mapping from the tables `map` and `template` of a TOML or JSON file."""
    try:
        content = Path(path).read_bytes()
        given = tomllib.loads(content.decode()) if path.endswith(".toml") else msgspec.json.decode(content)
        return structs.convert(given, FieldMapping)
    except (OSError, ValueError) as error:
        raise PipelineInput(f"--mapping {path}: {error}") from error


def fields_of(rows: DataFrame, mapping: FieldMapping) -> dict[str, Column]:
    """Return a column for each mapped field; by default the whole row is the payload. Raises PipelineInput."""
    columns = {name: _expression(rows, name, text) for name, text in mapping.map.items()}
    columns |= {name: _filled(rows, name, text) for name, text in mapping.template.items()}
    for name in columns:
        if name not in (*FIELDS, VERB, DIMS):
            known = ", ".join((*FIELDS, VERB, DIMS))
            raise PipelineInput(f"--map {name}=… names no field of an entry; known are {known}.")
    if "subject" not in columns:
        if not {"kind", VERB} <= set(columns):
            raise PipelineInput(
                "--map subject=… is missing, for example: --template 'subject=/tape/order/created/{id}'; or give"
                " kind and verb."
            )
        # If one of them is null, the subject is null and the row is rejected.
        parts = [F.lit("/tape"), columns["kind"], columns[VERB], *([columns[DIMS]] if DIMS in columns else [])]
        columns["subject"] = F.concat(*(part for one in parts for part in (one, F.lit("/"))))
        columns["subject"] = F.rtrim(columns["subject"], F.lit("/"))
    elif extra := {VERB, DIMS} & set(columns):
        raise PipelineInput(f"--map {min(extra)}=… and subject=… both define the subject; give one.")
    inputs = [F.col(f"`{name}`") for name in rows.columns if name not in (CORRUPT, WATERMARK)]
    columns.setdefault("payload_json", F.to_json(F.struct(*inputs)) if inputs else F.lit(None))
    return {name: column for name, column in columns.items() if name in FIELDS}


# The column where Spark puts a line that it cannot parse, and the column for the watermark of a stream.
CORRUPT, WATERMARK = "_corrupt_record", "_tape_watermark"


def _expression(rows: DataFrame, name: str, text: str) -> Column:
    column = F.expr(text)
    try:
        rows.select(column)
    except PySparkException as error:
        raise PipelineInput(f"--map {name}={text} cannot be used: {str(error).splitlines()[0]}") from error
    return column.cast("int" if name == "schema_version" else "string")


def _filled(rows: DataFrame, name: str, text: str) -> Column:
    parts: list[Column] = []
    for index, piece in enumerate(_COLUMN.split(text)):
        if index % 2:
            parts.append(_expression(rows, name, f"`{piece}`" if piece in rows.columns else piece).cast("string"))
        elif piece:
            parts.append(F.lit(piece))
    filled = F.concat(*parts) if parts else F.lit("")
    return filled.cast("int" if name == "schema_version" else "string")
