"""Conversion of model responses and tool results to records and back."""

from __future__ import annotations

import json
from typing import Any

from google.adk.agents.context import Context
from google.adk.events.event_actions import EventActions
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

# A tool's result is recorded as it is; these two keys have what JSON cannot express.
_ACTIONS = "tape.actions"
_PART = "tape.part"


# ── decisions ────────────────────────────────────────────────────────────────────────────────────


def decision_json(response: LlmResponse, *, continues: bool) -> str:
    """A model's response; `continues` if it is a further part of the answer that the decision before it began."""
    kept: dict[str, Any] = {"response": json.loads(response.model_dump_json(exclude_none=True))}
    return json.dumps(kept | {"continues": True} if continues else kept)


def response_of(text: str) -> LlmResponse:
    """The response that a decision keeps."""
    # Through JSON, because bytes are encoded as base64.
    return LlmResponse.model_validate_json(json.dumps(json.loads(text)["response"]))


def is_continuation(text: str) -> bool:
    """Whether a decision continues the answer of the one before it."""
    return bool(json.loads(text).get("continues"))


def joined(first: LlmResponse, second: LlmResponse) -> LlmResponse:
    """Two parts of one answer as one."""
    parts = [part for each in (first, second) if each.content for part in each.content.parts or []]
    role = next((each.content.role for each in (first, second) if each.content), "model")
    return second.model_copy(update={"content": types.Content(role=role, parts=parts)})


# ── results of tools ─────────────────────────────────────────────────────────────────────────────


def result_to_record(result: Any, actions: EventActions) -> dict[str, Any]:
    """A tool's result with its state changes and actions, as JSON."""
    recorded: dict[str, Any] = _plain(result if isinstance(result, dict) else {"result": result})
    done = actions.model_dump(mode="json", exclude_defaults=True)
    return recorded | {_ACTIONS: done} if done else recorded


def result_from_record(recorded: Any, tool_context: Context) -> dict[str, Any]:
    """The result as the tool returned it; its state changes and actions are applied again."""
    # A reconciler may have written anything.
    kept = dict(recorded) if isinstance(recorded, dict) else {"result": recorded}
    actions = EventActions.model_validate(kept.pop(_ACTIONS, {}))
    for key, value in actions.state_delta.items():
        tool_context.state[key] = value
    for name in actions.model_fields_set - {"state_delta"}:
        setattr(tool_context.actions, name, getattr(actions, name))
    restored = _restored(kept)
    assert isinstance(restored, dict)
    return restored


def _plain(value: Any) -> Any:
    if isinstance(value, types.Part):
        return {_PART: json.loads(value.model_dump_json(exclude_none=True))}
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, BaseModel):
        return json.loads(value.model_dump_json())
    return to_jsonable_python(value, bytes_mode="base64", serialize_unknown=True)


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {_PART}:
            return types.Part.model_validate_json(json.dumps(value[_PART]))
        return {key: _restored(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_restored(each) for each in value]
    return value
