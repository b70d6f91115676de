"""A tool that another room brings: known by its place, loaded when a playbook uses it."""

from __future__ import annotations

import importlib
from functools import cached_property
from typing import Any

from tape.documents.document import Fields
from tape.playbooks.tools.tool import Tool, ToolCall


class LazyTool:
    """Stands for the tool `module:Class` until somebody needs it."""

    def __init__(self, import_path: str) -> None:
        self._import_path = import_path

    @cached_property
    def _tool(self) -> Tool:
        module, _, name = self._import_path.partition(":")
        tool: Tool = getattr(importlib.import_module(module), name)()
        return tool

    def check(self, fields: Fields) -> None:
        """As the tool checks."""
        self._tool.check(fields)

    async def call(self, call: ToolCall) -> Any:
        """As the tool does."""
        return await self._tool.call(call)
