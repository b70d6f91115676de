"""Kills agents at every step: each drive is a process of its own that dies before or after its n-th call of the server.

Run as a program: it loads google-adk once, forks a process per drive, and prints one line of JSON per death.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.loop_agent import LoopAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.runners import InMemoryRunner
from google.adk.tools.agent_tool import AgentTool
from google.adk.workflow import START, BaseNode, JoinNode, Workflow

import tape
from tape.adk import DurableRunner, TapePlugin, TapeSessionService
from tape.client import AsyncTapeClient
from tape.client.channel import GrpcChannel
from tape.client.rpcs import UnaryRpc
from tests.adk.scripted import Scripted, calls, message, says, texts

USER = "ann"


class World:
    """What is outside: it knows each idempotency key, and counts what was done and asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def act(self, key: str) -> None:
        """Do something; the other side recognises what it has done before."""
        (self.folder / key.replace("/", "|")).touch()

    def note(self, what: str, who: str = "", number: int = 0) -> None:
        """Something happened to the n-th answer of an agent's model."""
        with (self.folder / "notes").open("a") as notes:
            notes.write(json.dumps([what, f"{who}-{number}"]) + "\n")

    def read(self) -> dict[str, Any]:
        """What happened so far."""
        notes = self.folder / "notes"
        lines = notes.read_text().splitlines() if notes.exists() else []
        notes = [json.loads(line) for line in lines]
        death = next(number for number, (what, _) in enumerate(notes) if what == "died")
        recorded = {answer for what, answer in notes[:death] if what == "recorded"}
        return {
            "keys": sorted(key.name.split("|", 1)[1] for key in self.folder.iterdir() if key.name != "notes"),
            "asked": dict(Counter(answer for what, answer in notes if what == "asked")),
            "asked_although_on_record": [
                answer for what, answer in notes[death:] if what == "asked" and answer in recorded
            ],
        }


def agent_for(scenario: str, world: World) -> BaseNode:
    """The agent of a scenario, with tools that act on the world."""

    @tape.effect
    async def pay(amount: int, tool_context: Any = None) -> dict[str, Any]:
        """Pay an amount."""
        world.act(tape.idempotency_key(tool_context))
        tool_context.state[f"paid-{amount}"] = amount
        return {"paid": amount}

    def note(text: str) -> str:
        """Write something down; it is not declared."""
        world.act(tape.idempotency_key(None))
        return text

    def agent(name: str, *answers: Any, **more: Any) -> LlmAgent:
        model = Scripted(answers=list(answers)).on_ask(lambda number: world.note("asked", name, number))
        return LlmAgent(name=name, model=model, tools=[pay, note, *more.pop("tools", [])], **more)

    two_steps = (calls(("pay", {"amount": 1}), ("pay", {"amount": 2})), calls(("note", {"text": "x"})), says("done"))
    if scenario == "one agent":
        return agent("one", *two_steps)
    one_step = (calls(("pay", {"amount": 3})), says("paid"))
    if scenario == "agent as a tool":
        inner = agent("inner", *one_step)
        return agent("outer", calls(("inner", {"request": "pay"})), says("done"), tools=[AgentTool(agent=inner)])
    if scenario == "transfer to another agent":
        helper = agent("helper", *one_step)
        return agent("root", calls(("transfer_to_agent", {"agent_name": "helper"})), sub_agents=[helper])
    if scenario == "loop":
        return LoopAgent(name="loop", max_iterations=2, sub_agents=[agent("again", *one_step, *one_step)])
    if scenario == "agent of a single turn":
        inner = agent("inner", *one_step, mode="single_turn", description="Pays.")
        return agent("outer", calls(("inner", {"request": "pay"})), says("done"), sub_agents=[inner])
    parts: list[BaseAgent] = [agent("left", *one_step), agent("right", *one_step)]
    if scenario == "workflow":
        return Workflow(name="both", edges=[(START, parts[0], parts[1])])
    if scenario == "workflow that forks":
        return Workflow(name="both", edges=[(START, (parts[0], parts[1]), JoinNode(name="join"))])
    if scenario == "sequential agents":
        return SequentialAgent(name="both", sub_agents=parts)
    assert scenario == "parallel agents"
    return ParallelAgent(name="both", sub_agents=parts)


def kill_at(which: int | str, moment: str, world: World) -> None:
    """Let this process die at its n-th call of the server, or at its first of a name: before it is sent or after."""
    call = GrpcChannel.call
    count = 0
    decisions: Counter[str] = Counter()

    async def counted(self: GrpcChannel, rpc: UnaryRpc[Any, Any], request: Any, **more: Any) -> Any:
        nonlocal count
        name = rpc.name
        count += 1
        is_last = which in (count, name)
        if is_last and moment == "before":
            die(name)
        answer = await call(self, rpc, request, **more)
        if name == "RecordDecision":
            agent = json.loads(request.request_json)["agent"]
            world.note("recorded", agent, decisions[agent])
            decisions[agent] += 1
        if is_last and moment == "after":
            die(name)
        return answer

    def die(name: str) -> None:
        sys.stdout.write(name)
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    GrpcChannel.call = counted  # type: ignore[method-assign]


