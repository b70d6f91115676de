"""How fast a day is counted in 96 buckets: from rollups, from slots, and entry by entry in Tape and in DuckDB."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bench.fill import CHUNK, NUMBERS
from bench.options import NAMES, Options
from bench.table import NOTHING, Table, count, milliseconds, ratio
from tape.engine.ledgers import counts
from tape.engine.ledgers.rollups import read_position
from tape.engine.ledgers.window import Window
from tape.journal.identity_filter import IdentityFilter
from tape.store import Reader, open_database
from tape.store.connection import DatabaseConnection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TITLE = "Aggregate: a day in 96 buckets"
ENTRIES, QUICK_ENTRIES = 2_000_000, 8_000
RUNS, QUICK_RUNS = 5, 1
PEERS_PYTHON = Path(".venv-bench/bin/python")
TENANTS, TOOLS, SESSIONS = 4, 8, 20_000
HOUR_MS = 3_600_000
SPAN_MS = 48 * HOUR_MS
QUARTER_NS = 900_000_000_000
WHOSE = IdentityFilter([f"tenant-{number}" for number in range(TENANTS)])

Answer = dict[tuple[int, str, str], int]


def run(options: Options) -> list[Table]:
    """Best of five, after a first time; all give the same counts."""
    from tape.pipeline.session import open_session

    entries, runs = options.scaled(ENTRIES, QUICK_ENTRIES), options.scaled(RUNS, QUICK_RUNS)
    end_ms = time.time_ns() // 1_000_000 // HOUR_MS * HOUR_MS
    # Buckets that begin with a quarter of an hour, and buckets that begin at any time.
    windows = [Window((end_ms - 24 * HOUR_MS - off) * 1_000_000, QUARTER_NS, 96) for off in (0, 12_345)]
    spark = open_session("bench", "local[2]", {"spark.driver.memory": "2g"})
    try:
        rows = [
            row for kind in options.stores for row in _measure(options, spark, kind, entries, runs, end_ms, windows)
        ]
    finally:
        spark.stop()
    notes = [
        f"{entries:,} entries of 48 hours, {TENANTS} tenants, {TOOLS} tools, {SESSIONS:,} sessions; the window is the"
        " last 24 hours, all tenants, by type and tenant",
        f"best of {runs}; every answer has the same numbers; beside: how many times longer than from rollups",
    ]
    return [Table(TITLE, ["", "ms", "beside", "ms, buckets at any moment", "beside"], rows, notes)]


def _measure(
    options: Options, spark: SparkSession, kind: str, entries: int, runs: int, end_ms: int, windows: list[Window]
) -> list[list[str]]:
    from tape.pipeline.job_context import JobContext
    from tape.pipeline.jobs.archive import archive
    from tape.pipeline.jobs.rollup import rollup

    name, store = NAMES[kind], options.lab.fresh_store(kind)
    options.report(f"{TITLE}: filling {name} with {entries:,} entries")
    fill(store, entries, end_ms)
    asyncio.run(_fold_all(store))
    slots = [_ask(store, runs, lambda reader, window=window: _counted(reader, window)) for window in windows]
    plain = [_ask(store, runs, lambda reader, window=window: _plainly(reader, window)) for window in windows]
    options.report(f"{TITLE}: rolling up {name}")
    began = time.perf_counter()
    assert rollup(spark, store, JobContext("rollup", quiet=True)) == entries
    rolled_up_s = time.perf_counter() - began
    rolled = [_ask(store, runs, lambda reader, window=window: _counted(reader, window)) for window in windows]
    for found in zip(rolled, slots, plain, strict=True):
        assert found[0][1] == found[1][1] == found[2][1], "all give the same counts"
    rows = {"rollups": rolled, "slots of ten seconds": slots, "GROUP BY over the journal": plain}
    if PEERS_PYTHON.exists():
        lake = options.lab.fresh_folder() / "lake"
        options.report(f"{TITLE}: archiving {name}")
        archive(spark, store, str(lake), JobContext("archive", quiet=True))
        rows["DuckDB over the archive"] = [_duckdb(lake, window, runs) for window in windows]
        assert [found[1] for found in rows["DuckDB over the archive"]] == [found[1] for found in rolled]
    else:
        options.report("DuckDB is not measured: .venv-bench is not there (make bench makes it)")
    table = []
    for what, found in rows.items():
        figures = [
            text
            for one, base in zip(found, rolled, strict=True)
            for text in (milliseconds(one[0] * 1000), NOTHING if found is rolled else ratio(one[0], base[0]))
        ]
        table.append([f"{name}: {what}", *figures])
    options.report(f"{TITLE}: {name} rolled up {count(entries / rolled_up_s)} entries/s")
    table.append([f"{name}: the rollup itself, entries/s", count(entries / rolled_up_s), NOTHING, NOTHING, NOTHING])
    return table


def _ask(store: str, runs: int, question: Callable[[Reader], Answer]) -> tuple[float, Answer]:
    """The quickest of several answers, and what it says."""
    connection = open_database(store).connect(read_only=True)
    try:
        answer, times = question(connection), []
        for _ in range(runs):
            began = time.perf_counter()
            answer = question(connection)
            times.append(time.perf_counter() - began)
        return min(times), answer
    finally:
        connection.close()


def _counted(reader: Reader, window: Window) -> Answer:
    read_position(reader)
    return {(row.bucket, row.type, row.tenant): row.entries for row in counts.count(reader, window, WHOSE)}


def _plainly(reader: Reader, window: Window) -> Answer:
    start_ms, bucket_ms = window.start_ns // 1_000_000, window.bucket_ns // 1_000_000
    rows = reader.query(
        f"SELECT (ts_ms - {start_ms}) / {bucket_ms}, {counts.type_sql(reader.dialect)}, tenant, count(*)"
        f" FROM tape_journal WHERE ts_ms >= {start_ms} AND ts_ms < {start_ms + 96 * bucket_ms} GROUP BY 1, 2, 3"
    )
    return {(int(bucket), kind, tenant): int(number) for bucket, kind, tenant, number in rows}


def _duckdb(lake: Path, window: Window, runs: int) -> tuple[float, Answer]:
    start_ms, bucket_ms = window.start_ns // 1_000_000, window.bucket_ns // 1_000_000
    command = [PEERS_PYTHON, "-m", "bench.peers.duckdb_counts", lake, start_ms, bucket_ms, 96, runs]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    output = json.loads(done.stdout)
    return output["seconds"], {(bucket, kind, tenant): number for bucket, kind, tenant, number in output["rows"]}


async def _fold_all(store: str) -> None:
    async with open_database(store) as database:
        while await counts.fold(database):
            pass


def fill(store: str, entries: int, end_ms: int) -> None:
    """A journal of 48 hours: orders, events, and effects that are confirmed; its chain is not kept."""
    database = open_database(store)
    database.migrate()
    connection = database.connect()
    try:
        for start in range(0, entries, CHUNK):
            connection.begin()
            _fill_chunk(connection, start, min(start + CHUNK, entries), entries, end_ms)
            connection.commit()
        connection.run_script("ANALYZE")
    finally:
        connection.close()


def _fill_chunk(connection: DatabaseConnection, start: int, end: int, entries: int, end_ms: int) -> None:
    run, tool, step = "'run-' || (i / 4)", f"'tool-' || (i / 4 % {TOOLS})", "i % 4"
    key = f"""'{{"tool":"' || {tool} || '","idempotency_key":"' || {run} || '/0","status":"confirmed"}}'"""
    kinds = ("'order'", "'effect'", "'effect'", "'event'")
    subjects = (
        f"'/tape/order/created/' || {run}",
        f"'/tape/effect/pending/' || {tool} || '/' || {run}",
        f"'/tape/effect/confirmed/' || {tool} || '/' || {run}",
        f"'/tape/event/appended/' || {run}",
    )
    columns = {
        "global_seq": "i + 1",
        "run_id": run,
        "seq": f"{step} + 1",
        "kind": _by_step(kinds),
        "subject": _by_step(subjects),
        "payload_json": key,
        "ts_ms": f"{end_ms - SPAN_MS} + i * {SPAN_MS} / {entries}",
        "tenant": f"'tenant-' || (i / 4 % {TENANTS})",
        '"user"': f"'user-' || (i / 4 % {SESSIONS // 4})",
        "session": f"'session-' || (i / 4 % {SESSIONS})",
        "chain": "?",
    }
    sql = f"INSERT INTO tape_journal ({', '.join(columns)}) {NUMBERS} SELECT {', '.join(columns.values())} FROM n"
    if connection.dialect == "postgres":
        sql = sql.replace("%", "%%")
    connection.execute(sql, start, end, bytes(32))
    last_ms = end_ms - SPAN_MS + (end - 1) * SPAN_MS // entries
    connection.execute("UPDATE tape_head SET global_seq = ?, ts_ms = ? WHERE id = 1", end, last_ms)


def _by_step(values: tuple[str, ...]) -> str:
    cases = " ".join(f"WHEN {number} THEN {value}" for number, value in enumerate(values))
    return f"CASE i % 4 {cases} END"
