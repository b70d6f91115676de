"""Reactions in a client process: decorators, the dispatcher that runs handlers, and bridges to brokers.

The names below are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tape.reactions.bridges import run_bridge, run_pubsub_bridge
    from tape.reactions.decorators import (
        ReactionDef,
        get_registry,
        on,
        on_decision_recorded,
        on_effect_confirmed,
        on_effect_failed,
        on_effect_unknown,
        on_gate,
        on_run,
        on_value_change,
        on_value_deleted,
    )
    from tape.reactions.dispatcher import run_dispatcher
    from tape.reactions.envelope import Envelope
    from tape.reactions.registration import register_all

_HOMES = {
    "Envelope": "envelope",
    "ReactionDef": "decorators",
    "get_registry": "decorators",
    "on": "decorators",
    "on_decision_recorded": "decorators",
    "on_effect_confirmed": "decorators",
    "on_effect_failed": "decorators",
    "on_effect_unknown": "decorators",
    "on_gate": "decorators",
    "on_run": "decorators",
    "on_value_change": "decorators",
    "on_value_deleted": "decorators",
    "register_all": "registration",
    "run_bridge": "bridges",
    "run_dispatcher": "dispatcher",
    "run_pubsub_bridge": "bridges",
}

__all__ = [
    "Envelope",
    "ReactionDef",
    "get_registry",
    "on",
    "on_decision_recorded",
    "on_effect_confirmed",
    "on_effect_failed",
    "on_effect_unknown",
    "on_gate",
    "on_run",
    "on_value_change",
    "on_value_deleted",
    "register_all",
    "run_bridge",
    "run_dispatcher",
    "run_pubsub_bridge",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"tape.reactions.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'tape.reactions' has no attribute {name!r}")
