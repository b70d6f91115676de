"""The event bus SDK: the names of `tape`, with the shapes that programs written for that SDK expect.

`from tape.compat import bus as tape` is the change. What differs from `tape`: errors are `grpc.RpcError`s with `code()`
and `details()`, and `ValueError`s for wrong arguments; calls that list something return lists; reports have the keys
`status`, `key`, `resolved`, `compactor` and `already_compacted`; `AIPLEX_…` and `TAPE_LEASE_MS` are read from the
environment. Everything else is that of `tape`, whose other modules need no change.
"""

from __future__ import annotations

import importlib
from typing import Any

_OWN = {
    "client": ("TapeClient",),
    "calls": (
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
    "effect": ("outbox_tool",),
    "reactions": (
        "on",
        "on_decision_recorded",
        "on_effect_confirmed",
        "on_effect_failed",
        "on_effect_unknown",
        "on_gate",
        "on_run",
        "on_value_change",
        "on_value_deleted",
    ),
    "reactors": ("compensate_one", "compensate_run", "recover_once", "resume"),
    "rpc_errors": ("as_rpc_error",),
}
_MODULE_OF = {name: module for module, names in _OWN.items() for name in names}
_MODULES = ("adk", "calls", "client", "effect", "identity", "reactions", "reactors", "rpc_errors", "sinks")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"tape.compat.bus.{name}")
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"tape.compat.bus.{_MODULE_OF[name]}"), name)
    messages = importlib.import_module("tape.proto.tape_pb2")
    if name.isupper() and hasattr(messages, name):  # RUN_STATUS_WAITING, TASK_STATUS_DLQ, …
        return getattr(messages, name)
    return getattr(importlib.import_module("tape"), name)
