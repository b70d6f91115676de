"""Workers of a pool: commands become runs that end, also when workers are killed, stopped or lack something."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tape
from tape.client import AsyncTapeClient
from tape.errors import InvalidInput, NotServed, TapeError
from tape.playbooks import functions
from tape.playbooks.tools import TOOLS, ToolCall
from tape.playbooks.worker import announce_playbooks, work
from tape.proto import tape_pb2 as pb
from tape.server.grpc.advance import AdvanceService
from tape.server.server import Server
from tests.conftest import settings_for
from tests.forked import Forked
from tests.services import free_port, wait_for

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ENDED = (pb.RUN_STATUS_TERMINAL, pb.RUN_STATUS_FAILED, pb.RUN_STATUS_CANCELLED)


@pytest.fixture(autouse=True)
def declarations() -> Iterator[None]:
    functions.forget_declarations()
    yield
    functions.forget_declarations()


@contextlib.asynccontextmanager
async def working(client: AsyncTapeClient, pool: str = "shared", **options: Any) -> AsyncIterator[threading.Event]:
    """A worker in this process, for as long as the block lasts."""
    stop = threading.Event()
    task = asyncio.create_task(work(client.url, pool=pool, stop=stop, **options))
    try:
        yield stop
    finally:
        stop.set()
        await task


async def register(client: AsyncTapeClient, path: str, workflow: str, rest: str = "") -> None:
    await client.register_resource(f"kind: Playbook\nmetadata: {{path: {path}}}\n{rest}\nworkflow:\n{workflow}")


async def end_of(client: AsyncTapeClient, execution_id: str) -> pb.RunState:
    run = await client.get_run(execution_id)
    try:
        async with asyncio.timeout(240):
            while run.status not in ENDED:
                await asyncio.sleep(0.02)
                run = await client.get_run(execution_id)
    except TimeoutError:
        raise AssertionError(f"the run does not come to its end: {run}") from None
    return run


async def announced(client: AsyncTapeClient, path: str, worker: Forked) -> None:
    """Wait until a worker that is a process has said what it can do."""
    while path not in [each.path for each in (await client.list_resources("playbook")).resources]:
        assert worker.poll() is None, f"the worker has ended with {worker.poll()}"
        await asyncio.sleep(0.05)


async def outcome(client: AsyncTapeClient, path: str, payload: Any = None, **wanted: Any) -> Any:
    """What an execution gives, or why it failed."""
    run = await end_of(client, (await client.execute(path, payload, **wanted)).execution_id)
    return msgspec.json.decode(run.detail_json)


async def test_playbooks_run_to_their_end_and_every_step_is_an_effect(client: AsyncTapeClient) -> None:
    @tape.function
    def double(n: int, tool_context: Any = None) -> dict[str, Any]:
        return {"n": 2 * n, "key": tape.idempotency_key(tool_context)}

    @tape.playbook("domain/triple")
    async def triple(n: int) -> int:
        return 3 * n

    await register(
        client,
        "domain/numbers",
        """
  - {step: all, each: numbers, concurrency: 2, tool: {kind: python, function: double, args: {n: "{{ item }}"}}}
  - {step: more, tool: {kind: playbook, path: domain/triple, payload: {n: "{{ all[1].n }}"}}}
  - {step: tell, tool: {kind: publish, subject: /tape/numbers/done, payload: {more: "{{ more }}"}}}
