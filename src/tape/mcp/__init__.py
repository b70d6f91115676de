"""The Model Context Protocol over the journal (extra `mcp`).

`JournalEventStore` with `SessionManager` makes the streamable HTTP of any Python MCP server resumable, `CallRecorder`
records every tool call, `JournalBus` carries change notifications between replicas, and `journal_server` is an MCP
server that reads and appends entries: `tape mcp`.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

from tape.errors import MissingExtra

_MODULES = {
    "CallRecorder": "tape.mcp.call_recorder",
    "JournalBus": "tape.mcp.journal_bus",
    "JournalEventStore": "tape.mcp.event_store",
    "SessionManager": "tape.mcp.session_manager",
    "journal_server": "tape.mcp.server",
    "streamable_http_app": "tape.mcp.session_manager",
}

__all__ = [
    "CallRecorder",
    "JournalBus",
    "JournalEventStore",
    "SessionManager",
    "journal_server",
    "streamable_http_app",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'tape.mcp' has no attribute {name!r}")
    require_mcp(f"tape.mcp.{name}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def require_mcp(what: str) -> None:
    """Raise MissingExtra for `what` unless the library `mcp` is installed."""
    if find_spec("mcp") is None:
        raise MissingExtra(what, "mcp")
