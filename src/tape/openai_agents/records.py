"""Responses of models and results of tools as they are recorded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agents import ToolOutputFileContent, ToolOutputImage, ToolOutputText
from agents.items import ModelResponse
from agents.usage import Usage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputItem
from pydantic import BaseModel, TypeAdapter
from pydantic_core import to_jsonable_python

from tape.base.telemetry.genai import TokenUsage
from tape.durable.agent_calls import RequestedCall, ResponseCodec

_ITEMS: TypeAdapter[list[Any]] = TypeAdapter(list[ResponseOutputItem])
_USAGE: TypeAdapter[Usage] = TypeAdapter(Usage)
_OUTPUTS: dict[str, type[BaseModel]] = {
    kind.__name__: kind for kind in (ToolOutputText, ToolOutputImage, ToolOutputFileContent)
}


def _to_json(response: ModelResponse) -> str:
    items = [item.model_dump(mode="json", exclude_unset=True) for item in response.output]
    return json.dumps(
        {
            "output": items,
            "usage": _USAGE.dump_python(response.usage, mode="json"),
            "response_id": response.response_id,
            "request_id": response.request_id,
        }
    )


def _from_json(text: str) -> ModelResponse:
    kept = json.loads(text)
    return ModelResponse(
        output=_ITEMS.validate_python(kept["output"]),
        usage=_USAGE.validate_python(kept["usage"]),
        response_id=kept["response_id"],
        request_id=kept["request_id"],
    )


def _calls(response: ModelResponse) -> Iterable[RequestedCall]:
    asked = [item for item in response.output if isinstance(item, ResponseFunctionToolCall)]
    return [RequestedCall(item.call_id, item.name) for item in asked]


RESPONSES: ResponseCodec[ModelResponse] = ResponseCodec(
    to_json=_to_json,
    from_json=_from_json,
    tool_calls=_calls,
    usage=lambda response: TokenUsage(response.usage.input_tokens, response.usage.output_tokens),
    model=lambda _: "",  # the SDK does not say which model answered
)


def conversation_of(arguments: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
    """What a model is shown: its instructions and the items of the conversation, without the ids of items."""
    instructions = options.get("system_instructions", arguments[0] if arguments else None)
    shown = options.get("input", arguments[1] if len(arguments) > 1 else "")
    items = [{"content": shown}] if isinstance(shown, str) else shown
    plain = to_jsonable_python(items, serialize_unknown=True)
    return [instructions or "", *({name: item[name] for name in item if name != "id"} for item in plain)]


# ── results of tools ─────────────────────────────────────────────────────────────────────────────


def arguments_of(text: str) -> dict[str, Any]:
    """The arguments that a model gave to a tool; text that is no JSON object as it is."""
    try:
        arguments = json.loads(text or "{}")
    except ValueError:
        arguments = text
    return arguments if isinstance(arguments, dict) else {"input": arguments}


def result_to_record(result: Any, output_type: TypeAdapter[Any] | None) -> Any:
    """What a tool returned, as a JSON value: what the SDK would show to the model."""
    if output_type is not None:
        return {"typed": output_type.dump_python(result, mode="json")}
    if isinstance(result, list):
        return [result_to_record(each, None) for each in result]
    if (name := type(result).__name__) in _OUTPUTS and isinstance(result, BaseModel):
        return {"kind": name, "value": result.model_dump(mode="json")}
    if isinstance(result, dict) and {"type"} <= result.keys():  # an output in the form of a dict
        try:
            return {"dict": json.loads(json.dumps(result))}
        except (TypeError, ValueError):
            pass
    return {"text": str(result)}


def result_from_record(recorded: Any, output_type: TypeAdapter[Any] | None) -> Any:
    """The result as the SDK gets it."""
    match recorded:
        case {"typed": value} if output_type is not None:
            return output_type.validate_python(value)
        case {"kind": str(name), "value": value} if name in _OUTPUTS:
            return _OUTPUTS[name].model_validate(value)
        case {"dict": value} | {"text": value}:
            return value
        case list():
            return [result_from_record(each, None) for each in recorded]
        case _:  # of the outbox, or written by a reconciler
            return recorded if isinstance(recorded, str) else json.dumps(recorded)
