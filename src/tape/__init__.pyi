"""The public names as type checkers see them; `__init__.py` imports each when it is first used."""

from tape import det as det
from tape import reactions as reactions
from tape._recover import compensate_one as compensate_one
from tape._recover import compensate_run as compensate_run
from tape._recover import recover_once as recover_once
from tape._recover import resume as resume
from tape.base.retry import RetryPolicy as RetryPolicy
from tape.client import DEFAULT_URL as DEFAULT_URL
from tape.client import AsyncTapeClient as AsyncTapeClient
from tape.client import TapeClient as TapeClient
from tape.client.gap import Gap as Gap
from tape.client.stream import Event as Event
from tape.client.stream import stream as stream
from tape.durable.budgets import Budget as Budget
from tape.durable.budgets import budget_from_run_config as budget_from_run_config
from tape.durable.budgets import with_budget as with_budget
from tape.durable.calls import cancel_run as cancel_run
from tape.durable.calls import cancel_timer as cancel_timer
from tape.durable.calls import delete_value as delete_value
from tape.durable.calls import get_value as get_value
from tape.durable.calls import heartbeat as heartbeat
from tape.durable.calls import is_cancelled as is_cancelled
from tape.durable.calls import policy_is as policy_is
from tape.durable.calls import send_signal as send_signal
from tape.durable.calls import set_timer as set_timer
from tape.durable.calls import set_value as set_value
from tape.durable.calls import watch_value as watch_value
from tape.durable.gates import gate as gate
from tape.durable.gates import gate_tool as gate_tool
from tape.durable.replay import replay as replay
from tape.durable.replay import replay_window as replay_window
from tape.durable.results import result as result
from tape.durable.results import run_once as run_once
from tape.durable.runs import DurableRun as DurableRun
from tape.durable.runs import continue_run as continue_run
from tape.durable.runs import durable_run as durable_run
from tape.durable.sleep import sleep as sleep
from tape.durable.sleep import sleep_async as sleep_async
from tape.durable.tenancy import TenancyConfig as TenancyConfig
from tape.durable.tenancy import TenancyMode as TenancyMode
from tape.effect import business_key as business_key
from tape.effect import effect as effect
from tape.effect import effect_semantics as effect_semantics
from tape.effect import external_ref as external_ref
from tape.effect import idempotency_key as idempotency_key
from tape.effect import outbox_tool as outbox_tool
from tape.effect import register_compensator as register_compensator
from tape.effect import register_status_check as register_status_check
from tape.effect import register_tool_compensator as register_tool_compensator
from tape.effect import run_id_of as run_id_of
from tape.errors import AckLost as AckLost
from tape.errors import BudgetExceeded as BudgetExceeded
from tape.errors import CursorDiverged as CursorDiverged
from tape.errors import EffectFailed as EffectFailed
from tape.errors import EffectUnknown as EffectUnknown
from tape.errors import EntryDamaged as EntryDamaged
from tape.errors import RunCancelled as RunCancelled
from tape.errors import RunChanged as RunChanged
from tape.errors import RunEnded as RunEnded
from tape.errors import RunFailed as RunFailed
from tape.errors import RunFenced as RunFenced
from tape.errors import RunInterrupted as RunInterrupted
from tape.errors import RunNotEnded as RunNotEnded
from tape.errors import RunParked as RunParked
from tape.errors import ScopeDenied as ScopeDenied
from tape.errors import TapeError as TapeError
from tape.model.entry import Draft as Draft
from tape.model.entry import Entry as Entry
from tape.playbooks.functions import function as function
from tape.playbooks.functions import playbook as playbook
from tape.playbooks.worker import run_worker as run_worker
from tape.proto.tape_pb2 import EFFECT_DISPATCH_MODE_INLINE as EFFECT_DISPATCH_MODE_INLINE
from tape.proto.tape_pb2 import EFFECT_DISPATCH_MODE_OUTBOX as EFFECT_DISPATCH_MODE_OUTBOX
from tape.proto.tape_pb2 import EFFECT_RESOLUTION_ABSENT as EFFECT_RESOLUTION_ABSENT
from tape.proto.tape_pb2 import EFFECT_RESOLUTION_CONFIRMED as EFFECT_RESOLUTION_CONFIRMED
from tape.proto.tape_pb2 import EFFECT_RESOLUTION_DUPLICATE as EFFECT_RESOLUTION_DUPLICATE
from tape.proto.tape_pb2 import EFFECT_RESOLUTION_FAILED as EFFECT_RESOLUTION_FAILED
from tape.proto.tape_pb2 import EFFECT_RESOLUTION_STUCK as EFFECT_RESOLUTION_STUCK
from tape.proto.tape_pb2 import EFFECT_SEMANTICS_IDEMPOTENT as EFFECT_SEMANTICS_IDEMPOTENT
from tape.proto.tape_pb2 import EFFECT_SEMANTICS_NON_IDEMPOTENT as EFFECT_SEMANTICS_NON_IDEMPOTENT
from tape.proto.tape_pb2 import EFFECT_SEMANTICS_OBSERVE_ONLY as EFFECT_SEMANTICS_OBSERVE_ONLY
from tape.proto.tape_pb2 import EFFECT_STATUS_CONFIRMED as EFFECT_STATUS_CONFIRMED
from tape.proto.tape_pb2 import EFFECT_STATUS_FAILED as EFFECT_STATUS_FAILED
from tape.proto.tape_pb2 import EFFECT_STATUS_PENDING as EFFECT_STATUS_PENDING
from tape.proto.tape_pb2 import EFFECT_STATUS_UNKNOWN as EFFECT_STATUS_UNKNOWN
from tape.proto.tape_pb2 import RUN_STATUS_CANCELLED as RUN_STATUS_CANCELLED
from tape.proto.tape_pb2 import RUN_STATUS_COMPENSATING as RUN_STATUS_COMPENSATING
from tape.proto.tape_pb2 import RUN_STATUS_FAILED as RUN_STATUS_FAILED
from tape.proto.tape_pb2 import RUN_STATUS_RUNNABLE as RUN_STATUS_RUNNABLE
from tape.proto.tape_pb2 import RUN_STATUS_RUNNING as RUN_STATUS_RUNNING
from tape.proto.tape_pb2 import RUN_STATUS_STUCK as RUN_STATUS_STUCK
from tape.proto.tape_pb2 import RUN_STATUS_TERMINAL as RUN_STATUS_TERMINAL
from tape.proto.tape_pb2 import RUN_STATUS_WAITING as RUN_STATUS_WAITING
from tape.reactions.decorators import on as on
from tape.reactions.decorators import on_decision_recorded as on_decision_recorded
from tape.reactions.decorators import on_effect_confirmed as on_effect_confirmed
from tape.reactions.decorators import on_effect_failed as on_effect_failed
from tape.reactions.decorators import on_effect_unknown as on_effect_unknown
from tape.reactions.decorators import on_gate as on_gate
from tape.reactions.decorators import on_run as on_run
from tape.reactions.decorators import on_value_change as on_value_change
from tape.reactions.decorators import on_value_deleted as on_value_deleted
from tape.session import AgentToken as AgentToken
from tape.session import ArtifactSaved as ArtifactSaved
from tape.session import AttemptFailed as AttemptFailed
from tape.session import BackendError as BackendError
from tape.session import BackendHealth as BackendHealth
from tape.session import Branch as Branch
from tape.session import BranchCompleted as BranchCompleted
from tape.session import BranchStarted as BranchStarted
from tape.session import CancellationToken as CancellationToken
from tape.session import CapabilityLoaded as CapabilityLoaded
from tape.session import ChainBackend as ChainBackend
from tape.session import Change as Change
from tape.session import CompressionTriggered as CompressionTriggered
from tape.session import Cursor as Cursor
from tape.session import CursorStore as CursorStore
from tape.session import EffectCache as EffectCache
from tape.session import EffectEntry as EffectEntry
from tape.session import EffectRecorded as EffectRecorded
from tape.session import ErrorOccurred as ErrorOccurred
from tape.session import EvalEvent as EvalEvent
from tape.session import EventBus as EventBus
from tape.session import EventDispatcher as EventDispatcher
from tape.session import EventRecord as EventRecord
from tape.session import FileCursor as FileCursor
from tape.session import FileEdited as FileEdited
from tape.session import ForkManager as ForkManager
from tape.session import GitCheckpoint as GitCheckpoint
from tape.session import GuardFired as GuardFired
from tape.session import H as H
from tape.session import HarnessEvent as HarnessEvent
from tape.session import HookFired as HookFired
from tape.session import InMemoryBackend as InMemoryBackend
from tape.session import Interrupted as Interrupted
from tape.session import IterationCompleted as IterationCompleted
from tape.session import IterationStarted as IterationStarted
from tape.session import JsonlBackend as JsonlBackend
from tape.session import ManifoldFinalized as ManifoldFinalized
from tape.session import NullBackend as NullBackend
from tape.session import PermissionRequest as PermissionRequest
from tape.session import PermissionResult as PermissionResult
from tape.session import ProcessEvent as ProcessEvent
from tape.session import R as R
from tape.session import Reactor as Reactor
from tape.session import ReactorPlugin as ReactorPlugin
from tape.session import ReactorRule as ReactorRule
from tape.session import RuleSpec as RuleSpec
from tape.session import ServerBackend as ServerBackend
from tape.session import SessionPlugin as SessionPlugin
from tape.session import SessionSnapshot as SessionSnapshot
from tape.session import SessionStore as SessionStore
from tape.session import SessionTape as SessionTape
from tape.session import Signal as Signal
from tape.session import SignalChanged as SignalChanged
from tape.session import SignalPredicate as SignalPredicate
from tape.session import SignalRegistry as SignalRegistry
from tape.session import StepCompleted as StepCompleted
from tape.session import StepStarted as StepStarted
from tape.session import SubagentCompleted as SubagentCompleted
from tape.session import SubagentStarted as SubagentStarted
from tape.session import TapeBackend as TapeBackend
from tape.session import TaskEvent as TaskEvent
from tape.session import TextChunk as TextChunk
from tape.session import TokenRegistry as TokenRegistry
from tape.session import ToolCallEnd as ToolCallEnd
from tape.session import ToolCallStart as ToolCallStart
from tape.session import TurnComplete as TurnComplete
from tape.session import UsageUpdate as UsageUpdate
from tape.session import WorkflowLifecyclePlugin as WorkflowLifecyclePlugin
from tape.session import active_bus as active_bus
from tape.session import active_cache as active_cache
from tape.session import computed as computed
from tape.session import emit as emit
from tape.session import make_cancellation_callback as make_cancellation_callback
from tape.session import reaction as reaction
from tape.session import stream_from_cursor as stream_from_cursor
from tape.session import subagent as subagent
from tape.session import track_reads as track_reads
from tape.session import use_bus as use_bus
from tape.session import use_cache as use_cache