""",
        "inputs: {numbers: array}\noutput: {all: '{{ all }}', more: '{{ more }}'}",
    )
    async with working(client):
        started = await client.execute("domain/numbers", {"numbers": [1, 2]}, traceparent=TRACEPARENT)
        run = await end_of(client, started.execution_id)
    key = started.execution_id
    assert msgspec.json.decode(run.detail_json)["output"] == {
        "all": [{"n": 2, "key": f"{key}/all[0]"}, {"n": 4, "key": f"{key}/all[1]"}],
        "more": 12,
    }
    subjects = []
    async for entry in client.follow(run_id=key):
        subjects.append(entry.type)
        assert entry.trace_id == TRACEPARENT.split("-")[1], entry.subject
        if entry.type == "run.terminal":
            break
    assert subjects[:2] == ["run.running", "command.issued"]
    assert (subjects.count("effect.confirmed"), subjects.count("numbers.done")) == (4, 1)


async def test_a_failed_step_fails_the_run_and_is_named_in_it(client: AsyncTapeClient) -> None:
    @tape.function
    def burst() -> None:
        raise ValueError("no")

    await register(client, "bad/step", "  - {step: a, tool: {kind: python, function: burst}}")
    await register(client, "bad/input", "  - {step: a, tool: {kind: value, value: 1}}", "inputs: {n: integer}")
    await register(client, "bad/template", "  - {step: a, tool: {kind: value, value: '{{ input.x }}'}}")
    await register(client, "bad/child", "  - {step: a, tool: {kind: playbook, path: no/such}}")
    async with working(client):
        assert await outcome(client, "bad/step") == {"error": {"step": "a", "type": "ValueError", "message": "no"}}
        message = pb.Execution(path="bad/input", payload_json='{"n": "x"}', subscription="orders")
        started = (await client.execute_many([message])).results[0]
        run = await end_of(client, started.execution_id)
        assert msgspec.json.decode(run.detail_json)["error"] == {
            "type": "InvalidPayload",
            "message": 'payload: n is "x"; it must be an integer.',
        }
        assert (await outcome(client, "bad/template"))["error"]["type"] == "TemplateFailed"
        assert (await outcome(client, "bad/child"))["error"]["message"] == "Playbook not found: no/such"


async def test_a_result_that_is_too_large_fails_its_step_alone(client: AsyncTapeClient) -> None:
    @tape.function
    def sized(n: int) -> str:
        return "x" * n

    steps = """
  - step: all
    each: "[5, 2000000, 6]"
    concurrency: 3
    on_error: continue
    tool: {kind: python, function: sized, args: {n: "{{ item }}"}}
  - {step: kinds, tool: {kind: value, value: "{{ [all[0], all[1].error.type, all[2]] }}"}}
