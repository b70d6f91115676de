"""Declaration of effects with `ValueError`s; every other name is that of `tape.effect`. This module can be called."""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

from tape.compat.bus.rpc_errors import raising_rpc_errors
from tape.durable import declaration


def effect(fn: Callable[..., Any] | None = None, /, **options: Any) -> Callable[..., Any]:
    """Declare an effect, as `tape.effect.effect` does."""
    made = raising_rpc_errors(declaration.effect)(fn, **options)
    return made if fn is not None else raising_rpc_errors(made)


def outbox_tool(**options: Any) -> Callable[..., Any]:
    """Declare a function whose request the outbox sends, as `tape.effect.outbox_tool` does."""
    return raising_rpc_errors(raising_rpc_errors(declaration.outbox_tool)(**options))


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("tape.effect"), name)


class _Decorator(types.ModuleType):
    """`effect` is this module and the decorator."""

    __signature__ = inspect.signature(declaration.effect)

    def __call__(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        return effect(*args, **kwargs)


sys.modules[__name__].__class__ = _Decorator
