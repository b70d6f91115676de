"""Copies entries of a journal into parts, and verifies the chain meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from tape.backup.chain import REQUIRED, ChainFollower, Range, clip_ranges
from tape.backup.manifest import JournalPart, Manifest
from tape.backup.parts import PartWriter
from tape.errors import BackupMismatch, StoreDamaged
from tape.journal.appender import Head
from tape.store.connection import DatabaseConnection, Row

TABLE = "tape_journal"
_CHUNK_BYTES = 8 << 20
_MAX_CHUNK = 2_000
_MAX_SHOWN = 5
# How an entry refers to an artifact.
_REFERENCE = '"artifact_ref"'


def find_position(connection: DatabaseConnection, manifest: Manifest, head: Head, ranges: Sequence[Range]) -> int:
    """The last entry of this journal that the backup has; 0 without any. Raises BackupMismatch if it differs."""
    best, chain = 0, ""
    for part in manifest.journal:
        for _, last in clip_ranges(ranges, part.first, part.last):
            if last > best:
                best, chain = last, part.chain if last == part.last else ""
    row = connection.one(f"SELECT chain FROM {TABLE} WHERE global_seq = ?", best)
    found = head.anchor if best == head.oldest - 1 else row[0] if row else None
    if chain and found is not None and found.hex() != chain:
        raise BackupMismatch(
            f"Entry {best} has the chain value {found.hex()} in the journal and {chain} in the backup: the journal was"
            " rewritten. Back up to another location, and run tape verify."
        )
    return best


class JournalCopy:
    """Copies entries after a position, up to the head; each finished part is handed over with its file's content."""

    def __init__(
        self,
        connection: DatabaseConnection,
        ranges: Sequence[Range],
        before: bytes,
        on_part: Callable[[JournalPart, bytes], None],
    ) -> None:
        self._connection = connection
        self._on_part = on_part
        self._columns = [column.name for column in connection.columns(TABLE)]
        assert set(REQUIRED) <= set(self._columns), "the journal's columns are those of its entries"
        assert self._columns[0] == "global_seq", "entries begin with their number"
        self._payload = self._columns.index("payload_json")
        self._ranges = list(ranges)
        self._follower = ChainFollower(ranges, before)
        self._follower.set_columns(self._columns)

    def run(self, *, accept_damage: bool, progress: Callable[[int], None]) -> None:
        """Copy all ranges. Raises StoreDamaged at damage that was not accepted; parts before it are handed over."""
        writer, first, before, references = PartWriter(), 0, self._follower.chain, 0
        last = 0
        for rows in self._read():
            for row in rows:
                self._follower.check(row)
                references += _REFERENCE in str(row[self._payload])
            if self._follower.damage and not accept_damage:
                raise damaged(self._follower)
            first, last = first or rows[0][0], rows[-1][0]
            writer.add(rows)
            progress(len(rows))
            if writer.is_full:
                self._close(writer, first, last, before, references)
                writer, first, before, references = PartWriter(), 0, self._follower.chain, 0
        self._follower.finish()
        if self._follower.damage and not accept_damage:
            raise damaged(self._follower)
        if writer.rows:
            self._close(writer, first, last, before, references)

    @property
    def follower(self) -> ChainFollower:
        """The chain as far as it was followed."""
        return self._follower

    def _close(self, writer: PartWriter, first: int, last: int, before: bytes, references: int) -> None:
        content, part = writer.finish()
        path = f"journal/{first:019d}-{last:019d}-{part.sha256[:16]}.gz"
        described = JournalPart(
            **msgspec.structs.asdict(msgspec.structs.replace(part, path=path)),
            first=first,
            last=last,
            before=before.hex(),
            chain=self._follower.chain.hex(),
            columns=self._columns,
            artifact_refs=references,
        )
        self._on_part(described, content)

    def _read(self) -> Iterator[list[Row]]:
        limit = 200
        for first, last in self._ranges:
            start = first
            while start <= last:
                rows, start = self._read_some(start, last, limit)
                if rows:
                    size = sum(len(str(row[self._payload])) + 300 for row in rows)
                    limit = max(1, min(_MAX_CHUNK, len(rows) * _CHUNK_BYTES // size))
                    yield rows

    def _read_some(self, start: int, last: int, limit: int) -> tuple[list[Row], int]:
        """Entries from one on, and where the next ones begin; of a damaged page, those that can be read."""
        names = ",".join(f'"{column}"' for column in self._columns)
        try:
            rows = self._connection.query(
                f"SELECT {names} FROM {TABLE} WHERE global_seq >= ? AND global_seq <= ? ORDER BY global_seq LIMIT ?",
                start,
                last,
                limit,
            )
        except (StoreDamaged, UnicodeDecodeError):
            if limit == 1 or start == last:
                return [], start + 1
            return self._read_some(start, min(last, start + limit // 2 - 1), max(1, limit // 2))
        return rows, rows[-1][0] + 1 if len(rows) == limit else last + 1


def damaged(follower: ChainFollower) -> StoreDamaged:
    """The error about damage that was not accepted."""
    shown = "; ".join(
        f"{each.first if each.first == each.last else f'{each.first} to {each.last}'}: {each.problem}"
        for each in follower.damage[:_MAX_SHOWN]
    )
    more = f" and {len(follower.damage) - _MAX_SHOWN} more ranges" if len(follower.damage) > _MAX_SHOWN else ""
    return StoreDamaged(
        f"The journal is damaged, so it is not backed up further (entries {shown}{more}). `tape verify` names all"
        " damage. Restore from an earlier backup, or back up what is left with --accept-damage."
    )
