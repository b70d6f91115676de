"""Tools: what a step does. Each kind is a class in this table; other packages add theirs with `add_tool`."""

from __future__ import annotations

from tape.playbooks.tools.http import HttpTool
from tape.playbooks.tools.lazy import LazyTool
from tape.playbooks.tools.playbook import PlaybookTool
from tape.playbooks.tools.publish import PublishTool
from tape.playbooks.tools.python import PythonTool
from tape.playbooks.tools.tool import DeclaredTool, IdempotentTool, Tool, ToolCall
from tape.playbooks.tools.value import ValueTool

__all__ = ["TOOLS", "DeclaredTool", "IdempotentTool", "Tool", "ToolCall", "add_tool"]

TOOLS: dict[str, Tool] = {
    "http": HttpTool(),
    "playbook": PlaybookTool(),
    "publish": PublishTool(),
    "python": PythonTool(),
    "subscription": LazyTool("tape.subscriptions.tool:SubscriptionTool"),
    "value": ValueTool(),
}


def add_tool(kind: str, tool: Tool) -> None:
    """Register a kind of tool for all playbooks that this process checks or runs."""
    TOOLS[kind] = tool
