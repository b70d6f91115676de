"""Tape: one durable log for agents, services and data pipelines."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tape.client import DEFAULT_URL, AsyncTapeClient, TapeClient
    from tape.errors import TapeError
    from tape.journal.entry import Draft, Entry

__version__ = "0.1.0"

__all__ = ["DEFAULT_URL", "AsyncTapeClient", "Draft", "Entry", "TapeClient", "TapeError", "__version__"]

# Loaded when first used, so that a part of Tape pulls in only what it needs.
_HOMES = {
    "DEFAULT_URL": "tape.client",
    "AsyncTapeClient": "tape.client",
    "TapeClient": "tape.client",
    "Draft": "tape.journal.entry",
    "Entry": "tape.journal.entry",
    "TapeError": "tape.errors",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tape' has no attribute {name!r}")
