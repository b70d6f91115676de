"""What a resumed agent was about to do is done, whatever its workflow notes down meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.agents.callback_context import CallbackContext
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.workflow import START, Workflow

import tape
from tape.adk.order import CallsLast
from tests.adk.driving import Death, DieAfterTool, agent_of, begin, resume, runner_of
from tests.adk.scripted import calls, says, texts


class LookLate(BasePlugin):
    """Lets an agent begin only when its workflow has made a note: an order that is otherwise not deterministic."""

    def __init__(self, workflow: str) -> None:
        super().__init__(name="late")
        self._workflow = workflow
        self._notes = 0

    async def before_run_callback(self, *, invocation_context: Any) -> None:
        """Count the notes that were there."""
        self._notes = self._count(invocation_context.session)

    async def before_agent_callback(self, *, agent: Any, callback_context: CallbackContext) -> None:
        """Wait for another one."""
        session = callback_context._invocation_context.session
        while agent.name != self._workflow and self._count(session) == self._notes:
            await asyncio.sleep(0.01)

    def _count(self, session: Any) -> int:
        return sum(event.author == self._workflow and bool(event.actions.agent_state) for event in session.events)


async def test_a_tool_whose_agent_died_in_a_workflow_is_called_although_the_workflow_made_a_note(url: str) -> None:
    paid = []

    @tape.effect
    async def pay(amount: int) -> dict[str, Any]:
        """Pay an amount."""
        paid.append(amount)
        return {"paid": amount}

    left = agent_of(says("ready"), name="left")
    right = agent_of(calls(("pay", {"amount": 5})), says("paid"), name="right", tools=[pay])
    runner = runner_of(url, Workflow(name="both", edges=[(START, left, right)]), DieAfterTool(), LookLate("both"))
    with pytest.raises(Death):
        await begin(runner)
    assert texts(await resume(runner)) == ["paid"]
    assert paid == [5]


def note(author: str = "both", **more: Any) -> Event:
    return Event(author=author, invocation_id="i", **more)


def call(author: str = "right", **more: Any) -> Event:
    return Event(author=author, invocation_id="i", content=calls(("pay", {"amount": 1})).content, **more)


def test_only_the_notes_of_others_on_the_same_branch_go_before_a_call() -> None:
    asked, on_other_branch = call(), call(branch="b")
    later, own, there = note(), note("right", actions=EventActions(end_of_agent=True)), note(branch="b")
    said = Event(author="user", invocation_id="i")
    assert CallsLast([asked, later]) == [later, asked]
    assert CallsLast([asked, own]) == [asked, own]
    assert CallsLast([asked, on_other_branch, later, there]) == [later, asked, there, on_other_branch]
    assert CallsLast([asked, said, later]) == [asked, said, later]
