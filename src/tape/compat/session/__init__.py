"""The durable event log of agents: the names of `tape.session`, with the shapes that programs written for it expect.

What differs from `tape.session`: `record()` returns an `int`, a tape never continues its backend, reading below the
watermark skips silently, text streams yield strings, predicates look at one change at a time, and a file backend is
open only while it writes. Everything else is that of `tape.session`.
"""

from __future__ import annotations

import importlib
from typing import Any

_OWN = {
    "ChainBackend": "backends",
    "InMemoryBackend": "backends",
    "JsonlBackend": "backends",
    "NullBackend": "backends",
    "RecordedSeq": "tapes",
    "SessionTape": "tapes",
    "stream_from_cursor": "tapes",
    "EventBus": "harness",
    "EventDispatcher": "harness",
    "H": "harness",
    "SessionPlugin": "harness",
    "SessionStore": "harness",
    "WorkflowLifecyclePlugin": "harness",
    "R": "rules",
    "Signal": "rules",
    "SignalPredicate": "rules",
    "SignalRegistry": "rules",
    "_Change": "rules",
    "computed": "rules",
    "current_tracker": "rules",
    "default_registry": "rules",
}


def __getattr__(name: str) -> Any:
    if name in _OWN:
        return getattr(importlib.import_module(f"tape.compat.session.{_OWN[name]}"), name)
    return getattr(importlib.import_module("tape.session"), name)
