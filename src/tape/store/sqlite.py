"""SQLite through apsw: WAL, full durability, one file.

Only apsw may touch the file in this process: a second SQLite library would silently drop its locks.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

import msgspec

from tape.base.private_files import create_private
from tape.errors import MissingExtra, StoreBusy, StoreDamaged, StoreError, StoreFull, StoreUnavailable, TapeError
from tape.store.connection import DatabaseConnection, Row, placeholders, upsert_sql
from tape.store.database import JOURNAL, Database

try:
    import apsw
except ImportError as missing:  # pragma: no cover - the extra is installed where this is tested
    raise MissingExtra("A SQLite store", "server") from missing

P = ParamSpec("P")
T = TypeVar("T")

BUSY_TIMEOUT_MS = 5_000
POLL_S = 0.1
# Pages in the write-ahead log before they are copied into the file (32 MiB): fewer copies of hot pages.
CHECKPOINT_PAGES = 8_000
# Below this much free space an I/O error is taken for a full disk.
MIN_FREE_BYTES = 1 << 20


def translate(error: apsw.Error, path: Path) -> TapeError:
    """The Tape error that says what an apsw error means for the caller."""
    if isinstance(error, apsw.FullError) or (isinstance(error, apsw.IOError) and not has_free_space(path)):
        return StoreFull(f"The disk of {path} is full ({error}). Nothing was written; free disk space and retry.")
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return StoreBusy(f"Another process kept {path} locked for {BUSY_TIMEOUT_MS} ms ({error}). Try again.")
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return StoreDamaged(f"{path} is damaged ({error}). Run: tape verify --store sqlite:{path}")
    if isinstance(error, apsw.CantOpenError | apsw.IOError | apsw.ReadOnlyError | apsw.PermissionsError):
        return StoreUnavailable(f"{path} cannot be used ({error}). Check that its folder exists and is writable.")
    return StoreError(f"SQLite: {error}")


def has_free_space(path: Path) -> bool:
    """Whether the file system of `path` has at least 1 MiB of free space."""
    try:
        return shutil.disk_usage(path.parent).free > MIN_FREE_BYTES
    except OSError:
        return True


def _translated(method: Callable[P, T]) -> Callable[P, T]:
    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except apsw.Error as error:
            owner: Any = args[0]
            raise translate(error, owner.path) from error

    return call


class SqliteConnection(DatabaseConnection):
    """One apsw connection."""

    dialect: Literal["sqlite"] = "sqlite"

    def __init__(self, path: Path, *, read_only: bool, durable: bool) -> None:
        super().__init__()
        self.path = path
        create_private(path)  # SQLite gives the files beside it the same mode
        try:
            self._db = apsw.Connection(os.fspath(path))
            self._db.set_busy_timeout(BUSY_TIMEOUT_MS)
            self._run = self._db.execute
            self._run("PRAGMA journal_mode=WAL")
            self._run(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
            if sys.platform == "darwin":
                self._run("PRAGMA fullfsync=1")
            self._run("PRAGMA cache_size=-65536")
            self._run("PRAGMA temp_store=MEMORY")
            self._run(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
            if read_only:
                self._run("PRAGMA query_only=1")
        except apsw.Error as error:
            raise translate(error, path) from error

    @_translated
    def query(self, sql: str, *params: Any) -> list[Row]:
        return self._run(sql, params).fetchall()

    def is_any(self, column: str, values: Sequence[str]) -> tuple[str, Any]:
        return f"{column} IN (SELECT value FROM json_each(?))", msgspec.json.encode(values).decode()

    def pairs(self, values: Sequence[tuple[int, int]]) -> tuple[str, Any]:
        columns = "json_extract(value, '$[0]') AS low, json_extract(value, '$[1]') AS high"
        return f"(SELECT {columns} FROM json_each(?)) AS pairs", msgspec.json.encode(values).decode()

    @_translated
    def lookup(self, table: str, columns: str, keys: Sequence[str], wanted: Sequence[tuple[str, ...]]) -> list[Row]:
        condition = " AND ".join(f"{key} = ?" for key in keys)
        return self._db.executemany(f"SELECT {columns} FROM {table} WHERE {condition}", wanted).fetchall()

    @_translated
    def execute(self, sql: str, *params: Any) -> int:
        self._run(sql, params)
        return self._db.changes()

    @_translated
    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        self._db.executemany(
            f"INSERT INTO {table} ({','.join(columns)}) VALUES ({placeholders(len(columns))})",
            rows,
        )

    @_translated
    def upsert(self, table: str, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Row]) -> None:
        self._db.executemany(upsert_sql(table, keys, columns, f"VALUES ({placeholders(len(columns))})"), rows)

    @_translated
    def update(self, table: str, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Row]) -> None:
        # Numbered parameters: a row lists its values in the order of the columns, the statement has the keys last.
        numbers = {column: number for number, column in enumerate(columns, 1)}
        changes = ",".join(f"{column} = ?{number}" for column, number in numbers.items() if column not in keys)
        condition = " AND ".join(f"{key} = ?{numbers[key]}" for key in keys)
        self._db.executemany(f"UPDATE {table} SET {changes} WHERE {condition}", rows)

    @_translated
    def begin(self) -> None:
        self._run("BEGIN IMMEDIATE")

    @_translated
    def commit(self, flush: Callable[[], None] = lambda: None) -> None:
        flush()
        self._run("COMMIT")

    @_translated
    def rollback(self) -> None:
        if self._db.in_transaction:
            self._run("ROLLBACK")

    @_translated
    def savepoint(self) -> None:
        self._run("SAVEPOINT operation")

    @_translated
    def release(self) -> None:
        self._run("RELEASE operation")

    @_translated
    def rollback_to_savepoint(self) -> None:
        self._run("ROLLBACK TO operation")
        self._run("RELEASE operation")

    @property
    def in_transaction(self) -> bool:
        return self._db.in_transaction

    @_translated
    def sort_on_disk(self) -> None:
        self._run("PRAGMA temp_store=FILE")

    @_translated
    def run_script(self, sql: str) -> None:
        self._run(sql)

    def has_table(self, name: str) -> bool:
        return self.one("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", name) is not None

    @_translated
    def close(self) -> None:
        self._db.close()


class SqliteDatabase(Database):
    """A database in one file; any number of processes on this machine may share it."""

    dialect: Literal["sqlite"] = "sqlite"
    durable = True

    def __init__(self, url: str, path: Path, **options: Any) -> None:
        super().__init__(url, **options)
        self.path = path

    def connect(self, *, read_only: bool = False) -> SqliteConnection:
        return SqliteConnection(self.path, read_only=read_only, durable=self.durable)

    async def changes(self, channel: str = JOURNAL) -> AsyncIterator[None]:
        """A look ten times a second: SQLite has no way to call."""
        while True:
            yield
            await asyncio.sleep(POLL_S)


class MemoryDatabase(SqliteDatabase):
    """A database that is gone when it is closed: for tests and for trying things out."""

    durable = False

    def __init__(self, url: str, **options: Any) -> None:
        shared_memory = Path("/dev/shm")  # noqa: S108  (only a folder of our own below it is used)
        parent = shared_memory if os.access(shared_memory, os.W_OK) else Path(tempfile.gettempdir())
        _delete_stale_files(parent)
        prefix = f"tape-memory-{os.getpid()}-"
        self._folder = tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True)
        super().__init__(url, Path(self._folder.name, "tape.db"), **options)

    async def close(self) -> None:
        await super().close()
        self._folder.cleanup()


def _delete_stale_files(parent: Path) -> None:
    """Remove what processes that were killed left behind."""
    for folder in parent.glob("tape-memory-*"):
        owner = folder.name.split("-")[2]
        if owner.isdecimal() and not Path("/proc", owner).exists() and Path("/proc/self").exists():
            shutil.rmtree(folder, ignore_errors=True)
