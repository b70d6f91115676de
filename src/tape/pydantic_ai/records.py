"""Responses of models and results of tools as they are recorded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from pydantic_ai.exceptions import ModelRetry, ToolFailed
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    ToolCallPart,
    ToolReturn,
    ToolReturnContent,
)
from pydantic_core import to_jsonable_python

from tape.base.telemetry.genai import TokenUsage
from tape.durable.agent_calls import RequestedCall, ResponseCodec

_BYTES = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
_CONTENT: TypeAdapter[Any] = TypeAdapter(ToolReturnContent, config=_BYTES)
# In a list, because a dataclass alone takes no configuration.
_RETURN: TypeAdapter[list[ToolReturn[Any]]] = TypeAdapter(list[ToolReturn], config=_BYTES)


def _response_to_json(response: ModelResponse) -> str:
    return json.dumps({"response": json.loads(ModelMessagesTypeAdapter.dump_json([response]))[0]})


def _response_from_json(text: str) -> ModelResponse:
    [response] = ModelMessagesTypeAdapter.validate_json(json.dumps([json.loads(text)["response"]]))
    assert isinstance(response, ModelResponse)
    return response


def _calls(response: ModelResponse) -> Iterable[RequestedCall]:
    return [
        RequestedCall(part.tool_call_id, part.tool_name) for part in response.parts if isinstance(part, ToolCallPart)
    ]


def _usage(response: ModelResponse) -> TokenUsage:
    return TokenUsage(response.usage.input_tokens, response.usage.output_tokens)


RESPONSES: ResponseCodec[ModelResponse] = ResponseCodec(
    to_json=_response_to_json,
    from_json=_response_from_json,
    tool_calls=_calls,
    usage=_usage,
    model=lambda response: response.model_name or "",
)


def conversation_of(messages: Sequence[ModelMessage]) -> list[Any]:
    """What a model is shown, without times and ids, which differ in each execution."""
    return [[[type(part).__name__, _shown(part)] for part in message.parts] for message in messages]


def _shown(part: Any) -> Any:
    content = part.args_as_json_str() if isinstance(part, ToolCallPart) else getattr(part, "content", None)
    return to_jsonable_python(content, bytes_mode="base64", serialize_unknown=True)


# ── results of tools ─────────────────────────────────────────────────────────────────────────────


def arguments_to_record(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a tool call as JSON values."""
    recorded: dict[str, Any] = to_jsonable_python(arguments, bytes_mode="base64", serialize_unknown=True)
    return recorded


def result_to_record(result: Any) -> dict[str, Any]:
    """What a tool returned, as a JSON value that says of which kind it is."""
    if isinstance(result, ToolReturn):
        return {"tool_return": json.loads(_RETURN.dump_json([result]))[0]}
    try:
        return {"content": json.loads(_CONTENT.dump_json(result))}
    except ValueError:  # an object that is no content; the model would see it in this form too
        return {"content": to_jsonable_python(result, bytes_mode="base64", serialize_unknown=True)}


def refusal_to_record(refusal: ModelRetry | ToolFailed) -> dict[str, Any]:
    """That a tool asked the model to try again, or reported a failure to it."""
    kind = "model_retry" if isinstance(refusal, ModelRetry) else "tool_failed"
    return {kind: to_jsonable_python(refusal.message, serialize_unknown=True)}


def result_from_record(recorded: Any) -> Any:
    """The result as the agent gets it; raises what the tool reported to the model."""
    if not isinstance(recorded, dict) or len(recorded) != 1:
        return recorded  # of the outbox, or written by a reconciler
    [(kind, value)] = recorded.items()
    match kind:
        case "content":
            return _CONTENT.validate_json(json.dumps(value))
        case "tool_return":
            return _RETURN.validate_json(json.dumps([value]))[0]
        case "model_retry":
            raise ModelRetry(value)
        case "tool_failed":
            raise ToolFailed(value)
        case _:
            return recorded
