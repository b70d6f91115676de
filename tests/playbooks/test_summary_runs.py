"""Runs that are kept as a summary: little is written, nothing is lost, and what matters is on record."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

import tape
from tape.client import AsyncTapeClient
from tape.errors import InvalidInput, NotFound
from tape.playbooks.worker import RUN_LEASE_SHARE
from tape.proto import tape_pb2 as pb
from tape.server.server import Server
from tests.forked import Forked
from tests.playbooks.test_worker import MODULE, announced, declarations, end_of, register, working

__all__ = ["declarations"]

CANCELLED, FAILED, TERMINAL = pb.RUN_STATUS_CANCELLED, pb.RUN_STATUS_FAILED, pb.RUN_STATUS_TERMINAL
POOL = "pool:shared"


def wanted(path: str, payload: dict[str, Any], **fields: Any) -> pb.Execution:
    return pb.Execution(path=path, payload_json=msgspec.json.encode(payload).decode(), record="summary", **fields)


def message(path: str, number: int, **fields: Any) -> pb.Execution:
    """The execution that a runtime asks for when it has got a message."""
    data = {"n": number}
    about = {"id": str(number), "data": data, "headers": {}, "attributes": {}, "metadata": {"stream_seq": number}}
    payload = {"message": about, "subscription": "orders", "source": "nats", **data}
    return wanted(path, payload, subscription="orders", message_id=str(number), **fields)


async def begin(client: AsyncTapeClient, executions: Sequence[pb.Execution]) -> list[str]:
    results = (await client.execute_many(executions)).results
    assert {each.status for each in results} == {"started"}, results
    return [each.execution_id for each in results]


async def counts(server: Server, *tables: str) -> list[int]:
    sql = "SELECT " + ", ".join(f"(SELECT count(*) FROM {table})" for table in tables)
    row = await server.database.read(lambda reader: reader.one(sql))
    return list(row or ())


async def types(server: Server) -> list[tuple[str, str, dict[str, Any]]]:
    sql = "SELECT run_id, subject, payload_json FROM tape_journal ORDER BY global_seq"
    rows = await server.database.read(lambda reader: reader.query(sql))
    return [(run_id, ".".join(name.split("/")[2:4]), msgspec.json.decode(text)) for run_id, name, text in rows]


async def test_runs_that_end_well_leave_an_entry_for_their_begin_and_one_for_their_end(
    server: Server, client: AsyncTapeClient
) -> None:
    await register(
        client, "noop", "  - {step: a, tool: {kind: value, value: '{{ input.n + message.metadata.stream_seq }}'}}"
    )
    ids = await begin(client, [message("noop", number, parent_execution_id=41) for number in range(30)])
    assert [int(each) - int(ids[0]) for each in ids] == list(range(30))
    before = await client.get_run(ids[7])
    assert (before.status, before.labels["tape.message_id"]) == (pb.RUN_STATUS_RUNNABLE, "7")
    async with working(client):
        ended = [await end_of(client, each) for each in ids]
    assert {run.status for run in ended} == {TERMINAL}
    assert ended[7].labels == {
        "tape.path": "noop",
        "tape.version": "1",
        "tape.catalog_id": ended[7].labels["tape.catalog_id"],
        "tape.pool": "shared",
        "tape.parent_execution_id": "41",
        "tape.subscription": "orders",
        "tape.message_id": "7",
        "tape.record": "summary",
    }
    assert ended[7].started_at_ms <= ended[7].ended_at_ms
    assert await counts(server, "tape_runs", "tape_tasks", "tape_effects") == [0, 0, 0]
    written = await types(server)
    begun = [payload for _, kind, payload in written if kind == "command.issued"]
    assert [len(each["runs"]) for each in begun] == [30]
    ends = [payload["runs"] for _, kind, payload in written if kind == "run.summary"]
    assert sum(1 + int(text.partition("+")[2] or 0) for each in ends for text in each) == 30
    assert len(written) - len(ends) == 1
    async with httpx.AsyncClient(base_url=f"http://{server.http_address}") as http:
        shown = (await http.get(f"/api/executions/{ids[3]}")).json()
    assert (shown["status"], shown["message_id"], shown["record"]) == ("TERMINAL", "3", "summary")


async def test_an_id_that_no_run_has_is_not_found(client: AsyncTapeClient) -> None:
    await register(client, "noop", "  - {step: a, tool: {kind: value, value: 1}}")
    (only,) = await begin(client, [message("noop", 1)])
    for number in (int(only) + 1, int(only) | 1 << 62, 1, -1):
        with pytest.raises(NotFound):
            await client.get_run(str(number))
    with pytest.raises(InvalidInput, match="record 'none' must be 'full' or 'summary'"):
        await client.execute("noop", record="none")


async def test_a_step_that_is_not_idempotent_is_on_record_and_one_that_is_says_so(
    server: Server, client: AsyncTapeClient
) -> None:
    calls: list[str] = []

    @tape.function
    def note(what: str) -> str:
        calls.append(what)
        return what

    steps = """
  - {step: a, idempotent: true, tool: {kind: python, function: note, args: {what: a}}}
  - {step: b, tool: {kind: python, function: note, args: {what: b}}}
  - {step: c, idempotent: false, tool: {kind: value, value: c}}