"""
    await register(client, "large", steps)
    async with working(client):
        assert await outcome(client, "large") == {"output": ["xxxxx", "PayloadTooLarge", "xxxxxx"]}


async def test_a_worker_takes_the_commands_of_its_pool_alone(client: AsyncTapeClient) -> None:
    @tape.playbook("iot/read", pool="iot")
    def read() -> str:
        return "iot"

    @tape.playbook("any/read")
    def anywhere() -> str:
        return "any"

    async with working(client, "shared"):
        while not (listed := (await client.list_resources("playbook")).resources):
            await asyncio.sleep(0.02)
        assert [each.path for each in listed] == ["any/read"]
        assert {each.path for each in await announce_playbooks(client, "iot")} == {"any/read", "iot/read"}
        waiting = await client.execute("iot/read")
        assert await outcome(client, "any/read") == {"output": "any"}
        assert (await client.get_run(waiting.execution_id)).status == pb.RUN_STATUS_RUNNABLE
        async with working(client, "iot"):
            assert (await end_of(client, waiting.execution_id)).status == pb.RUN_STATUS_TERMINAL
            assert await outcome(client, "any/read", pool="iot") == {"output": "any"}
    versions = [each.version for each in (await client.list_resources("playbook")).resources]
    assert versions == [1, 1]


async def test_a_cancelled_execution_goes_no_further(client: AsyncTapeClient) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    seen: list[str] = []

    @tape.function
    async def first() -> None:
        begun.set()
        await go_on.wait()

    @tape.function
    async def second() -> None:
        seen.append("second")

    steps = (
        "  - {step: a, tool: {kind: python, function: first}}\n  - {step: b, tool: {kind: python, function: second}}"
    )
    await register(client, "two/steps", steps)
    async with working(client) as stop:
        never = await client.execute("two/steps", pool="nobody")
        await client.end_run(run_id=never.execution_id, status=pb.RUN_STATUS_CANCELLED)
        started = await client.execute("two/steps")
        await begun.wait()
        await client.end_run(run_id=started.execution_id, status=pb.RUN_STATUS_CANCELLED)
        go_on.set()
        stop.set()
    key = started.execution_id
    assert (await client.get_run(key)).status == pb.RUN_STATUS_CANCELLED
    assert seen == []
    # What happened before is on record all the same.
    effect = (await client.get_effect(run_id=key, idempotency_key=f"{key}/a")).effect
    assert effect.status == pb.EFFECT_STATUS_CONFIRMED


class NestedTool:
    """Records something of its own within its step, and looks whether it is on record."""

    def __init__(self, client: AsyncTapeClient) -> None:
        self._client = client

    def check(self, fields: Any) -> None:
        return

    async def call(self, call: ToolCall) -> Any:
        async def act() -> str:
            return "fetched"

        await call.host.perform(f"{call.key}/inner", "inner", {}, act)
        found = await self._client.get_effect(run_id=call.run.id, idempotency_key=f"{call.key}/inner")
        return found.effect.status


async def test_what_a_tool_records_within_its_step_is_durable_when_it_goes_on(
    client: AsyncTapeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TOOLS, "nested", NestedTool(client))
    await register(client, "nested", "  - {step: a, tool: {kind: nested}}")
    async with working(client):
        assert await outcome(client, "nested") == {"output": pb.EFFECT_STATUS_CONFIRMED}


async def test_a_child_on_another_pool_is_an_execution_below_its_parent(client: AsyncTapeClient) -> None:
    await register(client, "child", "  - {step: a, tool: {kind: value, value: '{{ run.parent }}'}}")
    await register(
        client, "parent", "  - {step: a, tool: {kind: playbook, path: child, wait: false, payload: {x: 1}, pool: iot}}"
    )
    async with working(client), working(client, "iot"):
        parent = await client.execute("parent")
        first = msgspec.json.decode((await end_of(client, parent.execution_id)).detail_json)["output"]["execution_id"]
        child = await end_of(client, first)
    assert msgspec.json.decode(child.detail_json) == {"output": parent.execution_id}
    assert child.labels["tape.pool"] == "iot"


async def test_what_a_worker_lacks_is_left_to_others_and_named(client: AsyncTapeClient) -> None:
    await register(client, "needs/function", "  - {step: a, tool: {kind: python, function: missing}}")
    async with working(client):
        started = await client.execute("needs/function")
        while True:
            tasks = (await client.list_tasks(reaction_id="pool:shared")).tasks
            if tasks and tasks[0].last_error:
                break
            await asyncio.sleep(0.02)
        assert "step 'a' calls the function 'missing', which this worker does not have" in tasks[0].last_error

        @tape.function("missing")
        def found() -> str:
            return "found"

        run = await end_of(client, started.execution_id)
    assert msgspec.json.decode(run.detail_json) == {"output": "found"}


async def test_a_worker_that_is_there_before_its_server_waits_for_it(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    @tape.playbook("early")
    def early() -> str:
        return "bird"

    listen = f"127.0.0.1:{free_port()}"
    async with AsyncTapeClient(f"tape://{listen}") as client, working(client):
        while "server unavailable" not in caplog.text:
            await asyncio.sleep(0.02)
        async with Server(settings_for(sqlite_url, listen=listen)):
            while True:
                with contextlib.suppress(TapeError):
                    if (await client.list_reactions("/tape/command/issued/shared/*")).reactions:
                        break
                await asyncio.sleep(0.02)
            assert await outcome(client, "early") == {"output": "bird"}


@pytest.mark.parametrize(
    ("options", "reason"), [({"pool": "No"}, "pool 'No' must be"), ({"concurrency": 0}, "at least 1")]
)
async def test_nonsense_is_named(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        await work("tape://127.0.0.1:1", **options)


# ── workers that are killed ──────────────────────────────────────────────────────────────────────

MODULE = '''
import os, signal
from pathlib import Path
import tape

LOG = Path(__file__).with_name("acts.log")

def act(what, key):
    """On record outside of Tape; the first act of a key takes its worker with it, before anybody can confirm it."""
    is_first = f"{what} {key}\\n" not in (LOG.read_text() if LOG.exists() else "")
    with LOG.open("a") as log:
        log.write(f"{what} {key}\\n")
    if is_first and "deadly" in what:
        os.kill(os.getpid(), signal.SIGKILL)

@tape.function
def step(what: str, tool_context=None) -> dict:
    act(what, tape.idempotency_key(tool_context))
    return {"what": what}

@tape.effect
def charge(amount: int, tool_context=None) -> dict:
    act("charge", tape.idempotency_key(tool_context))
    return {"charged": amount}

@tape.effect
def ship(tool_context=None) -> dict:
    act("deadly ship", tape.idempotency_key(tool_context))
    return {"shipped": True}

@tape.playbook("crash/python")
def python() -> dict:
    return {**charge(5), **ship()}
'''

STEPS = """
  - {step: one, tool: {kind: python, function: step, args: {what: one}}}
  - step: all
    each: "['x', 'deadly y', 'z']"
    tool: {kind: python, function: step, args: {what: "{{ item }}"}}
  - {step: tell, tool: {kind: publish, subject: /tape/crash/told}}
  - {step: last, tool: {kind: python, function: step, args: {what: deadly last}}}
