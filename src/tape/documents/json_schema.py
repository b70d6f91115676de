"""Writes the JSON Schema of declared blocks, for editors.

Rules beyond single fields are schemas that the kind of document adds to a block; the functions `when_key` to `forbid`
build them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from tape.documents.fields import Field, Schema, Shape, fields_of
from tape.documents.reader import SIZE

DRAFT = "https://json-schema.org/draft/2020-12/schema"
Rules: TypeAlias = Mapping[type[msgspec.Struct], Sequence[Schema]]


def block_schema(block: type[msgspec.Struct], rules: Rules) -> Schema:
    """The schema of a mapping: its declared fields and no others, and the rules of the block."""
    fields = fields_of(block).values()
    schema: Schema = {
        "type": "object",
        "properties": properties_of(block, rules),
        "additionalProperties": False,
    }
    if required := [field.name for field in fields if field.is_required]:
        schema["required"] = required
    exclusive = [{"not": {"required": list(field.names)}} for field in fields if field.alias]
    if all_of := exclusive + list(rules.get(block, ())):
        schema["allOf"] = all_of
    return schema


def properties_of(block: type[msgspec.Struct], rules: Rules) -> dict[str, Schema]:
    """The schemas of a block's fields by name, aliases included."""
    return {name: _field(field, rules) for field in fields_of(block).values() for name in field.names}


def _field(field: Field, rules: Rules) -> Schema:
    schema = ({"description": field.description} if field.description else {}) | shape_schema(field.shape, rules)
    is_plain = isinstance(field.default, str | int | bool) and field.default != ""
    return schema | {"default": field.default} if is_plain else schema


def shape_schema(shape: Shape, rules: Rules) -> Schema:
    """The schema of a value."""
    if shape.schema is not None:
        return shape.schema() if callable(shape.schema) else dict(shape.schema)
    match shape.kind:
        case "any":
            return {}
        case "block":
            assert shape.block is not None
            return block_schema(shape.block, rules)
        case "list":
            assert shape.item is not None
            bound = {} if shape.least is None else {"minItems": shape.least}
            return {"type": "array", "items": shape_schema(shape.item, rules), **bound}
        case "commas":
            assert shape.item is not None
            items = {"type": "array", "items": shape_schema(shape.item, rules)}
            return {"anyOf": [{"type": "string", "pattern": r"[^,\s]"}, items]}
        case "table":
            assert shape.item is not None
            return {"type": "object", "additionalProperties": shape_schema(shape.item, rules)}
        case "either":
            return {"anyOf": [shape_schema(option, rules) for option in shape.options]}
        case "flag":
            return {"type": "boolean"}
        case "choice":
            return {"enum": list(shape.choices)}
        case "size":
            return {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": SIZE}]}
        case "whole" | "number":
            bounds = {"minimum": shape.least, "maximum": shape.most}
            kind = {"type": "integer" if shape.kind == "whole" else "number"}
            return kind | {name: bound for name, bound in bounds.items() if bound is not None}
        case "expression":
            return {"type": ["string", "boolean"]}
        case "text":
            return {"type": "string", "minLength": 1} | ({"pattern": shape.pattern} if shape.pattern else {})


def when_key(key: str, *values: Any) -> Schema:
    """A condition: the key has one of the values."""
    return {"properties": {key: {"enum": list(values)}}, "required": [key]}


def all_of(*conditions: Schema) -> Schema:
    """A condition: all of these hold."""
    return {"allOf": list(conditions)}


def when(condition: Schema, then: Schema) -> Schema:
    """A rule: if a condition holds, so does another schema."""
    return {"if": condition, "then": then}


def forbid(*keys: str) -> Schema:
    """A rule: these keys are not given."""
    return {"properties": dict.fromkeys(keys, False)}
