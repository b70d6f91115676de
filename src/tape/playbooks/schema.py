"""The JSON Schema of `kind: Playbook`, for editors, made from the same declarations as the reader.

`tape playbooks validate` alone checks what a schema cannot express: names of steps, expressions, templates.
"""

from __future__ import annotations

from tape.documents.fields import Schema
from tape.documents.json_schema import DRAFT, Rules, block_schema, properties_of
from tape.playbooks.spec import PlaybookSpec, StepSpec
from tape.playbooks.tools import TOOLS, DeclaredTool, Tool

_RULES: Rules = {StepSpec: [{"dependentRequired": {"as": ["each"], "concurrency": ["each"]}}]}


def playbook_schema() -> Schema:
    """The schema of a whole document."""
    text = {"type": "string"}
    metadata = {
        "type": "object",
        "properties": {"name": text, "path": text, "description": text, "labels": {}, "annotations": {}},
        "anyOf": [{"required": ["path"]}, {"required": ["name"]}],
        "additionalProperties": False,
    }
    properties = properties_of(PlaybookSpec, _RULES)
    properties["workflow"]["items"]["properties"]["tool"] = tool_schema()
    return {
        "$schema": DRAFT,
        "title": "A playbook of Tape",
        "type": "object",
        "required": ["metadata"],
        "properties": {"apiVersion": text, "kind": {"const": "Playbook"}, "metadata": metadata, **properties},
        "oneOf": [{"required": ["workflow"]}, {"required": ["python"]}],
        "additionalProperties": False,
    }


def tool_schema() -> Schema:
    """The schema of `tool`: one alternative per kind that this process knows."""
    return {"description": "`kind` and the keys of that kind.", "oneOf": [_kind(*each) for each in TOOLS.items()]}


def _kind(kind: str, tool: Tool) -> Schema:
    const = {"kind": {"const": kind}}
    if not isinstance(tool, DeclaredTool):
        required = ["kind", "source"] if kind == "subscription" else ["kind"]
        return {"type": "object", "required": required, "properties": const}
    declared = block_schema(tool.declaration, _RULES)
    return declared | {
        "description": (tool.declaration.__doc__ or "").partition("\n")[0],
        "required": ["kind", *declared.get("required", ())],
        "properties": {**const, **declared["properties"]},
    }
