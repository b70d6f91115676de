"""Fills the tables of the ledgers in bulk, through the store, with rows as runs leave them behind.

Keys ascend with the row's number, so that filling is fast, and spread over the whole range of keys, so that what is
measured afterwards lands anywhere between them.
"""

from __future__ import annotations

import os
import time

import msgspec

from tape.journal.key_index import index_entries
from tape.model.chain import GENESIS, TEXTS, canonical, link
from tape.model.checksum import checksum
from tape.model.entry import COLUMNS, Entry
from tape.store import Database, Transaction
from tape.store.connection import DatabaseConnection, Dialect

NAMESPACE = "bench"
APP = "treasury"
CHUNK = 100_000
SEALED_AT_ONCE = 5_000
FIRST_NUMBER = 1_000_000_000  # numbers in keys have the same length, and so the order of numbers

NUMBERS = (
    "WITH RECURSIVE n(i) AS (SELECT CAST(? AS BIGINT) UNION ALL SELECT i + 1 FROM n WHERE i + 1 < CAST(? AS BIGINT))"
)
_RUN_ID = {
    "sqlite": "printf('%08x-0000-4000-8000-%012d', (i - {first}) * {step}, i)",
    "postgres": "lpad(to_hex((i - {first}) * {step}), 8, '0') || '-0000-4000-8000-' || lpad(CAST(i AS TEXT), 12, '0')",
}
_USER = f"'user-' || CAST({FIRST_NUMBER} + i / 100 AS TEXT)"
_SESSION = f"'session-' || CAST({FIRST_NUMBER} + i / 10 AS TEXT)"
_STATUS = "CASE WHEN i / 10 * 10 = i THEN 2 ELSE 4 END"


def run_id(number: int, rows: int, first: int = 0) -> str:
    """The id of a filled run; every tenth is running. The `rows` from `first` on are spread over the range of ids."""
    return f"{(number - first) * _step(rows):08x}-0000-4000-8000-{number:012d}"


def session_ids(number: int) -> dict[str, str]:
    """Whose a filled run is."""
    return {
        "app_name": APP,
        "user_id": f"user-{FIRST_NUMBER + number // 100}",
        "session_id": f"session-{FIRST_NUMBER + number // 10}",
    }


def value_key(number: int) -> str:
    """The key of a filled value."""
    return f"key-{FIRST_NUMBER + number}"


def fill(database: Database, rows: int) -> None:
    """Put so many rows into each table: runs, their heads and entries, effects and values."""
    database.migrate()
    connection = database.connect()
    began_ms = time.time_ns() // 1_000_000 - rows
    columns = table_columns(connection.dialect, rows, began_ms)
    chain = GENESIS
    try:
        for start in range(0, rows, CHUNK):
            end = min(start + CHUNK, rows)
            connection.begin()
            insert_rows(connection, columns, start, end)
            connection.execute("UPDATE tape_head SET global_seq = ?, ts_ms = ? WHERE id = 1", end, began_ms + end)
            chain = _seal(connection, start + 1, end, chain)
            if connection.dialect == "sqlite":
                index_entries(Transaction(connection), start)
            connection.commit()
        settle(connection)
    finally:
        connection.close()


def settle(connection: DatabaseConnection) -> None:
    """Do what a database that has grown this far has long done by itself."""
    if connection.dialect == "postgres":
        connection.run_script("ANALYZE; CHECKPOINT")
    else:
        connection.run_script("PRAGMA wal_checkpoint(TRUNCATE)")
    os.sync()  # gigabytes on their way to the disk would stand in front of every commit that is measured


def _seal(connection: DatabaseConnection, first: int, last: int, chain: bytes) -> bytes:
    """Give entries their chain values and checksums, so that readers find them whole; the last chain value."""
    for start in range(first, last + 1, SEALED_AT_ONCE):
        rows = connection.query(
            f"SELECT {', '.join(COLUMNS)} FROM tape_journal WHERE global_seq >= ? AND global_seq <= ?"
            " ORDER BY global_seq",
            start,
            min(start + SEALED_AT_ONCE - 1, last),
        )
        sealed = []
        for row in rows:
            entry = Entry(*row)
            texts = [getattr(entry, name) for name in TEXTS]
            chain = link(chain, canonical(entry.global_seq, entry.seq, entry.ts_ms, entry.schema_version, texts))
            fields = msgspec.structs.astuple(msgspec.structs.replace(entry, chain=chain))
            sealed.append((entry.global_seq, chain, checksum(fields)))
        connection.update("tape_journal", ("global_seq",), ("global_seq", "chain", "checksum"), sealed)
    connection.execute("UPDATE tape_head SET chain = ? WHERE id = 1", chain)
    return chain


def _step(rows: int) -> int:
    return (1 << 32) // rows


def table_columns(
    dialect: Dialect, rows: int, began_ms: int, *, first: int = 0, seq: int = 1
) -> dict[str, dict[str, str]]:
    """The columns of each table as expressions of a row's number `i`, for `rows` numbers from `first` on.

    A run has `seq` entries; that the journal has them is for the caller to see to, unless it is one.
    """
    run = _RUN_ID[dialect].format(first=first, step=_step(rows))
    subject = f"'/tape/run/running/{APP}/' || {_USER} || '/' || {_SESSION} || '/' || {run}"
    payload = f"""'{{"run_id":"' || {run} || '","app":"{APP}","user":"' || {_USER} || '","status":"running"}}'"""
    when = f"{began_ms} + i"
    return {
        # Heads before runs: the trigger that updates a run's last sequence number then finds no run.
        "tape_run_heads": {"run_id": run, "tenant": "''", "seq": f"{seq}"},
        "tape_runs": {
            "run_id": run,
            "app_name": f"'{APP}'",
            "user_id": _USER,
            "session_id": _SESSION,
            "invocation_id": "'call-' || CAST(i - i / 10 * 10 AS TEXT)",
            "status": _STATUS,
            "seq_cursor": f"{seq}",
            "started_at_ms": when,
            "ended_at_ms": f"CASE WHEN i / 10 * 10 = i THEN 0 ELSE {when} END",
        },
        "tape_effects": {
            "run_id": run,
            "seq": "1",
            "decision_index": "0",
            "tool_name": "'transfer'",
            "idempotency_key": f"{run} || '/decision-0/transfer/0'",
            "status": "2",
            "request_json": """'{"amount":100,"currency":"EUR"}'""",
            "response_json": """'{"reference":"t-1"}'""",
            "ts_ms": when,
        },
        "tape_values": {
            "namespace": f"'{NAMESPACE}'",
            "key": f"'key-' || CAST({FIRST_NUMBER} + i AS TEXT)",
            "value_json": "'1.10'",
            "version": "1",
            "ts_ms": when,
        },
        "tape_journal": {
            "global_seq": "i + 1",
            "run_id": run,
            "seq": "1",
            "kind": "'run'",
            "subject": subject,
            "payload_json": payload,
            "ts_ms": when,
            "chain": "?",
        },
    }


def insert_rows(connection: DatabaseConnection, columns: dict[str, dict[str, str]], start: int, end: int) -> None:
    """Put the rows of these numbers into the tables."""
    for table, expressions in columns.items():
        chain = [bytes(32)] if "chain" in expressions else []
        names, texts = ", ".join(expressions), ", ".join(expressions.values())
        connection.execute(
            f"INSERT INTO {table} ({names}) {NUMBERS} SELECT {texts} FROM n",
            start,
            end,
            *chain,
        )
