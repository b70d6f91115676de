"""Checks rows that leave the database for Spark against their checksums, a record batch at a time."""

from __future__ import annotations

from typing import cast
from zlib import crc32

import pyarrow as pa

from tape.model.checksum import encode
from tape.model.entry import Entry

FIELDS = Entry.__struct_fields__
# What the database has to return besides what a reader wants.
CHECKED = (*FIELDS, "checksum")


def is_sound(batch: pa.RecordBatch, after: int) -> bool:
    """Whether the rows are in order after a number, and each has the checksum of its columns.

    Rows from before there were checksums have none, so they are not sound.
    """
    numbers = batch.column("global_seq").to_numpy()
    if batch.column("checksum").null_count or numbers[0] <= after or (numbers[1:] <= numbers[:-1]).any():
        return False
    # As `tape.model.checksum` does it; arrays become lists in C, and no row becomes an entry.
    rows = zip(*(_values(batch, name) for name in FIELDS), strict=True)
    return [crc32(encode(row)) for row in rows] == _values(batch, "checksum")


def _values(batch: pa.RecordBatch, name: str) -> list[object]:
    return cast("list[object]", batch.column(name).to_numpy(zero_copy_only=False).tolist())
