"""Durable agents of google-adk: `durable_app(name=…, agent=…)`, or its parts, `TapePlugin` and `TapeSessionService`.

Needs the extra: `pip install 'tape[adk]'`. `RunIdentity` works without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tape.errors import MissingExtra

if TYPE_CHECKING:
    from tape.adk.durable import DurableRunner, durable_app
    from tape.adk.identity import MissingIdentity, RunIdentity
    from tape.adk.plugin import TapePlugin
    from tape.adk.session import TapeSessionService

_MODULE_OF = {
    "DurableRunner": "durable",
    "durable_app": "durable",
    "MissingIdentity": "identity",
    "RunIdentity": "identity",
    "TapePlugin": "plugin",
    "TapeSessionService": "session",
}

__all__ = ["DurableRunner", "MissingIdentity", "RunIdentity", "TapePlugin", "TapeSessionService", "durable_app"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tape.adk' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"tape.adk.{_MODULE_OF[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("google"):
            raise MissingExtra(f"tape.adk.{name}", "adk") from None
        raise
