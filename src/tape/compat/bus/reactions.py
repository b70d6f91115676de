"""Decorators of reactions and their dispatcher with RPC errors; every other name is that of `tape.reactions`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from tape.compat.bus.rpc_errors import raising_rpc_errors

_DECORATORS = frozenset(
    {
        "on",
        "on_decision_recorded",
        "on_effect_confirmed",
        "on_effect_failed",
        "on_effect_unknown",
        "on_gate",
        "on_run",
        "on_value_change",
        "on_value_deleted",
    }
)
_CALLS = frozenset({"register_all", "run_dispatcher", "run_bridge", "run_pubsub_bridge"})


def __getattr__(name: str) -> Any:
    found = getattr(importlib.import_module("tape.reactions"), name)
    if name in _CALLS:
        return raising_rpc_errors(found)
    return _declaring(found) if name in _DECORATORS else found


def _declaring(decorator: Callable[..., Any]) -> Callable[..., Any]:
    make = raising_rpc_errors(decorator)

    def declare(*args: Any, **kwargs: Any) -> Callable[..., Any]:
        return raising_rpc_errors(make(*args, **kwargs))

    declare.__name__, declare.__doc__ = decorator.__name__, decorator.__doc__
    return declare
