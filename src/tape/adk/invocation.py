"""Reads the state of an invocation from google-adk's objects."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from tape.adk.drive import MARK, STREAMED
from tape.errors import RunInterrupted, TapeError

# The attribute of a tool's exception that has the error to raise instead.
REPLACEMENT = "_tape_replacement"


def unwrapped(error: BaseException) -> BaseException:
    """The exception behind one that a runner raised: google-adk wraps those of plugins."""
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, TapeError | RunInterrupted):
        return error.__cause__
    replacement = getattr(error, REPLACEMENT, error)
    return replacement if isinstance(replacement, BaseException) else error


def has_answered(agent: LlmAgent, context: InvocationContext, events: Sequence[Event]) -> bool:
    """Whether an agent's last event in its branch is its final answer: nothing came after it but its own end."""
    for event in reversed(events):
        if event.invocation_id != context.invocation_id or event.branch != context.branch:
            continue
        if event.author == agent.name and event.actions.end_of_agent:
            continue
        metadata = event.custom_metadata or {}
        return bool(
            event.author == agent.name
            and MARK in metadata
            and event.is_final_response()
            and not event.long_running_tool_ids
            # A streamed answer may come in several parts; the last one says why it ends.
            and (event.finish_reason is not None or STREAMED not in metadata)
        )
    return False


def put_question_back(context: InvocationContext) -> None:
    """Move the question to a workflow node back to its first position: before the events of its answer.

    google-adk repeats the question to a resumed node at the end of the session, and its model would not see what it
    has decided and done already.
    """
    events, path = context.session.events, context.node_path
    asked = [
        number
        for number, event in enumerate(events)
        if event.author == "user" and not event.invocation_id and event.node_info.path == path
    ]
    done = [
        number
        for number, event in enumerate(events)
        if event.invocation_id == context.invocation_id and event.node_info.path == path
    ]
    if path and asked and done and done[0] < asked[-1]:
        events.insert(done[0], events.pop(asked[-1]))


def unanswered_calls(context: InvocationContext) -> list[str]:
    """Long-running calls of an invocation that the user has not answered yet, the oldest first."""
    mine = [event for event in context.session.events if event.invocation_id == context.invocation_id]
    answered = {answer.id for event in mine if event.author == "user" for answer in event.get_function_responses()}
    asked = [call for event in mine for call in sorted(event.long_running_tool_ids or ())]
    return [call for call in asked if call not in answered]


def calls_of(response: LlmResponse) -> list[types.FunctionCall]:
    """The tool calls that a response asks for."""
    parts = (response.content.parts if response.content else None) or []
    return [part.function_call for part in parts if part.function_call]


def model_of(context: CallbackContext) -> str:
    """The name of the model that an agent asks."""
    model = getattr(context._invocation_context.agent, "model", "")
    return model if isinstance(model, str) else str(getattr(model, "model", ""))


async def first_answer(context: InvocationContext, kind: str, **given: Any) -> Any:
    """The first result of an agent's own callbacks of a kind that is not None."""
    callbacks: Sequence[Callable[..., Any]] = getattr(context.agent, f"canonical_{kind}_callbacks", ())
    for callback in callbacks:
        answer = callback(**given)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is not None:
            return answer
    return None
