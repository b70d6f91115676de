"""Typed inputs of a playbook: what it expects in its payload, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tape.documents.document import Fields, Node
from tape.errors import InvalidPayload

# The names of JSON Schema, and what JSON gives for each.
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


def read_inputs(fields: Fields) -> tuple[Input, ...]:
    """The section `inputs` of a playbook: `name: type`, or `name: {type, default, required, description}`."""
    return tuple(_read(name, fields.at(name)) for name in fields.keys())  # noqa: SIM118 - Fields is no mapping


def _read(name: str, node: Node) -> Input:
    if isinstance(node.value, str):
        return Input(name, node.choice(list(TYPES)))
    fields = node.mapping("type", "default", "required", "description")
    has_default = "default" in fields
    found = Input(
        name,
        fields.choice("type", list(TYPES), "any"),
        fields.flag("required", not has_default),
        fields.value("default"),
        fields.text("description", ""),
    )
    if has_default and found.default is not None and not _fits(found.default, found.type):
        fields.at("default").wrong(f"is no {found.type}")
    return found


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
