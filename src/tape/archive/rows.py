"""Entries of the journal as an Arrow table, read with the store's own connections."""

from __future__ import annotations

import pyarrow as pa

from tape.archive.schema import TYPES, arrow_schema
from tape.model.entry import COLUMNS, Entry
from tape.store import Reader

STEP = 20_000


def read_rows(reader: Reader, after: int, until: int) -> pa.Table:
    """The entries after one global_seq up to another, as far as the journal has them."""
    tables = []
    for start in range(after, until, STEP):
        rows = reader.query(
            f"SELECT {','.join(COLUMNS)} FROM tape_journal"
            " WHERE global_seq > ? AND global_seq <= ? ORDER BY global_seq",
            start,
            min(start + STEP, until),
        )
        tables.append(to_table([Entry(*row) for row in rows]))
    return pa.concat_tables(tables) if tables else to_table([])


def to_table(entries: list[Entry]) -> pa.Table:
    """Entries with all columns of the archive."""
    columns = {name: [getattr(entry, name) for entry in entries] for name in TYPES if name != "ts"}
    columns["ts"] = [entry.ts_ms * 1000 for entry in entries]
    return pa.table([pa.array(columns[name], kind) for name, kind in TYPES.items()], arrow_schema(TYPES))
