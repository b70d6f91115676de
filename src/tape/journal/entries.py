"""Rows of the journal as entries, each checked against its checksum.

An entry whose checksum is absent or differs is checked against the chain: one from before there were checksums, or one
of which only the checksum is damaged, is whole. Any other becomes a gap.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import starmap
from operator import itemgetter
from zlib import crc32

from tape.errors import EntryDamaged, StoreDamaged
from tape.journal.appender import read_head
from tape.journal.epochs import read_epochs
from tape.model.chain import CHAIN_BYTES, TEXTS, canonical, link
from tape.model.checksum import COUNT, checksum, encode
from tape.model.entry import COLUMNS, Entry
from tape.model.gap import JournalGap
from tape.store import Reader
from tape.store.connection import Row

# Every reader of entries selects these columns, so that `entries_of` can check them.
ROW = f"{','.join(COLUMNS)},checksum"
SELECT = f"SELECT {ROW} FROM tape_journal"

ALTERED = "the entry is not what was written"
UNREADABLE = "the entry cannot be read"

_CHAIN = COLUMNS.index("chain")
_fields_of = itemgetter(slice(COUNT))
_stored_checksum = itemgetter(COUNT)


def entries_of(reader: Reader, rows: Sequence[Row]) -> tuple[list[Entry], list[JournalGap]]:
    """The entries of rows, selected by `SELECT`, and a gap for each that is not what was written."""
    fields = list(map(_fields_of, rows))
    # As `checksum` does it, for all rows without a step of the interpreter for each.
    if list(map(crc32, map(encode, fields))) != list(map(_stored_checksum, rows)):
        return _examine(reader, rows)
    return list(starmap(Entry, fields)), []


def read_entry(reader: Reader, global_seq: int) -> Entry | None:
    """One entry, or None if there is none of that number. Raises EntryDamaged."""
    try:
        rows = reader.query(f"{SELECT} WHERE global_seq = ?", global_seq)
    except StoreDamaged as error:
        reader.damage.record_error(error, global_seq)
        raise EntryDamaged(global_seq, global_seq, UNREADABLE) from error
    entries, gaps = entries_of(reader, rows)
    if gaps:
        raise EntryDamaged(global_seq, global_seq, ALTERED)
    return entries[0] if entries else None


def _examine(reader: Reader, rows: Sequence[Row]) -> tuple[list[Entry], list[JournalGap]]:
    """As `entries_of`, for rows of which one has no checksum, or another one."""
    is_sound = [checksum(row[:COUNT]) == row[COUNT] for row in rows]
    predecessors = _Predecessors(reader, rows, [row[0] for row, sound in zip(rows, is_sound, strict=True) if not sound])
    entries: list[Entry] = []
    damaged: set[int] = set()
    for row, sound in zip(rows, is_sound, strict=True):
        if not sound and not _is_whole(row, predecessors.chains_before(row[0])):
            damaged.add(row[0])
            continue
        if not sound and row[COUNT] is not None:
            reader.damage.record_recovered("checksum", row[0])
        entries.append(Entry(*row[:COUNT]))
    damaged.difference_update(entry.global_seq for entry in entries)
    return entries, [JournalGap(number, number, "damaged", ALTERED) for number in sorted(damaged)]


def _is_whole(row: Row, before: Sequence[bytes]) -> bool:
    """Whether an entry continues the chain. Of one that has no checksum and no predecessor only the types are known."""
    if not before:
        return row[COUNT] is None and _chain_after(row, b"") is not None and _has_chain(row)
    return row[_CHAIN] in [_chain_after(row, chain) for chain in before]


def _has_chain(row: Row) -> bool:
    return isinstance(row[_CHAIN], bytes) and len(row[_CHAIN]) == CHAIN_BYTES


def _chain_after(row: Row, previous: bytes) -> bytes | None:
    """The chain value that an entry's content gives; None if a column has a value that was never written."""
    entry = Entry(*row[:COUNT])
    try:
        texts = [getattr(entry, name) for name in TEXTS]
        return link(previous, canonical(entry.global_seq, entry.seq, entry.ts_ms, entry.schema_version, texts))
    except (TypeError, AttributeError, ValueError, struct.error):
        return None


class _Predecessors:
    """The chain values before some of the entries that were read."""

    def __init__(self, reader: Reader, rows: Sequence[Row], numbers: Sequence[int]) -> None:
        self._reader = reader
        self._rows = {row[0]: row for row in rows}
        self._doubtful = set(numbers)
        self._fetched = _read_chains(reader, [number - 1 for number in numbers if number - 1 not in self._rows])

    def chains_before(self, number: int) -> list[bytes]:
        """What the chain value before an entry can be.

        If the predecessor is doubtful too, either its stored or its recomputed chain value may be the true one.
        """
        chains = self._stored_before(number)
        if number - 1 in self._doubtful:
            row = self._rows[number - 1]
            chains += [chain for before in self._stored_before(number - 1) if (chain := _chain_after(row, before))]
        return chains

    def _stored_before(self, number: int) -> list[bytes]:
        row = self._rows.get(number - 1)
        chain = row[_CHAIN] if row is not None else self._fetched.get(number - 1) or self._seam_before(number)
        return [chain] if isinstance(chain, bytes) else []

    def _seam_before(self, number: int) -> bytes | None:
        """The chain value before the oldest entry, and before the first entry of an epoch."""
        head = read_head(self._reader)
        if number == head.oldest:
            return head.anchor
        for epoch in read_epochs(self._reader):
            if epoch.resumes_at == number:
                return _read_chains(self._reader, [epoch.cut_after]).get(epoch.cut_after, head.anchor)
        return None


def _read_chains(reader: Reader, numbers: Sequence[int]) -> dict[int, bytes]:
    """The chain values of those entries that are there and can be read."""
    if not numbers:
        return {}
    source, pairs = reader.pairs([(number, number) for number in numbers])
    sql = f"SELECT global_seq, chain FROM {source} CROSS JOIN tape_journal WHERE global_seq = low"
    try:
        return dict(reader.query(sql, pairs))
    except StoreDamaged:
        middle = len(numbers) // 2
        return _read_chains(reader, numbers[:middle]) | _read_chains(reader, numbers[middle:]) if middle else {}