"""


async def test_workers_killed_anywhere_are_followed_by_others_and_no_confirmed_step_runs_twice(
    server: Server, client: AsyncTapeClient, tmp_path: Path
) -> None:
    (tmp_path / "crashing.py").write_text(MODULE)
    await register(client, "crash/yaml", STEPS, "output: '{{ all.map(each, each.what) }}'")
    arguments = ["worker", "-i", "crashing", "--lease-ms", "4000", "-c", "1", "--url", f"tape://{server.grpc_address}"]

    def start() -> Forked:
        return Forked(arguments, cwd=tmp_path)

    worker = start()
    deaths = 0
    try:
        await announced(client, "crash/python", worker)
        runs = []
        for path in ("crash/yaml", "crash/python"):
            runs.append((await client.execute(path)).execution_id)
            while (await client.get_run(runs[-1])).status not in ENDED:
                if worker.poll() is not None:
                    assert worker.poll() == -signal.SIGKILL
                    deaths += 1
                    worker.kill()
                    worker = start()
                await asyncio.sleep(0.05)
    finally:
        worker.kill()
    ended = [msgspec.json.decode((await client.get_run(each)).detail_json) for each in runs]
    assert ended == [{"output": ["x", "deadly y", "z"]}, {"output": {"charged": 5, "shipped": True}}]
    assert deaths == 3
    # What takes a worker with it is done once before it can be confirmed and once more; all the rest once.
    yaml, python = runs
    assert (tmp_path / "acts.log").read_text().splitlines() == [
        f"one {yaml}/one",
        f"x {yaml}/all[0]",
        *[f"deadly y {yaml}/all[1]"] * 2,
        f"z {yaml}/all[2]",
        *[f"deadly last {yaml}/last"] * 2,
        f"charge {python}/no-decision/charge/0",
        *[f"deadly ship {python}/no-decision/ship/0"] * 2,
    ]
    confirmed = [entry async for entry in _until_head(client)]
    keys = [entry.payload["idempotency_key"] for entry in confirmed if entry.type == "effect.confirmed"]
    assert len(keys) == len(set(keys))
    assert [entry.type for entry in confirmed].count("crash.told") == 1


async def _until_head(client: AsyncTapeClient) -> AsyncIterator[Any]:
    head = (await client.head()).global_seq
    async for entry in client.follow():
        yield entry
        if entry.global_seq >= head:
            return


async def test_no_more_steps_act_at_a_time_than_a_worker_has_slots(client: AsyncTapeClient) -> None:
    acting, most = 0, []

    @tape.function
    async def act() -> int:
        nonlocal acting
        acting += 1
        most.append(acting)
        await asyncio.sleep(0)
        acting -= 1
        return 1

    await register(
        client,
        "many/steps",
        "  - {step: one, tool: {kind: python, function: act}}\n"
        '  - {step: more, each: "[1, 2]", tool: {kind: python, function: act}}',
    )
    await client.execute_many([pb.Execution(path="many/steps") for _ in range(100)])
    last = (await client.execute("many/steps")).execution_id
    async with working(client, concurrency=3):
        assert (await end_of(client, last)).status == pb.RUN_STATUS_TERMINAL
        while (await client.list_runs(status=pb.RUN_STATUS_RUNNING, limit=1)).runs:
            await asyncio.sleep(0.02)
    assert len(most) == 303
    assert max(most) <= 3


async def test_an_older_server_gets_one_run_at_a_time(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(AdvanceService, "advance_runs")
    async with (
        Server(settings_for(store_url)) as server,
        AsyncTapeClient(f"tape://{server.grpc_address}") as client,
    ):
        await register(client, "quick", "  - {step: a, tool: {kind: value, value: 5}}")
        async with working(client):
            assert await outcome(client, "quick") == {"output": 5}


async def test_a_worker_that_is_newer_than_its_server_says_so_and_uses_up_no_attempt(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(AdvanceService, "advance_runs")
    monkeypatch.delattr(AdvanceService, "advance_run")
    async with (
        Server(settings_for(store_url)) as server,
        AsyncTapeClient(f"tape://{server.grpc_address}") as client,
    ):
        await register(client, "quick", "  - {step: a, tool: {kind: value, value: 5}}")
        await client.execute_many([pb.Execution(path="quick") for _ in range(10)])
        with pytest.raises(NotServed, match=r"does not serve AdvanceRun .* older than this client\. Update the server"):
            await work(client.url)
        found = (await client.list_tasks(reaction_id="pool:shared", limit=100)).tasks
        assert [(task.status, task.attempts) for task in found] == [(pb.TASK_STATUS_PENDING, 0)] * 10


async def test_a_worker_finishes_its_runs_on_stop(server: Server, client: AsyncTapeClient, tmp_path: Path) -> None:
    (tmp_path / "slowly.py").write_text(
        "import time, tape\nfrom pathlib import Path\nHERE = Path(__file__).parent\n"
        "@tape.playbook('slow')\ndef slow():\n"
        "    (HERE / 'begun').touch()\n"
        "    while not (HERE / 'go').exists(): time.sleep(0.01)\n"
        "    return 'done'\n"
    )
    worker = Forked(["worker", "-i", "slowly", "-c", "1", "--url", f"tape://{server.grpc_address}"], cwd=tmp_path)
    try:
        await announced(client, "slow", worker)
        first = (await client.execute("slow")).execution_id
        await asyncio.to_thread(wait_for, (tmp_path / "begun").exists, "the playbook to begin")
        second = (await client.execute("slow")).execution_id
        os.kill(worker.pid, signal.SIGTERM)
        (tmp_path / "go").touch()
        assert await asyncio.to_thread(worker.wait, 120) == 0
    finally:
        worker.kill()
    assert (await client.get_run(first)).status == pb.RUN_STATUS_TERMINAL
    assert (await client.get_run(second)).status == pb.RUN_STATUS_RUNNABLE


async def test_runs_of_one_ordering_key_take_turns_while_others_run_beside_them(client: AsyncTapeClient) -> None:
    running: dict[str, int] = {}
    ended: dict[str, list[int]] = {}
    most_beside: list[int] = []

    @tape.playbook("domain/turn")
    async def turn(key: str, number: int) -> None:
        running[key] = running.get(key, 0) + 1
        assert running[key] == 1, "another run of the key is not over"
        most_beside.append(sum(running.values()))
        await asyncio.sleep(0.001 * ((number * 7) % 5))  # the later ones of a key would overtake the earlier ones
        running[key] -= 1
        ended.setdefault(key, []).append(number)

    await announce_playbooks(client, "shared")
    wanted = [
        pb.Execution(
            path="domain/turn",
            payload_json=msgspec.json.encode({"key": f"k{n % 10}", "number": n}).decode(),
            ordering_key=f"k{n % 10}",
        )
        for n in range(80)
    ]
    started = await client.execute_many(wanted)
    async with working(client, concurrency=8):
        for result in started.results:
            assert (await end_of(client, result.execution_id)).status == pb.RUN_STATUS_TERMINAL
    assert ended == {f"k{n}": list(range(n, 80, 10)) for n in range(10)}
    assert max(most_beside) > 1
