"""Tape: one durable log for agents, services and data pipelines.

`tape.__all__` has the names that most programs need. Other public names have a module of their own: the session tape
`tape.session`, effects `tape.effect`, recovery `tape.reactors`, tenancy `tape.tenancy`, numbers of statuses
`tape.proto.tape_pb2`. Those that earlier versions listed here can still be imported from `tape`.

Type checkers read `__init__.pyi`.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# The module of each public name. It is imported when one of its names is first used, so that `import tape` is cheap and
# a program loads only what it needs.
_TOP_LEVEL = {
    "tape._recover": ("recover_once",),
    "tape.base.retry": ("RetryPolicy",),
    "tape.client": (
        "AsyncTapeClient",
        "DEFAULT_URL",
        "TapeClient",
    ),
    "tape.client.gap": ("Gap",),
    "tape.client.stream": (
        "Event",
        "stream",
    ),
    "tape.durable.budgets": (
        "Budget",
        "with_budget",
    ),
    "tape.durable.calls": (
        "cancel_run",
        "cancel_timer",
        "delete_value",
        "get_value",
        "heartbeat",
        "is_cancelled",
        "send_signal",
        "set_timer",
        "set_value",
        "watch_value",
    ),
    "tape.durable.gates": (
        "gate",
        "gate_tool",
    ),
    "tape.durable.results": (
        "result",
        "run_once",
    ),
    "tape.durable.runs": (
        "DurableRun",
        "continue_run",
        "durable_run",
    ),
    "tape.effect": (
        "idempotency_key",
        "outbox_tool",
        "register_compensator",
        "register_status_check",
    ),
    "tape.errors": (
        "AckLost",
        "BudgetExceeded",
        "EffectFailed",
        "EffectUnknown",
        "RunCancelled",
        "RunParked",
        "TapeError",
    ),
    "tape.model.entry": (
        "Draft",
        "Entry",
    ),
    "tape.playbooks.functions": (
        "function",
        "playbook",
    ),
    "tape.playbooks.worker": ("run_worker",),
    "tape.reactions.decorators": (
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
    "tape.session": (
        "EventBus",
        "JsonlBackend",
        "ServerBackend",
        "SessionTape",
    ),
}
# Importable from here and not listed: names that earlier versions listed, and those that few programs need.
_UNLISTED = {
    "tape.errors": (
        "CursorDiverged",
        "EntryDamaged",
        "RunChanged",
        "RunEnded",
        "RunFailed",
        "RunFenced",
        "RunInterrupted",
        "RunNotEnded",
        "ScopeDenied",
    ),
    "tape._recover": (
        "compensate_one",
        "compensate_run",
        "resume",
    ),
    "tape.durable.budgets": ("budget_from_run_config",),
    "tape.durable.calls": ("policy_is",),
    "tape.durable.sleep": (
        "sleep",
        "sleep_async",
    ),
    "tape.durable.replay": (
        "replay",
        "replay_window",
    ),
    "tape.durable.tenancy": (
        "TenancyConfig",
        "TenancyMode",
    ),
    "tape.effect": (
        "business_key",
        "effect_semantics",
        "external_ref",
        "register_tool_compensator",
        "run_id_of",
    ),
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
    "tape.session": (
        "AgentToken",
        "ArtifactSaved",
        "AttemptFailed",
        "BackendError",
        "BackendHealth",
        "Branch",
        "BranchCompleted",
        "BranchStarted",
        "CancellationToken",
        "CapabilityLoaded",
        "ChainBackend",
        "Change",
        "CompressionTriggered",
        "Cursor",
        "CursorStore",
        "EffectCache",
        "EffectEntry",
        "EffectRecorded",
        "ErrorOccurred",
        "EvalEvent",
        "EventDispatcher",
        "EventRecord",
        "FileCursor",
        "FileEdited",
        "ForkManager",
        "GitCheckpoint",
        "GuardFired",
        "H",
        "HarnessEvent",
        "HookFired",
        "InMemoryBackend",
        "Interrupted",
        "IterationCompleted",
        "IterationStarted",
        "ManifoldFinalized",
        "NullBackend",
        "PermissionRequest",
        "PermissionResult",
        "ProcessEvent",
        "R",
        "Reactor",
        "ReactorPlugin",
        "ReactorRule",
        "RuleSpec",
        "SessionPlugin",
        "SessionSnapshot",
        "SessionStore",
        "Signal",
        "SignalChanged",
        "SignalPredicate",
        "SignalRegistry",
        "StepCompleted",
        "StepStarted",
        "SubagentCompleted",
        "SubagentStarted",
        "TapeBackend",
        "TaskEvent",
        "TextChunk",
        "TokenRegistry",
        "ToolCallEnd",
        "ToolCallStart",
        "TurnComplete",
        "UsageUpdate",
        "WorkflowLifecyclePlugin",
        "active_bus",
        "active_cache",
        "computed",
        "emit",
        "make_cancellation_callback",
        "reaction",
        "stream_from_cursor",
        "subagent",
        "track_reads",
        "use_bus",
        "use_cache",
    ),
}
_MODULE_OF = {name: module for group in (_TOP_LEVEL, _UNLISTED) for module, names in group.items() for name in names}
_MODULES = (
    "budget",
    "client",
    "connectors",
    "det",
    "effect",
    "gates",
    "playbooks",
    "reactions",
    "reactors",
    "retry",
    "session",
    "sinks",
    "tenancy",
)

__all__ = [
    "__version__",
    "det",
    "effect",
    "reactions",
    *(name for names in _TOP_LEVEL.values() for name in names),
]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(importlib.import_module(_MODULE_OF[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"tape.{name}")
    raise AttributeError(f"module 'tape' has no attribute {name!r}")
