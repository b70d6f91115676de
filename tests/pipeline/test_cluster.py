"""Proof: the jobs run on a standalone cluster of separate processes, reading PostgreSQL, and outlive an executor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tape.archive.table import ArchiveTable
from tape.pipeline.archive_verifier import verify_archive
from tests.pipeline.conftest import fill, order
from tests.pipeline.standalone import Standalone
from tests.services import Postgres

ENTRIES = 20_000

_ON_A_CLUSTER = """
import json, os, sys
import pyarrow as pa
from tape.pipeline.jobs.archive import archive
from tape.pipeline.jobs.backtest import backtest, unregistered_reaction
from tape.pipeline.jobs.rollup import rollup
from tape.pipeline.job_context import JobContext
from tape.pipeline.session import open_session
store, lake, master = sys.argv[1:]
settings = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": "4", "spark.cores.max": "2"}
spark = open_session("cluster", master, settings, quick=True)
entries = spark.read.format("tape").option("store", store).option("minPartitions", 8).load()

def where(batches):
    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"folder": [os.getcwd()], "entries": [rows]})

counts = entries.mapInArrow(where, "folder string, entries long").collect()
wanted = unregistered_reaction("/tape/order/**", 'payload.status == "failed"', debounce_ms=5)
print("BEGUN", flush=True)
result = backtest(spark, store, wanted)
archived = archive(spark, store, lake, JobContext("archive", quiet=True), round_entries=7_000)
counted = rollup(spark, store, JobContext("rollup", quiet=True))
print(json.dumps({"executors": len({row.folder for row in counts}), "entries": sum(row.entries for row in counts),
                  "archived": archived, "counted": counted, "matched": result.fired + result.debounced}))
spark.stop()
"""


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_jobs_run_on_two_workers_that_read_postgres_and_outlive_an_executor(postgres: Postgres, tmp_path: Path) -> None:
    drafts = [order(number) for number in range(1, ENTRIES + 1)]
    with postgres.fresh_database() as store, Standalone(tmp_path, workers=2) as cluster:
        fill(store, drafts)
        lake = str(tmp_path / "lake")
        command = [sys.executable, "-c", _ON_A_CLUSTER, store, lake, cluster.url]
        env = os.environ | {"PYSPARK_PYTHON": sys.executable}  # executors find Tape where we do
        with (
            (tmp_path / "driver.log").open("wb") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=env) as driver,
        ):
            assert driver.stdout is not None
            assert driver.stdout.readline() == "BEGUN\n", (tmp_path / "driver.log").read_text()[-3_000:]
            before = cluster.executors()
            assert len(before) == 2
            os.kill(before[0], signal.SIGKILL)
            out, _ = driver.communicate()
        assert driver.returncode == 0, (tmp_path / "driver.log").read_text()[-3_000:]
        output = json.loads(out.splitlines()[-1])
        failed = sum(draft.subject.startswith("/tape/order/failed/") for draft in drafts)
        assert output == {
            "executors": 2,
            "entries": ENTRIES,
            "archived": ENTRIES,
            "counted": ENTRIES,
            "matched": failed,
        }
        assert verify_archive(ArchiveTable.open(lake), store).ok
