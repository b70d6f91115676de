"""Proof: the jobs run on a cluster of separate executor processes, reading PostgreSQL."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tape.archive.lake import Lake
from tape.pipeline.proving import verify_lake
from tests.pipeline.conftest import fill, order
from tests.services import Postgres

_ON_A_CLUSTER = """
import json, os, sys
import pyarrow as pa
from tape.pipeline.jobs.archive import archive
from tape.pipeline.jobs.backtest import backtest, imagined
from tape.pipeline.running import Running
from tape.pipeline.session import open_session
store, lake = sys.argv[1:]
spark = open_session("cluster", "local-cluster[2,1,1024]", {"spark.executor.memory": "1g"}, quick=True)
entries = spark.read.format("tape").option("store", store).option("minPartitions", 8).load()

def where(batches):
    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"place": [os.getcwd()], "entries": [rows]})

placed = entries.mapInArrow(where, "place string, entries long").collect()
archived = archive(spark, store, lake, Running("archive", quiet=True))
fired = backtest(spark, store, imagined("/tape/order/**", 'payload.status == "failed"')).fired
print(json.dumps({"executors": len({row.place for row in placed}), "entries": sum(row.entries for row in placed),
                  "archived": archived, "fired": fired}))
spark.stop()
"""


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_jobs_run_on_two_executors_that_read_postgres(postgres: Postgres, tmp_path: Path) -> None:
    with postgres.fresh_database() as store:
        drafts = [order(number) for number in range(1, 20_001)]
        fill(store, drafts)
        lake = str(tmp_path / "lake")
        command = [sys.executable, "-c", _ON_A_CLUSTER, store, lake]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        told = json.loads(done.stdout.splitlines()[-1])
        failed = sum(draft.subject.startswith("/tape/order/failed/") for draft in drafts)
        assert told == {"executors": 2, "entries": 20_000, "archived": 20_000, "fired": failed}
        assert verify_lake(Lake.open(lake), store).ok
