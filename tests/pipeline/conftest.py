"""One Spark session for all tests of the pipeline, and journals to read with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")

from pyspark.sql import SparkSession

from tape.errors import JavaMissing
from tape.journal.journal import Journal
from tape.model.entry import Draft
from tape.pipeline.session import find_java, open_session
from tape.store import open_database

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.python.worker.reuse": "true",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two cores."""
    try:
        find_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    folder = tmp_path_factory.mktemp("spark")
    settings = {**SETTINGS, "spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    session = open_session("tests", "local[2]", settings, quick=True)
    yield session
    session.stop()


def order(number: int) -> Draft:
    """One of many entries that differ in everything a reader can ask for."""
    verb = ("created", "paid", "failed")[number % 3]
    payload = {"total": number / 2, "status": verb, "customer": {"name": f"n{number % 7}"}, "n": number}
    return Draft(
        subject=f"/tape/{('order', 'refund')[number % 5 == 0]}/{verb}/{number % 10}",
        payload_json=json.dumps(payload),
        run_id=f"run-{number % 4}",
        tenant=f"t{number % 3}",
        user=f"u{number % 2}",
    )


def fill(store: str, drafts: Sequence[Draft], chunk: int = 500) -> None:
    """Append drafts, in several commits."""

    async def append() -> None:
        async with open_database(store) as database:
            journal = Journal(database)
            journal.shares_runs = True  # as on an open server
            for start in range(0, len(drafts), chunk):
                await journal.append(drafts[start : start + chunk])

    asyncio.run(append())


@pytest.fixture
def orders(store_url: str) -> str:
    """A journal of 1,000 orders, on each kind of database."""
    fill(store_url, [order(number) for number in range(1, 1001)])
    return store_url


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """The folder for a stream's checkpoint."""
    return str(tmp_path / "checkpoint")
