"""Batches: one run for many messages, with a result for each of them."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tape
from tape.client import AsyncTapeClient
from tape.errors import InvalidBatchResults
from tape.playbooks.batch_results import FailedMessage, failed_messages
from tape.proto import tape_pb2 as pb
from tape.server.server import Server
from tests.forked import Forked
from tests.playbooks.test_summary_runs import FAILED, POOL, TERMINAL, begin, counts, message, types
from tests.playbooks.test_worker import MODULE, announced, declarations, end_of, register, working

__all__ = ["declarations"]

RECORDS = pytest.mark.parametrize("record", ["full", "summary"])


def batched(path: str, number: int, record: str = "summary", most: int = 100, **fields: Any) -> pb.Execution:
    found = message(path, number, **fields)
    found.batch, found.record = most, record
    return found


def declare(results: Any) -> list[list[int]]:
    """A playbook in Python that returns what `results` gives for its messages; the numbers that it was called with."""
    calls: list[list[int]] = []

    @tape.playbook("bulk", idempotent=True)
    async def bulk(messages: list[dict[str, Any]]) -> dict[str, Any]:
        numbers = [each["data"]["n"] for each in messages]
        calls.append(numbers)
        return {"results": [results(n) for n in numbers]}

    return calls


async def registered(client: AsyncTapeClient) -> None:
    while not (await client.list_resources("playbook")).resources:
        await asyncio.sleep(0.02)


@RECORDS
async def test_messages_of_one_call_are_one_run_and_each_is_found_by_its_id(
    server: Server, client: AsyncTapeClient, record: str
) -> None:
    steps = "  - {step: a, tool: {kind: value, value: '{{ input.messages.map(each, each.data.n) }}'}}"
    await register(client, "bulk", steps)
    ids = await begin(client, [batched("bulk", number, record, 20) for number in range(50)])
    assert (await client.get_run(ids[49])).status == pb.RUN_STATUS_RUNNABLE
    async with working(client):
        ended = [await end_of(client, each) for each in ids]
    assert {run.status for run in ended} == {TERMINAL}
    assert [run.labels["tape.message_id"] for run in ended] == [str(number) for number in range(50)]
    batches = Counter(run.labels["tape.batch"] for run in ended)
    assert sorted(batches.values()) == [10, 20, 20]
    whole = await client.get_run(min(batches))
    assert (whole.status, whole.labels["tape.messages"]) == (TERMINAL, "20")
    rows = {"full": [3, 3], "summary": [0, 0]}[record]
    assert await counts(server, "tape_runs", "tape_effects") == rows
    if record == "full":
        assert msgspec.json.decode(whole.detail_json) == {"output": list(range(20))}


@RECORDS
async def test_only_failed_messages_run_again_each_on_its_own(
    server: Server, client: AsyncTapeClient, record: str
) -> None:
    tries: Counter[int] = Counter()

    def result(n: int) -> Any:
        tries[n] += 1
        if n == 2 and tries[n] < 3:
            return {"result": "retry", "reason": "not yet"}
        if n == 4:
            return {"result": "dead_letter", "reason": "broken"}
        return {"error": {"type": "E", "message": "once"}} if n == 6 and tries[n] == 1 else {"anything": n}

    calls = declare(result)
    async with working(client):
        await registered(client)
        ids = await begin(client, [batched("bulk", number, record) for number in range(8)])
        ended = [await end_of(client, each) for each in ids]
        dead = (await client.list_tasks(reaction_id=POOL, status=pb.TASK_STATUS_DLQ)).tasks
        assert [(task.source_run_id, task.last_error) for task in dead] == [(ids[4], "broken")]
        assert calls[0] == list(range(8))
        assert sorted(calls[1:]) == [[2], [2], [6]]
        assert [run.status for run in ended] == [FAILED if n == 4 else TERMINAL for n in range(8)]
        assert "broken" in ended[4].detail_json
        split = [payload for _, kind, payload in await types(server) if kind == "run.split"]
        assert [
            [(each["message_id"], each["result"], each.get("reason")) for each in one["messages"]] for one in split
        ] == [[("2", "retry", "not yet"), ("4", "dead_letter", "broken"), ("6", "retry", "E: once")]]
        tries[4] = 100
        await client.redrive_tasks(task_ids=[dead[0].task_id])
        while len(calls) < 5:
            await asyncio.sleep(0.02)
        assert calls[-1] == [4]


async def test_a_batch_that_fails_as_a_whole_is_tried_message_by_message(client: AsyncTapeClient) -> None:
    steps = "  - {step: a, tool: {kind: value, value: '{{ input.messages.map(each, 100 / each.data.n) }}'}}"
    await register(client, "bulk", steps)
    async with working(client):
        ids = await begin(client, [batched("bulk", number) for number in range(4)])
        ended = [await end_of(client, each) for each in ids]
    assert [run.status for run in ended] == [FAILED, TERMINAL, TERMINAL, TERMINAL]
    assert msgspec.json.decode(ended[0].detail_json)["error"]["type"] == "TemplateFailed"


async def test_a_retry_repeats_recorded_steps_and_gives_up_as_a_dead_letter(client: AsyncTapeClient) -> None:
    tries: Counter[int] = Counter()

    @tape.function
    def judge(numbers: list[int]) -> list[str]:
        tries.update(numbers)
        return ["retry" if n == 1 and tries[n] < 4 else "ok" for n in numbers]

    steps = (
        "  - {step: a, tool: {kind: python, function: judge,"
        " args: {numbers: '{{ input.messages.map(each, each.data.n) }}'}}}"
    )
    await register(client, "judged", steps, "output: {results: '{{ a }}'}")
    async with working(client):
        ids = await begin(client, [batched("judged", number) for number in range(3)])
        ended = [await end_of(client, each) for each in ids]
    assert {run.status for run in ended} == {TERMINAL}
    assert tries == {0: 1, 1: 4, 2: 1}


async def test_a_failed_message_holds_the_later_batches_of_its_lane(client: AsyncTapeClient) -> None:
    seen: list[int] = []
    tries: Counter[int] = Counter()

    def result(n: int) -> Any:
        tries[n] += 1
        if n in (1, 3) and tries[n] == 1:
            return "retry"
        seen.append(n)
        return "ok"

    calls = declare(result)
    async with working(client, concurrency=8):
        await registered(client)
        first = [batched("bulk", n, most=4, ordering_key="lane:0") for n in range(12)]
        other = [batched("bulk", n, most=4, ordering_key="lane:1") for n in range(100, 104)]
        ids = await begin(client, [*first, *other])
        for each in ids:
            await end_of(client, each)
    of_first = [numbers for numbers in calls if numbers[0] < 100]
    assert of_first == [[0, 1, 2, 3], [1], [3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert [n for n in seen if n < 100] == [0, 2, 1, 3, *range(4, 12)]


async def test_a_batch_is_cut_by_bytes(client: AsyncTapeClient) -> None:
    await register(client, "bulk", "  - {step: a, tool: {kind: value, value: '{{ size(input.messages) }}'}}")
    executions = []
    for number in range(6):
        execution = batched("bulk", number)
        payload = msgspec.json.decode(execution.payload_json)
        payload["message"]["data"] = {"text": "x" * (100_000 if number else 900_000)}
        execution.payload_json = msgspec.json.encode(payload).decode()
        executions.append(execution)
    async with working(client):
        ids = await begin(client, executions)
        ended = [await end_of(client, each) for each in ids]
    assert {run.status for run in ended} == {TERMINAL}
    assert sorted(Counter(run.labels["tape.batch"] for run in ended).values()) == [1, 1, 2, 2]


async def test_a_duplicate_in_a_batch_is_left_out_of_it(client: AsyncTapeClient) -> None:
    calls = declare(lambda n: "ok")
    async with working(client):
        await registered(client)
        (first,) = await begin(client, [batched("bulk", 1, dedup_key="1")])
        results = (await client.execute_many([batched("bulk", n, dedup_key=str(n)) for n in (1, 2, 2)])).results
        assert [each.status for each in results] == ["duplicate", "started", "duplicate"]
        assert (results[0].execution_id, results[2].execution_id) == (first, results[1].execution_id)
        for each in (first, results[1].execution_id):
            await end_of(client, each)
    assert sorted(calls) == [[1], [2]]


async def test_a_worker_that_is_killed_in_a_batch_is_followed_by_another(
    server: Server, client: AsyncTapeClient, tmp_path: Path
) -> None:
    (tmp_path / "crashing.py").write_text(MODULE)
    steps = """
  - {step: one, tool: {kind: python, function: step, args: {what: one}}}
  - {step: two, idempotent: true, tool: {kind: python, function: step, args: {what: deadly two}}}
