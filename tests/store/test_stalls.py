"""A writer that stands still inside of a transaction: PostgreSQL ends it, and the other writers go on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing

import pytest

from tape.errors import StoreBusy, StoreUnavailable
from tape.store import open_database
from tape.store import postgres as store
from tape.store.postgres import PostgresConnection, PostgresDatabase
from tests.proxy import FaultProxy
from tests.services import Postgres
from tests.system.test_network import socket_of, through


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
    assert not connection.is_watched
    connection.close()


# ── connections that stay open while nothing arrives ─────────────────────────────────────────────


def behind(proxy: FaultProxy, database: PostgresDatabase) -> PostgresDatabase:
    found = open_database(through(proxy, database.url))
    assert isinstance(found, PostgresDatabase)
    return found


@pytest.mark.parametrize("connects", ["connect", "_connect_reader"])
def test_a_call_that_gets_no_answer_fails_and_the_next_connection_works(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch, connects: str
) -> None:
    monkeypatch.setattr(store, "CALL_LIMIT_S", 0.3)
    with FaultProxy(socket_of(database.url)) as proxy:
        beyond = behind(proxy, database)
        connection = getattr(beyond, connects)()
        proxy.become("half open")
        with pytest.raises(StoreUnavailable):
            connection.query("SELECT 1")
        connection.close()
        assert beyond.metrics.dead_connections._value.get() == 1
        connection = getattr(beyond, connects)()
        assert connection.query("SELECT 1") == [(1,)]
        connection.close()


def test_a_commit_that_gets_no_answer_is_not_acknowledged(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "CALL_LIMIT_S", 0.3)
    with FaultProxy(socket_of(database.url)) as proxy:
        connection = behind(proxy, database).connect()
        connection.begin()
        proxy.become("deaf")
        with pytest.raises(StoreUnavailable):
            connection.commit(lambda: None)
        connection.close()


def test_a_statement_that_postgres_works_on_may_take_longer(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "CALL_LIMIT_S", 0.2)
    beyond = open_database(database.url)
    connection = beyond._connect_reader()
    assert len(connection.query("SELECT 1 FROM pg_sleep(2)")) == 1
    connection.close()
    assert beyond.metrics.dead_connections._value.get() == 0


async def test_a_listening_connection_that_gets_no_answer_is_replaced(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LISTEN_CHECK_S", 0.3)
    monkeypatch.setattr(store, "POLL_S", 0.1)
    with FaultProxy(socket_of(database.url)) as proxy:
        beyond = behind(proxy, database)
        async with asyncio.timeout(30), aclosing(beyond.changes()) as changes:
            await anext(changes)
            proxy.become("half open")
            while not beyond.metrics.listen_reconnects._value.get():
                await anext(changes)
            await anext(changes)
