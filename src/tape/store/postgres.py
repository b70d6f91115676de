"""PostgreSQL through psycopg 3: any number of processes, one global order."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import select
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, wraps
from pathlib import Path
from time import monotonic
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import msgspec

from tape.base.private_files import state_folder
from tape.base.retry import WHILE_UNAVAILABLE, Backoff
from tape.base.url_mask import mask_urls
from tape.errors import (
    InvalidInput,
    MissingExtra,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreUnavailable,
    TapeError,
)
from tape.store.connection import STREAM_ROWS, Column, ColumnKind, DatabaseConnection, Row, upsert_sql
from tape.store.database import JOURNAL, Database
from tape.store.stuck_backends import StuckBackends, stuck_error
from tape.store.watchdog import Watchdog, shut_down

try:
    import psycopg
    from psycopg import errors, pq

    from tape.store import postgres_arrays
    from tape.store.postgres_arrays import unnest
except ImportError as missing:  # pragma: no cover - the extra is installed where this is tested
    raise MissingExtra("A PostgreSQL store", "postgres") from missing

log = logging.getLogger(__name__)

_KINDS: dict[str, ColumnKind] = {
    "bigint": "integer",
    "integer": "integer",
    "smallint": "integer",
    "double precision": "real",
    "text": "text",
    "bytea": "blob",
}

P = ParamSpec("P")
T = TypeVar("T")

# Any fixed number will do, as long as every writer of the database takes the same lock.
WRITE_LOCK = 0x74617065
CONNECT_TIMEOUT_S = 5
# A server that is stopped or loses its network inside of a transaction keeps the write lock until PostgreSQL ends its
# session. Waiting for the lock ends later than that, so that the other servers go on without an error.
IDLE_LIMIT_MS = 6_000
STATEMENT_LIMIT_MS = 8_000
TRANSACTION_LIMIT_MS = 60_000
# For a statement of the server's readers.
READ_LIMIT_MS = 60_000
_SESSION: dict[str, str | int] = {
    "synchronous_commit": "on",
    "idle_in_transaction_session_timeout": IDLE_LIMIT_MS,
    "statement_timeout": STATEMENT_LIMIT_MS,
    "lock_timeout": STATEMENT_LIMIT_MS,
    "tcp_user_timeout": STATEMENT_LIMIT_MS,
    "tcp_keepalives_idle": 4,
    "tcp_keepalives_interval": 2,
    "tcp_keepalives_count": 2,
}
_TRANSACTION_TIMEOUT_SINCE = 170_000
# How the client notices that the database's machine is gone.
_KEEPALIVE: dict[str, Any] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
# A call that lasts longer gets no answer any more, unless PostgreSQL still works on it or it waits for a lock: see
# `Watchdog`. Together with a new connection and the end of the old session, that is well below 10 s.
CALL_LIMIT_S = 5.0
# The session or its transaction was ended, or the server has become a standby: another connection may succeed.
_SESSION_ENDED = errors.ReadOnlySqlTransaction | errors.IdleInTransactionSessionTimeout | errors.TransactionTimeout
# Wake-ups come by NOTIFY; this poll only covers proxies that swallow them.
POLL_S = 1.0
# The listening connection is asked for a sign of life so often, and has so long to answer.
LISTEN_CHECK_S = 4.0
_WORKING = (
    "SELECT pid, wait_event_type IS NULL FROM pg_stat_activity"
    " WHERE pid = ANY(%s) AND state = 'active' AND wait_event_type IS DISTINCT FROM 'Client'"
)


@lru_cache(maxsize=512)
def to_psycopg(sql: str) -> str:
    """Our `?` parameters as psycopg's; no statement of ours has a question mark or percent sign otherwise."""
    return sql.replace("?", "%b")


