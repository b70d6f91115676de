"""`kind: Playbook` as a JSON Schema, for editors: completion, and a line under what is wrong."""

from __future__ import annotations

from typing import Any

from tape.playbooks.document import MAX_CONCURRENCY
from tape.playbooks.inputs import TYPES
from tape.playbooks.tools.http import METHODS

_TEXT = {"type": "string", "minLength": 1}
_CEL = {"type": ["string", "boolean"], "description": "A CEL expression over inputs and earlier steps."}
_NAME = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}
_POOL = {"type": "string", "pattern": "^([a-z0-9][a-z0-9_-]{0,62}|.*\\{\\{.*)$"}
_MAP = {"type": "object"}
_MAP_OR_TEMPLATE = {"type": ["object", "string"]}


def _tool(kind: str, what: str, required: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "description": what,
        "required": ["kind", *required],
        "properties": {"kind": {"const": kind}, **properties},
        "additionalProperties": False,
    }


def _tools() -> list[dict[str, Any]]:
    return [
        _tool("value", "Computes a value.", ["value"], value={}),
        _tool("python", "Calls a function declared with @tape.function.", ["function"], function=_TEXT, args=_MAP),
        _tool(
            "http",
            "Sends one request.",
            ["url"],
            url=_TEXT,
            method={"anyOf": [{"enum": list(METHODS)}, _TEXT]},
            params=_MAP,
            headers=_MAP,
            json={},
            body={},
            expect={"type": "array", "items": {"type": "integer", "minimum": 100, "maximum": 599}},
        ),
        _tool("publish", "Appends an event to the journal, once.", ["subject"], subject=_TEXT, payload={}),
        _tool(
            "playbook",
            "Runs another playbook.",
            ["path"],
            path=_TEXT,
            payload=_MAP_OR_TEMPLATE,
            wait={"type": "boolean"},
            pool=_POOL,
        ),
        {
            "type": "object",
            "description": "Fetches from a source of messages, or settles what was fetched.",
            "required": ["kind", "source"],
            "properties": {"kind": {"const": "subscription"}},
        },
    ]


def _step() -> dict[str, Any]:
    arrow = {
        "type": "object",
        "required": ["step"],
        "properties": {"step": _NAME, "when": _CEL},
        "additionalProperties": False,
    }
    retry = {
        "type": "object",
        "properties": {
            "attempts": {"type": "integer", "minimum": 1, "maximum": 1000},
            "delay_s": {"type": "number", "minimum": 0},
            "factor": {"type": "number", "minimum": 1},
            "max_delay_s": {"type": "number", "minimum": 0},
        },
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "required": ["step", "tool"],
        "properties": {
            "step": _NAME,
            "description": {"type": "string"},
            "tool": {"oneOf": _tools()},
            "when": _CEL,
            "each": {
                "type": "string",
                "description": "A CEL expression that gives a list: the step runs for each item.",
            },
            "as": _NAME,
            "concurrency": {"type": "integer", "minimum": 1, "maximum": MAX_CONCURRENCY},
            "retry": {"oneOf": [{"type": "integer", "minimum": 1, "maximum": 1000}, retry]},
            "timeout_s": {"type": "number", "minimum": 0},
            "on_error": {"enum": ["fail", "continue"]},
            "next": {"oneOf": [_NAME, {"type": "array", "items": {"oneOf": [_NAME, arrow]}}]},
        },
        "dependentRequired": {"as": ["each"], "concurrency": ["each"]},
        "additionalProperties": False,
    }


def playbook_schema() -> dict[str, Any]:
    """The schema. What it cannot say (names of steps, expressions) is checked by `tape playbooks validate`."""
    types = {"enum": list(TYPES)}
    described = {
        "type": "object",
        "properties": {
            "type": types,
            "default": {},
            "required": {"type": "boolean"},
            "description": {"type": "string"},
        },
        "additionalProperties": False,
    }
    metadata = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "path": {"type": "string"},
            "description": {"type": "string"},
            "labels": {},
            "annotations": {},
        },
        "anyOf": [{"required": ["path"]}, {"required": ["name"]}],
        "additionalProperties": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A playbook of Tape",
        "type": "object",
        "required": ["metadata"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"const": "Playbook"},
            "metadata": metadata,
            "inputs": {"type": "object", "additionalProperties": {"oneOf": [types, described]}},
            "workload": _MAP,
            "pool": {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]{0,62}$"},
            "workflow": {"type": "array", "minItems": 1, "items": _step()},
            "output": {},
            "python": {"type": "string", "pattern": "^[A-Za-z_][\\w.]*:[A-Za-z_][\\w.]*$"},
        },
        "oneOf": [{"required": ["workflow"]}, {"required": ["python"]}],
        "additionalProperties": False,
    }
