"""Queues on PostgreSQL, beside Tape's tasks: two libraries, and the loop that all of them are made of."""

from __future__ import annotations

import json
import subprocess
import time

import psycopg

from bench.load import payload_text, percentile
from bench.peers.servers import CLIENTS, ROOT, NotInstalled

TIMEOUT_S = 300
# What the loop takes at once: the size that suits it.
BATCH = 100

Figures = dict[str, float]


def library(module: str, dsn: str, jobs: int, probes: int) -> Figures:
    """A library in its own environment."""
    python = CLIENTS / "python"
    if not python.exists():
        raise NotInstalled("client not installed: make .venv/.bench")
    command = [str(python), "-m", module, dsn, str(jobs), str(probes)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"not done within {TIMEOUT_S} s") from None
    if done.returncode:
        raise NotInstalled(f"failed: {done.stderr.strip().splitlines()[-1][:120]}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def bare_loop(dsn: str, jobs: int) -> Figures:
    """`FOR UPDATE SKIP LOCKED` on one connection: claim a hundred, commit, mark them done, commit."""
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute("CREATE TABLE jobs (id BIGSERIAL PRIMARY KEY, payload TEXT NOT NULL, status INT NOT NULL DEFAULT 1)")
        db.execute("CREATE INDEX ON jobs (id) WHERE status = 1")
        began = time.perf_counter()
        for start in range(0, jobs, 1_000):
            with db.cursor().copy("COPY jobs (payload) FROM STDIN") as copy:
                for number in range(start, min(start + 1_000, jobs)):
                    copy.write_row((payload_text(number),))
        enqueued = time.perf_counter()
        waits = []
        done = 0
        while done < jobs:
            asked = time.perf_counter()
            claimed = db.execute(
                "UPDATE jobs SET status = 2 WHERE id IN (SELECT id FROM jobs WHERE status = 1 ORDER BY id"
                " LIMIT %s FOR UPDATE SKIP LOCKED) RETURNING id, payload",
                (BATCH,),
            ).fetchall()
            db.execute("UPDATE jobs SET status = 3 WHERE id = ANY(%s)", ([row[0] for row in claimed],))
            waits.append((time.perf_counter() - asked) * 1_000)
            done += len(claimed)
        drained = time.perf_counter()
    waits.sort()
    return {
        "enqueue": jobs / (enqueued - began),
        "drain": jobs / (drained - enqueued),
        "p50_ms": percentile(waits, 0.5),
        "p99_ms": percentile(waits, 0.99),
    }
