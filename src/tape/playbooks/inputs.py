"""Typed inputs of a playbook, checked before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tape.documents.document import Node
from tape.documents.reader import key_at
from tape.errors import InvalidPayload
from tape.playbooks.spec import InputSpec

# The types of JSON Schema, and the Python types of their values.
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "any": (object,),
}


class Input(msgspec.Struct, frozen=True):
    """One input. Without a default it is required, unless it says otherwise."""

    name: str
    type: str = "any"
    required: bool = True
    default: Any = None
    description: str = ""


def inputs_of_spec(node: Node, declared: Mapping[str, str | InputSpec]) -> tuple[Input, ...]:
    """The inputs that a playbook declares: `name: type`, or `name: {type, default, required, description}`."""
    return tuple(_input(name, spec, key_at(node, name)) for name, spec in declared.items())


def _input(name: str, spec: str | InputSpec, node: Node) -> Input:
    if isinstance(spec, str):
        return Input(name, spec)
    given = node.value if isinstance(node.value, dict) else {}
    is_required = spec.required if "required" in given else "default" not in given
    if spec.default is not None and not _fits(spec.default, spec.type):
        key_at(node, "default").wrong(f"is no {spec.type}")
    return Input(name, spec.type, is_required, spec.default, spec.description)


def bind_inputs(inputs: Sequence[Input], workload: Mapping[str, Any], payload: Mapping[str, Any]) -> dict[str, Any]:
    """The payload over the playbook's defaults; InvalidPayload names every input that is missing or of another type.

    What the payload has beyond the inputs is kept: steps see it as `input.<name>`.
    """
    found = {**{each.name: each.default for each in inputs}, **workload, **payload}
    problems = []
    for each in inputs:
        value = found[each.name]
        if value is None and each.name not in payload and each.name not in workload and each.required:
            what = f" ({each.description})" if each.description else ""
            problems.append(f"{each.name} is missing; send {_article(each.type)}{what}")
        elif value is not None and not _fits(value, each.type):
            problems.append(f"{each.name} is {_shown(value)}; it must be {_article(each.type)}")
        elif value is None and each.name in payload and each.required and each.type != "any":
            problems.append(f"{each.name} is null; it must be {_article(each.type)}")
    if problems:
        raise InvalidPayload("payload: " + "; ".join(problems) + ".")
    return found


def schema_of(inputs: Sequence[Input]) -> dict[str, Any]:
    """The inputs as a JSON Schema, for forms and editors."""
    properties: dict[str, Any] = {}
    for each in inputs:
        properties[each.name] = {} if each.type == "any" else {"type": each.type}
        if each.description:
            properties[each.name]["description"] = each.description
        if each.default is not None:
            properties[each.name]["default"] = each.default
    required = [each.name for each in inputs if each.required]
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def _fits(value: Any, kind: str) -> bool:
    if isinstance(value, bool) and kind in ("integer", "number"):
        return False
    return isinstance(value, TYPES[kind]) or (kind == "integer" and isinstance(value, float) and value.is_integer())


def _article(kind: str) -> str:
    if kind == "any":
        return "any value"
    return f"an {kind}" if kind[0] in "aio" else f"a {kind}"


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:60] + "…"
