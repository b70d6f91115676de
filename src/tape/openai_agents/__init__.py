"""Durable agents of the OpenAI Agents SDK: `TapeRunner` instead of `Runner`, and sessions in `TapeSession`.

Needs the extra: `pip install 'tape[openai-agents]'`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tape.errors import MissingExtra

if TYPE_CHECKING:
    from tape.openai_agents.runner import TapeRunner
    from tape.openai_agents.session import TapeSession
    from tape.openai_agents.tools import durable_agent

_MODULE_OF = {"TapeRunner": "runner", "TapeSession": "session", "durable_agent": "tools"}

__all__ = ["TapeRunner", "TapeSession", "durable_agent"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tape.openai_agents' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"tape.openai_agents.{_MODULE_OF[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("agents", "openai"):
            raise MissingExtra(f"tape.openai_agents.{name}", "openai-agents") from None
        raise
