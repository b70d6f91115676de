"""A writer that stands still inside of a transaction: PostgreSQL ends it, and the other writers go on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tape.errors import StoreBusy, StoreUnavailable
from tape.store import open_database
from tape.store import postgres as store
from tape.store.postgres import PostgresConnection, PostgresDatabase
from tests.services import Postgres


@pytest.fixture
def database(postgres: Postgres) -> Iterator[PostgresDatabase]:
    with postgres.migrated_database() as url:
        found = open_database(url)
        assert isinstance(found, PostgresDatabase)
        yield found


def connect(database: PostgresDatabase, **limits: int) -> PostgresConnection:
    connection = database.connect()
    connection._set(limits)
    return connection


def test_every_writing_connection_has_limits_of_time(database: PostgresDatabase) -> None:
    connection = database.connect()
    shown = {name: connection.query(f"SHOW {name}")[0][0] for name in store._SESSION if not name.startswith("tcp")}
    connection.close()
    assert shown == {
        "synchronous_commit": "on",
        "idle_in_transaction_session_timeout": "6s",
        "statement_timeout": "8s",
        "lock_timeout": "8s",
    }


def test_a_writer_that_stands_still_loses_the_lock_and_cannot_commit(database: PostgresDatabase) -> None:
    ghost, other = connect(database, idle_in_transaction_session_timeout=300), database.connect()
    ghost.begin()
    ghost.execute("UPDATE tape_head SET ts_ms = 1 WHERE id = 1")
    other.begin()  # waits until the ghost's session is ended
    other.execute("UPDATE tape_head SET ts_ms = 2 WHERE id = 1")
    other.commit()
    with pytest.raises(StoreUnavailable):
        ghost.commit()
    assert other.query("SELECT ts_ms FROM tape_head") == [(2,)]
    other.close()


def test_waiting_for_the_lock_ends_with_a_typed_error(database: PostgresDatabase) -> None:
    holder, waiting = database.connect(), connect(database, lock_timeout=100)
    holder.begin()
    with pytest.raises(StoreBusy):
        waiting.begin()
    holder.rollback()
    holder.close()
    waiting.close()


def test_migrations_and_jobs_have_no_limits_of_time(database: PostgresDatabase) -> None:
    connection = database.connect()
    connection.lift_time_limits()
    names = ("idle_in_transaction_session_timeout", "statement_timeout", "lock_timeout")
    assert [connection.query(f"SHOW {name}")[0][0] for name in names] == ["0"] * 3
    connection.close()
