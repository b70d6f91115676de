"""Limits of a SQLite store: the size of its write-ahead log on disk, and its page caches in memory."""

from __future__ import annotations

from dataclasses import dataclass

PAGE_BYTES = 4_096
FRAME_BYTES = PAGE_BYTES + 24


@dataclass(frozen=True, slots=True)
class SqliteLimits:
    """`wal_bytes` is the size that the write-ahead log is kept below; `cache_bytes` is for all connections together."""

    wal_bytes: int = 32 << 20
    cache_bytes: int = 64 << 20

    @property
    def checkpoint_pages(self) -> int:
        """Pages in the log from which each commit copies what no reader needs into the file: half of the limit."""
        return max(self.wal_bytes // 2 // FRAME_BYTES, 1)

    @property
    def restart_pages(self) -> int:
        """Pages in the log from which a commit waits for readers to copy all of it: five eighths of the limit."""
        return max(self.wal_bytes * 5 // 8 // FRAME_BYTES, 1)

    def cache_kib(self, *, readers: int, read_only: bool) -> int:
        """The page cache of one connection in KiB: the writer has half of the total, the readers share the other."""
        return max(self.cache_bytes // (2 * readers if read_only else 2) >> 10, 1)
