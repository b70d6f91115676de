"""Tape: one durable log for agents, services and data pipelines. Type checkers read `__init__.pyi` instead."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Where each public name lives. A home is loaded when one of its names is first used, so that a part of
# Tape pulls in only what it needs.
_NAMES = {
    "tape._recover": ("compensate_one", "compensate_run", "recover_once", "resume"),
    "tape.budget": ("Budget", "budget_from_run_config", "with_budget"),
    "tape.calls": (
        "cancel_run",
        "cancel_timer",
        "delete_value",
        "get_value",
        "heartbeat",
        "is_cancelled",
        "policy_is",
        "send_signal",
        "set_timer",
        "set_value",
        "watch_value",
    ),
    "tape.client": ("DEFAULT_URL", "AsyncTapeClient", "TapeClient"),
    "tape.client.stream": ("Event", "Gap", "stream"),
    "tape.durable": ("DurableRun", "continue_run", "durable_run"),
    "tape.effect": (
        "business_key",
        "effect_semantics",
        "external_ref",
        "idempotency_key",
        "outbox_tool",
        "register_compensator",
        "register_status_check",
        "register_tool_compensator",
        "run_id_of",
    ),
    "tape.errors": (
        "AckLost",
        "BudgetExceeded",
        "EffectFailed",
        "EffectUnknown",
        "RunCancelled",
        "RunEnded",
        "RunParked",
        "ScopeDenied",
        "TapeError",
    ),
    "tape.gates": ("gate", "gate_tool"),
    "tape.journal.entry": ("Draft", "Entry"),
    "tape.proto.tape_pb2": (
        "EFFECT_DISPATCH_MODE_INLINE",
        "EFFECT_DISPATCH_MODE_OUTBOX",
        "EFFECT_RESOLUTION_ABSENT",
        "EFFECT_RESOLUTION_CONFIRMED",
        "EFFECT_RESOLUTION_DUPLICATE",
        "EFFECT_RESOLUTION_FAILED",
        "EFFECT_RESOLUTION_STUCK",
        "EFFECT_SEMANTICS_IDEMPOTENT",
        "EFFECT_SEMANTICS_NON_IDEMPOTENT",
        "EFFECT_SEMANTICS_OBSERVE_ONLY",
        "EFFECT_STATUS_CONFIRMED",
        "EFFECT_STATUS_FAILED",
        "EFFECT_STATUS_PENDING",
        "EFFECT_STATUS_UNKNOWN",
        "RUN_STATUS_CANCELLED",
        "RUN_STATUS_COMPENSATING",
        "RUN_STATUS_FAILED",
        "RUN_STATUS_RUNNABLE",
        "RUN_STATUS_RUNNING",
        "RUN_STATUS_STUCK",
        "RUN_STATUS_TERMINAL",
        "RUN_STATUS_WAITING",
    ),
    "tape.retry": ("RetryPolicy",),
    "tape.tenancy": ("TenancyConfig", "TenancyMode"),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}
_MODULES = ("budget", "client", "connectors", "det", "effect", "gates", "reactors", "retry", "tenancy")

__all__ = [
    "__version__",
    "det",
    "effect",
    *_HOMES,
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"tape.{name}")
    raise AttributeError(f"module 'tape' has no attribute {name!r}")
