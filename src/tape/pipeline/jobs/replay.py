"""`replay`: today's code of an agent against the recorded runs of a window, a regression test on history.

Runs are found by their entries on the journal; executors read the steps of each run from the store and execute the
agent with every decision, effect and gate answered from them. Nothing is performed and nothing is written.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from tape.archive.location import resolve_url
from tape.durable.history import RunHistory
from tape.durable.replay import DIVERGED, SAME, SKIPPED, replay
from tape.engine.ledgers import gate_list, run_results, runs
from tape.engine.ledgers.decisions import Decision
from tape.engine.ledgers.gate_list import GateFilter
from tape.engine.ledgers.run_history import BEFORE_ALL, read_steps
from tape.errors import NotFound, PipelineInput
from tape.pipeline.journal_reader import query_store
from tape.pipeline.options import resolve_store
from tape.proto import tape_pb2 as pb
from tape.store import Reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Divergences that the report holds in full; all are counted.
MAX_SHOWN = 100
MAX_GATES = 1_000
BEGUN = "/tape/run/running/**"
PARTITIONS_PER_CORE = 4
_SCHEMA = "run_id string, outcome string, result string"


class ReplayReport(msgspec.Struct, frozen=True):
    """How many runs replayed the same, diverged and were skipped, and the first divergences in full."""

    runs: int
    same: int
    diverged: int
    skipped: int
    divergences: list[dict[str, Any]]
    reasons: dict[str, int]


def replay_history(
    spark: SparkSession,
    store: str,
    agent: str,
    *,
    app_name: str = "",
    since: str = "earliest",
    until: str = "latest",
    lake: str = "",
    limit: int = 0,
) -> ReplayReport:
    """Replay the runs that began in a range of the journal with `module:function`; a report with counts."""
    store, lake, folder = resolve_store(store), resolve_url(lake) if lake else "", str(Path.cwd())
    load_agent(agent, folder)  # a wrong name is reported before Spark starts its tasks
    given = {"store": store, "subject": BEGUN, "startingOffsets": since, "endingOffsets": until}
    reader = spark.read.format("tape").schema("run_id string").options(**given | ({"lake": lake} if lake else {}))
    begun = reader.load().distinct()
    if limit:
        begun = begun.limit(limit)

    def execute(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        function = load_agent(agent, folder)
        for batch in batches:
            found = [_replay(store, run_id, function, app_name) for run_id in batch.column(0).to_pylist() if run_id]
            kept = [each for each in found if each["outcome"]]
            columns = {
                "run_id": [each["run_id"] for each in kept],
                "outcome": [each["outcome"] for each in kept],
                "result": [json.dumps(each) for each in kept],
            }
            text = pa.schema([(name, pa.string()) for name in columns])
            yield pa.RecordBatch.from_pydict(columns, schema=text)

    tasks = PARTITIONS_PER_CORE * spark.sparkContext.defaultParallelism
    return _report(begun.repartition(tasks).mapInArrow(execute, _SCHEMA).toLocalIterator())


def _report(rows: Iterator[Any]) -> ReplayReport:
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    shown: list[dict[str, Any]] = []
    for row in rows:
        counts[row["outcome"]] += 1
        if row["outcome"] == SAME:
            continue
        result = json.loads(row["result"])
        if row["outcome"] == SKIPPED:
            reasons[result["reason"]] += 1
        elif len(shown) < MAX_SHOWN:
            shown.append(result)
    shown.sort(key=lambda each: str(each["run_id"]))
    return ReplayReport(counts.total(), counts[SAME], counts[DIVERGED], counts[SKIPPED], shown, dict(reasons))


def _replay(store: str, run_id: str, function: Callable[..., Any], app_name: str) -> dict[str, Any]:
    try:
        history = query_store(store, lambda reader: read_history(reader, run_id))
    except NotFound:
        return {"run_id": run_id, "outcome": "" if app_name else SKIPPED, "reason": "the run is no longer in the store"}
    if app_name and history.run.app_name != app_name:
        return {"run_id": run_id, "outcome": ""}
    return replay(history, function).as_dict()


def read_history(reader: Reader, run_id: str) -> RunHistory:
    """The history of a run, from the store."""
    run = runs.get(reader, run_id)
    gates, _ = gate_list.list_gates(reader, GateFilter(run_id=run_id), limit=MAX_GATES)
    state = pb.RunState(**_shared(pb.RunState, run))
    state.result_json = run_results.result_json(run)
    history = RunHistory(state)
    for step in read_steps(reader, run_id, BEFORE_ALL, 1 << 62):
        if isinstance(step, Decision):
            history.decisions[step.decision_index] = pb.DecisionRecord(**_shared(pb.DecisionRecord, step))
        else:
            history.effects[step.idempotency_key] = pb.EffectRecord(**_shared(pb.EffectRecord, step))
    for gate in gates:
        record = pb.GateRecord(
            run_id=run_id,
            gate_name=gate.signal.gate_name,
            answer_json=gate.signal.answer_json,
            answered_at_ms=gate.signal.answered_at_ms,
        )
        history.gates[record.gate_name] = record
    return history


def _shared(kind: Any, record: msgspec.Struct) -> dict[str, Any]:
    """The fields of a record that a message has, too."""
    known = {field.name for field in kind.DESCRIPTOR.fields}
    return {name: getattr(record, name) for name in record.__struct_fields__ if name in known}


def load_agent(reference: str, folder: str) -> Callable[..., Any]:
    """The function that `module:function` names; modules of a folder are found too."""
    module, separator, name = reference.partition(":")
    if not (module and separator and name):
        raise PipelineInput(f"--with {reference!r} must look like my_module:my_function.")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise PipelineInput(
            f"--with {reference!r}: {error}. On a cluster, send the module with --conf spark.submit.pyFiles=…"
        ) from error
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise PipelineInput(f"--with {reference!r}: {module} has no function {name!r}.")
    return found  # type: ignore[no-any-return]  # checked just now


if __name__ == "__main__":
    from tape.pipeline.jobs.command import main

    main("replay")