__version__: str

__all__ = [
    "DEFAULT_URL",
    "AckLost",
    "AsyncTapeClient",
    "Budget",
    "BudgetExceeded",
    "Draft",
    "DurableRun",
    "EffectFailed",
    "EffectUnknown",
    "Entry",
    "Event",
    "EventBus",
    "Gap",
    "JsonlBackend",
    "RetryPolicy",
    "RunCancelled",
    "RunParked",
    "ServerBackend",
    "SessionTape",
    "TapeClient",
    "TapeError",
    "__version__",
    "cancel_run",
    "cancel_timer",
    "continue_run",
    "delete_value",
    "det",
    "durable_run",
    "effect",
    "function",
    "gate",
    "gate_tool",
    "get_value",
    "heartbeat",
    "idempotency_key",
    "is_cancelled",
    "on",
    "on_decision_recorded",
    "on_effect_confirmed",
    "on_effect_failed",
    "on_effect_unknown",
    "on_gate",
    "on_run",
    "on_value_change",
    "on_value_deleted",
    "outbox_tool",
    "playbook",
    "reactions",
    "recover_once",
    "register_compensator",
    "register_status_check",
    "result",
    "run_once",
    "run_worker",
    "send_signal",
    "set_timer",
    "set_value",
    "stream",
    "watch_value",
    "with_budget",
]