"""
    await register(client, "crash/batch", steps, "output: {results: ['ok', 'retry', 'ok']}")
    address = f"tape://{server.grpc_address}"
    arguments = ["worker", "-i", "crashing", "--lease-ms", "3000", "-c", "1", "--url", address]
    worker, deaths = Forked(arguments, cwd=tmp_path), 0
    try:
        await announced(client, "crash/python", worker)
        ids = await begin(client, [batched("crash/batch", number) for number in range(3)])
        whole = str(int(ids[0]) - 1)
        while not (tmp_path / "acts.log").exists() or (await client.get_run(whole)).status not in (TERMINAL, FAILED):
            if worker.poll() is not None:
                assert worker.poll() == -signal.SIGKILL
                deaths += 1
                worker.kill()
                worker = Forked(arguments, cwd=tmp_path)
            await asyncio.sleep(0.05)
    finally:
        worker.kill()
    assert deaths == 1
    acts = [line.rpartition(" ")[0] for line in (tmp_path / "acts.log").read_text().splitlines()]
    assert acts[:3] == ["one", "deadly two", "deadly two"]
    assert msgspec.json.decode((await client.get_run(whole)).detail_json)["failed"] == [
        {"index": 1, "result": "retry", "reason": ""}
    ]


@pytest.mark.parametrize(
    ("output", "failed"),
    [
        (None, []),
        ({"results": ["ok", {"status": 200}]}, []),
        ({"results": [{"result": "ok"}, None]}, []),
        ({"results": ["retry", "dead_letter"]}, [FailedMessage(0, "retry", ""), FailedMessage(1, "dead_letter", "")]),
        ({"results": [1, {"result": "retry", "reason": 5}]}, [FailedMessage(1, "retry", "5")]),
        (
            {"results": [{"error": "of mine"}, {"error": {"type": "T", "message": "m"}}]},
            [FailedMessage(1, "retry", "T: m")],
        ),
    ],
)
def test_the_results_of_an_output_name_the_failed_messages(output: Any, failed: list[FailedMessage]) -> None:
    assert failed_messages(output, 2) == failed


@pytest.mark.parametrize("results", [["ok"], "ok", [1, 2, 3], [{"result": "no"}, 1], None])
def test_results_that_leave_a_message_open_are_an_error(results: Any) -> None:
    with pytest.raises(InvalidBatchResults, match="results"):
        failed_messages({"results": results}, 2)
