"""Effects: what a tool does to the world, declared with `@tape.effect`.

This module can be called: `tape.effect(...)` is `tape.effect.effect(...)`.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

from tape.durable.declaration import EffectMeta, effect, effect_meta_of, meta_of, outbox_tool, tool_name_of
from tape.durable.effect_call import (
    EffectCall,
    business_key,
    call_of,
    effect_semantics,
    external_ref,
    find_call,
    idempotency_key,
    run_id_of,
)
from tape.durable.registry import (
    compensator_ref_of,
    get_compensator,
    get_status_check,
    get_tool_compensator,
    register_compensator,
    register_status_check,
    register_tool_compensator,
)
from tape.errors import ScopeDenied

__all__ = [
    "EffectCall",
    "EffectMeta",
    "ScopeDenied",
    "business_key",
    "call_of",
    "compensator_ref_of",
    "effect",
    "effect_meta_of",
    "effect_semantics",
    "external_ref",
    "find_call",
    "get_compensator",
    "get_status_check",
    "get_tool_compensator",
    "idempotency_key",
    "meta_of",
    "outbox_tool",
    "register_compensator",
    "register_status_check",
    "register_tool_compensator",
    "run_id_of",
    "tool_name_of",
]


class _Decorator(types.ModuleType):
    """`tape.effect` is this module and the decorator: whichever way it was imported, both work."""

    __signature__ = inspect.signature(effect)

    def __call__(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        return effect(*args, **kwargs)


sys.modules[__name__].__class__ = _Decorator