"""
    await register(client, "mixed", steps)
    async with working(client):
        (run_id,) = await begin(client, [wanted("mixed", {})])
        run = await end_of(client, run_id)
    assert (run.status, calls) == (TERMINAL, ["a", "b"])
    assert msgspec.json.decode(run.detail_json) == {"output": "c"}
    effects = [payload["tool"] for _, kind, payload in await types(server) if kind == "effect.confirmed"]
    assert effects == ["b", "c"]
    assert await counts(server, "tape_runs", "tape_effects") == [1, 2]


async def test_a_python_function_is_leased_unless_it_is_idempotent_and_its_effects_are_on_record(
    server: Server, client: AsyncTapeClient
) -> None:
    @tape.effect
    def charge(amount: int, tool_context: Any = None) -> int:
        return amount

    @tape.playbook("plain")
    def plain(n: int) -> int:
        return n

    @tape.playbook("light", idempotent=True)
    def light(n: int) -> int:
        return n

    @tape.playbook("paid", idempotent=True)
    def paid(n: int) -> int:
        return charge(n)

    async with working(client):
        while len((await client.list_resources("playbook")).resources) < 3:
            await asyncio.sleep(0.02)
        for path, rows in (("light", [0, 0]), ("plain", [1, 0]), ("paid", [2, 1])):
            (run_id,) = await begin(client, [wanted(path, {"n": 3})])
            assert (await end_of(client, run_id)).status == TERMINAL
            await _until_no_task_is_open(client)
            assert await counts(server, "tape_runs", "tape_effects") == rows


async def _until_no_task_is_open(client: AsyncTapeClient) -> None:
    while any(
        task.status in (pb.TASK_STATUS_PENDING, pb.TASK_STATUS_CLAIMED)
        for task in (await client.list_tasks(reaction_id=POOL)).tasks
    ):
        await asyncio.sleep(0.02)


async def test_a_run_that_fails_is_kept_with_its_error(server: Server, client: AsyncTapeClient) -> None:
    await register(client, "bad", "  - {step: a, tool: {kind: value, value: '{{ input.x }}'}}")
    async with working(client):
        ids = await begin(client, [message("bad", number) for number in range(3)])
        ended = [await end_of(client, each) for each in ids]
    assert [run.status for run in ended] == [FAILED] * 3
    assert msgspec.json.decode(ended[2].detail_json)["error"]["type"] == "TemplateFailed"
    assert (ended[2].labels["tape.message_id"], ended[2].session_id) == ("2", "orders")
    assert await counts(server, "tape_runs") == [3]
    assert not [kind for _, kind, _ in await types(server) if kind == "run.summary"]
    listed = (await client.list_runs(app_name="playbooks", status=FAILED)).runs
    assert {run.run_id for run in listed} == set(ids)


async def test_a_dead_letter_fails_its_run_and_a_redrive_brings_both_back(
    server: Server, client: AsyncTapeClient
) -> None:
    await register(client, "late", "  - {step: a, tool: {kind: python, function: late}}")
    (run_id,) = await begin(client, [message("late", 1)])
    while not (task := next(iter((await client.list_tasks(reaction_id=POOL)).tasks), None)):
        await asyncio.sleep(0.02)
    (claimed,) = (await client.claim_tasks(reaction_id=POOL, owner="w", max=5)).tasks
    assert (claimed.task_id, claimed.source_run_id) == (task.task_id, run_id)
    assert (await client.get_run(run_id)).status == pb.RUN_STATUS_RUNNING
    await client.nack_task(task_id=task.task_id, owner="w", error="no", permanent=True)
    run = await client.get_run(run_id)
    assert (run.status, run.labels["tape.message_id"]) == (FAILED, "1")

    @tape.function(name="late")
    def late() -> str:
        return "came"

    await client.redrive_tasks(task_ids=[task.task_id])
    async with working(client):
        run = await end_of(client, run_id)
    assert msgspec.json.decode(run.detail_json) == {"output": "came"}
    assert (await types(server))[-1][1] == "run.terminal"


async def test_a_cancelled_run_is_not_handed_to_a_worker(client: AsyncTapeClient) -> None:
    seen: list[int] = []

    @tape.function
    def note(n: int) -> None:
        seen.append(n)

    steps = "  - {step: a, idempotent: true, tool: {kind: python, function: note, args: {n: '{{ input.n }}'}}}"
    await register(client, "noted", steps)
    ids = await begin(client, [message("noted", number, ordering_key="k") for number in range(3)])
    await client.end_run(run_id=ids[0], status=CANCELLED)
    async with working(client):
        assert (await end_of(client, ids[2])).status == TERMINAL
    assert seen == [1, 2]
    assert (await client.get_run(ids[0])).status == CANCELLED


async def test_runs_of_one_key_take_turns_in_the_order_of_their_messages(client: AsyncTapeClient) -> None:
    seen: list[tuple[str, int]] = []

    @tape.function
    async def note(key: str, n: int) -> None:
        seen.append((key, n))
        await asyncio.sleep(0)
        seen.append((key, n))

    for path in ("one", "two"):
        args = "{key: '{{ string(input.n % 3) }}', n: '{{ input.n }}'}"
        steps = "  - {step: a, idempotent: true, tool: {kind: python, function: note, args: ARGS}}"
        await register(client, path, steps.replace("ARGS", args))
    # Two playbooks in turns: what shares an entry must not overtake.
    all_of_them = [message(("one", "two")[n % 2], n, ordering_key=str(n % 3)) for n in range(40)]
    ids = await begin(client, all_of_them)
    async with working(client, concurrency=8):
        for each in ids:
            await end_of(client, each)
    for key in ("0", "1", "2"):
        numbers = [n for each, n in seen if each == key]
        assert numbers == [n for n in range(40) if str(n % 3) == key for _ in range(2)]


async def test_a_duplicate_is_the_run_that_has_ended_as_a_summary(client: AsyncTapeClient) -> None:
    await register(client, "noop", "  - {step: a, tool: {kind: value, value: 1}}")
    async with working(client):
        (run_id,) = await begin(client, [message("noop", 1, dedup_key="k")])
        await end_of(client, run_id)
        again = (await client.execute_many([message("noop", 1, dedup_key="k")])).results[0]
    assert (again.status, again.execution_id) == ("duplicate", run_id)


async def test_workers_killed_in_a_step_are_followed_by_others_and_recorded_steps_run_once(
    server: Server, client: AsyncTapeClient, tmp_path: Path
) -> None:
    (tmp_path / "crashing.py").write_text(MODULE)
    steps = """
  - {step: first, tool: {kind: python, function: step, args: {what: "first {{ input.n }}"}}}
  - step: again
    idempotent: true
    tool: {kind: python, function: step, args: {what: "{{ input.n == 1 ? 'deadly' : 'harmless' }} {{ input.n }}"}}
"""
    await register(client, "crash/summary", steps)
    address = f"tape://{server.grpc_address}"
    arguments = ["worker", "-i", "crashing", "--lease-ms", "3000", "-c", "1", "--url", address]
    assert RUN_LEASE_SHARE < 1
    worker, deaths = Forked(arguments, cwd=tmp_path), 0
    try:
        await announced(client, "crash/python", worker)
        ids = await begin(client, [message("crash/summary", number) for number in range(3)])
        for each in ids:
            while (await client.get_run(each)).status != TERMINAL:
                if worker.poll() is not None:
                    assert worker.poll() == -signal.SIGKILL
                    deaths += 1
                    worker.kill()
                    worker = Forked(arguments, cwd=tmp_path)
                await asyncio.sleep(0.05)
    finally:
        worker.kill()
    acts = [line.rpartition(" ")[0] for line in (tmp_path / "acts.log").read_text().splitlines()]
    assert deaths == 1
    assert sorted(acts) == ["deadly 1"] * 2 + ["first 0", "first 1", "first 2", "harmless 0", "harmless 2"]
