"""YAML 1.2 with the line of every value: `off` and `2026-01-01` are texts, a duplicate key is an error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from tape.errors import InvalidDocument, Problem

Path = tuple[str | int, ...]

# Limits for documents that aliases expand.
MAX_VALUES = 100_000
MAX_DEPTH = 64

_TEXT = "tag:yaml.org,2002:str"
# Tags that ruamel adds to plain scalars; scalars are read by the YAML 1.2 core schema.
_IMPLICIT = "tag:yaml.org,2002:"
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def load(text: str) -> tuple[Any, Mapping[Path, int]]:
    """The value of a YAML text, and the line of each value by path."""
    try:
        node = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = " ".join(filter(None, (error.context, error.problem)))
        message = f"Invalid YAML: {reason or 'it cannot be read'}"
        raise InvalidDocument([Problem("", mark.line + 1 if mark else 0, message)]) from error
    except (YAMLError, ValueError, RecursionError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else "it cannot be read"
        raise InvalidDocument([Problem("", 0, f"Invalid YAML: {first}")]) from error
    reading = _NodeReader()
    value = None if node is None else reading.value(node, ())
    return value, reading.lines


class _NodeReader:
    def __init__(self) -> None:
        self.lines: dict[Path, int] = {}

    def value(self, node: Node, path: Path) -> Any:
        line = node.start_mark.line + 1
        self.lines[path] = line
        if len(self.lines) > MAX_VALUES or len(path) > MAX_DEPTH:
            what = f"more than {MAX_VALUES} values" if len(path) <= MAX_DEPTH else f"more than {MAX_DEPTH} levels"
            raise InvalidDocument([Problem("", line, f"the document has {what}, aliases expanded; make it smaller")])
        if isinstance(node, ScalarNode):
            return _scalar(node, path)
        if isinstance(node, SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        assert isinstance(node, MappingNode)
        return self._mapping(node, path)

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, ScalarNode):
                raise InvalidDocument([Problem(render(path), line, "a key must be a plain text")])
            key = key_node.value
            if key in found:
                raise InvalidDocument(
                    [Problem(render((*path, key)), line, f"is given twice, also on line {self.lines[(*path, key)]}")]
                )
            found[key] = self.value(value_node, (*path, key))
            self.lines[(*path, key)] = line
        return found


def _scalar(node: ScalarNode, path: Path) -> Any:
    text: str = node.value
    tag = str(node.ctag) if hasattr(node, "ctag") else str(node.tag)
    if not tag.startswith(_IMPLICIT):
        raise InvalidDocument([Problem(render(path), node.start_mark.line + 1, f"has the unknown tag {tag}", text)])
    if node.style is not None or tag == _TEXT:
        return text
    if text in _SPECIAL:
        return _SPECIAL[text]
    if _INTEGER.fullmatch(text):
        return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def render(path: Path) -> str:
    """A path as text: `spec.headers.directives[0].controls`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
