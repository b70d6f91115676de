"""Durable graphs of LangGraph: a checkpointer on the journal, durable nodes, interrupts as gates.

Needs the extra: `pip install 'tape[langgraph]'`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tape.errors import MissingExtra

if TYPE_CHECKING:
    from tape.langgraph.calls import durable_model, durable_tool_node
    from tape.langgraph.checkpointer import TapeCheckpointer
    from tape.langgraph.graph import TapeGraph

_MODULE_OF = {
    "TapeCheckpointer": "checkpointer",
    "TapeGraph": "graph",
    "durable_model": "calls",
    "durable_tool_node": "calls",
}

__all__ = ["TapeCheckpointer", "TapeGraph", "durable_model", "durable_tool_node"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tape.langgraph' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"tape.langgraph.{_MODULE_OF[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("langgraph", "langchain_core"):
            raise MissingExtra(f"tape.langgraph.{name}", "langgraph") from None
        raise
