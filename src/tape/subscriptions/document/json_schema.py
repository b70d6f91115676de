"""The JSON Schema of `kind: Subscription`, for editors: made from the same declarations as the validator.

A few rules are beyond a schema: what a cron expression means, that two names differ, that one number is not more than
another. The validator has them; everything else is said here too.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from tape.documents.fields import Field, Shape, fields_of
from tape.documents.reader import SIZE
from tape.playbooks.pools import POOL_PATTERN
from tape.subscriptions.document.spec import CONNECTION_KEYS, ROUTING, HeaderRule, SubscriptionSpec, VerifySpec
from tape.subscriptions.document.spool_spec import BUCKET_SCHEMES, DownstreamSpec, SpoolSpec
from tape.subscriptions.document.validator import NEEDED, PROOFS, PUSHING

Schema: TypeAlias = dict[str, Any]

_PATH = r"^[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)*$"
_CADENCE = r"^\s*(@(yearly|monthly|weekly|daily|hourly)|\S+(\s+\S+){4})\s*$"


def subscription_schema() -> Schema:
    """The schema of a whole document."""
    text = {"type": "string", "minLength": 1}
    metadata = {
        "type": "object",
        "description": "Its name, and its path in the catalog.",
        "properties": {
            "path": {"type": "string", "pattern": _PATH, "maxLength": 400},
            "name": text,
            "description": text,
            "labels": {},
            "annotations": {},
        },
        "additionalProperties": False,
        "if": {"required": ["path"]},
        "else": {"required": ["name"], "properties": {"name": {"pattern": _PATH, "maxLength": 400}}},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Subscription",
        "description": "Messages from outside that become runs.",
        "type": "object",
        "required": ["metadata", "spec"],
        "properties": {
            "apiVersion": {},
            "kind": {"enum": ["Subscription", "subscription"]},
            "metadata": metadata,
            "spec": _block(SubscriptionSpec),
        },
        "additionalProperties": False,
    }


def _block(block: type[msgspec.Struct]) -> Schema:
    fields = fields_of(block).values()
    schema: Schema = {
        "type": "object",
        "properties": {name: _field(field) for field in fields for name in field.names},
        "additionalProperties": False,
    }
    if required := [field.name for field in fields if field.is_required]:
        schema["required"] = required
    together = [{"not": {"required": list(field.names)}} for field in fields if field.alias]
    if rules := together + _RULES.get(block, []):
        schema["allOf"] = rules
    return schema


def _field(field: Field) -> Schema:
    schema = {"description": field.description, **_shape(field.shape)}
    is_plain = isinstance(field.default, str | int | bool) and field.default != ""
    return schema | {"default": field.default} if is_plain else schema


def _shape(shape: Shape) -> Schema:
    match shape.kind:
        case "block":
            assert shape.block is not None
            return _block(shape.block)
        case "list":
            assert shape.item is not None
            return {"type": "array", "items": _shape(shape.item)}
        case "commas":
            assert shape.item is not None
            return {"anyOf": [{"type": "string", "pattern": r"[^,\s]"}, {"type": "array", "items": _shape(shape.item)}]}
        case "table":
            assert shape.item is not None
            return {"type": "object", "additionalProperties": _shape(shape.item)}
        case "flag":
            return {"type": "boolean"}
        case "choice":
            return {"enum": list(shape.choices)}
        case "size":
            return {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": SIZE}]}
        case "whole":
            bounds = {"minimum": shape.least, "maximum": shape.most}
            return {"type": "integer"} | {name: bound for name, bound in bounds.items() if bound is not None}
        case "text":
            return {"type": "string", "minLength": 1} | ({"pattern": shape.pattern} if shape.pattern else {})


def _if(key: str, *values: Any) -> Schema:
    return {"properties": {key: {"enum": list(values)}}, "required": [key]}


def _both(*conditions: Schema) -> Schema:
    return {"allOf": list(conditions)}


def _when(condition: Schema, then: Schema) -> Schema:
    return {"if": condition, "then": then}


def _without(*keys: str) -> Schema:
    return {"properties": dict.fromkeys(keys, False)}


def _spec_rules() -> list[Schema]:
    fetching = {"runtime": {"properties": {"batch": False, "timeout_ms": False}}}
    rules = [
        _when(
            _if("mode", "push"), {"required": ["ingress"], "properties": {"source": {"enum": [*PUSHING]}, **fetching}}
        ),
        _when(_if("mode", "push"), _without("activation", "cadence", "auth", *CONNECTION_KEYS)),
        _when(_if("mode", "pull"), {"properties": {"source": {"not": {"const": "webhook"}}, "ingress": False}}),
        _when(_if("activation", "scheduled"), {"required": ["cadence"]}),
        _when({"required": ["cadence"]}, _if("activation", "scheduled")),
        {"properties": {"cadence": {"pattern": _CADENCE}}},
        _when({"required": ["subject"]}, _if("create", True)),
    ]
    for source in ("nats", "pubsub", "kafka", "webhook"):
        others = [key for key, sources in CONNECTION_KEYS.items() if source not in sources]
        rules.append(_when(_if("source", source), _without(*others)))
        needed = [{"anyOf": [{"required": [key]} for key in keys]} for keys in NEEDED.get(source, ())]
        if needed:
            rules.append(_when(_both(_if("source", source), _if("mode", "pull")), _both(*needed)))
    return rules


def _rule_rules() -> list[Schema]:
    return [
        _when(_if("controls", *sorted(ROUTING)), {"required": ["allowed"], "properties": {"allowed": {"minItems": 1}}}),
        _when(
            _if("controls", "dispatch.execution_pool"),
            {"properties": {"allowed": {"items": {"pattern": f"^{POOL_PATTERN}$"}}}},
        ),
        {
            "if": _if("controls", "priority"),
            "then": {"required": ["map"], "properties": {"map": {"minProperties": 1}, "allowed": False}},
            "else": _without("map"),
        },
    ]


def _verify_rules() -> list[Schema]:
    rules = []
    everything = {key for needed, also in PROOFS.values() for key in (*needed, *also)}
    for kind, (needed, also) in PROOFS.items():
        rules.append(_when(_if("type", kind), _without(*sorted(everything.difference(needed, also)))))
        always = [key for key in needed if key != "header"]
        rules.append(_when(_if("type", kind), {"required": always}))
    rules.append(
        _when(_both(_if("type", "hmac_sha256"), {"not": _if("scheme", "standard_webhooks")}), {"required": ["header"]})
    )
    return rules


def _spool_rules() -> list[Schema]:
    on = _if("mode", "buffer_and_ack", "hybrid")
    by_default = {"not": {"required": ["backend"]}}
    rules = [
        _when(
            _if("ordering", "global"),
            {"properties": {"drain": {"properties": {"on_recovery": {"not": {"const": "interleave"}}}}}},
        ),
        _when(_both(on, _if("backend", "local_disk")), {"required": ["path"]}),
    ]
    for backend in ("nats_object", "gcs", "s3"):
        chosen = (
            {"anyOf": [_if("backend", backend), by_default]} if backend == "nats_object" else _if("backend", backend)
        )
        scheme = BUCKET_SCHEMES.get(backend)
        pattern = r"^(?![\s\S]*://)" + (f"|^{scheme}" if scheme else "")
        then = {"required": ["bucket"], "properties": {"bucket": {"pattern": pattern}}}
        rules.append(_when(_both(on, chosen), then))
    return rules


_RULES: dict[type[msgspec.Struct], list[Schema]] = {
    SubscriptionSpec: _spec_rules(),
    HeaderRule: _rule_rules(),
    VerifySpec: _verify_rules(),
    SpoolSpec: _spool_rules(),
    DownstreamSpec: [
        _when({"not": {"anyOf": [_if("type", "passive"), _if("probe", "passive")]}}, {"required": ["target"]}),
    ],
}