def translate(error: psycopg.Error) -> TapeError:
    """The Tape error that says what a psycopg error means for the caller."""
    if isinstance(error, errors.DiskFull):
        return StoreFull(f"The database's disk is full ({error}). Nothing was written; free disk space and retry.")
    if isinstance(
        error,
        errors.LockNotAvailable | errors.QueryCanceled | errors.DeadlockDetected | errors.SerializationFailure,
    ):
        return StoreBusy(f"The database was busy for too long ({error}). Try again.")
    # Also XX000, "internal error": what PostgreSQL meets in a page and never wrote there.
    if isinstance(error, errors.DataCorrupted | errors.IndexCorrupted | errors.InternalError_):
        return StoreDamaged(f"The database is damaged ({error}).")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | _SESSION_ENDED):
        return StoreUnavailable(
            f"PostgreSQL is not available ({mask_urls(' '.join(str(error).split()))}). Is it running?"
        )
    if isinstance(error, psycopg.DataError):
        return InvalidInput(f"PostgreSQL does not accept a value: {str(error).partition(chr(10))[0]}.")
    return StoreError(f"PostgreSQL: {mask_urls(str(error))}")


def _call(
    method: Callable[Concatenate[PostgresConnection, P], T],
) -> Callable[Concatenate[PostgresConnection, P], T]:
    """A call to the database: the watchdog limits its time, and its errors are translated."""

    @wraps(method)
    def call(self: PostgresConnection, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.waits_since = monotonic() if self.is_watched else 0.0
        try:
            return method(self, *args, **kwargs)
        except psycopg.Error as error:
            raise stuck_error(self.backend) if self.is_stuck else translate(error) from error
        except UnicodeDecodeError as error:
            raise StoreDamaged(f"The database is damaged: a text is not UTF-8 ({error.reason}).") from error
        finally:
            self.waits_since = 0.0

    return call


class PostgresConnection(DatabaseConnection):
    """One psycopg connection."""

    dialect: Literal["postgres"] = "postgres"

    def __init__(
        self, conninfo: str, *, read_only: bool, watchdog: Watchdog, stuck: StuckBackends, is_job: bool = False
    ) -> None:
        super().__init__()
        self.waits_since = 0.0
        self.is_watched = not is_job
        self.is_stuck = False
        self.statement_limit_s = 0.0
        self._watchdog = watchdog
        self._stuck = stuck
        # The process that serves this connection; notifications name it.
        self.backend = 0
        try:
            self._db = psycopg.connect(
                conninfo,
                autocommit=True,
                connect_timeout=CONNECT_TIMEOUT_S,
                application_name="tape",
                **_KEEPALIVE,
            )
        except psycopg.Error as error:
            raise translate(error) from error
        watchdog.watch(self)
        try:
            self._prepare(read_only=read_only)
        except BaseException:
            self.close()
            raise

    @_call
    def _prepare(self, *, read_only: bool) -> None:
        self._poll = select.poll()
        self._poll.register(self._db.fileno(), select.POLLIN)
        postgres_arrays.register(self._db)
        self._cursor = self._db.cursor(binary=True)
        # A binary cursor takes one statement at a time; this one takes several in one round trip.
        self._script = self._db.cursor()
        self._with_commit: list[tuple[str, tuple[Any, ...]]] | None = None
        # A savepoint that is done with is released together with the next one, or by the commit.
        self._is_release_due = False
        limits: dict[str, str | int] = dict(_SESSION)
        if self._db.info.server_version >= _TRANSACTION_TIMEOUT_SINCE:
            limits["transaction_timeout"] = TRANSACTION_LIMIT_MS
        if read_only:
            limits = {"default_transaction_read_only": "on"}
            # Jobs such as verification read as long as they need.
            if self.is_watched:
                limits["statement_timeout"] = READ_LIMIT_MS
        self._set(limits)
        self.statement_limit_s = int(limits.get("statement_timeout", 0)) / 1_000
        # Behind a pooler, the protocol's own number is not that of the process.
        self.backend = self._cursor.execute("SELECT pg_backend_pid()").fetchall()[0][0]

    def _set(self, values: Mapping[str, object]) -> None:
        self._script.execute("; ".join(f"SET {name} = {value}" for name, value in values.items()), prepare=False)

    @_call
    def lift_time_limits(self) -> None:
        self.is_watched = False
        self.statement_limit_s = 0.0
        names = ("idle_in_transaction_session_timeout", "statement_timeout", "lock_timeout")
        limits = dict.fromkeys(names, 0)
        if self._db.info.server_version >= _TRANSACTION_TIMEOUT_SINCE:
            limits["transaction_timeout"] = 0
        self._set(limits)

    @_call
    def limit_statements(self, seconds: float) -> None:
        self._set({"statement_timeout": int(1_000 * seconds)})
        self.statement_limit_s, self.is_watched = seconds, seconds > 0

    @contextmanager
    def slow_statements(self) -> Iterator[None]:
        limit_s = self.statement_limit_s
        if not limit_s:
            yield
            return
        self.limit_statements(TRANSACTION_LIMIT_MS / 1_000)
        try:
            yield
        finally:
            if self.in_transaction:  # else it has failed, and is made anew
                self.limit_statements(limit_s)

    def fileno(self) -> int:
        """The file descriptor of its socket."""
        return self._db.fileno()

    @_call
    def query(self, sql: str, *params: Any) -> list[Row]:
        return self._cursor.execute(to_psycopg(sql), params).fetchall()

    def is_any(self, column: str, values: Sequence[str]) -> tuple[str, Any]:
        return f"{column} = ANY(?)", list(values)

    def pairs(self, values: Sequence[tuple[int, int]]) -> tuple[str, Any]:
        columns = "(value ->> 0)::bigint AS low, (value ->> 1)::bigint AS high"
        source = f"(SELECT {columns} FROM json_array_elements(?::json) AS value) AS pairs"
        return source, msgspec.json.encode(values).decode()

    def texts(self, values: Sequence[str]) -> tuple[str, Any]:
        return 'unnest(?::text[] COLLATE "C") AS texts (value)', list(values)

    def lookup(self, table: str, columns: str, keys: Sequence[str], wanted: Sequence[tuple[str, ...]]) -> list[Row]:
        names, arrays = ",".join(keys), ",".join(["?::text[]"] * len(keys))
        sql = f"SELECT {columns} FROM {table} JOIN unnest({arrays}) AS wanted ({names}) USING ({names})"
        return self.query(sql, *(list(column) for column in zip(*wanted, strict=True))) if wanted else []

    @_call
    def execute(self, sql: str, *params: Any) -> int:
        if self._with_commit is not None:
            self._with_commit.append((sql, params))
            return -1
        return self._cursor.execute(to_psycopg(sql), params).rowcount

    @_call
    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        # One message with all rows: during a COPY the database waits for the client, and no limit of time ends that.
        if rows:
            source, values = unnest(rows)
            self.execute(f"INSERT INTO {table} ({','.join(columns)}) SELECT * FROM {source}", *values)

    def upsert(self, table: str, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Row]) -> None:
        if rows:
            source, values = unnest(rows)
            self.execute(upsert_sql(table, keys, columns, f"SELECT * FROM {source}"), *values)

    def update(self, table: str, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Row]) -> None:
        rows_source, values = unnest(rows)
        changes = ",".join(f"{column} = new.{column}" for column in columns if column not in keys)
        condition = " AND ".join(f"{table}.{key} = new.{key}" for key in keys)
        source = f"{rows_source} AS new ({','.join(columns)})"
        self.execute(f"UPDATE {table} SET {changes} FROM {source} WHERE {condition}", *values)

    def notify(self, channel: str) -> None:
        self.execute("SELECT pg_notify(?, '')", channel)

    def begin(self) -> None:
        self._stuck.check(self)
        try:
            self._begin()
        except StoreBusy:
            self.rollback()
            if error := self._stuck.find_holder(self, WRITE_LOCK, 2 * STATEMENT_LIMIT_MS / 1_000):
                raise error from None
            raise

    @_call
    def _begin(self) -> None:
        self._is_release_due = False
        self._script.execute(f"BEGIN; SELECT pg_advisory_xact_lock({WRITE_LOCK})")

    def commit(self, flush: Callable[[], None] = lambda: None) -> None:
        """One round trip for the commit and the statements just before it (COPY needs its own)."""
        self._with_commit = []
        try:
            flush()
            statements = self._with_commit
        finally:
            self._with_commit = None
        self._commit(statements)

    @_call
    def _commit(self, statements: Sequence[tuple[str, tuple[Any, ...]]]) -> None:
        with self._db.pipeline():
            for sql, params in statements:
                self._cursor.execute(to_psycopg(sql), params)
            self._cursor.execute("COMMIT")

    @_call
    def rollback(self) -> None:
        if self.in_transaction:
            self._script.execute("ROLLBACK", prepare=False)

    @_call
    def savepoint(self) -> None:
        release = "RELEASE operation; " if self._is_release_due else ""
        self._script.execute(f"{release}SAVEPOINT operation", prepare=False)
        self._is_release_due = False

    def release(self) -> None:
        self._is_release_due = True

    @_call
    def rollback_to_savepoint(self) -> None:
        self._script.execute("ROLLBACK TO operation; RELEASE operation", prepare=False)

    @property
    def is_current(self) -> bool:
        """Whether the server has not ended this idle connection: what it sends then is the end, or a notice before it.

        So a restart of PostgreSQL fails no call that comes after it.
        """
        try:
            while self._poll.poll(0):
                self._db.pgconn.consume_input()
        except psycopg.Error:
            return False
        return self._db.pgconn.status == pq.ConnStatus.OK

    @property
    def in_transaction(self) -> bool:
        return self._db.info.transaction_status in (
            pq.TransactionStatus.INTRANS,
            pq.TransactionStatus.INERROR,
        )

    @_call
    def run_script(self, sql: str) -> None:
        self._script.execute(sql, prepare=False)

    @_call
    def begin_snapshot(self) -> None:
        self._script.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def stream(self, sql: str) -> Iterator[list[Row]]:
        try:
            with self._db.cursor("tape_stream", binary=True) as cursor:
                cursor.execute(to_psycopg(sql))
                while rows := cursor.fetchmany(STREAM_ROWS):
                    yield rows
        except psycopg.Error as error:
            raise translate(error) from error

    def tables(self) -> list[str]:
        found = self.query(
            "SELECT tablename::text FROM pg_tables"
            " WHERE schemaname = ANY(current_schemas(false)) AND left(tablename, 5) = 'tape_'"
        )
        return sorted(name for (name,) in found)

    def columns(self, table: str) -> list[Column]:
        found = self.query(
            "SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute"
            " WHERE attrelid = to_regclass(?::text) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            table,
        )
        return [Column(name, _KINDS[kind]) for name, kind in found]

    @_call
    def load(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        names = ",".join(f'"{column}"' for column in columns)
        with self._db.cursor() as cursor, cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)

    def has_table(self, name: str) -> bool:
        # Not to_regclass: it may answer from a cache that is older than the write lock.
        sql = "SELECT 1 FROM pg_tables WHERE schemaname = ANY(current_schemas(false)) AND tablename = ?"
        return self.one(sql, name) is not None

    @_call
    def close(self) -> None:
        self._watchdog.forget(self)
        self._db.close()


