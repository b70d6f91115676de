"""Weight: what a message of 30 bytes costs in the database: recorded in full, as a summary, and in a batch."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench.lab import TapeServer
from bench.options import NAMES, Options
from bench.pools import until_left, worker
from bench.table import NOTHING, Table, count
from tape.client import AsyncTapeClient
from tape.proto import tape_pb2 as pb

TITLE = "Weight"
PLAYBOOK = """\
kind: Playbook
metadata: {path: bench/noop}
workflow:
  - {step: nothing, tool: {kind: value, value: 1}}
"""
# What is asked for with each execution, and how many messages are in one call.
CELLS: dict[str, tuple[dict[str, Any], int]] = {
    "full": ({}, 100),
    "summary": ({"record": "summary"}, 100),
    "summary, one message a call": ({"record": "summary"}, 1),
    "batch of 100, full": ({"batch": 100}, 100),
    "batch of 100, summary": ({"batch": 100, "record": "summary"}, 100),
}
BARE = "bare rows: id and the same payload"
# Messages between two vacuums of PostgreSQL, which stand for its autovacuum.
VACUUM_EVERY = 500


class Weight(NamedTuple):
    """What is there after the messages, less what was there before."""

    data_bytes: int
    entries: int
    commits: float


def run(options: Options) -> list[Table]:
    """Each way to record on a fresh database of each kind, and bare rows."""
    messages = options.scaled(1_000, 200)
    rows = []
    for kind in options.stores:
        for name, (fields, size) in CELLS.items():
            options.report(f"{TITLE}: {NAMES[kind]}, {name}")
            number = messages if size > 1 else options.scaled(60, 20)
            store = options.lab.fresh_store(kind)
            found = _measure(options, store, fields, size, number)
            rows.append(
                [
                    f"{NAMES[kind]}: {name}",
                    *(f"{value / number:,.3g}" if value < 10 * number else count(value / number) for value in found),
                ]
            )
        bare = _bare(options.lab.fresh_store(kind), messages)
        rows.append([f"{NAMES[kind]}: {BARE}", count(bare / messages), NOTHING, NOTHING])
    notes = [
        f"{messages:,} messages of 30 bytes ({options.scaled(60, 20)} where each has a call), with the payload that a"
        " NATS source gives, as a runtime sends them: 100 in one call, unless the row says otherwise; dedup off; one"
        " no-op step; one worker with 8 slots; each call is worked off before the next one",
        "bytes: growth of the database per message, with all tables and indexes. SQLite: the file after a checkpoint."
        f" PostgreSQL: pg_total_relation_size after VACUUM, which also runs every {VACUUM_EVERY} messages as autovacuum"
        " does in the long run",
        "commits: transactions of the server, with those of the matcher, of claims and of reports",
        "bare rows: one table with a primary key, one row per message with the payload of its run, one commit for all",
    ]
    return [Table(TITLE, ["per message", "bytes", "journal entries", "commits"], rows, notes)]


def _measure(options: Options, store: str, fields: dict[str, Any], size: int, messages: int) -> Weight:
    with TapeServer(store) as server, worker(server.url, "shared"):
        return options.lab.run(_work(server, store, fields, size, messages))


async def _work(server: TapeServer, store: str, fields: dict[str, Any], size: int, messages: int) -> Weight:
    async with AsyncTapeClient(server.url) as client:
        await client.register_resource(PLAYBOOK)
        await _send(client, range(size), fields)  # what is written once: the pool, the first pages of each table
        await until_left(client, "shared", 0)
        before, head, commits = _size(store), (await client.head()).global_seq, server.counters()["tape_commits_total"]
        for start in range(size, messages + size, size):
            await _send(client, range(start, start + size), fields)
            await until_left(client, "shared", 0)
            if start % VACUUM_EVERY == 0:
                _vacuum(store)
        entries = (await client.head()).global_seq - head
        commits = server.counters()["tape_commits_total"] - commits
        return Weight(_size(store) - before, entries, commits)


async def _send(client: AsyncTapeClient, numbers: range, fields: dict[str, Any]) -> None:
    answer = await client.execute_many([_execution(number, fields) for number in numbers])
    assert all(result.status == "started" for result in answer.results), answer.results[0]


def _execution(number: int, fields: dict[str, Any]) -> pb.Execution:
    return pb.Execution(
        path="bench/noop",
        payload_json=_payload(number),
        subscription="subscriptions/bench",
        message_id=str(number),
        parent_execution_id=381_380_521_863_774_307,
        downstream="default",
        **fields,
    )


def _payload(number: int) -> str:
    """The payload of the run of a message of 30 bytes, as a NATS source gives it."""
    data = {"id": f"{number:08}", "value": 12.5}
    metadata = {"subject": "bench.a", "stream_seq": number, "consumer_seq": number, "delivered": 1, "pending": 100}
    message = {"id": str(number), "data": data, "headers": {}, "attributes": {}, "metadata": metadata}
    payload = {"message": message, "subscription": "subscriptions/bench", "source": "nats", **data}
    return msgspec.json.encode(payload).decode()


def _bare(store: str, messages: int) -> int:
    """Bytes of one table with the payloads."""
    table = "CREATE TABLE bench_rows (id BIGINT PRIMARY KEY, payload TEXT NOT NULL)"
    rows = [(number, _payload(number)) for number in range(messages)]
    if store.startswith("sqlite:"):
        with closing(sqlite3.connect(store.removeprefix("sqlite:"))) as connection, connection:
            connection.execute(table)
            connection.executemany("INSERT INTO bench_rows VALUES (?, ?)", rows)
        return _size(store)
    with _postgres(store) as connection:
        connection.execute(table)
        connection.cursor().executemany("INSERT INTO bench_rows VALUES (%s, %s)", rows)
    return _size(store)


def _size(store: str) -> int:
    """Bytes of a database: of all tables and indexes."""
    if store.startswith("sqlite:"):
        path = store.removeprefix("sqlite:")
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return Path(path).stat().st_size
    _vacuum(store)
    with _postgres(store) as connection:
        sql = "SELECT sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables"
        row = connection.execute(sql).fetchone()
        return int(row[0])


def _vacuum(store: str) -> None:
    if not store.startswith("sqlite:"):
        with _postgres(store) as connection:
            connection.execute("VACUUM")


@contextmanager
def _postgres(store: str) -> Iterator[Any]:
    import psycopg

    with psycopg.connect(store, autocommit=True) as connection:
        yield connection