async def drive(url: str, scenario: str, world: World, session_id: str) -> None:
    """Carry on what the session was about, or begin it."""
    # One owner for all, so that a test does not have to wait for leases to run out.
    plugin = TapePlugin(url, lease_owner="drive")
    app = App(
        name="app",
        root_agent=agent_for(scenario, world),
        plugins=[plugin],
        resumability_config=ResumabilityConfig(is_resumable=True),
    )
    sessions = TapeSessionService(url)
    runner = DurableRunner(app=app, session_service=sessions)
    key = {"user_id": USER, "session_id": session_id}
    session = await sessions.get_session(app_name="app", **key)
    if session is None:
        session = await sessions.create_session(app_name="app", **key)
    about = {"invocation_id": session.events[0].invocation_id} if session.events else {"new_message": message()}
    try:
        async for _ in runner.run_async(**key, **about):  # type: ignore[arg-type]
            pass
    except tape.RunEnded:
        pass  # the last thing that the dead process did was to end the run


async def story(url: str, session_id: str) -> dict[str, Any]:
    """What the server knows in the end."""
    session = await TapeSessionService(url).get_session(app_name="app", user_id=USER, session_id=session_id)
    assert session is not None
    async with AsyncTapeClient(url) as client:
        runs = (await client.list_runs(app_name="app", user_id=USER)).runs
    mine = [run for run in runs if run.session_id == session_id]
    return {
        "statuses": [run.status for run in mine],
        "state": session.state,
        "said": texts([event for event in session.events if event.author != "user"]),
        "marks": [
            event.custom_metadata["tape.decision"]
            for event in session.events
            if "tape.decision" in (event.custom_metadata or {})
        ],
    }


def in_child(work: Callable[[], Any]) -> tuple[int, str]:
    """Do something in a process of its own; how it ended, and what it wrote."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 1)
        os.close(reading)
        code = 1
        try:
            work()
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as output:
        written = output.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), written


def preload() -> None:
    """Load what google-adk loads when it is first used, so that not every process has to."""
    code, written = in_child(lambda: sys.stdout.write(json.dumps(sorted(loaded_by_a_drive()))))
    assert code == 0
    for name in json.loads(written):
        if name not in sys.modules:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def loaded_by_a_drive() -> set[str]:
    """The modules that a drive needs beyond those that are loaded."""
    before = set(sys.modules)
    with tempfile.TemporaryDirectory() as folder:
        runner = InMemoryRunner(agent=agent_for("one agent", World(Path(folder))), app_name="app")

        async def run() -> None:
            await runner.session_service.create_session(app_name="app", user_id=USER, session_id="s")
            async for _ in runner.run_async(user_id=USER, session_id="s", new_message=message()):
                pass

        with contextlib.suppress(tape.TapeError):  # there is no run here
            asyncio.run(run())
    return set(sys.modules) - before


# Where it matters whether the process dies before or after the call; for other calls only the state after it matters.
BOTH = ("RecordDecision", "CompleteEffect")
# What every scenario does.
CALLS = ("BeginRun", "RecordDecision", "BeginEffect", "CompleteEffect", "AppendEvent", "EndRun")


def die_and_finish(url: str, scenario: str, folder: Path, which: int | str, moment: str) -> dict[str, Any]:
    """Let a process die at a call and another one finish; what is known then. `died_at` is empty if it survived."""
    name = f"{moment}-{which}"
    world = World(folder / name)
    world.folder.mkdir()

    def dying() -> None:
        kill_at(which, moment, world)
        asyncio.run(drive(url, scenario, world, name))

    def finishing() -> None:
        asyncio.run(drive(url, scenario, world, name))
        sys.stdout.write(json.dumps(asyncio.run(story(url, name))))

    code, died_at = in_child(dying)
    assert code in (0, -signal.SIGKILL), f"{name}: exit {code}"
    world.note("died")
    end, output = in_child(finishing)
    assert end == 0, name
    return {"died_at": died_at, "moment": moment, **world.read(), **json.loads(output)}


def main(url: str, scenario: str, folder: Path) -> None:
    """Die at the first call, at the second, and so on, until a drive comes to its end; then at what was missed.

    Agents that run side by side call in another order each time, so counting alone may pass a kind of call by.
    """
    preload()
    missed = set(CALLS)

    def die_at(which: int | str, moment: str) -> str:
        seen = die_and_finish(url, scenario, folder, which, moment)
        sys.stdout.write(json.dumps(seen) + "\n")
        sys.stdout.flush()
        missed.discard(seen["died_at"])
        return str(seen["died_at"])

    number = 1
    while died_at := die_at(number, "after"):
        if died_at in BOTH:
            die_at(number, "before")
        number += 1
    for name in sorted(missed):
        die_at(name, "after")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
