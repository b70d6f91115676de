"""`replay` on Spark: a small journal with one run that today's code does not repeat."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tape
from tape.errors import PipelineInput
from tape.pipeline.jobs.replay import replay_history
from tests.services import ServerProcess

AGENT = """
import tape

@tape.effect
def trade(order):
    raise AssertionError("never performed")

def agent(run):
    with tape.continue_run(run) as again:
        trade(again.decide(lambda: "?", request=1))
"""


@tape.effect
def trade(order: str) -> str:
    return order


def test_a_changed_run_is_found_among_many(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agent_of_spark.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)
    store = f"sqlite:{tmp_path / 'tape.db'}"
    ids = []
    with ServerProcess(store) as server:
        for number in range(5):
            with tape.durable_run("desk" if number < 4 else "other", url=server.url) as run:
                trade(run.decide(lambda: "buy", request=2 if number == 1 else 1))
            ids.append(run.run_id)
    report = replay_history(spark, store, "agent_of_spark:agent", app_name="desk")
    assert (report.runs, report.same, report.diverged, report.skipped) == (4, 3, 1, 0)
    (found,) = report.divergences
    assert found["run_id"] == ids[1]
    assert found["divergence"]["difference"] == "value: recorded 2, now 1"
    assert found["divergence"]["file"].endswith("agent_of_spark.py")
    with pytest.raises(PipelineInput, match="no function 'missing'"):
        replay_history(spark, store, "agent_of_spark:missing")
