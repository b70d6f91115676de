"""Driving agents in tests: begin, die, resume."""

from __future__ import annotations

import json
import warnings
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.events.event import Event
from google.adk.plugins.base_plugin import BasePlugin

from tape import TapeClient
from tape.adk import DurableRunner, TapePlugin, TapeSessionService
from tape.proto import tape_pb2 as pb
from tests.adk.scripted import Scripted, message

SESSION_KEY = {"user_id": "ann", "session_id": "s1"}


class Death(BaseException):
    """The end of a process, for tests that need not be killed for real."""


class DieAfterTool(BasePlugin):
    """Dies once, when a tool's effect is settled and the agent has not heard of it."""

    def __init__(self, times: int = 1) -> None:
        super().__init__(name="death")
        self.times = times

    async def after_tool_callback(self, **_: Any) -> None:
        """Die the given number of times."""
        self.times -= 1
        if self.times >= 0:
            raise Death


def agent_of(*answers: Any, tools: Any = (), name: str = "agent", **more: Any) -> LlmAgent:
    """An agent whose model says these things."""
    return LlmAgent(name=name, model=Scripted(answers=list(answers)), tools=list(tools), **more)


def asked(agent: LlmAgent) -> list[int]:
    """Which answers its model was asked for."""
    model = agent.model
    assert isinstance(model, Scripted)
    return model.asked


def runner_of(url: str, agent: BaseAgent, *plugins: BasePlugin, **settings: Any) -> DurableRunner:
    """A runner whose drives all have the same owner, so that one can follow a dead one at once."""
    plugin = TapePlugin(url, **{"lease_owner": "me", **settings})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        resumable = ResumabilityConfig(is_resumable=True)
    app = App(name="app", root_agent=agent, plugins=[plugin, *plugins], resumability_config=resumable)
    return DurableRunner(app=app, session_service=TapeSessionService(url), auto_create_session=True)


async def begin(runner: DurableRunner, **more: Any) -> list[Event]:
    """Say something to the agent; the events of its answer."""
    return [event async for event in runner.run_async(**SESSION_KEY, new_message=message(), **more)]


async def resume(runner: DurableRunner, **more: Any) -> list[Event]:
    """Carry on the session's last invocation."""
    last = (await events_of(runner))[-1]
    return [event async for event in runner.run_async(**SESSION_KEY, invocation_id=last.invocation_id, **more)]


async def events_of(runner: DurableRunner) -> list[Event]:
    """The events that are kept."""
    session = await runner.session_service.get_session(app_name="app", **SESSION_KEY)
    assert session is not None
    return session.events


async def state_of(runner: DurableRunner) -> dict[str, Any]:
    """The session's state."""
    session = await runner.session_service.get_session(app_name="app", **SESSION_KEY)
    assert session is not None
    return session.state


def run_of(observer: TapeClient) -> pb.RunState:
    """The only run."""
    (run,) = observer.list_runs(app_name="app").runs
    return run


def effects_of(observer: TapeClient) -> list[tuple[str, str]]:
    """What the journal says of effects: tool and status, in order."""
    run_id = run_of(observer).run_id
    found = []
    for entry in observer.subscribe_run(run_id=run_id, timeout=120):
        payload = json.loads(entry.payload_json)
        if entry.kind == "effect":
            found.append((payload["tool"], payload["status"]))
        if entry.seq >= observer.get_run(run_id).seq_cursor:
            break
    return found