class PostgresDatabase(Database):
    """A PostgreSQL database, or one that speaks its protocol, such as AlloyDB."""

    dialect: Literal["postgres"] = "postgres"

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._own_backends: set[int] = set()
        self._stuck = StuckBackends(self.metrics)
        self.damage.is_index_endless = lambda: self._stuck.is_known
        self._watchdog = Watchdog(CALL_LIMIT_S, self._find_working, self._renew_all, self._stuck.record)

    def connect(self, *, read_only: bool = False) -> PostgresConnection:
        connection = PostgresConnection(
            self.conninfo, read_only=read_only, watchdog=self._watchdog, stuck=self._stuck, is_job=read_only
        )
        if not read_only:
            self._own_backends.add(connection.backend)
        return connection

    def _connect_reader(self) -> PostgresConnection:
        connection = PostgresConnection(self.conninfo, read_only=True, watchdog=self._watchdog, stuck=self._stuck)
        connection.damage = self.damage
        return connection

    def _find_working(self, backends: Collection[int]) -> dict[int, bool]:
        """Which backends work on a statement, and whether they compute. If PostgreSQL cannot be asked, none does."""
        try:
            connection = psycopg.connect(self.conninfo, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S)
        except psycopg.Error:
            return {}
        limit = threading.Timer(CONNECT_TIMEOUT_S, shut_down, (connection.fileno(),))
        limit.start()
        try:
            return dict(connection.execute(_WORKING, (list(backends),)).fetchall())
        except psycopg.Error:
            return {}
        finally:
            limit.cancel()
            connection.close()

    def _renew_all(self, dead: int) -> None:
        """Replace all connections before they are used again: those between calls may be dead too."""
        self.metrics.dead_connections.inc(dead)
        if self._readers is not None:
            self._readers.renew()
        if self._writer is not None:
            self._writer.renew()

    @property
    def _default_witness(self) -> Path | None:
        """In the state folder of the user or of the systemd unit, named by the database and a hash of its address."""
        address = psycopg.conninfo.conninfo_to_dict(self.conninfo)
        name = str(address.get("dbname") or address.get("user") or "postgres")
        location = "\n".join(str(address.get(key) or "") for key in ("host", "hostaddr", "port")) + f"\n{name}"
        shown = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:64]
        return state_folder() / f"{shown}-{hashlib.sha256(location.encode()).hexdigest()[:12]}-witness"

    @property
    def conninfo(self) -> str:
        """The address as libpq takes it."""
        return "postgresql://" + self.url.partition("://")[2]

    async def maintain(self) -> None:
        """Nothing: PostgreSQL maintains itself."""

    async def changes(self, channel: str = JOURNAL) -> AsyncIterator[None]:
        """LISTENs to the journal, or to another channel; after a lost connection it listens again and asks for a look.

        What this process commits needs no wake-up: it reaches the hub from memory.
        """
        backoff = Backoff(WHILE_UNAVAILABLE)
        while True:
            try:
                connection = await psycopg.AsyncConnection.connect(
                    self.conninfo,
                    autocommit=True,
                    connect_timeout=CONNECT_TIMEOUT_S,
                    application_name="tape-listen",
                    **_KEEPALIVE,
                )
            except psycopg.Error as error:
                log.warning("LISTEN failed, retrying: %s", error)
                await backoff.wait_async()
                continue
            try:
                await _execute_soon(connection, f"LISTEN {channel}")
                backoff.reset()
                checked_at = monotonic()
                while True:
                    yield
                    async for notice in connection.notifies(timeout=POLL_S):
                        if notice.pid not in self._own_backends:
                            yield
                    if monotonic() - checked_at >= LISTEN_CHECK_S:
                        await _execute_soon(connection, "SELECT 1")
                        checked_at = monotonic()
            except psycopg.Error as error:
                log.warning("LISTEN connection lost, reconnecting: %s", error)
                self.metrics.listen_reconnects.inc()
            finally:
                await connection.close()


async def _execute_soon(connection: psycopg.AsyncConnection[Any], sql: str) -> None:
    """Execute a statement within LISTEN_CHECK_S, else end the connection: a cancelled call waits for its answer."""
    limit = asyncio.get_running_loop().call_later(LISTEN_CHECK_S, shut_down, connection.fileno())
    try:
        await connection.execute(sql)
    finally:
        limit.cancel()
