"""Entries of the journal as an Arrow table, read with the store's own connections."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from tape.archive.schema import TYPES, arrow_schema
from tape.errors import EntryDamaged
from tape.journal.entries import SELECT, entries_of
from tape.model.entry import Entry
from tape.store import Reader

STEP = 20_000


def read_rows(reader: Reader, after: int, until: int, wanted: Collection[int] | None = None) -> pa.Table:
    """The entries after one global_seq up to another, as far as the journal has them.

    Raises EntryDamaged if one of those wanted is damaged, which is any without `wanted`.
    """
    tables = []
    for start in range(after, until, STEP):
        sql = f"{SELECT} WHERE global_seq > ? AND global_seq <= ? ORDER BY global_seq"
        entries, gaps = entries_of(reader, reader.query(sql, start, min(start + STEP, until)))
        for gap in gaps:
            if wanted is None or gap.first in wanted:
                raise EntryDamaged(gap.first, gap.last, gap.detail)
        tables.append(to_table(entries))
    return pa.concat_tables(tables) if tables else to_table([])


def to_table(entries: list[Entry]) -> pa.Table:
    """Entries with all columns of the archive."""
    columns = {name: [getattr(entry, name) for entry in entries] for name in TYPES if name != "ts"}
    columns["ts"] = [entry.ts_ms * 1000 for entry in entries]
    return pa.table([pa.array(columns[name], kind) for name, kind in TYPES.items()], arrow_schema(TYPES))
