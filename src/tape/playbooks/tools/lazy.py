"""A tool of another package, imported when a playbook uses it."""

from __future__ import annotations

import importlib
from functools import cached_property
from typing import Any

from tape.documents.document import Fields
from tape.playbooks.tools.tool import Tool, ToolCall


class LazyTool:
    """Imports the tool `module:Class` on first use."""

    def __init__(self, import_path: str) -> None:
        self._import_path = import_path

    @cached_property
    def _tool(self) -> Tool:
        module, _, name = self._import_path.partition(":")
        tool: Tool = getattr(importlib.import_module(module), name)()
        return tool

    def check(self, fields: Fields) -> None:
        """Check with the imported tool."""
        self._tool.check(fields)

    async def call(self, call: ToolCall) -> Any:
        """Call the imported tool."""
        return await self._tool.call(call)
