"""SQLite through apsw: WAL, full durability, one file.

Only apsw may touch the file in this process: a second SQLite library would silently drop its locks.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, cast

import msgspec

from tape.base.private_files import create_private
from tape.base.store_url import describe_source
from tape.base.telemetry.metrics import Metrics
from tape.base.url_mask import mask_urls
from tape.errors import (
    MissingExtra,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreNotFound,
    StoreUnavailable,
    TapeError,
)
from tape.store.connection import STREAM_ROWS, Column, ColumnKind, DatabaseConnection, Row, placeholders, upsert_sql
from tape.store.database import JOURNAL, Database
from tape.store.process_lock import Holder, ProcessLock
from tape.store.sqlite_limits import SqliteLimits
from tape.store.wal import WalMonitor

try:
    import apsw

    from tape.store.checkpointer import BUSY_TIMEOUT_MS, Checkpointer
    from tape.store.read_gate import ReadGate
except ImportError as missing:  # pragma: no cover - the extra is installed where this is tested
    raise MissingExtra("A SQLite store", "server") from missing

_KINDS: dict[str, ColumnKind] = {"INTEGER": "integer", "REAL": "real", "TEXT": "text", "BLOB": "blob"}

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)

DEFAULT_LIMITS = SqliteLimits()
POLL_S = 0.1
# Below this much free space an I/O error is taken for a full disk.
MIN_FREE_BYTES = 1 << 20
# I/O errors that say that the file is not what was written. The others are of a disk that fails or is unavailable.
_DAMAGE = frozenset({apsw.SQLITE_IOERR_CORRUPTFS, apsw.SQLITE_IOERR_DATA, apsw.SQLITE_IOERR_SHORT_READ})


def translate(error: apsw.Error, path: Path) -> TapeError:
    """The Tape error that says what an apsw error means for the caller. Only proven damage is StoreDamaged."""
    if isinstance(error, apsw.CorruptError | apsw.NotADBError) or getattr(error, "extendedresult", 0) in _DAMAGE:
        return StoreDamaged(f"{path} is damaged ({error}). Run: tape verify --store sqlite:{path}")
    if isinstance(error, apsw.FullError) or (isinstance(error, apsw.IOError) and not has_free_space(path)):
        return StoreFull(f"The disk of {path} is full ({error}). Nothing was written; free disk space and retry.")
    if isinstance(error, apsw.BusyError | apsw.LockedError | apsw.ProtocolError):
        return StoreBusy(f"Another process kept {path} locked for {BUSY_TIMEOUT_MS} ms ({error}). Try again.")
    if isinstance(error, apsw.InterruptError):
        return StoreBusy(f"A statement on {path} was interrupted ({error}). Try again.")
    if isinstance(error, apsw.NoMemError):
        return StoreUnavailable(f"SQLite has no memory left for {path} ({error}). Free memory and retry.")
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
        except UnicodeDecodeError as error:
            path = cast(SqliteConnection, args[0]).path
            raise StoreDamaged(f"{path} is damaged: a text is not UTF-8 ({error.reason}).") from error

    return call


class SqliteConnection(DatabaseConnection):
    """One apsw connection."""

    dialect: Literal["sqlite"] = "sqlite"

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool,
        durable: bool,
        create: bool = True,
        limits: SqliteLimits = DEFAULT_LIMITS,
        readers: int = 1,
        gate: ReadGate | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        super().__init__()
        self.path = path
        gate = gate or ReadGate(metrics)
        self._gate = gate if read_only else None
        self._file: tuple[int, int] | None = None
        if create and not read_only:  # what reads never creates a database
            create_private(path)  # SQLite gives the files beside it the same mode
        try:
            # Never SQLITE_OPEN_CREATE: it would make the file with the mode of the umask.
            self._db = apsw.Connection(os.fspath(path), flags=apsw.SQLITE_OPEN_READWRITE)
            self._db.set_busy_timeout(BUSY_TIMEOUT_MS)
            # Plans do not depend on parameters. Else each new value of one that a partial index might depend on has the
            # statement prepared again, which takes ten times as long as a lookup.
            self._db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
            self._run = self._db.execute
            if create:  # the file keeps the mode; that of another program is left as it is
                self._run("PRAGMA journal_mode=WAL")
            self._run(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
            if sys.platform == "darwin":
                self._run("PRAGMA fullfsync=1")
            self._run(f"PRAGMA cache_size=-{limits.cache_kib(readers=readers, read_only=read_only)}")
            self._run("PRAGMA temp_store=MEMORY")
            self._db.set_wal_hook(Checkpointer(limits, metrics, gate))  # in place of PRAGMA wal_autocheckpoint
            self._run(f"PRAGMA journal_size_limit={limits.wal_bytes}")
            if read_only:
                self._run("PRAGMA query_only=1")
            self._file = _identify(path)
        except apsw.Error as error:
            raise translate(error, path) from error

    @_translated
    def query(self, sql: str, *params: Any) -> list[Row]:
        return self._read(lambda: self._run(sql, params).fetchall())

    def _read(self, statement: Callable[[], T]) -> T:
        if self._gate is None or self._db.in_transaction:
            return statement()
        return self._gate.run(self._db, statement)

    def is_any(self, column: str, values: Sequence[str]) -> tuple[str, Any]:
        return f"{column} IN (SELECT value FROM json_each(?))", msgspec.json.encode(values).decode()

    def pairs(self, values: Sequence[tuple[int, int]]) -> tuple[str, Any]:
        columns = "json_extract(value, '$[0]') AS low, json_extract(value, '$[1]') AS high"
        return f"(SELECT {columns} FROM json_each(?)) AS pairs", msgspec.json.encode(values).decode()

    def texts(self, values: Sequence[str]) -> tuple[str, Any]:
        return "json_each(?)", msgspec.json.encode(values).decode()

    @_translated
    def lookup(self, table: str, columns: str, keys: Sequence[str], wanted: Sequence[tuple[str, ...]]) -> list[Row]:
        condition = " AND ".join(f"{key} = ?" for key in keys)
        sql = f"SELECT {columns} FROM {table} WHERE {condition}"
        return self._read(lambda: self._db.executemany(sql, wanted).fetchall())

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
    def is_current(self) -> bool:
        return _identify(self.path) == self._file

    @property
    def in_transaction(self) -> bool:
        return self._db.in_transaction

    @_translated
    def truncate_wal(self, timeout_ms: int) -> bool:
        """Copy the write-ahead log into the file and empty it; False if readers needed it for longer than that."""
        self._db.set_busy_timeout(timeout_ms)
        try:
            (row,) = self._run("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return row[0] == 0
        finally:
            self._db.set_busy_timeout(BUSY_TIMEOUT_MS)

    @_translated
    def sort_on_disk(self) -> None:
        self._run("PRAGMA temp_store=FILE")

    @_translated
    def checkpoint(self) -> None:
        self._run("PRAGMA wal_checkpoint(TRUNCATE)")

    @_translated
    def keep_log(self) -> None:
        self._db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)

    @_translated
    def run_script(self, sql: str) -> None:
        self._run(sql)

    @_translated
    def begin_snapshot(self) -> None:
        self._run("BEGIN")

    def stream(self, sql: str) -> Iterator[list[Row]]:
        try:
            cursor = self._run(sql)
            while rows := list(islice(cursor, STREAM_ROWS)):
                yield rows
        except apsw.Error as error:
            raise translate(error, self.path) from error

    def tables(self) -> list[str]:
        sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND substr(name, 1, 5) = 'tape_' ORDER BY name"
        return [name for (name,) in self.query(sql)]

    def columns(self, table: str) -> list[Column]:
        found = self.query("SELECT name, type FROM pragma_table_xinfo(?) WHERE hidden = 0 ORDER BY cid", table)
        return [Column(name, _KINDS[kind.upper()]) for name, kind in found]

    def load(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        self.insert(table, [f'"{column}"' for column in columns], rows)

    def has_table(self, name: str) -> bool:
        return self.one("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", name) is not None

    @_translated
    def close(self) -> None:
        self._db.close()


class SqliteDatabase(Database):
    """A database in one file; any number of processes on this machine may share it."""

    dialect: Literal["sqlite"] = "sqlite"
    durable = True

    def __init__(self, url: str, path: Path, *, sqlite_limits: SqliteLimits = DEFAULT_LIMITS, **options: Any) -> None:
        self.path = path
        self._sqlite_limits = sqlite_limits
        super().__init__(url, **options)
        self._gate = ReadGate(self.metrics)

    @property
    def _default_witness(self) -> Path | None:
        return self.path.with_name(f"{self.path.name}-witness")

    def lock(self, holder: Holder, *, exclusive: bool) -> ProcessLock | None:
        return ProcessLock(self.path, holder, exclusive=exclusive)

    @property
    def exists(self) -> bool:
        return self.path.is_file()

    def connect(self, *, read_only: bool = False) -> SqliteConnection:
        if self._readers is not None and not self.path.exists():  # of a running server: it makes no other database
            raise StoreUnavailable(f"{self.path} is gone. Put the file back, or stop the server.")
        if not self._creates and not self.exists:
            raise StoreNotFound(
                f"There is no database at {self.path}{describe_source(self.url)}. Name one with --store, TAPE_STORE or"
                f" store in tape.toml, or create it: tape migrate --store {mask_urls(self.url)}"
            )
        return SqliteConnection(
            self.path,
            read_only=read_only,
            durable=self.durable,
            create=self._creates,
            limits=self._sqlite_limits,
            readers=self._reader_count,
            gate=self._gate,
            metrics=self.metrics,
        )

    async def maintain(self) -> None:
        path = self.path.with_name(f"{self.path.name}-wal")
        await WalMonitor(path, self._sqlite_limits.wal_bytes, self.metrics, self._truncate_wal).run()

    def _truncate_wal(self, timeout_ms: int) -> bool:
        connection = self.connect()
        try:
            return connection.truncate_wal(timeout_ms)
        finally:
            connection.close()

    async def changes(self, channel: str = JOURNAL) -> AsyncIterator[None]:
        """A look ten times a second: SQLite has no way to call."""
        while True:
            yield
            await asyncio.sleep(POLL_S)


class MemoryDatabase(SqliteDatabase):
    """A database that is gone when it is closed: for tests and for trying things out."""

    durable = False
    _default_witness = None

    def __init__(self, url: str, **options: Any) -> None:
        shared_memory = Path("/dev/shm")  # noqa: S108  (only a folder of our own below it is used)
        parent = shared_memory if os.access(shared_memory, os.W_OK) else Path(tempfile.gettempdir())
        _delete_stale_files(parent)
        prefix = f"tape-memory-{os.getpid()}-"
        self._folder = tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True)
        super().__init__(url, Path(self._folder.name, "tape.db"), **options)

    def lock(self, holder: Holder, *, exclusive: bool) -> ProcessLock | None:
        return None

    async def close(self) -> None:
        await super().close()
        self._folder.cleanup()


def _identify(path: Path) -> tuple[int, int] | None:
    """Which file has that name now: it may have been exchanged for another one."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _delete_stale_files(parent: Path) -> None:
    """Remove what processes that were killed left behind."""
    for folder in parent.glob("tape-memory-*"):
        owner = folder.name.split("-")[2]
        if owner.isdecimal() and not Path("/proc", owner).exists() and Path("/proc/self").exists():
            shutil.rmtree(folder, ignore_errors=True)
