"""Piggybacked operations: they run last in a transaction of others, and never harm it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tape.store import Database, Transaction


def put(tx: Transaction, key: str) -> str:
    """Store one row."""
    tx.execute("INSERT INTO tape_values (namespace, key, value_json, ts_ms) VALUES (?, ?, ?, ?)", "test", key, "1", 1)
    return key


def keys(tx: Transaction) -> list[str]:
    return [key for (key,) in tx.query("SELECT key FROM tape_values ORDER BY key")]


class FailingFlush:
    """A participant whose transaction cannot be committed."""

    def __init__(self, tx: Transaction) -> None:
        pass

    def mark(self) -> object:
        return None

    def rewind(self, mark: object) -> None:
        pass

    def flush(self) -> None:
        raise ValueError("not committed")


async def test_it_runs_after_all_operations_of_a_transaction_and_shares_their_commit(database: Database) -> None:
    began, release = threading.Event(), threading.Event()

    def block(tx: Transaction) -> None:
        began.set()
        assert release.wait(60)

    blocking = asyncio.create_task(database.write(block))
    await asyncio.to_thread(began.wait, 60)
    others = [asyncio.create_task(database.write(lambda tx, key=key: put(tx, key))) for key in "abc"]  # type: ignore[misc]
    await asyncio.sleep(0)  # they are queued
    piggyback = database.piggyback(keys, lambda tx: bool(keys(tx)))
    release.set()
    await asyncio.gather(blocking, *others)
    assert await piggyback.result == ["a", "b", "c"]
    assert database.metrics.registry.get_sample_value("tape_commits_total") == 2


async def test_it_waits_for_a_transaction_that_it_joins(database: Database) -> None:
    piggyback = database.piggyback(keys, lambda tx: "b" in keys(tx))
    await database.write(lambda tx: put(tx, "a"))
    assert not piggyback.result.done()
    await database.write(lambda tx: put(tx, "b"))
    assert await piggyback.result == ["a", "b"]


async def test_once_withdrawn_it_does_not_run(database: Database) -> None:
    piggyback = database.piggyback(lambda tx: put(tx, "piggyback"), lambda tx: True)
    assert database.withdraw(piggyback)
    await database.write(lambda tx: put(tx, "a"))
    assert await database.write(keys) == ["a"]
    assert not piggyback.result.done()
    assert not database.withdraw(piggyback)


async def test_once_taken_it_cannot_be_withdrawn_and_runs_once(database: Database) -> None:
    piggyback = database.piggyback(lambda tx: put(tx, "piggyback"), lambda tx: True)
    await database.write(lambda tx: put(tx, "a"))
    assert not database.withdraw(piggyback)
    assert await piggyback.result == "piggyback"
    assert await database.write(keys) == ["a", "piggyback"]


@pytest.mark.parametrize("statement", ["", "INSERT INTO no_such_table VALUES (1)"])
async def test_one_that_raises_undoes_only_what_it_did_itself(database: Database, statement: str) -> None:
    def fail(tx: Transaction) -> None:
        with tx.savepoint():
            put(tx, "lost")
            if statement:
                tx.execute(statement)
            raise ValueError("on purpose")

    piggyback = database.piggyback(fail, lambda tx: True)
    assert await database.write(lambda tx: put(tx, "a")) == "a"
    with pytest.raises(Exception, match=r"on purpose|no_such_table"):
        await piggyback.result
    assert await database.write(keys) == ["a"]


async def test_it_fails_with_a_transaction_that_is_not_committed(database: Database) -> None:
    def fail(tx: Transaction) -> None:
        tx.enlist(FailingFlush)

    piggyback = database.piggyback(lambda tx: put(tx, "piggyback"), lambda tx: tx.find(FailingFlush) is not None)
    with pytest.raises(ValueError, match="not committed"):
        await database.write(fail)
    with pytest.raises(ValueError, match="not committed"):
        await piggyback.result
    assert await database.write(keys) == []


async def test_it_does_not_run_with_an_operation_that_fails_alone(database: Database) -> None:
    def fail(tx: Transaction) -> None:
        put(tx, "lost")
        raise ValueError("on purpose")

    piggyback = database.piggyback(keys, lambda tx: True)
    with pytest.raises(ValueError, match="on purpose"):
        await database.write(fail)
    assert not piggyback.result.done()
    await database.write(lambda tx: put(tx, "a"))
    assert await piggyback.result == ["a"]
