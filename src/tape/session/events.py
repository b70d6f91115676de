"""What agents record: one frozen dataclass per sort of event. Subclass `HarnessEvent` for your own.

Every field has a default, and `kind` comes first: give the others by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class HarnessEvent:
    """The base of all events; `kind` is what streams and filters go by."""

    kind: str = ""


# ── text, tools, permissions ─────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class TextChunk(HarnessEvent):
    """A piece of text that the model wrote."""

    text: str = ""
    kind: str = "text"


@dataclass(frozen=True, slots=True)
class ToolCallStart(HarnessEvent):
    """A tool is about to be called."""

    tool_name: str = ""
    args: dict[str, Any] = field(default_factory=dict)
    kind: str = "tool_call_start"


@dataclass(frozen=True, slots=True)
class ToolCallEnd(HarnessEvent):
    """A tool has answered."""

    tool_name: str = ""
    result: str = ""
    duration_ms: float = 0.0
    kind: str = "tool_call_end"


@dataclass(frozen=True, slots=True)
class PermissionRequest(HarnessEvent):
    """Permission for a tool call is requested."""

    tool_name: str = ""
    args: dict[str, Any] = field(default_factory=dict)
    kind: str = "permission_request"


@dataclass(frozen=True, slots=True)
class PermissionResult(HarnessEvent):
    """The answer, and whether it holds for later calls."""

    tool_name: str = ""
    granted: bool = False
    remembered: bool = False
    kind: str = "permission_result"


@dataclass(frozen=True, slots=True)
class TurnComplete(HarnessEvent):
    """The agent has answered the user."""

    response: str = ""
    token_count: int = 0
    kind: str = "turn_complete"


@dataclass(frozen=True, slots=True)
class ErrorOccurred(HarnessEvent):
    """Something failed."""

    tool_name: str = ""
    error: str = ""
    kind: str = "error"


@dataclass(frozen=True, slots=True)
class UsageUpdate(HarnessEvent):
    """Tokens that a model call took."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    model: str = ""
    kind: str = "usage_update"


# ── the harness around the agent ─────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class GitCheckpoint(HarnessEvent):
    """A commit was made or returned to."""

    commit_sha: str = ""
    action: str = ""
    kind: str = "git_checkpoint"


@dataclass(frozen=True, slots=True)
class CompressionTriggered(HarnessEvent):
    """The context grew beyond its threshold and was compressed."""

    token_count: int = 0
    threshold: int = 0
    kind: str = "compression_triggered"


@dataclass(frozen=True, slots=True)
class HookFired(HarnessEvent):
    """A hook ran."""

    hook_name: str = ""
    trigger: str = ""
    exit_code: int = 0
    kind: str = "hook_fired"


@dataclass(frozen=True, slots=True)
class ArtifactSaved(HarnessEvent):
    """An artifact was stored."""

    name: str = ""
    size_bytes: int = 0
    kind: str = "artifact_saved"


@dataclass(frozen=True, slots=True)
class FileEdited(HarnessEvent):
    """A file was changed."""

    file_path: str = ""
    kind: str = "file_edited"


@dataclass(frozen=True, slots=True)
class ProcessEvent(HarnessEvent):
    """A background process started, wrote or ended."""

    process_name: str = ""
    action: str = ""
    kind: str = "process_event"


@dataclass(frozen=True, slots=True)
class TaskEvent(HarnessEvent):
    """A task changed its status."""

    task_name: str = ""
    status: str = ""
    kind: str = "task_event"


@dataclass(frozen=True, slots=True)
class CapabilityLoaded(HarnessEvent):
    """A skill, a tool or a server became available."""

    capability_name: str = ""
    cap_type: str = ""
    kind: str = "capability_loaded"


@dataclass(frozen=True, slots=True)
class ManifoldFinalized(HarnessEvent):
    """The set of capabilities is complete."""

    tool_count: int = 0
    skill_count: int = 0
    mcp_count: int = 0
    kind: str = "manifold_finalized"


# ── workflows ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class StepStarted(HarnessEvent):
    """An agent of a workflow began."""

    agent_name: str = ""
    agent_type: str = ""
    parent_name: str = ""
    kind: str = "step_started"


@dataclass(frozen=True, slots=True)
class StepCompleted(HarnessEvent):
    """An agent of a workflow ended."""

    agent_name: str = ""
    agent_type: str = ""
    parent_name: str = ""
    duration_ms: float = 0.0
    kind: str = "step_completed"


@dataclass(frozen=True, slots=True)
class IterationStarted(HarnessEvent):
    """A loop began a turn; turns count from 0."""

    loop_name: str = ""
    iteration: int = 0
    kind: str = "iteration_started"


@dataclass(frozen=True, slots=True)
class IterationCompleted(HarnessEvent):
    """A loop ended a turn."""

    loop_name: str = ""
    iteration: int = 0
    kind: str = "iteration_completed"


@dataclass(frozen=True, slots=True)
class BranchStarted(HarnessEvent):
    """A branch of a fan-out began."""

    fanout_name: str = ""
    branch_name: str = ""
    branch_index: int = 0
    kind: str = "branch_started"


@dataclass(frozen=True, slots=True)
class BranchCompleted(HarnessEvent):
    """A branch of a fan-out ended."""

    fanout_name: str = ""
    branch_name: str = ""
    branch_index: int = 0
    duration_ms: float = 0.0
    kind: str = "branch_completed"


@dataclass(frozen=True, slots=True)
class SubagentStarted(HarnessEvent):
    """An agent started another one for a task."""

    role: str = ""
    prompt: str = ""
    kind: str = "subagent_started"


@dataclass(frozen=True, slots=True)
class SubagentCompleted(HarnessEvent):
    """That one is done."""

    role: str = ""
    is_error: bool = False
    output_preview: str = ""
    duration_ms: float = 0.0
    kind: str = "subagent_completed"


@dataclass(frozen=True, slots=True)
class AttemptFailed(HarnessEvent):
    """An attempt failed, and a retry or a fallback takes over. Attempts count from 0."""

    agent_name: str = ""
    attempt_index: int = 0
    error: str = ""
    kind: str = "attempt_failed"


# ── signals, guards, evaluations, effects ────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class SignalChanged(HarnessEvent):
    """A signal has a new value."""

    name: str = ""
    version: int = 0
    value: Any = None
    previous: Any = None
    kind: str = "signal_changed"


@dataclass(frozen=True, slots=True)
class Interrupted(HarnessEvent):
    """An agent was cancelled for something more urgent; `resume_cursor` is where it can go on."""

    agent_name: str = ""
    reason: str = ""
    resume_cursor: int = 0
    kind: str = "interrupted"


@dataclass(frozen=True, slots=True)
class GuardFired(HarnessEvent):
    """A guard stepped in."""

    guard_name: str = ""
    agent_name: str = ""
    reason: str = ""
    action: str = "reject"
    kind: str = "guard_fired"


@dataclass(frozen=True, slots=True)
class EvalEvent(HarnessEvent):
    """A case of an evaluation was scored."""

    suite_name: str = ""
    case_id: str = ""
    metric: str = ""
    score: float = 0.0
    passed: bool = False
    detail: str = ""
    kind: str = "eval_event"


@dataclass(frozen=True, slots=True)
class EffectRecorded(HarnessEvent):
    """A tool's result came from a fresh call or from the cache."""

    tool_name: str = ""
    key: str = ""
    source: str = "fresh"
    duration_ms: float = 0.0
    kind: str = "effect_recorded"
