from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RunStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_STATUS_UNSPECIFIED: _ClassVar[RunStatus]
    RUN_STATUS_RUNNABLE: _ClassVar[RunStatus]
    RUN_STATUS_RUNNING: _ClassVar[RunStatus]
    RUN_STATUS_WAITING: _ClassVar[RunStatus]
    RUN_STATUS_TERMINAL: _ClassVar[RunStatus]
    RUN_STATUS_FAILED: _ClassVar[RunStatus]
    RUN_STATUS_COMPENSATING: _ClassVar[RunStatus]
    RUN_STATUS_STUCK: _ClassVar[RunStatus]
    RUN_STATUS_CANCELLED: _ClassVar[RunStatus]

class EffectStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EFFECT_STATUS_UNSPECIFIED: _ClassVar[EffectStatus]
    EFFECT_STATUS_PENDING: _ClassVar[EffectStatus]
    EFFECT_STATUS_CONFIRMED: _ClassVar[EffectStatus]
    EFFECT_STATUS_FAILED: _ClassVar[EffectStatus]
    EFFECT_STATUS_UNKNOWN: _ClassVar[EffectStatus]

class EffectSemantics(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EFFECT_SEMANTICS_UNSPECIFIED: _ClassVar[EffectSemantics]
    EFFECT_SEMANTICS_IDEMPOTENT: _ClassVar[EffectSemantics]
    EFFECT_SEMANTICS_NON_IDEMPOTENT: _ClassVar[EffectSemantics]
    EFFECT_SEMANTICS_OBSERVE_ONLY: _ClassVar[EffectSemantics]

class EffectDispatchMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EFFECT_DISPATCH_MODE_UNSPECIFIED: _ClassVar[EffectDispatchMode]
    EFFECT_DISPATCH_MODE_INLINE: _ClassVar[EffectDispatchMode]
    EFFECT_DISPATCH_MODE_OUTBOX: _ClassVar[EffectDispatchMode]

class ChangeCheck(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANGE_CHECK_UNSPECIFIED: _ClassVar[ChangeCheck]
    CHANGE_CHECK_STOP: _ClassVar[ChangeCheck]
    CHANGE_CHECK_REPORT: _ClassVar[ChangeCheck]
    CHANGE_CHECK_PEEK: _ClassVar[ChangeCheck]

class DispatchCertainty(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DISPATCH_CERTAINTY_UNSPECIFIED: _ClassVar[DispatchCertainty]
    DISPATCH_CERTAINTY_FAILED: _ClassVar[DispatchCertainty]
    DISPATCH_CERTAINTY_UNKNOWN: _ClassVar[DispatchCertainty]

class EffectResolution(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EFFECT_RESOLUTION_UNSPECIFIED: _ClassVar[EffectResolution]
    EFFECT_RESOLUTION_CONFIRMED: _ClassVar[EffectResolution]
    EFFECT_RESOLUTION_FAILED: _ClassVar[EffectResolution]
    EFFECT_RESOLUTION_ABSENT: _ClassVar[EffectResolution]
    EFFECT_RESOLUTION_DUPLICATE: _ClassVar[EffectResolution]
    EFFECT_RESOLUTION_STUCK: _ClassVar[EffectResolution]

class ObligationStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OBLIGATION_STATUS_UNSPECIFIED: _ClassVar[ObligationStatus]
    OBLIGATION_STATUS_PENDING: _ClassVar[ObligationStatus]
    OBLIGATION_STATUS_COMMITTED: _ClassVar[ObligationStatus]
    OBLIGATION_STATUS_COMPENSATED: _ClassVar[ObligationStatus]
    OBLIGATION_STATUS_STUCK: _ClassVar[ObligationStatus]

class HandlerKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HANDLER_KIND_UNSPECIFIED: _ClassVar[HandlerKind]
    HANDLER_KIND_AGENT: _ClassVar[HandlerKind]
    HANDLER_KIND_TASK: _ClassVar[HandlerKind]
    HANDLER_KIND_PUBLISH: _ClassVar[HandlerKind]

class TaskStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_STATUS_UNSPECIFIED: _ClassVar[TaskStatus]
    TASK_STATUS_PENDING: _ClassVar[TaskStatus]
    TASK_STATUS_CLAIMED: _ClassVar[TaskStatus]
    TASK_STATUS_DONE: _ClassVar[TaskStatus]
    TASK_STATUS_FAILED: _ClassVar[TaskStatus]
    TASK_STATUS_DLQ: _ClassVar[TaskStatus]

class ChildPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHILD_POLICY_UNSPECIFIED: _ClassVar[ChildPolicy]
    CHILD_POLICY_CANCEL: _ClassVar[ChildPolicy]
    CHILD_POLICY_LEAVE: _ClassVar[ChildPolicy]

class GateState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GATE_STATE_UNSPECIFIED: _ClassVar[GateState]
    GATE_STATE_WAITING: _ClassVar[GateState]
    GATE_STATE_ANSWERED: _ClassVar[GateState]
    GATE_STATE_TIMED_OUT: _ClassVar[GateState]
    GATE_STATE_CLOSED: _ClassVar[GateState]
RUN_STATUS_UNSPECIFIED: RunStatus
RUN_STATUS_RUNNABLE: RunStatus
RUN_STATUS_RUNNING: RunStatus
RUN_STATUS_WAITING: RunStatus
RUN_STATUS_TERMINAL: RunStatus
RUN_STATUS_FAILED: RunStatus
RUN_STATUS_COMPENSATING: RunStatus
RUN_STATUS_STUCK: RunStatus
RUN_STATUS_CANCELLED: RunStatus
EFFECT_STATUS_UNSPECIFIED: EffectStatus
EFFECT_STATUS_PENDING: EffectStatus
EFFECT_STATUS_CONFIRMED: EffectStatus
EFFECT_STATUS_FAILED: EffectStatus
EFFECT_STATUS_UNKNOWN: EffectStatus
EFFECT_SEMANTICS_UNSPECIFIED: EffectSemantics
EFFECT_SEMANTICS_IDEMPOTENT: EffectSemantics
EFFECT_SEMANTICS_NON_IDEMPOTENT: EffectSemantics
EFFECT_SEMANTICS_OBSERVE_ONLY: EffectSemantics
EFFECT_DISPATCH_MODE_UNSPECIFIED: EffectDispatchMode
EFFECT_DISPATCH_MODE_INLINE: EffectDispatchMode
EFFECT_DISPATCH_MODE_OUTBOX: EffectDispatchMode
CHANGE_CHECK_UNSPECIFIED: ChangeCheck
CHANGE_CHECK_STOP: ChangeCheck
CHANGE_CHECK_REPORT: ChangeCheck
CHANGE_CHECK_PEEK: ChangeCheck
DISPATCH_CERTAINTY_UNSPECIFIED: DispatchCertainty
DISPATCH_CERTAINTY_FAILED: DispatchCertainty
DISPATCH_CERTAINTY_UNKNOWN: DispatchCertainty
EFFECT_RESOLUTION_UNSPECIFIED: EffectResolution
EFFECT_RESOLUTION_CONFIRMED: EffectResolution
EFFECT_RESOLUTION_FAILED: EffectResolution
EFFECT_RESOLUTION_ABSENT: EffectResolution
EFFECT_RESOLUTION_DUPLICATE: EffectResolution
EFFECT_RESOLUTION_STUCK: EffectResolution
OBLIGATION_STATUS_UNSPECIFIED: ObligationStatus
OBLIGATION_STATUS_PENDING: ObligationStatus
OBLIGATION_STATUS_COMMITTED: ObligationStatus
OBLIGATION_STATUS_COMPENSATED: ObligationStatus
OBLIGATION_STATUS_STUCK: ObligationStatus
HANDLER_KIND_UNSPECIFIED: HandlerKind
HANDLER_KIND_AGENT: HandlerKind
HANDLER_KIND_TASK: HandlerKind
HANDLER_KIND_PUBLISH: HandlerKind
TASK_STATUS_UNSPECIFIED: TaskStatus
TASK_STATUS_PENDING: TaskStatus
TASK_STATUS_CLAIMED: TaskStatus
TASK_STATUS_DONE: TaskStatus
TASK_STATUS_FAILED: TaskStatus
TASK_STATUS_DLQ: TaskStatus
CHILD_POLICY_UNSPECIFIED: ChildPolicy
CHILD_POLICY_CANCEL: ChildPolicy
CHILD_POLICY_LEAVE: ChildPolicy
GATE_STATE_UNSPECIFIED: GateState
GATE_STATE_WAITING: GateState
GATE_STATE_ANSWERED: GateState
GATE_STATE_TIMED_OUT: GateState
GATE_STATE_CLOSED: GateState

class BeginRunRequest(_message.Message):
    __slots__ = ("app_name", "user_id", "session_id", "invocation_id", "lease_owner", "lease_ttl_ms", "tenant_id", "actor", "subject", "agent_id", "aiplex_instance_id", "gateway_route", "scopes", "labels", "parent_run_id", "on_parent_cancel")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    APP_NAME_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    INVOCATION_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_OWNER_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    AIPLEX_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_ROUTE_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    PARENT_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ON_PARENT_CANCEL_FIELD_NUMBER: _ClassVar[int]
    app_name: str
    user_id: str
    session_id: str
    invocation_id: str
    lease_owner: str
    lease_ttl_ms: int
    tenant_id: str
    actor: str
    subject: str
    agent_id: str
    aiplex_instance_id: str
    gateway_route: str
    scopes: _containers.RepeatedScalarFieldContainer[str]
    labels: _containers.ScalarMap[str, str]
    parent_run_id: str
    on_parent_cancel: ChildPolicy
    def __init__(self, app_name: _Optional[str] = ..., user_id: _Optional[str] = ..., session_id: _Optional[str] = ..., invocation_id: _Optional[str] = ..., lease_owner: _Optional[str] = ..., lease_ttl_ms: _Optional[int] = ..., tenant_id: _Optional[str] = ..., actor: _Optional[str] = ..., subject: _Optional[str] = ..., agent_id: _Optional[str] = ..., aiplex_instance_id: _Optional[str] = ..., gateway_route: _Optional[str] = ..., scopes: _Optional[_Iterable[str]] = ..., labels: _Optional[_Mapping[str, str]] = ..., parent_run_id: _Optional[str] = ..., on_parent_cancel: _Optional[_Union[ChildPolicy, str]] = ...) -> None: ...

class BeginRunResponse(_message.Message):
    __slots__ = ("run_id", "resumed", "next_seq", "status")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQ_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    resumed: bool
    next_seq: int
    status: RunStatus
    def __init__(self, run_id: _Optional[str] = ..., resumed: bool = ..., next_seq: _Optional[int] = ..., status: _Optional[_Union[RunStatus, str]] = ...) -> None: ...

class ResumeRunRequest(_message.Message):
    __slots__ = ("run_id", "lease_owner", "lease_ttl_ms", "renew")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_OWNER_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    lease_owner: str
    lease_ttl_ms: int
    renew: bool
    def __init__(self, run_id: _Optional[str] = ..., lease_owner: _Optional[str] = ..., lease_ttl_ms: _Optional[int] = ..., renew: bool = ...) -> None: ...

class ResumeRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: RunState
    def __init__(self, run: _Optional[_Union[RunState, _Mapping]] = ...) -> None: ...

class EndRunRequest(_message.Message):
    __slots__ = ("run_id", "status", "detail_json", "result_json")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_JSON_FIELD_NUMBER: _ClassVar[int]
    RESULT_JSON_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    status: RunStatus
    detail_json: str
    result_json: str
    def __init__(self, run_id: _Optional[str] = ..., status: _Optional[_Union[RunStatus, str]] = ..., detail_json: _Optional[str] = ..., result_json: _Optional[str] = ...) -> None: ...

class EndRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: RunState
    def __init__(self, run: _Optional[_Union[RunState, _Mapping]] = ...) -> None: ...

class GetRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class ListRunsToRecoverRequest(_message.Message):
    __slots__ = ("limit", "now_ms", "app_name")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    APP_NAME_FIELD_NUMBER: _ClassVar[int]
    limit: int
    now_ms: int
    app_name: str
    def __init__(self, limit: _Optional[int] = ..., now_ms: _Optional[int] = ..., app_name: _Optional[str] = ...) -> None: ...

class ListRunsToRecoverResponse(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[RunState]
    def __init__(self, runs: _Optional[_Iterable[_Union[RunState, _Mapping]]] = ...) -> None: ...

class SubscribeRunRequest(_message.Message):
    __slots__ = ("run_id", "from_seq", "skip_gaps")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_SEQ_FIELD_NUMBER: _ClassVar[int]
    SKIP_GAPS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    from_seq: int
    skip_gaps: bool
    def __init__(self, run_id: _Optional[str] = ..., from_seq: _Optional[int] = ..., skip_gaps: bool = ...) -> None: ...

class RunState(_message.Message):
    __slots__ = ("run_id", "app_name", "user_id", "session_id", "invocation_id", "status", "seq_cursor", "lease_owner", "lease_expires_at_ms", "started_at_ms", "ended_at_ms", "waiting_on_gate", "tenant_id", "actor", "subject", "agent_id", "aiplex_instance_id", "gateway_route", "scopes", "labels", "former_status", "detail_json", "result_json", "error_type", "error_message", "parent_run_id", "on_parent_cancel", "gates", "more_gates", "forked_from", "forked_at_seq", "forked_at_decision")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    APP_NAME_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    INVOCATION_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SEQ_CURSOR_FIELD_NUMBER: _ClassVar[int]
    LEASE_OWNER_FIELD_NUMBER: _ClassVar[int]
    LEASE_EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    WAITING_ON_GATE_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    AIPLEX_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_ROUTE_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    FORMER_STATUS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_JSON_FIELD_NUMBER: _ClassVar[int]
    RESULT_JSON_FIELD_NUMBER: _ClassVar[int]
    ERROR_TYPE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PARENT_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ON_PARENT_CANCEL_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    MORE_GATES_FIELD_NUMBER: _ClassVar[int]
    FORKED_FROM_FIELD_NUMBER: _ClassVar[int]
    FORKED_AT_SEQ_FIELD_NUMBER: _ClassVar[int]
    FORKED_AT_DECISION_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    app_name: str
    user_id: str
    session_id: str
    invocation_id: str
    status: RunStatus
    seq_cursor: int
    lease_owner: str
    lease_expires_at_ms: int
    started_at_ms: int
    ended_at_ms: int
    waiting_on_gate: str
    tenant_id: str
    actor: str
    subject: str
    agent_id: str
    aiplex_instance_id: str
    gateway_route: str
    scopes: _containers.RepeatedScalarFieldContainer[str]
    labels: _containers.ScalarMap[str, str]
    former_status: RunStatus
    detail_json: str
    result_json: str
    error_type: str
    error_message: str
    parent_run_id: str
    on_parent_cancel: ChildPolicy
    gates: _containers.RepeatedCompositeFieldContainer[GateRecord]
    more_gates: bool
    forked_from: str
    forked_at_seq: int
    forked_at_decision: int
    def __init__(self, run_id: _Optional[str] = ..., app_name: _Optional[str] = ..., user_id: _Optional[str] = ..., session_id: _Optional[str] = ..., invocation_id: _Optional[str] = ..., status: _Optional[_Union[RunStatus, str]] = ..., seq_cursor: _Optional[int] = ..., lease_owner: _Optional[str] = ..., lease_expires_at_ms: _Optional[int] = ..., started_at_ms: _Optional[int] = ..., ended_at_ms: _Optional[int] = ..., waiting_on_gate: _Optional[str] = ..., tenant_id: _Optional[str] = ..., actor: _Optional[str] = ..., subject: _Optional[str] = ..., agent_id: _Optional[str] = ..., aiplex_instance_id: _Optional[str] = ..., gateway_route: _Optional[str] = ..., scopes: _Optional[_Iterable[str]] = ..., labels: _Optional[_Mapping[str, str]] = ..., former_status: _Optional[_Union[RunStatus, str]] = ..., detail_json: _Optional[str] = ..., result_json: _Optional[str] = ..., error_type: _Optional[str] = ..., error_message: _Optional[str] = ..., parent_run_id: _Optional[str] = ..., on_parent_cancel: _Optional[_Union[ChildPolicy, str]] = ..., gates: _Optional[_Iterable[_Union[GateRecord, _Mapping]]] = ..., more_gates: bool = ..., forked_from: _Optional[str] = ..., forked_at_seq: _Optional[int] = ..., forked_at_decision: _Optional[int] = ...) -> None: ...

class JournalEntry(_message.Message):
    __slots__ = ("seq", "kind", "payload_json", "ts_ms", "global_seq", "subject", "schema_version", "trace_id", "span_id", "parent_span_id", "gaps")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_JSON_FIELD_NUMBER: _ClassVar[int]
    TS_MS_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_SEQ_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    kind: str
    payload_json: str
    ts_ms: int
    global_seq: int
    subject: str
    schema_version: int
    trace_id: str
    span_id: str
    parent_span_id: str
    gaps: _containers.RepeatedCompositeFieldContainer[JournalGap]
    def __init__(self, seq: _Optional[int] = ..., kind: _Optional[str] = ..., payload_json: _Optional[str] = ..., ts_ms: _Optional[int] = ..., global_seq: _Optional[int] = ..., subject: _Optional[str] = ..., schema_version: _Optional[int] = ..., trace_id: _Optional[str] = ..., span_id: _Optional[str] = ..., parent_span_id: _Optional[str] = ..., gaps: _Optional[_Iterable[_Union[JournalGap, _Mapping]]] = ...) -> None: ...

class JournalGap(_message.Message):
    __slots__ = ("first", "last", "reason", "detail")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    reason: str
    detail: str
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ..., reason: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class RecordDecisionRequest(_message.Message):
    __slots__ = ("run_id", "decision_index", "model", "request_json", "response_json", "rationale", "policy_version", "digest", "position")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    DECISION_INDEX_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_JSON_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_JSON_FIELD_NUMBER: _ClassVar[int]
    RATIONALE_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    decision_index: int
    model: str
    request_json: str
    response_json: str
    rationale: str
    policy_version: str
    digest: str
    position: str
    def __init__(self, run_id: _Optional[str] = ..., decision_index: _Optional[int] = ..., model: _Optional[str] = ..., request_json: _Optional[str] = ..., response_json: _Optional[str] = ..., rationale: _Optional[str] = ..., policy_version: _Optional[str] = ..., digest: _Optional[str] = ..., position: _Optional[str] = ...) -> None: ...

class DecisionRecord(_message.Message):
    __slots__ = ("run_id", "seq", "decision_index", "model", "request_json", "response_json", "rationale", "policy_version", "ts_ms", "digest", "position")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    DECISION_INDEX_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_JSON_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_JSON_FIELD_NUMBER: _ClassVar[int]
    RATIONALE_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    TS_MS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    seq: int
    decision_index: int
    model: str
    request_json: str
    response_json: str
    rationale: str
    policy_version: str
    ts_ms: int
    digest: str
    position: str
    def __init__(self, run_id: _Optional[str] = ..., seq: _Optional[int] = ..., decision_index: _Optional[int] = ..., model: _Optional[str] = ..., request_json: _Optional[str] = ..., response_json: _Optional[str] = ..., rationale: _Optional[str] = ..., policy_version: _Optional[str] = ..., ts_ms: _Optional[int] = ..., digest: _Optional[str] = ..., position: _Optional[str] = ...) -> None: ...

class GetDecisionRequest(_message.Message):
    __slots__ = ("run_id", "decision_index", "position")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    DECISION_INDEX_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    decision_index: int
    position: str
    def __init__(self, run_id: _Optional[str] = ..., decision_index: _Optional[int] = ..., position: _Optional[str] = ...) -> None: ...

class GetDecisionResponse(_message.Message):
    __slots__ = ("found", "decision", "displaced")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    DISPLACED_FIELD_NUMBER: _ClassVar[int]
    found: bool
    decision: DecisionRecord
    displaced: str
    def __init__(self, found: bool = ..., decision: _Optional[_Union[DecisionRecord, _Mapping]] = ..., displaced: _Optional[str] = ...) -> None: ...

class BeginEffectRequest(_message.Message):
    __slots__ = ("run_id", "decision_index", "tool_name", "call_index", "request_json", "custom_key", "semantics", "dispatch_mode", "business_key", "connector", "scope", "digest", "position", "change_check", "after_seq")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    DECISION_INDEX_FIELD_NUMBER: _ClassVar[int]
    TOOL_NAME_FIELD_NUMBER: _ClassVar[int]
    CALL_INDEX_FIELD_NUMBER: _ClassVar[int]
    REQUEST_JSON_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_KEY_FIELD_NUMBER: _ClassVar[int]
    SEMANTICS_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_MODE_FIELD_NUMBER: _ClassVar[int]
    BUSINESS_KEY_FIELD_NUMBER: _ClassVar[int]
    CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    CHANGE_CHECK_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQ_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    decision_index: int
    tool_name: str
    call_index: int
    request_json: str
    custom_key: str
    semantics: EffectSemantics
    dispatch_mode: EffectDispatchMode
    business_key: str
    connector: str
    scope: str
    digest: str
    position: str
    change_check: ChangeCheck
    after_seq: int
    def __init__(self, run_id: _Optional[str] = ..., decision_index: _Optional[int] = ..., tool_name: _Optional[str] = ..., call_index: _Optional[int] = ..., request_json: _Optional[str] = ..., custom_key: _Optional[str] = ..., semantics: _Optional[_Union[EffectSemantics, str]] = ..., dispatch_mode: _Optional[_Union[EffectDispatchMode, str]] = ..., business_key: _Optional[str] = ..., connector: _Optional[str] = ..., scope: _Optional[str] = ..., digest: _Optional[str] = ..., position: _Optional[str] = ..., change_check: _Optional[_Union[ChangeCheck, str]] = ..., after_seq: _Optional[int] = ...) -> None: ...

class BeginEffectResponse(_message.Message):
    __slots__ = ("seq", "idempotency_key", "status", "response_json", "error_json", "existing", "run_id", "digest", "position", "displaced")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_JSON_FIELD_NUMBER: _ClassVar[int]
    ERROR_JSON_FIELD_NUMBER: _ClassVar[int]
    EXISTING_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    DISPLACED_FIELD_NUMBER: _ClassVar[int]
    seq: int
    idempotency_key: str
    status: EffectStatus
    response_json: str
    error_json: str
    existing: bool
    run_id: str
    digest: str
    position: str
    displaced: str
    def __init__(self, seq: _Optional[int] = ..., idempotency_key: _Optional[str] = ..., status: _Optional[_Union[EffectStatus, str]] = ..., response_json: _Optional[str] = ..., error_json: _Optional[str] = ..., existing: bool = ..., run_id: _Optional[str] = ..., digest: _Optional[str] = ..., position: _Optional[str] = ..., displaced: _Optional[str] = ...) -> None: ...

class CompleteEffectRequest(_message.Message):
    __slots__ = ("run_id", "idempotency_key", "status", "response_json", "error_json")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_JSON_FIELD_NUMBER: _ClassVar[int]
    ERROR_JSON_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    idempotency_key: str
    status: EffectStatus
    response_json: str
    error_json: str
    def __init__(self, run_id: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., status: _Optional[_Union[EffectStatus, str]] = ..., response_json: _Optional[str] = ..., error_json: _Optional[str] = ...) -> None: ...

class GetEffectRequest(_message.Message):
    __slots__ = ("run_id", "idempotency_key")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    idempotency_key: str
    def __init__(self, run_id: _Optional[str] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class GetEffectResponse(_message.Message):
    __slots__ = ("found", "effect")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    found: bool
    effect: EffectRecord
    def __init__(self, found: bool = ..., effect: _Optional[_Union[EffectRecord, _Mapping]] = ...) -> None: ...

class ReconcileEffectRequest(_message.Message):
    __slots__ = ("run_id", "idempotency_key", "resolved_status", "response_json", "error_json")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_STATUS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_JSON_FIELD_NUMBER: _ClassVar[int]
    ERROR_JSON_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    idempotency_key: str
    resolved_status: EffectStatus
    response_json: str
    error_json: str
    def __init__(self, run_id: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., resolved_status: _Optional[_Union[EffectStatus, str]] = ..., response_json: _Optional[str] = ..., error_json: _Optional[str] = ...) -> None: ...

class EffectRecord(_message.Message):
    __slots__ = ("run_id", "seq", "decision_index", "tool_name", "idempotency_key", "status", "request_json", "response_json", "error_json", "ts_ms", "semantics", "dispatch_mode", "business_key", "connector", "dispatch_attempts", "next_dispatch_at_ms", "external_ref", "dispatch_claimed_by", "dispatch_claim_expires_at_ms", "last_dispatch_error", "scope", "dispatch_certainty", "digest", "position")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    DECISION_INDEX_FIELD_NUMBER: _ClassVar[int]
    TOOL_NAME_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_JSON_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_JSON_FIELD_NUMBER: _ClassVar[int]
    ERROR_JSON_FIELD_NUMBER: _ClassVar[int]
    TS_MS_FIELD_NUMBER: _ClassVar[int]
    SEMANTICS_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_MODE_FIELD_NUMBER: _ClassVar[int]
    BUSINESS_KEY_FIELD_NUMBER: _ClassVar[int]
    CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_DISPATCH_AT_MS_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_REF_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_CLAIMED_BY_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_CLAIM_EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_DISPATCH_ERROR_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_CERTAINTY_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    seq: int
    decision_index: int
    tool_name: str
    idempotency_key: str
    status: EffectStatus
    request_json: str
    response_json: str
    error_json: str
    ts_ms: int
    semantics: EffectSemantics
    dispatch_mode: EffectDispatchMode
    business_key: str
    connector: str
    dispatch_attempts: int
    next_dispatch_at_ms: int
    external_ref: str
    dispatch_claimed_by: str
    dispatch_claim_expires_at_ms: int
    last_dispatch_error: str
    scope: str
    dispatch_certainty: DispatchCertainty
    digest: str
    position: str
    def __init__(self, run_id: _Optional[str] = ..., seq: _Optional[int] = ..., decision_index: _Optional[int] = ..., tool_name: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., status: _Optional[_Union[EffectStatus, str]] = ..., request_json: _Optional[str] = ..., response_json: _Optional[str] = ..., error_json: _Optional[str] = ..., ts_ms: _Optional[int] = ..., semantics: _Optional[_Union[EffectSemantics, str]] = ..., dispatch_mode: _Optional[_Union[EffectDispatchMode, str]] = ..., business_key: _Optional[str] = ..., connector: _Optional[str] = ..., dispatch_attempts: _Optional[int] = ..., next_dispatch_at_ms: _Optional[int] = ..., external_ref: _Optional[str] = ..., dispatch_claimed_by: _Optional[str] = ..., dispatch_claim_expires_at_ms: _Optional[int] = ..., last_dispatch_error: _Optional[str] = ..., scope: _Optional[str] = ..., dispatch_certainty: _Optional[_Union[DispatchCertainty, str]] = ..., digest: _Optional[str] = ..., position: _Optional[str] = ...) -> None: ...

class ListEffectsToDispatchRequest(_message.Message):
    __slots__ = ("now_ms", "limit", "connector")
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    now_ms: int
    limit: int
    connector: str
    def __init__(self, now_ms: _Optional[int] = ..., limit: _Optional[int] = ..., connector: _Optional[str] = ...) -> None: ...

class ListEffectsToDispatchResponse(_message.Message):
    __slots__ = ("effects",)
    EFFECTS_FIELD_NUMBER: _ClassVar[int]
    effects: _containers.RepeatedCompositeFieldContainer[EffectRecord]
    def __init__(self, effects: _Optional[_Iterable[_Union[EffectRecord, _Mapping]]] = ...) -> None: ...

class ClaimEffectDispatchRequest(_message.Message):
    __slots__ = ("run_id", "idempotency_key", "claimer", "lease_ttl_ms", "renew")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    CLAIMER_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    idempotency_key: str
    claimer: str
    lease_ttl_ms: int
    renew: bool
    def __init__(self, run_id: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., claimer: _Optional[str] = ..., lease_ttl_ms: _Optional[int] = ..., renew: bool = ...) -> None: ...

class ClaimEffectDispatchResponse(_message.Message):
    __slots__ = ("acquired", "effect", "previous_claimer")
    ACQUIRED_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_CLAIMER_FIELD_NUMBER: _ClassVar[int]
    acquired: bool
    effect: EffectRecord
    previous_claimer: str
    def __init__(self, acquired: bool = ..., effect: _Optional[_Union[EffectRecord, _Mapping]] = ..., previous_claimer: _Optional[str] = ...) -> None: ...

class RecordDispatchAttemptRequest(_message.Message):
    __slots__ = ("run_id", "idempotency_key", "error", "next_dispatch_at_ms", "claimer", "certainty")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NEXT_DISPATCH_AT_MS_FIELD_NUMBER: _ClassVar[int]
    CLAIMER_FIELD_NUMBER: _ClassVar[int]
    CERTAINTY_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    idempotency_key: str
    error: str
    next_dispatch_at_ms: int
    claimer: str
    certainty: DispatchCertainty
    def __init__(self, run_id: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., error: _Optional[str] = ..., next_dispatch_at_ms: _Optional[int] = ..., claimer: _Optional[str] = ..., certainty: _Optional[_Union[DispatchCertainty, str]] = ...) -> None: ...

class RecordExternalObservationRequest(_message.Message):
    __slots__ = ("run_id", "idempotency_key", "resolution", "external_ref", "response_json", "error_json", "compensate_on_duplicate_kind", "claimer")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    RESOLUTION_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_REF_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_JSON_FIELD_NUMBER: _ClassVar[int]
    ERROR_JSON_FIELD_NUMBER: _ClassVar[int]
    COMPENSATE_ON_DUPLICATE_KIND_FIELD_NUMBER: _ClassVar[int]
    CLAIMER_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    idempotency_key: str
    resolution: EffectResolution
    external_ref: str
    response_json: str
    error_json: str
    compensate_on_duplicate_kind: str
    claimer: str
    def __init__(self, run_id: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., resolution: _Optional[_Union[EffectResolution, str]] = ..., external_ref: _Optional[str] = ..., response_json: _Optional[str] = ..., error_json: _Optional[str] = ..., compensate_on_duplicate_kind: _Optional[str] = ..., claimer: _Optional[str] = ...) -> None: ...

class RegisterCompensationRequest(_message.Message):
    __slots__ = ("run_id", "effect_key", "kind", "payload_json", "compensator_ref", "max_attempts")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EFFECT_KEY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_JSON_FIELD_NUMBER: _ClassVar[int]
    COMPENSATOR_REF_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    effect_key: str
    kind: str
    payload_json: str
    compensator_ref: str
    max_attempts: int
    def __init__(self, run_id: _Optional[str] = ..., effect_key: _Optional[str] = ..., kind: _Optional[str] = ..., payload_json: _Optional[str] = ..., compensator_ref: _Optional[str] = ..., max_attempts: _Optional[int] = ...) -> None: ...

class ListObligationsRequest(_message.Message):
    __slots__ = ("run_id", "only_unresolved", "status_filter")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ONLY_UNRESOLVED_FIELD_NUMBER: _ClassVar[int]
    STATUS_FILTER_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    only_unresolved: bool
    status_filter: ObligationStatus
    def __init__(self, run_id: _Optional[str] = ..., only_unresolved: bool = ..., status_filter: _Optional[_Union[ObligationStatus, str]] = ...) -> None: ...

class ListObligationsResponse(_message.Message):
    __slots__ = ("obligations",)
    OBLIGATIONS_FIELD_NUMBER: _ClassVar[int]
    obligations: _containers.RepeatedCompositeFieldContainer[ObligationRecord]
    def __init__(self, obligations: _Optional[_Iterable[_Union[ObligationRecord, _Mapping]]] = ...) -> None: ...

class ResolveObligationRequest(_message.Message):
    __slots__ = ("run_id", "obligation_seq", "status", "result_json", "settle_run", "claimer")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    OBLIGATION_SEQ_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RESULT_JSON_FIELD_NUMBER: _ClassVar[int]
    SETTLE_RUN_FIELD_NUMBER: _ClassVar[int]
    CLAIMER_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    obligation_seq: int
    status: ObligationStatus
    result_json: str
    settle_run: bool
    claimer: str
    def __init__(self, run_id: _Optional[str] = ..., obligation_seq: _Optional[int] = ..., status: _Optional[_Union[ObligationStatus, str]] = ..., result_json: _Optional[str] = ..., settle_run: bool = ..., claimer: _Optional[str] = ...) -> None: ...

class ObligationRecord(_message.Message):
    __slots__ = ("run_id", "seq", "effect_key", "kind", "payload_json", "status", "ts_ms", "compensator_ref", "attempts", "max_attempts", "next_attempt_at_ms", "last_error", "claimed_by", "claim_expires_at_ms", "result_json", "owed", "act")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    EFFECT_KEY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_JSON_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TS_MS_FIELD_NUMBER: _ClassVar[int]
    COMPENSATOR_REF_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_ATTEMPT_AT_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_BY_FIELD_NUMBER: _ClassVar[int]
    CLAIM_EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    RESULT_JSON_FIELD_NUMBER: _ClassVar[int]
    OWED_FIELD_NUMBER: _ClassVar[int]
    ACT_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    seq: int
    effect_key: str
    kind: str
    payload_json: str
    status: ObligationStatus
    ts_ms: int
    compensator_ref: str
    attempts: int
    max_attempts: int
    next_attempt_at_ms: int
    last_error: str
    claimed_by: str
    claim_expires_at_ms: int
    result_json: str
    owed: int
    act: str
    def __init__(self, run_id: _Optional[str] = ..., seq: _Optional[int] = ..., effect_key: _Optional[str] = ..., kind: _Optional[str] = ..., payload_json: _Optional[str] = ..., status: _Optional[_Union[ObligationStatus, str]] = ..., ts_ms: _Optional[int] = ..., compensator_ref: _Optional[str] = ..., attempts: _Optional[int] = ..., max_attempts: _Optional[int] = ..., next_attempt_at_ms: _Optional[int] = ..., last_error: _Optional[str] = ..., claimed_by: _Optional[str] = ..., claim_expires_at_ms: _Optional[int] = ..., result_json: _Optional[str] = ..., owed: _Optional[int] = ..., act: _Optional[str] = ...) -> None: ...

class ListUnresolvedObligationsRequest(_message.Message):
    __slots__ = ("limit", "now_ms", "include_pending", "include_stuck", "include_committed_expired", "only_owed")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_PENDING_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STUCK_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_COMMITTED_EXPIRED_FIELD_NUMBER: _ClassVar[int]
    ONLY_OWED_FIELD_NUMBER: _ClassVar[int]
    limit: int
    now_ms: int
    include_pending: bool
    include_stuck: bool
    include_committed_expired: bool
    only_owed: bool
    def __init__(self, limit: _Optional[int] = ..., now_ms: _Optional[int] = ..., include_pending: bool = ..., include_stuck: bool = ..., include_committed_expired: bool = ..., only_owed: bool = ...) -> None: ...

class ListUnresolvedObligationsResponse(_message.Message):
    __slots__ = ("obligations",)
    OBLIGATIONS_FIELD_NUMBER: _ClassVar[int]
    obligations: _containers.RepeatedCompositeFieldContainer[ObligationRecord]
    def __init__(self, obligations: _Optional[_Iterable[_Union[ObligationRecord, _Mapping]]] = ...) -> None: ...

class ClaimObligationRequest(_message.Message):
    __slots__ = ("run_id", "obligation_seq", "claimer", "lease_ttl_ms", "only_owed", "renew")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    OBLIGATION_SEQ_FIELD_NUMBER: _ClassVar[int]
    CLAIMER_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    ONLY_OWED_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    obligation_seq: int
    claimer: str
    lease_ttl_ms: int
    only_owed: bool
    renew: bool
    def __init__(self, run_id: _Optional[str] = ..., obligation_seq: _Optional[int] = ..., claimer: _Optional[str] = ..., lease_ttl_ms: _Optional[int] = ..., only_owed: bool = ..., renew: bool = ...) -> None: ...

class ClaimObligationResponse(_message.Message):
    __slots__ = ("acquired", "obligation")
    ACQUIRED_FIELD_NUMBER: _ClassVar[int]
    OBLIGATION_FIELD_NUMBER: _ClassVar[int]
    acquired: bool
    obligation: ObligationRecord
    def __init__(self, acquired: bool = ..., obligation: _Optional[_Union[ObligationRecord, _Mapping]] = ...) -> None: ...

class RecordObligationAttemptRequest(_message.Message):
    __slots__ = ("run_id", "obligation_seq", "error", "next_attempt_at_ms", "settle_run", "claimer", "uncounted")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    OBLIGATION_SEQ_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NEXT_ATTEMPT_AT_MS_FIELD_NUMBER: _ClassVar[int]
    SETTLE_RUN_FIELD_NUMBER: _ClassVar[int]
    CLAIMER_FIELD_NUMBER: _ClassVar[int]
    UNCOUNTED_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    obligation_seq: int
    error: str
    next_attempt_at_ms: int
    settle_run: bool
    claimer: str
    uncounted: bool
    def __init__(self, run_id: _Optional[str] = ..., obligation_seq: _Optional[int] = ..., error: _Optional[str] = ..., next_attempt_at_ms: _Optional[int] = ..., settle_run: bool = ..., claimer: _Optional[str] = ..., uncounted: bool = ...) -> None: ...

class SetBudgetRequest(_message.Message):
    __slots__ = ("run_id", "usd_cap", "token_cap")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    USD_CAP_FIELD_NUMBER: _ClassVar[int]
    TOKEN_CAP_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    usd_cap: float
    token_cap: int
    def __init__(self, run_id: _Optional[str] = ..., usd_cap: _Optional[float] = ..., token_cap: _Optional[int] = ...) -> None: ...

class AdmitBudgetRequest(_message.Message):
    __slots__ = ("run_id", "usd_estimate", "token_estimate")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    USD_ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    usd_estimate: float
    token_estimate: int
    def __init__(self, run_id: _Optional[str] = ..., usd_estimate: _Optional[float] = ..., token_estimate: _Optional[int] = ...) -> None: ...

class AdmitBudgetResponse(_message.Message):
    __slots__ = ("admitted", "reason", "budget")
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    admitted: bool
    reason: str
    budget: BudgetState
    def __init__(self, admitted: bool = ..., reason: _Optional[str] = ..., budget: _Optional[_Union[BudgetState, _Mapping]] = ...) -> None: ...

class ChargeBudgetRequest(_message.Message):
    __slots__ = ("run_id", "usd", "tokens")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    USD_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    usd: float
    tokens: int
    def __init__(self, run_id: _Optional[str] = ..., usd: _Optional[float] = ..., tokens: _Optional[int] = ...) -> None: ...

class BudgetState(_message.Message):
    __slots__ = ("run_id", "usd_cap", "token_cap", "usd_spent", "tokens_spent")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    USD_CAP_FIELD_NUMBER: _ClassVar[int]
    TOKEN_CAP_FIELD_NUMBER: _ClassVar[int]
    USD_SPENT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_SPENT_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    usd_cap: float
    token_cap: int
    usd_spent: float
    tokens_spent: int
    def __init__(self, run_id: _Optional[str] = ..., usd_cap: _Optional[float] = ..., token_cap: _Optional[int] = ..., usd_spent: _Optional[float] = ..., tokens_spent: _Optional[int] = ...) -> None: ...

class AwaitSignalRequest(_message.Message):
    __slots__ = ("run_id", "gate_name", "payload_json", "risk", "timeout_ms", "on_timeout_json", "remind_after_ms", "escalate_after_ms")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    GATE_NAME_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_JSON_FIELD_NUMBER: _ClassVar[int]
    RISK_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ON_TIMEOUT_JSON_FIELD_NUMBER: _ClassVar[int]
    REMIND_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    ESCALATE_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    gate_name: str
    payload_json: str
    risk: str
    timeout_ms: int
    on_timeout_json: str
    remind_after_ms: int
    escalate_after_ms: int
    def __init__(self, run_id: _Optional[str] = ..., gate_name: _Optional[str] = ..., payload_json: _Optional[str] = ..., risk: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., on_timeout_json: _Optional[str] = ..., remind_after_ms: _Optional[int] = ..., escalate_after_ms: _Optional[int] = ...) -> None: ...

class AwaitSignalResponse(_message.Message):
    __slots__ = ("delivered", "resolution_json", "answered_by", "answered_at_ms", "deadline_ms", "timed_out")
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    RESOLUTION_JSON_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_BY_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    delivered: bool
    resolution_json: str
    answered_by: str
    answered_at_ms: int
    deadline_ms: int
    timed_out: bool
    def __init__(self, delivered: bool = ..., resolution_json: _Optional[str] = ..., answered_by: _Optional[str] = ..., answered_at_ms: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., timed_out: bool = ...) -> None: ...

class GateRecord(_message.Message):
    __slots__ = ("run_id", "gate_name", "app_name", "user_id", "session_id", "invocation_id", "state", "payload_json", "risk", "created_at_ms", "deadline_ms", "on_timeout_json", "remind_at_ms", "reminded_at_ms", "escalate_at_ms", "escalated_at_ms", "answer_json", "answered_by", "answered_at_ms", "truncated", "tenant_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    GATE_NAME_FIELD_NUMBER: _ClassVar[int]
    APP_NAME_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    INVOCATION_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_JSON_FIELD_NUMBER: _ClassVar[int]
    RISK_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    ON_TIMEOUT_JSON_FIELD_NUMBER: _ClassVar[int]
    REMIND_AT_MS_FIELD_NUMBER: _ClassVar[int]
    REMINDED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ESCALATE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ESCALATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_JSON_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_BY_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    gate_name: str
    app_name: str
    user_id: str
    session_id: str
    invocation_id: str
    state: GateState
    payload_json: str
    risk: str
    created_at_ms: int
    deadline_ms: int
    on_timeout_json: str
    remind_at_ms: int
    reminded_at_ms: int
    escalate_at_ms: int
    escalated_at_ms: int
    answer_json: str
    answered_by: str
    answered_at_ms: int
    truncated: bool
    tenant_id: str
    def __init__(self, run_id: _Optional[str] = ..., gate_name: _Optional[str] = ..., app_name: _Optional[str] = ..., user_id: _Optional[str] = ..., session_id: _Optional[str] = ..., invocation_id: _Optional[str] = ..., state: _Optional[_Union[GateState, str]] = ..., payload_json: _Optional[str] = ..., risk: _Optional[str] = ..., created_at_ms: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., on_timeout_json: _Optional[str] = ..., remind_at_ms: _Optional[int] = ..., reminded_at_ms: _Optional[int] = ..., escalate_at_ms: _Optional[int] = ..., escalated_at_ms: _Optional[int] = ..., answer_json: _Optional[str] = ..., answered_by: _Optional[str] = ..., answered_at_ms: _Optional[int] = ..., truncated: bool = ..., tenant_id: _Optional[str] = ...) -> None: ...

class Schedule(_message.Message):
    __slots__ = ("name", "cron", "time_zone", "overlap", "catch_up_ms", "jitter_ms", "app_name", "user_id", "session_id", "playbook", "input_json", "paused", "created_at_ms", "created_by", "next_ms", "last_nominal_ms", "last_fired_at_ms", "last_run_id", "last_error", "begun", "skipped", "missed", "buffered_ms", "tenant_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CRON_FIELD_NUMBER: _ClassVar[int]
    TIME_ZONE_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    CATCH_UP_MS_FIELD_NUMBER: _ClassVar[int]
    JITTER_MS_FIELD_NUMBER: _ClassVar[int]
    APP_NAME_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PLAYBOOK_FIELD_NUMBER: _ClassVar[int]
    INPUT_JSON_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    NEXT_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_NOMINAL_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIRED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    BUFFERED_MS_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    cron: str
    time_zone: str
    overlap: str
    catch_up_ms: int
    jitter_ms: int
    app_name: str
    user_id: str
    session_id: str
    playbook: str
    input_json: str
    paused: bool
    created_at_ms: int
    created_by: str
    next_ms: int
    last_nominal_ms: int
    last_fired_at_ms: int
    last_run_id: str
    last_error: str
    begun: int
    skipped: int
    missed: int
    buffered_ms: int
    tenant_id: str
    def __init__(self, name: _Optional[str] = ..., cron: _Optional[str] = ..., time_zone: _Optional[str] = ..., overlap: _Optional[str] = ..., catch_up_ms: _Optional[int] = ..., jitter_ms: _Optional[int] = ..., app_name: _Optional[str] = ..., user_id: _Optional[str] = ..., session_id: _Optional[str] = ..., playbook: _Optional[str] = ..., input_json: _Optional[str] = ..., paused: bool = ..., created_at_ms: _Optional[int] = ..., created_by: _Optional[str] = ..., next_ms: _Optional[int] = ..., last_nominal_ms: _Optional[int] = ..., last_fired_at_ms: _Optional[int] = ..., last_run_id: _Optional[str] = ..., last_error: _Optional[str] = ..., begun: _Optional[int] = ..., skipped: _Optional[int] = ..., missed: _Optional[int] = ..., buffered_ms: _Optional[int] = ..., tenant_id: _Optional[str] = ...) -> None: ...

class CreateScheduleRequest(_message.Message):
    __slots__ = ("schedule", "replace")
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    schedule: Schedule
    replace: bool
    def __init__(self, schedule: _Optional[_Union[Schedule, _Mapping]] = ..., replace: bool = ...) -> None: ...

class GetScheduleRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListSchedulesRequest(_message.Message):
    __slots__ = ("after_name", "limit")
    AFTER_NAME_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after_name: str
    limit: int
    def __init__(self, after_name: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListSchedulesResponse(_message.Message):
    __slots__ = ("schedules",)
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    schedules: _containers.RepeatedCompositeFieldContainer[Schedule]
    def __init__(self, schedules: _Optional[_Iterable[_Union[Schedule, _Mapping]]] = ...) -> None: ...

class PauseScheduleRequest(_message.Message):
    __slots__ = ("name", "resume")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    name: str
    resume: bool
    def __init__(self, name: _Optional[str] = ..., resume: bool = ...) -> None: ...

class DeleteScheduleRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteScheduleResponse(_message.Message):
    __slots__ = ("deleted",)
    DELETED_FIELD_NUMBER: _ClassVar[int]
    deleted: bool
    def __init__(self, deleted: bool = ...) -> None: ...

class TriggerScheduleRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class TriggerScheduleResponse(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class ListGatesRequest(_message.Message):
    __slots__ = ("state", "app_name", "risk", "gate_name", "run_id", "deadline_before_ms", "limit", "cursor")
    STATE_FIELD_NUMBER: _ClassVar[int]
    APP_NAME_FIELD_NUMBER: _ClassVar[int]
    RISK_FIELD_NUMBER: _ClassVar[int]
    GATE_NAME_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_BEFORE_MS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    state: GateState
    app_name: str
    risk: str
    gate_name: str
    run_id: str
    deadline_before_ms: int
    limit: int
    cursor: str
    def __init__(self, state: _Optional[_Union[GateState, str]] = ..., app_name: _Optional[str] = ..., risk: _Optional[str] = ..., gate_name: _Optional[str] = ..., run_id: _Optional[str] = ..., deadline_before_ms: _Optional[int] = ..., limit: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListGatesResponse(_message.Message):
    __slots__ = ("gates", "cursor")
    GATES_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    gates: _containers.RepeatedCompositeFieldContainer[GateRecord]
    cursor: str
    def __init__(self, gates: _Optional[_Iterable[_Union[GateRecord, _Mapping]]] = ..., cursor: _Optional[str] = ...) -> None: ...

class SendSignalRequest(_message.Message):
    __slots__ = ("run_id", "app_name", "user_id", "session_id", "gate_name", "resolution_json")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    APP_NAME_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    GATE_NAME_FIELD_NUMBER: _ClassVar[int]
    RESOLUTION_JSON_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    app_name: str
    user_id: str
    session_id: str
    gate_name: str
    resolution_json: str
    def __init__(self, run_id: _Optional[str] = ..., app_name: _Optional[str] = ..., user_id: _Optional[str] = ..., session_id: _Optional[str] = ..., gate_name: _Optional[str] = ..., resolution_json: _Optional[str] = ...) -> None: ...

class SendSignalResponse(_message.Message):
    __slots__ = ("accepted", "run_id", "run_status", "repeated")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_STATUS_FIELD_NUMBER: _ClassVar[int]
    REPEATED_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    run_id: str
    run_status: RunStatus
    repeated: bool
    def __init__(self, accepted: bool = ..., run_id: _Optional[str] = ..., run_status: _Optional[_Union[RunStatus, str]] = ..., repeated: bool = ...) -> None: ...

class ListPendingEffectsRequest(_message.Message):
    __slots__ = ("older_than_ms", "limit", "include_pending", "include_unknown")
    OLDER_THAN_MS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_PENDING_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    older_than_ms: int
    limit: int
    include_pending: bool
    include_unknown: bool
    def __init__(self, older_than_ms: _Optional[int] = ..., limit: _Optional[int] = ..., include_pending: bool = ..., include_unknown: bool = ...) -> None: ...

class ListPendingEffectsResponse(_message.Message):
    __slots__ = ("effects",)
    EFFECTS_FIELD_NUMBER: _ClassVar[int]
    effects: _containers.RepeatedCompositeFieldContainer[EffectRecord]
    def __init__(self, effects: _Optional[_Iterable[_Union[EffectRecord, _Mapping]]] = ...) -> None: ...

class SetTimerRequest(_message.Message):
    __slots__ = ("run_id", "timer_id", "fire_at_ms", "kind", "payload_json")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TIMER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_JSON_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    timer_id: str
    fire_at_ms: int
    kind: str
    payload_json: str
    def __init__(self, run_id: _Optional[str] = ..., timer_id: _Optional[str] = ..., fire_at_ms: _Optional[int] = ..., kind: _Optional[str] = ..., payload_json: _Optional[str] = ...) -> None: ...

class TimerRecord(_message.Message):
    __slots__ = ("run_id", "timer_id", "fire_at_ms", "kind", "payload_json", "fired", "created_at_ms", "claimed_by", "claim_expires_at_ms", "server_fired_at_ms")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TIMER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_JSON_FIELD_NUMBER: _ClassVar[int]
    FIRED_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_BY_FIELD_NUMBER: _ClassVar[int]
    CLAIM_EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIRED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    timer_id: str
    fire_at_ms: int
    kind: str
    payload_json: str
    fired: bool
    created_at_ms: int
    claimed_by: str
    claim_expires_at_ms: int
    server_fired_at_ms: int
    def __init__(self, run_id: _Optional[str] = ..., timer_id: _Optional[str] = ..., fire_at_ms: _Optional[int] = ..., kind: _Optional[str] = ..., payload_json: _Optional[str] = ..., fired: bool = ..., created_at_ms: _Optional[int] = ..., claimed_by: _Optional[str] = ..., claim_expires_at_ms: _Optional[int] = ..., server_fired_at_ms: _Optional[int] = ...) -> None: ...

class SleepRunRequest(_message.Message):
    __slots__ = ("run_id", "timer_id", "duration_ms")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TIMER_ID_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    timer_id: str
    duration_ms: int
    def __init__(self, run_id: _Optional[str] = ..., timer_id: _Optional[str] = ..., duration_ms: _Optional[int] = ...) -> None: ...

class SleepRunResponse(_message.Message):
    __slots__ = ("done", "wake_at_ms")
    DONE_FIELD_NUMBER: _ClassVar[int]
    WAKE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    done: bool
    wake_at_ms: int
    def __init__(self, done: bool = ..., wake_at_ms: _Optional[int] = ...) -> None: ...

class CancelTimerRequest(_message.Message):
    __slots__ = ("run_id", "timer_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TIMER_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    timer_id: str
    def __init__(self, run_id: _Optional[str] = ..., timer_id: _Optional[str] = ...) -> None: ...

class CancelTimerResponse(_message.Message):
    __slots__ = ("cancelled",)
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    cancelled: bool
    def __init__(self, cancelled: bool = ...) -> None: ...

class ListDueTimersRequest(_message.Message):
    __slots__ = ("now_ms", "limit", "claim", "claimer", "lease_ttl_ms")
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    CLAIMER_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    now_ms: int
    limit: int
    claim: bool
    claimer: str
    lease_ttl_ms: int
    def __init__(self, now_ms: _Optional[int] = ..., limit: _Optional[int] = ..., claim: bool = ..., claimer: _Optional[str] = ..., lease_ttl_ms: _Optional[int] = ...) -> None: ...

class CompleteTimerRequest(_message.Message):
    __slots__ = ("run_id", "timer_id", "claimer")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TIMER_ID_FIELD_NUMBER: _ClassVar[int]
    CLAIMER_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    timer_id: str
    claimer: str
    def __init__(self, run_id: _Optional[str] = ..., timer_id: _Optional[str] = ..., claimer: _Optional[str] = ...) -> None: ...

class CompleteTimerResponse(_message.Message):
    __slots__ = ("completed",)
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    completed: bool
    def __init__(self, completed: bool = ...) -> None: ...

class ListDueTimersResponse(_message.Message):
    __slots__ = ("timers",)
    TIMERS_FIELD_NUMBER: _ClassVar[int]
    timers: _containers.RepeatedCompositeFieldContainer[TimerRecord]
    def __init__(self, timers: _Optional[_Iterable[_Union[TimerRecord, _Mapping]]] = ...) -> None: ...

class ListCompactableRunsRequest(_message.Message):
    __slots__ = ("before_ms", "limit")
    BEFORE_MS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    before_ms: int
    limit: int
    def __init__(self, before_ms: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ListCompactableRunsResponse(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[RunState]
    def __init__(self, runs: _Optional[_Iterable[_Union[RunState, _Mapping]]] = ...) -> None: ...

class CompactRunRequest(_message.Message):
    __slots__ = ("run_id", "ignore_unowed")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    IGNORE_UNOWED_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    ignore_unowed: bool
    def __init__(self, run_id: _Optional[str] = ..., ignore_unowed: bool = ...) -> None: ...

class CompactRunResponse(_message.Message):
    __slots__ = ("decisions_zeroed", "effects_zeroed", "bytes_saved", "already_compacted")
    DECISIONS_ZEROED_FIELD_NUMBER: _ClassVar[int]
    EFFECTS_ZEROED_FIELD_NUMBER: _ClassVar[int]
    BYTES_SAVED_FIELD_NUMBER: _ClassVar[int]
    ALREADY_COMPACTED_FIELD_NUMBER: _ClassVar[int]
    decisions_zeroed: int
    effects_zeroed: int
    bytes_saved: int
    already_compacted: bool
    def __init__(self, decisions_zeroed: _Optional[int] = ..., effects_zeroed: _Optional[int] = ..., bytes_saved: _Optional[int] = ..., already_compacted: bool = ...) -> None: ...

class SubscribeEventsRequest(_message.Message):
    __slots__ = ("from_ts_ms", "run_id", "kind", "from_global_seq", "subject_pattern", "skip_gaps")
    FROM_TS_MS_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FROM_GLOBAL_SEQ_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_PATTERN_FIELD_NUMBER: _ClassVar[int]
    SKIP_GAPS_FIELD_NUMBER: _ClassVar[int]
    from_ts_ms: int
    run_id: str
    kind: str
    from_global_seq: int
    subject_pattern: str
    skip_gaps: bool
    def __init__(self, from_ts_ms: _Optional[int] = ..., run_id: _Optional[str] = ..., kind: _Optional[str] = ..., from_global_seq: _Optional[int] = ..., subject_pattern: _Optional[str] = ..., skip_gaps: bool = ...) -> None: ...

class SubscribeBySubjectRequest(_message.Message):
    __slots__ = ("subject_pattern", "predicate_cel", "from_global_seq", "skip_gaps")
    SUBJECT_PATTERN_FIELD_NUMBER: _ClassVar[int]
    PREDICATE_CEL_FIELD_NUMBER: _ClassVar[int]
    FROM_GLOBAL_SEQ_FIELD_NUMBER: _ClassVar[int]
    SKIP_GAPS_FIELD_NUMBER: _ClassVar[int]
    subject_pattern: str
    predicate_cel: str
    from_global_seq: int
    skip_gaps: bool
    def __init__(self, subject_pattern: _Optional[str] = ..., predicate_cel: _Optional[str] = ..., from_global_seq: _Optional[int] = ..., skip_gaps: bool = ...) -> None: ...

class EventEntry(_message.Message):
    __slots__ = ("run_id", "seq", "kind", "payload_json", "ts_ms", "global_seq", "subject", "schema_version", "trace_id", "span_id", "parent_span_id", "tenant", "user", "session", "chain", "gaps")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_JSON_FIELD_NUMBER: _ClassVar[int]
    TS_MS_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_SEQ_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    seq: int
    kind: str
    payload_json: str
    ts_ms: int
    global_seq: int
    subject: str
    schema_version: int
    trace_id: str
    span_id: str
    parent_span_id: str
    tenant: str
    user: str
    session: str
    chain: bytes
    gaps: _containers.RepeatedCompositeFieldContainer[JournalGap]
    def __init__(self, run_id: _Optional[str] = ..., seq: _Optional[int] = ..., kind: _Optional[str] = ..., payload_json: _Optional[str] = ..., ts_ms: _Optional[int] = ..., global_seq: _Optional[int] = ..., subject: _Optional[str] = ..., schema_version: _Optional[int] = ..., trace_id: _Optional[str] = ..., span_id: _Optional[str] = ..., parent_span_id: _Optional[str] = ..., tenant: _Optional[str] = ..., user: _Optional[str] = ..., session: _Optional[str] = ..., chain: _Optional[bytes] = ..., gaps: _Optional[_Iterable[_Union[JournalGap, _Mapping]]] = ...) -> None: ...

class Reaction(_message.Message):
    __slots__ = ("reaction_id", "name", "subject_pattern", "predicate_cel", "handler_kind", "agent_app", "publish_target", "max_concurrency", "rate_limit_per_s", "debounce_ms", "retry_max", "retry_backoff_ms", "dlq_after_n", "num_shards", "created_at_ms", "deleted", "bootstrap_from_head", "from_global_seq", "backfill", "allow_self", "strict_order", "updated_at_ms")
    REACTION_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_PATTERN_FIELD_NUMBER: _ClassVar[int]
    PREDICATE_CEL_FIELD_NUMBER: _ClassVar[int]
    HANDLER_KIND_FIELD_NUMBER: _ClassVar[int]
    AGENT_APP_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_TARGET_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    RATE_LIMIT_PER_S_FIELD_NUMBER: _ClassVar[int]
    DEBOUNCE_MS_FIELD_NUMBER: _ClassVar[int]
    RETRY_MAX_FIELD_NUMBER: _ClassVar[int]
    RETRY_BACKOFF_MS_FIELD_NUMBER: _ClassVar[int]
    DLQ_AFTER_N_FIELD_NUMBER: _ClassVar[int]
    NUM_SHARDS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    BOOTSTRAP_FROM_HEAD_FIELD_NUMBER: _ClassVar[int]
    FROM_GLOBAL_SEQ_FIELD_NUMBER: _ClassVar[int]
    BACKFILL_FIELD_NUMBER: _ClassVar[int]
    ALLOW_SELF_FIELD_NUMBER: _ClassVar[int]
    STRICT_ORDER_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    reaction_id: str
    name: str
    subject_pattern: str
    predicate_cel: str
    handler_kind: HandlerKind
    agent_app: str
    publish_target: str
    max_concurrency: int
    rate_limit_per_s: int
    debounce_ms: int
    retry_max: int
    retry_backoff_ms: int
    dlq_after_n: int
    num_shards: int
    created_at_ms: int
    deleted: bool
    bootstrap_from_head: bool
    from_global_seq: int
    backfill: bool
    allow_self: bool
    strict_order: bool
    updated_at_ms: int
    def __init__(self, reaction_id: _Optional[str] = ..., name: _Optional[str] = ..., subject_pattern: _Optional[str] = ..., predicate_cel: _Optional[str] = ..., handler_kind: _Optional[_Union[HandlerKind, str]] = ..., agent_app: _Optional[str] = ..., publish_target: _Optional[str] = ..., max_concurrency: _Optional[int] = ..., rate_limit_per_s: _Optional[int] = ..., debounce_ms: _Optional[int] = ..., retry_max: _Optional[int] = ..., retry_backoff_ms: _Optional[int] = ..., dlq_after_n: _Optional[int] = ..., num_shards: _Optional[int] = ..., created_at_ms: _Optional[int] = ..., deleted: bool = ..., bootstrap_from_head: bool = ..., from_global_seq: _Optional[int] = ..., backfill: bool = ..., allow_self: bool = ..., strict_order: bool = ..., updated_at_ms: _Optional[int] = ...) -> None: ...

class DeregisterReactionRequest(_message.Message):
    __slots__ = ("reaction_id",)
    REACTION_ID_FIELD_NUMBER: _ClassVar[int]
    reaction_id: str
    def __init__(self, reaction_id: _Optional[str] = ...) -> None: ...

class DeregisterReactionResponse(_message.Message):
    __slots__ = ("deregistered",)
    DEREGISTERED_FIELD_NUMBER: _ClassVar[int]
    deregistered: bool
    def __init__(self, deregistered: bool = ...) -> None: ...

class ListReactionsRequest(_message.Message):
    __slots__ = ("subject_pattern",)
    SUBJECT_PATTERN_FIELD_NUMBER: _ClassVar[int]
    subject_pattern: str
    def __init__(self, subject_pattern: _Optional[str] = ...) -> None: ...

class ListReactionsResponse(_message.Message):
    __slots__ = ("reactions",)
    REACTIONS_FIELD_NUMBER: _ClassVar[int]
    reactions: _containers.RepeatedCompositeFieldContainer[Reaction]
    def __init__(self, reactions: _Optional[_Iterable[_Union[Reaction, _Mapping]]] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("task_id", "reaction_id", "shard", "source_run_id", "source_global_seq", "subject", "payload_json", "status", "attempts", "next_attempt_at_ms", "lease_owner", "lease_expires_at_ms", "last_error", "created_at_ms", "trace_id", "parent_span_id", "completed_at_ms", "first_global_seq", "coalesced", "redriven", "source_seq", "source_ts_ms", "schema_version", "source_tenant", "ordering_key")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    REACTION_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SOURCE_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_GLOBAL_SEQ_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_JSON_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_ATTEMPT_AT_MS_FIELD_NUMBER: _ClassVar[int]
    LEASE_OWNER_FIELD_NUMBER: _ClassVar[int]
    LEASE_EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    FIRST_GLOBAL_SEQ_FIELD_NUMBER: _ClassVar[int]
    COALESCED_FIELD_NUMBER: _ClassVar[int]
    REDRIVEN_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SEQ_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TS_MS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TENANT_FIELD_NUMBER: _ClassVar[int]
    ORDERING_KEY_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    reaction_id: str
    shard: int
    source_run_id: str
    source_global_seq: int
    subject: str
    payload_json: str
    status: TaskStatus
    attempts: int
    next_attempt_at_ms: int
    lease_owner: str
    lease_expires_at_ms: int
    last_error: str
    created_at_ms: int
    trace_id: str
    parent_span_id: str
    completed_at_ms: int
    first_global_seq: int
    coalesced: int
    redriven: int
    source_seq: int
    source_ts_ms: int
    schema_version: int
    source_tenant: str
    ordering_key: str
    def __init__(self, task_id: _Optional[str] = ..., reaction_id: _Optional[str] = ..., shard: _Optional[int] = ..., source_run_id: _Optional[str] = ..., source_global_seq: _Optional[int] = ..., subject: _Optional[str] = ..., payload_json: _Optional[str] = ..., status: _Optional[_Union[TaskStatus, str]] = ..., attempts: _Optional[int] = ..., next_attempt_at_ms: _Optional[int] = ..., lease_owner: _Optional[str] = ..., lease_expires_at_ms: _Optional[int] = ..., last_error: _Optional[str] = ..., created_at_ms: _Optional[int] = ..., trace_id: _Optional[str] = ..., parent_span_id: _Optional[str] = ..., completed_at_ms: _Optional[int] = ..., first_global_seq: _Optional[int] = ..., coalesced: _Optional[int] = ..., redriven: _Optional[int] = ..., source_seq: _Optional[int] = ..., source_ts_ms: _Optional[int] = ..., schema_version: _Optional[int] = ..., source_tenant: _Optional[str] = ..., ordering_key: _Optional[str] = ...) -> None: ...

class ClaimTasksRequest(_message.Message):
    __slots__ = ("reaction_id", "shard", "owner", "lease_ms", "max", "now_ms", "task_ids")
    REACTION_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    reaction_id: str
    shard: int
    owner: str
    lease_ms: int
    max: int
    now_ms: int
    task_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, reaction_id: _Optional[str] = ..., shard: _Optional[int] = ..., owner: _Optional[str] = ..., lease_ms: _Optional[int] = ..., max: _Optional[int] = ..., now_ms: _Optional[int] = ..., task_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ClaimTasksResponse(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    def __init__(self, tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ...) -> None: ...

class CompleteTaskRequest(_message.Message):
    __slots__ = ("task_id", "owner")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    owner: str
    def __init__(self, task_id: _Optional[str] = ..., owner: _Optional[str] = ...) -> None: ...

class CompleteTaskResponse(_message.Message):
    __slots__ = ("task",)
    TASK_FIELD_NUMBER: _ClassVar[int]
    task: Task
    def __init__(self, task: _Optional[_Union[Task, _Mapping]] = ...) -> None: ...

class NackTaskRequest(_message.Message):
    __slots__ = ("task_id", "owner", "error", "permanent")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PERMANENT_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    owner: str
    error: str
    permanent: bool
    def __init__(self, task_id: _Optional[str] = ..., owner: _Optional[str] = ..., error: _Optional[str] = ..., permanent: bool = ...) -> None: ...

class NackTaskResponse(_message.Message):
    __slots__ = ("task",)
    TASK_FIELD_NUMBER: _ClassVar[int]
    task: Task
    def __init__(self, task: _Optional[_Union[Task, _Mapping]] = ...) -> None: ...

class ListTasksRequest(_message.Message):
    __slots__ = ("reaction_id", "status", "limit", "before_global_seq")
    REACTION_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_GLOBAL_SEQ_FIELD_NUMBER: _ClassVar[int]
    reaction_id: str
    status: TaskStatus
    limit: int
    before_global_seq: int
    def __init__(self, reaction_id: _Optional[str] = ..., status: _Optional[_Union[TaskStatus, str]] = ..., limit: _Optional[int] = ..., before_global_seq: _Optional[int] = ...) -> None: ...

class ListTasksResponse(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    def __init__(self, tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ...) -> None: ...

class ValueRecord(_message.Message):
    __slots__ = ("namespace", "key", "value_json", "version", "ts_ms", "writer", "deleted")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_JSON_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TS_MS_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: str
    value_json: str
    version: int
    ts_ms: int
    writer: str
    deleted: bool
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[str] = ..., value_json: _Optional[str] = ..., version: _Optional[int] = ..., ts_ms: _Optional[int] = ..., writer: _Optional[str] = ..., deleted: bool = ...) -> None: ...

class WriteValueRequest(_message.Message):
    __slots__ = ("namespace", "key", "value_json", "if_version", "writer")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_JSON_FIELD_NUMBER: _ClassVar[int]
    IF_VERSION_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: str
    value_json: str
    if_version: int
    writer: str
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[str] = ..., value_json: _Optional[str] = ..., if_version: _Optional[int] = ..., writer: _Optional[str] = ...) -> None: ...

class GetValueRequest(_message.Message):
    __slots__ = ("namespace", "key")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: str
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class GetValueResponse(_message.Message):
    __slots__ = ("found", "value")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    found: bool
    value: ValueRecord
    def __init__(self, found: bool = ..., value: _Optional[_Union[ValueRecord, _Mapping]] = ...) -> None: ...

class WatchValueRequest(_message.Message):
    __slots__ = ("namespace", "key", "from_version")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    FROM_VERSION_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: str
    from_version: int
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[str] = ..., from_version: _Optional[int] = ...) -> None: ...

class ValueEvent(_message.Message):
    __slots__ = ("value", "prev_version", "prev_value_json")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    PREV_VERSION_FIELD_NUMBER: _ClassVar[int]
    PREV_VALUE_JSON_FIELD_NUMBER: _ClassVar[int]
    value: ValueRecord
    prev_version: int
    prev_value_json: str
    def __init__(self, value: _Optional[_Union[ValueRecord, _Mapping]] = ..., prev_version: _Optional[int] = ..., prev_value_json: _Optional[str] = ...) -> None: ...

class DeleteValueRequest(_message.Message):
    __slots__ = ("namespace", "key")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: str
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class DeleteValueResponse(_message.Message):
    __slots__ = ("deleted", "version")
    DELETED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    deleted: bool
    version: int
    def __init__(self, deleted: bool = ..., version: _Optional[int] = ...) -> None: ...

class Session(_message.Message):
    __slots__ = ("app_name", "user_id", "session_id", "state_json", "events", "last_update_time_ms")
    APP_NAME_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_JSON_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    LAST_UPDATE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    app_name: str
    user_id: str
    session_id: str
    state_json: str
    events: _containers.RepeatedCompositeFieldContainer[EventRecord]
    last_update_time_ms: int
    def __init__(self, app_name: _Optional[str] = ..., user_id: _Optional[str] = ..., session_id: _Optional[str] = ..., state_json: _Optional[str] = ..., events: _Optional[_Iterable[_Union[EventRecord, _Mapping]]] = ..., last_update_time_ms: _Optional[int] = ...) -> None: ...

class EventRecord(_message.Message):
    __slots__ = ("id", "invocation_id", "author", "branch", "content_json", "actions_json", "timestamp_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    INVOCATION_ID_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    CONTENT_JSON_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_JSON_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    id: str
    invocation_id: str
    author: str
    branch: str
    content_json: str
    actions_json: str
    timestamp_ms: int
    def __init__(self, id: _Optional[str] = ..., invocation_id: _Optional[str] = ..., author: _Optional[str] = ..., branch: _Optional[str] = ..., content_json: _Optional[str] = ..., actions_json: _Optional[str] = ..., timestamp_ms: _Optional[int] = ...) -> None: ...

class CreateSessionRequest(_message.Message):
    __slots__ = ("app_name", "user_id", "session_id", "state_json", "if_absent")
    APP_NAME_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_JSON_FIELD_NUMBER: _ClassVar[int]
    IF_ABSENT_FIELD_NUMBER: _ClassVar[int]
    app_name: str
    user_id: str
    session_id: str
    state_json: str
    if_absent: bool
    def __init__(self, app_name: _Optional[str] = ..., user_id: _Optional[str] = ..., session_id: _Optional[str] = ..., state_json: _Optional[str] = ..., if_absent: bool = ...) -> None: ...

class GetSessionRequest(_message.Message):
    __slots__ = ("app_name", "user_id", "session_id", "max_events")
    APP_NAME_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_EVENTS_FIELD_NUMBER: _ClassVar[int]
    app_name: str
    user_id: str
    session_id: str
    max_events: int
    def __init__(self, app_name: _Optional[str] = ..., user_id: _Optional[str] = ..., session_id: _Optional[str] = ..., max_events: _Optional[int] = ...) -> None: ...

class GetSessionResponse(_message.Message):
    __slots__ = ("found", "session")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    found: bool
    session: Session
    def __init__(self, found: bool = ..., session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class ListSessionsRequest(_message.Message):
    __slots__ = ("app_name", "user_id")
    APP_NAME_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    app_name: str
    user_id: str
    def __init__(self, app_name: _Optional[str] = ..., user_id: _Optional[str] = ...) -> None: ...

class ListSessionsResponse(_message.Message):
    __slots__ = ("sessions",)
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[Session]
    def __init__(self, sessions: _Optional[_Iterable[_Union[Session, _Mapping]]] = ...) -> None: ...

class DeleteSessionRequest(_message.Message):
    __slots__ = ("app_name", "user_id", "session_id")
    APP_NAME_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    app_name: str
    user_id: str
    session_id: str
    def __init__(self, app_name: _Optional[str] = ..., user_id: _Optional[str] = ..., session_id: _Optional[str] = ...) -> None: ...

class DeleteSessionResponse(_message.Message):
    __slots__ = ("deleted",)
    DELETED_FIELD_NUMBER: _ClassVar[int]
    deleted: bool
    def __init__(self, deleted: bool = ...) -> None: ...

class AppendEventRequest(_message.Message):
    __slots__ = ("app_name", "user_id", "session_id", "event", "state_delta_json")
    APP_NAME_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    STATE_DELTA_JSON_FIELD_NUMBER: _ClassVar[int]
    app_name: str
    user_id: str
    session_id: str
    event: EventRecord
    state_delta_json: str
    def __init__(self, app_name: _Optional[str] = ..., user_id: _Optional[str] = ..., session_id: _Optional[str] = ..., event: _Optional[_Union[EventRecord, _Mapping]] = ..., state_delta_json: _Optional[str] = ...) -> None: ...

class AppendEventResponse(_message.Message):
    __slots__ = ("event", "last_update_time_ms")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    LAST_UPDATE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    event: EventRecord
    last_update_time_ms: int
    def __init__(self, event: _Optional[_Union[EventRecord, _Mapping]] = ..., last_update_time_ms: _Optional[int] = ...) -> None: ...

class Draft(_message.Message):
    __slots__ = ("subject", "payload_json", "kind", "run_id", "schema_version", "trace_id", "span_id", "parent_span_id", "tenant", "user", "session", "cause")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_JSON_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    subject: str
    payload_json: str
    kind: str
    run_id: str
    schema_version: int
    trace_id: str
    span_id: str
    parent_span_id: str
    tenant: str
    user: str
    session: str
    cause: str
    def __init__(self, subject: _Optional[str] = ..., payload_json: _Optional[str] = ..., kind: _Optional[str] = ..., run_id: _Optional[str] = ..., schema_version: _Optional[int] = ..., trace_id: _Optional[str] = ..., span_id: _Optional[str] = ..., parent_span_id: _Optional[str] = ..., tenant: _Optional[str] = ..., user: _Optional[str] = ..., session: _Optional[str] = ..., cause: _Optional[str] = ...) -> None: ...

class AppendRequest(_message.Message):
    __slots__ = ("drafts", "request_id", "first_write_wins", "part_of", "part_at")
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_WRITE_WINS_FIELD_NUMBER: _ClassVar[int]
    PART_OF_FIELD_NUMBER: _ClassVar[int]
    PART_AT_FIELD_NUMBER: _ClassVar[int]
    drafts: _containers.RepeatedCompositeFieldContainer[Draft]
    request_id: str
    first_write_wins: bool
    part_of: int
    part_at: int
    def __init__(self, drafts: _Optional[_Iterable[_Union[Draft, _Mapping]]] = ..., request_id: _Optional[str] = ..., first_write_wins: bool = ..., part_of: _Optional[int] = ..., part_at: _Optional[int] = ...) -> None: ...

class AppendResponse(_message.Message):
    __slots__ = ("global_seqs",)
    GLOBAL_SEQS_FIELD_NUMBER: _ClassVar[int]
    global_seqs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, global_seqs: _Optional[_Iterable[int]] = ...) -> None: ...

class AppendReply(_message.Message):
    __slots__ = ("global_seqs", "error_code", "error_message")
    GLOBAL_SEQS_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    global_seqs: _containers.RepeatedScalarFieldContainer[int]
    error_code: str
    error_message: str
    def __init__(self, global_seqs: _Optional[_Iterable[int]] = ..., error_code: _Optional[str] = ..., error_message: _Optional[str] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("subject_pattern", "predicate_cel", "from_global_seq", "run_id", "kind", "max_entries", "skip_gaps")
    SUBJECT_PATTERN_FIELD_NUMBER: _ClassVar[int]
    PREDICATE_CEL_FIELD_NUMBER: _ClassVar[int]
    FROM_GLOBAL_SEQ_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MAX_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SKIP_GAPS_FIELD_NUMBER: _ClassVar[int]
    subject_pattern: str
    predicate_cel: str
    from_global_seq: int
    run_id: str
    kind: str
    max_entries: int
    skip_gaps: bool
    def __init__(self, subject_pattern: _Optional[str] = ..., predicate_cel: _Optional[str] = ..., from_global_seq: _Optional[int] = ..., run_id: _Optional[str] = ..., kind: _Optional[str] = ..., max_entries: _Optional[int] = ..., skip_gaps: bool = ...) -> None: ...

class EntryBatch(_message.Message):
    __slots__ = ("entries", "position", "head", "gaps")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[EventEntry]
    position: int
    head: int
    gaps: _containers.RepeatedCompositeFieldContainer[JournalGap]
    def __init__(self, entries: _Optional[_Iterable[_Union[EventEntry, _Mapping]]] = ..., position: _Optional[int] = ..., head: _Optional[int] = ..., gaps: _Optional[_Iterable[_Union[JournalGap, _Mapping]]] = ...) -> None: ...

class GetHeadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JournalHead(_message.Message):
    __slots__ = ("global_seq", "oldest", "ts_ms", "chain", "journal_id", "epoch", "several_tenants")
    GLOBAL_SEQ_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    TS_MS_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEVERAL_TENANTS_FIELD_NUMBER: _ClassVar[int]
    global_seq: int
    oldest: int
    ts_ms: int
    chain: bytes
    journal_id: str
    epoch: int
    several_tenants: bool
    def __init__(self, global_seq: _Optional[int] = ..., oldest: _Optional[int] = ..., ts_ms: _Optional[int] = ..., chain: _Optional[bytes] = ..., journal_id: _Optional[str] = ..., epoch: _Optional[int] = ..., several_tenants: bool = ...) -> None: ...

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ServerInfo(_message.Message):
    __slots__ = ("version", "journal_id", "grpc_ports", "http_port", "call_protocols", "max_message_bytes")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_ID_FIELD_NUMBER: _ClassVar[int]
    GRPC_PORTS_FIELD_NUMBER: _ClassVar[int]
    HTTP_PORT_FIELD_NUMBER: _ClassVar[int]
    CALL_PROTOCOLS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    version: str
    journal_id: str
    grpc_ports: _containers.RepeatedScalarFieldContainer[int]
    http_port: int
    call_protocols: _containers.RepeatedScalarFieldContainer[str]
    max_message_bytes: int
    def __init__(self, version: _Optional[str] = ..., journal_id: _Optional[str] = ..., grpc_ports: _Optional[_Iterable[int]] = ..., http_port: _Optional[int] = ..., call_protocols: _Optional[_Iterable[str]] = ..., max_message_bytes: _Optional[int] = ...) -> None: ...

class ListRunsRequest(_message.Message):
    __slots__ = ("app_name", "user_id", "session_id", "status", "before_started_at_ms", "before_run_id", "limit", "parent_run_id")
    APP_NAME_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    BEFORE_STARTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    BEFORE_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PARENT_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    app_name: str
    user_id: str
    session_id: str
    status: RunStatus
    before_started_at_ms: int
    before_run_id: str
    limit: int
    parent_run_id: str
    def __init__(self, app_name: _Optional[str] = ..., user_id: _Optional[str] = ..., session_id: _Optional[str] = ..., status: _Optional[_Union[RunStatus, str]] = ..., before_started_at_ms: _Optional[int] = ..., before_run_id: _Optional[str] = ..., limit: _Optional[int] = ..., parent_run_id: _Optional[str] = ...) -> None: ...

class ListRunsResponse(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[RunState]
    def __init__(self, runs: _Optional[_Iterable[_Union[RunState, _Mapping]]] = ...) -> None: ...

class DispatchRequest(_message.Message):
    __slots__ = ("owner", "reaction_ids", "lease_ms", "window", "completed", "failed", "renew", "shard", "is_one_shard", "released", "answered")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    REACTION_IDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    IS_ONE_SHARD_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    owner: str
    reaction_ids: _containers.RepeatedScalarFieldContainer[str]
    lease_ms: int
    window: int
    completed: _containers.RepeatedScalarFieldContainer[str]
    failed: _containers.RepeatedCompositeFieldContainer[TaskFailure]
    renew: _containers.RepeatedScalarFieldContainer[str]
    shard: int
    is_one_shard: bool
    released: _containers.RepeatedScalarFieldContainer[str]
    answered: _containers.RepeatedCompositeFieldContainer[TaskAnswers]
    def __init__(self, owner: _Optional[str] = ..., reaction_ids: _Optional[_Iterable[str]] = ..., lease_ms: _Optional[int] = ..., window: _Optional[int] = ..., completed: _Optional[_Iterable[str]] = ..., failed: _Optional[_Iterable[_Union[TaskFailure, _Mapping]]] = ..., renew: _Optional[_Iterable[str]] = ..., shard: _Optional[int] = ..., is_one_shard: bool = ..., released: _Optional[_Iterable[str]] = ..., answered: _Optional[_Iterable[_Union[TaskAnswers, _Mapping]]] = ...) -> None: ...

class TaskAnswers(_message.Message):
    __slots__ = ("downstream", "task_ids")
    DOWNSTREAM_FIELD_NUMBER: _ClassVar[int]
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    downstream: str
    task_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, downstream: _Optional[str] = ..., task_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class TaskFailure(_message.Message):
    __slots__ = ("task_id", "error", "permanent", "unavailable")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PERMANENT_FIELD_NUMBER: _ClassVar[int]
    UNAVAILABLE_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    error: str
    permanent: bool
    unavailable: str
    def __init__(self, task_id: _Optional[str] = ..., error: _Optional[str] = ..., permanent: bool = ..., unavailable: _Optional[str] = ...) -> None: ...

class DispatchReply(_message.Message):
    __slots__ = ("tasks", "settled", "renewed", "refused")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    RENEWED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    settled: _containers.RepeatedCompositeFieldContainer[Task]
    renewed: _containers.RepeatedCompositeFieldContainer[Task]
    refused: _containers.RepeatedCompositeFieldContainer[TaskRefusal]
    def __init__(self, tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., settled: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., renewed: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., refused: _Optional[_Iterable[_Union[TaskRefusal, _Mapping]]] = ...) -> None: ...

class TaskRefusal(_message.Message):
    __slots__ = ("task_id", "error_code", "error_message")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    error_code: str
    error_message: str
    def __init__(self, task_id: _Optional[str] = ..., error_code: _Optional[str] = ..., error_message: _Optional[str] = ...) -> None: ...

class SettleTasksRequest(_message.Message):
    __slots__ = ("owner", "completed", "failed", "released", "answered")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    owner: str
    completed: _containers.RepeatedScalarFieldContainer[str]
    failed: _containers.RepeatedCompositeFieldContainer[TaskFailure]
    released: _containers.RepeatedScalarFieldContainer[str]
    answered: _containers.RepeatedCompositeFieldContainer[TaskAnswers]
    def __init__(self, owner: _Optional[str] = ..., completed: _Optional[_Iterable[str]] = ..., failed: _Optional[_Iterable[_Union[TaskFailure, _Mapping]]] = ..., released: _Optional[_Iterable[str]] = ..., answered: _Optional[_Iterable[_Union[TaskAnswers, _Mapping]]] = ...) -> None: ...

class SettleTasksResponse(_message.Message):
    __slots__ = ("settled", "refused")
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    settled: _containers.RepeatedCompositeFieldContainer[Task]
    refused: _containers.RepeatedCompositeFieldContainer[TaskRefusal]
    def __init__(self, settled: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., refused: _Optional[_Iterable[_Union[TaskRefusal, _Mapping]]] = ...) -> None: ...

class GetTaskRequest(_message.Message):
    __slots__ = ("task_id",)
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    def __init__(self, task_id: _Optional[str] = ...) -> None: ...

class TaskFilter(_message.Message):
    __slots__ = ("reaction_id", "error_contains", "subject_pattern", "created_after_ms", "created_before_ms")
    REACTION_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_CONTAINS_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_PATTERN_FIELD_NUMBER: _ClassVar[int]
    CREATED_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    CREATED_BEFORE_MS_FIELD_NUMBER: _ClassVar[int]
    reaction_id: str
    error_contains: str
    subject_pattern: str
    created_after_ms: int
    created_before_ms: int
    def __init__(self, reaction_id: _Optional[str] = ..., error_contains: _Optional[str] = ..., subject_pattern: _Optional[str] = ..., created_after_ms: _Optional[int] = ..., created_before_ms: _Optional[int] = ...) -> None: ...

class RedriveTasksRequest(_message.Message):
    __slots__ = ("task_ids", "filter", "everything", "limit")
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    EVERYTHING_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    task_ids: _containers.RepeatedScalarFieldContainer[str]
    filter: TaskFilter
    everything: bool
    limit: int
    def __init__(self, task_ids: _Optional[_Iterable[str]] = ..., filter: _Optional[_Union[TaskFilter, _Mapping]] = ..., everything: bool = ..., limit: _Optional[int] = ...) -> None: ...

class RedriveTasksResponse(_message.Message):
    __slots__ = ("redriven", "more")
    REDRIVEN_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    redriven: int
    more: bool
    def __init__(self, redriven: _Optional[int] = ..., more: bool = ...) -> None: ...

class RetryRunsRequest(_message.Message):
    __slots__ = ("run_ids", "subscription", "ended_after_ms", "limit", "dry_run", "resume")
    RUN_IDS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ENDED_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    run_ids: _containers.RepeatedScalarFieldContainer[str]
    subscription: str
    ended_after_ms: int
    limit: int
    dry_run: bool
    resume: bool
    def __init__(self, run_ids: _Optional[_Iterable[str]] = ..., subscription: _Optional[str] = ..., ended_after_ms: _Optional[int] = ..., limit: _Optional[int] = ..., dry_run: bool = ..., resume: bool = ...) -> None: ...

class RetryRunsResponse(_message.Message):
    __slots__ = ("runs", "more")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[RunRetry]
    more: bool
    def __init__(self, runs: _Optional[_Iterable[_Union[RunRetry, _Mapping]]] = ..., more: bool = ...) -> None: ...

class RunRetry(_message.Message):
    __slots__ = ("run_id", "message_id", "error", "refusal")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    message_id: str
    error: str
    refusal: str
    def __init__(self, run_id: _Optional[str] = ..., message_id: _Optional[str] = ..., error: _Optional[str] = ..., refusal: _Optional[str] = ...) -> None: ...

class DropTasksRequest(_message.Message):
    __slots__ = ("task_ids", "filter", "everything", "limit", "reason")
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    EVERYTHING_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    task_ids: _containers.RepeatedScalarFieldContainer[str]
    filter: TaskFilter
    everything: bool
    limit: int
    reason: str
    def __init__(self, task_ids: _Optional[_Iterable[str]] = ..., filter: _Optional[_Union[TaskFilter, _Mapping]] = ..., everything: bool = ..., limit: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class DropTasksResponse(_message.Message):
    __slots__ = ("dropped", "more")
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    dropped: int
    more: bool
    def __init__(self, dropped: _Optional[int] = ..., more: bool = ...) -> None: ...

class DeadLetterFilter(_message.Message):
    __slots__ = ("origins", "subscription", "reaction_id", "since_ms", "error_contains")
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    REACTION_ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_CONTAINS_FIELD_NUMBER: _ClassVar[int]
    origins: _containers.RepeatedScalarFieldContainer[str]
    subscription: str
    reaction_id: str
    since_ms: int
    error_contains: str
    def __init__(self, origins: _Optional[_Iterable[str]] = ..., subscription: _Optional[str] = ..., reaction_id: _Optional[str] = ..., since_ms: _Optional[int] = ..., error_contains: _Optional[str] = ...) -> None: ...

class DeadLetter(_message.Message):
    __slots__ = ("id", "origin", "subscription", "reaction_id", "subject", "message_id", "ordering_key", "dead_at_ms", "reason", "attempts", "size_bytes", "can_redrive", "redrive", "preview", "is_truncated")
    ID_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    REACTION_ID_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    ORDERING_KEY_FIELD_NUMBER: _ClassVar[int]
    DEAD_AT_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CAN_REDRIVE_FIELD_NUMBER: _ClassVar[int]
    REDRIVE_FIELD_NUMBER: _ClassVar[int]
    PREVIEW_FIELD_NUMBER: _ClassVar[int]
    IS_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    id: str
    origin: str
    subscription: str
    reaction_id: str
    subject: str
    message_id: str
    ordering_key: str
    dead_at_ms: int
    reason: str
    attempts: int
    size_bytes: int
    can_redrive: bool
    redrive: str
    preview: str
    is_truncated: bool
    def __init__(self, id: _Optional[str] = ..., origin: _Optional[str] = ..., subscription: _Optional[str] = ..., reaction_id: _Optional[str] = ..., subject: _Optional[str] = ..., message_id: _Optional[str] = ..., ordering_key: _Optional[str] = ..., dead_at_ms: _Optional[int] = ..., reason: _Optional[str] = ..., attempts: _Optional[int] = ..., size_bytes: _Optional[int] = ..., can_redrive: bool = ..., redrive: _Optional[str] = ..., preview: _Optional[str] = ..., is_truncated: bool = ...) -> None: ...

class DeadLetterGroup(_message.Message):
    __slots__ = ("origin", "name", "error", "count", "first_ms", "last_ms", "sample_id")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FIRST_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_MS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_ID_FIELD_NUMBER: _ClassVar[int]
    origin: str
    name: str
    error: str
    count: int
    first_ms: int
    last_ms: int
    sample_id: str
    def __init__(self, origin: _Optional[str] = ..., name: _Optional[str] = ..., error: _Optional[str] = ..., count: _Optional[int] = ..., first_ms: _Optional[int] = ..., last_ms: _Optional[int] = ..., sample_id: _Optional[str] = ...) -> None: ...

class UnreachableDeadLetters(_message.Message):
    __slots__ = ("origin", "name", "reason")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    origin: str
    name: str
    reason: str
    def __init__(self, origin: _Optional[str] = ..., name: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ListDeadLettersRequest(_message.Message):
    __slots__ = ("filter", "cursor", "limit", "group", "preview_bytes")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PREVIEW_BYTES_FIELD_NUMBER: _ClassVar[int]
    filter: DeadLetterFilter
    cursor: str
    limit: int
    group: bool
    preview_bytes: int
    def __init__(self, filter: _Optional[_Union[DeadLetterFilter, _Mapping]] = ..., cursor: _Optional[str] = ..., limit: _Optional[int] = ..., group: bool = ..., preview_bytes: _Optional[int] = ...) -> None: ...

class ListDeadLettersResponse(_message.Message):
    __slots__ = ("dead_letters", "next_cursor", "groups", "unreachable")
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_FIELD_NUMBER: _ClassVar[int]
    dead_letters: _containers.RepeatedCompositeFieldContainer[DeadLetter]
    next_cursor: str
    groups: _containers.RepeatedCompositeFieldContainer[DeadLetterGroup]
    unreachable: _containers.RepeatedCompositeFieldContainer[UnreachableDeadLetters]
    def __init__(self, dead_letters: _Optional[_Iterable[_Union[DeadLetter, _Mapping]]] = ..., next_cursor: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[DeadLetterGroup, _Mapping]]] = ..., unreachable: _Optional[_Iterable[_Union[UnreachableDeadLetters, _Mapping]]] = ...) -> None: ...

class GetDeadLetterRequest(_message.Message):
    __slots__ = ("id", "preview_bytes")
    ID_FIELD_NUMBER: _ClassVar[int]
    PREVIEW_BYTES_FIELD_NUMBER: _ClassVar[int]
    id: str
    preview_bytes: int
    def __init__(self, id: _Optional[str] = ..., preview_bytes: _Optional[int] = ...) -> None: ...

class RedriveDeadLettersRequest(_message.Message):
    __slots__ = ("ids", "filter", "everything", "limit", "dry_run", "cursor")
    IDS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    EVERYTHING_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[str]
    filter: DeadLetterFilter
    everything: bool
    limit: int
    dry_run: bool
    cursor: str
    def __init__(self, ids: _Optional[_Iterable[str]] = ..., filter: _Optional[_Union[DeadLetterFilter, _Mapping]] = ..., everything: bool = ..., limit: _Optional[int] = ..., dry_run: bool = ..., cursor: _Optional[str] = ...) -> None: ...

class DropDeadLettersRequest(_message.Message):
    __slots__ = ("ids", "filter", "everything", "limit", "dry_run", "cursor", "reason")
    IDS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    EVERYTHING_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[str]
    filter: DeadLetterFilter
    everything: bool
    limit: int
    dry_run: bool
    cursor: str
    reason: str
    def __init__(self, ids: _Optional[_Iterable[str]] = ..., filter: _Optional[_Union[DeadLetterFilter, _Mapping]] = ..., everything: bool = ..., limit: _Optional[int] = ..., dry_run: bool = ..., cursor: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class DeadLetterFailure(_message.Message):
    __slots__ = ("id", "reason")
    ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    id: str
    reason: str
    def __init__(self, id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class SettleDeadLettersResponse(_message.Message):
    __slots__ = ("ids", "failures", "next_cursor", "unreachable")
    IDS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[str]
    failures: _containers.RepeatedCompositeFieldContainer[DeadLetterFailure]
    next_cursor: str
    unreachable: _containers.RepeatedCompositeFieldContainer[UnreachableDeadLetters]
    def __init__(self, ids: _Optional[_Iterable[str]] = ..., failures: _Optional[_Iterable[_Union[DeadLetterFailure, _Mapping]]] = ..., next_cursor: _Optional[str] = ..., unreachable: _Optional[_Iterable[_Union[UnreachableDeadLetters, _Mapping]]] = ...) -> None: ...

class ExplainReactionRequest(_message.Message):
    __slots__ = ("reaction_id", "global_seq")
    REACTION_ID_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_SEQ_FIELD_NUMBER: _ClassVar[int]
    reaction_id: str
    global_seq: int
    def __init__(self, reaction_id: _Optional[str] = ..., global_seq: _Optional[int] = ...) -> None: ...

class ExplainReactionResponse(_message.Message):
    __slots__ = ("matched", "verdict", "decided_by", "predicate_trace_json", "predicate_trace", "outcome", "task", "run_id", "entry", "reaction")
    MATCHED_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    DECIDED_BY_FIELD_NUMBER: _ClassVar[int]
    PREDICATE_TRACE_JSON_FIELD_NUMBER: _ClassVar[int]
    PREDICATE_TRACE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    REACTION_FIELD_NUMBER: _ClassVar[int]
    matched: bool
    verdict: str
    decided_by: str
    predicate_trace_json: str
    predicate_trace: str
    outcome: str
    task: Task
    run_id: str
    entry: EventEntry
    reaction: Reaction
    def __init__(self, matched: bool = ..., verdict: _Optional[str] = ..., decided_by: _Optional[str] = ..., predicate_trace_json: _Optional[str] = ..., predicate_trace: _Optional[str] = ..., outcome: _Optional[str] = ..., task: _Optional[_Union[Task, _Mapping]] = ..., run_id: _Optional[str] = ..., entry: _Optional[_Union[EventEntry, _Mapping]] = ..., reaction: _Optional[_Union[Reaction, _Mapping]] = ...) -> None: ...

class TestReactionRequest(_message.Message):
    __slots__ = ("subject_pattern", "predicate_cel", "from_global_seq", "to_global_seq", "samples", "bucket_ms")
    SUBJECT_PATTERN_FIELD_NUMBER: _ClassVar[int]
    PREDICATE_CEL_FIELD_NUMBER: _ClassVar[int]
    FROM_GLOBAL_SEQ_FIELD_NUMBER: _ClassVar[int]
    TO_GLOBAL_SEQ_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    BUCKET_MS_FIELD_NUMBER: _ClassVar[int]
    subject_pattern: str
    predicate_cel: str
    from_global_seq: int
    to_global_seq: int
    samples: int
    bucket_ms: int
    def __init__(self, subject_pattern: _Optional[str] = ..., predicate_cel: _Optional[str] = ..., from_global_seq: _Optional[int] = ..., to_global_seq: _Optional[int] = ..., samples: _Optional[int] = ..., bucket_ms: _Optional[int] = ...) -> None: ...

class TestReactionResponse(_message.Message):
    __slots__ = ("examined", "matched", "errors", "last_error", "buckets", "samples", "from_global_seq", "to_global_seq", "gaps")
    EXAMINED_FIELD_NUMBER: _ClassVar[int]
    MATCHED_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    FROM_GLOBAL_SEQ_FIELD_NUMBER: _ClassVar[int]
    TO_GLOBAL_SEQ_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    examined: int
    matched: int
    errors: int
    last_error: str
    buckets: _containers.RepeatedCompositeFieldContainer[TestBucket]
    samples: _containers.RepeatedCompositeFieldContainer[EventEntry]
    from_global_seq: int
    to_global_seq: int
    gaps: _containers.RepeatedCompositeFieldContainer[JournalGap]
    def __init__(self, examined: _Optional[int] = ..., matched: _Optional[int] = ..., errors: _Optional[int] = ..., last_error: _Optional[str] = ..., buckets: _Optional[_Iterable[_Union[TestBucket, _Mapping]]] = ..., samples: _Optional[_Iterable[_Union[EventEntry, _Mapping]]] = ..., from_global_seq: _Optional[int] = ..., to_global_seq: _Optional[int] = ..., gaps: _Optional[_Iterable[_Union[JournalGap, _Mapping]]] = ...) -> None: ...

class TestBucket(_message.Message):
    __slots__ = ("start_ms", "matched")
    START_MS_FIELD_NUMBER: _ClassVar[int]
    MATCHED_FIELD_NUMBER: _ClassVar[int]
    start_ms: int
    matched: int
    def __init__(self, start_ms: _Optional[int] = ..., matched: _Optional[int] = ...) -> None: ...

class GetReactionStatsRequest(_message.Message):
    __slots__ = ("reaction_id",)
    REACTION_ID_FIELD_NUMBER: _ClassVar[int]
    reaction_id: str
    def __init__(self, reaction_id: _Optional[str] = ...) -> None: ...

class GetReactionStatsResponse(_message.Message):
    __slots__ = ("stats", "head")
    STATS_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    stats: _containers.RepeatedCompositeFieldContainer[ReactionStats]
    head: int
    def __init__(self, stats: _Optional[_Iterable[_Union[ReactionStats, _Mapping]]] = ..., head: _Optional[int] = ...) -> None: ...

class ReactionStats(_message.Message):
    __slots__ = ("reaction_id", "position", "lag", "matched", "suppressed", "predicate_errors", "last_predicate_error", "last_error_global_seq", "pending", "claimed", "dlq", "oldest_pending_ms", "is_catching_up")
    REACTION_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    MATCHED_FIELD_NUMBER: _ClassVar[int]
    SUPPRESSED_FIELD_NUMBER: _ClassVar[int]
    PREDICATE_ERRORS_FIELD_NUMBER: _ClassVar[int]
    LAST_PREDICATE_ERROR_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_GLOBAL_SEQ_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_FIELD_NUMBER: _ClassVar[int]
    DLQ_FIELD_NUMBER: _ClassVar[int]
    OLDEST_PENDING_MS_FIELD_NUMBER: _ClassVar[int]
    IS_CATCHING_UP_FIELD_NUMBER: _ClassVar[int]
    reaction_id: str
    position: int
    lag: int
    matched: int
    suppressed: int
    predicate_errors: int
    last_predicate_error: str
    last_error_global_seq: int
    pending: int
    claimed: int
    dlq: int
    oldest_pending_ms: int
    is_catching_up: bool
    def __init__(self, reaction_id: _Optional[str] = ..., position: _Optional[int] = ..., lag: _Optional[int] = ..., matched: _Optional[int] = ..., suppressed: _Optional[int] = ..., predicate_errors: _Optional[int] = ..., last_predicate_error: _Optional[str] = ..., last_error_global_seq: _Optional[int] = ..., pending: _Optional[int] = ..., claimed: _Optional[int] = ..., dlq: _Optional[int] = ..., oldest_pending_ms: _Optional[int] = ..., is_catching_up: bool = ...) -> None: ...

class Resource(_message.Message):
    __slots__ = ("catalog_id", "path", "version", "kind", "content", "labels_json", "ts_ms")
    CATALOG_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    LABELS_JSON_FIELD_NUMBER: _ClassVar[int]
    TS_MS_FIELD_NUMBER: _ClassVar[int]
    catalog_id: int
    path: str
    version: int
    kind: str
    content: str
    labels_json: str
    ts_ms: int
    def __init__(self, catalog_id: _Optional[int] = ..., path: _Optional[str] = ..., version: _Optional[int] = ..., kind: _Optional[str] = ..., content: _Optional[str] = ..., labels_json: _Optional[str] = ..., ts_ms: _Optional[int] = ...) -> None: ...

class RegisterResourceRequest(_message.Message):
    __slots__ = ("content", "resource_type", "if_changed")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    IF_CHANGED_FIELD_NUMBER: _ClassVar[int]
    content: str
    resource_type: str
    if_changed: bool
    def __init__(self, content: _Optional[str] = ..., resource_type: _Optional[str] = ..., if_changed: bool = ...) -> None: ...

class GetResourceRequest(_message.Message):
    __slots__ = ("path", "version", "catalog_id")
    PATH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CATALOG_ID_FIELD_NUMBER: _ClassVar[int]
    path: str
    version: int
    catalog_id: int
    def __init__(self, path: _Optional[str] = ..., version: _Optional[int] = ..., catalog_id: _Optional[int] = ...) -> None: ...

class ListResourcesRequest(_message.Message):
    __slots__ = ("kind", "after_path", "limit")
    KIND_FIELD_NUMBER: _ClassVar[int]
    AFTER_PATH_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    kind: str
    after_path: str
    limit: int
    def __init__(self, kind: _Optional[str] = ..., after_path: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListResourcesResponse(_message.Message):
    __slots__ = ("resources",)
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    resources: _containers.RepeatedCompositeFieldContainer[Resource]
    def __init__(self, resources: _Optional[_Iterable[_Union[Resource, _Mapping]]] = ...) -> None: ...

class Execution(_message.Message):
    __slots__ = ("path", "catalog_id", "payload_json", "parent_execution_id", "execution_pool", "traceparent", "dedup_key", "dedup_window_secs", "subscription", "message_id", "ordering_key", "downstream", "record", "batch")
    PATH_FIELD_NUMBER: _ClassVar[int]
    CATALOG_ID_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_JSON_FIELD_NUMBER: _ClassVar[int]
    PARENT_EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_POOL_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    DEDUP_KEY_FIELD_NUMBER: _ClassVar[int]
    DEDUP_WINDOW_SECS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    ORDERING_KEY_FIELD_NUMBER: _ClassVar[int]
    DOWNSTREAM_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    path: str
    catalog_id: int
    payload_json: str
    parent_execution_id: int
    execution_pool: str
    traceparent: str
    dedup_key: str
    dedup_window_secs: int
    subscription: str
    message_id: str
    ordering_key: str
    downstream: str
    record: str
    batch: int
    def __init__(self, path: _Optional[str] = ..., catalog_id: _Optional[int] = ..., payload_json: _Optional[str] = ..., parent_execution_id: _Optional[int] = ..., execution_pool: _Optional[str] = ..., traceparent: _Optional[str] = ..., dedup_key: _Optional[str] = ..., dedup_window_secs: _Optional[int] = ..., subscription: _Optional[str] = ..., message_id: _Optional[str] = ..., ordering_key: _Optional[str] = ..., downstream: _Optional[str] = ..., record: _Optional[str] = ..., batch: _Optional[int] = ...) -> None: ...

class ExecuteRequest(_message.Message):
    __slots__ = ("executions",)
    EXECUTIONS_FIELD_NUMBER: _ClassVar[int]
    executions: _containers.RepeatedCompositeFieldContainer[Execution]
    def __init__(self, executions: _Optional[_Iterable[_Union[Execution, _Mapping]]] = ...) -> None: ...

class ExecuteResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ExecutionResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ExecutionResult, _Mapping]]] = ...) -> None: ...

class ExecutionResult(_message.Message):
    __slots__ = ("execution_id", "status", "commands_generated", "error", "error_code")
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_GENERATED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    execution_id: str
    status: str
    commands_generated: int
    error: str
    error_code: str
    def __init__(self, execution_id: _Optional[str] = ..., status: _Optional[str] = ..., commands_generated: _Optional[int] = ..., error: _Optional[str] = ..., error_code: _Optional[str] = ...) -> None: ...

class AdvanceRunRequest(_message.Message):
    __slots__ = ("run_id", "lease_owner", "lease_ttl_ms", "complete", "begin", "end", "traceparent", "cause")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_OWNER_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    lease_owner: str
    lease_ttl_ms: int
    complete: _containers.RepeatedCompositeFieldContainer[CompleteEffectRequest]
    begin: BeginEffectRequest
    end: EndRunRequest
    traceparent: str
    cause: str
    def __init__(self, run_id: _Optional[str] = ..., lease_owner: _Optional[str] = ..., lease_ttl_ms: _Optional[int] = ..., complete: _Optional[_Iterable[_Union[CompleteEffectRequest, _Mapping]]] = ..., begin: _Optional[_Union[BeginEffectRequest, _Mapping]] = ..., end: _Optional[_Union[EndRunRequest, _Mapping]] = ..., traceparent: _Optional[str] = ..., cause: _Optional[str] = ...) -> None: ...

class AdvanceRunResponse(_message.Message):
    __slots__ = ("begun",)
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    begun: BeginEffectResponse
    def __init__(self, begun: _Optional[_Union[BeginEffectResponse, _Mapping]] = ...) -> None: ...

class AdvanceRunsRequest(_message.Message):
    __slots__ = ("moves",)
    MOVES_FIELD_NUMBER: _ClassVar[int]
    moves: _containers.RepeatedCompositeFieldContainer[AdvanceRunRequest]
    def __init__(self, moves: _Optional[_Iterable[_Union[AdvanceRunRequest, _Mapping]]] = ...) -> None: ...

class AdvanceRunsResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[AdvanceRunResult]
    def __init__(self, results: _Optional[_Iterable[_Union[AdvanceRunResult, _Mapping]]] = ...) -> None: ...

class AdvanceRunResult(_message.Message):
    __slots__ = ("begun", "error_code", "error_message")
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    begun: BeginEffectResponse
    error_code: str
    error_message: str
    def __init__(self, begun: _Optional[_Union[BeginEffectResponse, _Mapping]] = ..., error_code: _Optional[str] = ..., error_message: _Optional[str] = ...) -> None: ...

class ForkRunRequest(_message.Message):
    __slots__ = ("run_id", "at_decision", "at_seq", "decision_json", "invocation_id", "reason")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    AT_DECISION_FIELD_NUMBER: _ClassVar[int]
    AT_SEQ_FIELD_NUMBER: _ClassVar[int]
    DECISION_JSON_FIELD_NUMBER: _ClassVar[int]
    INVOCATION_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    at_decision: int
    at_seq: int
    decision_json: str
    invocation_id: str
    reason: str
    def __init__(self, run_id: _Optional[str] = ..., at_decision: _Optional[int] = ..., at_seq: _Optional[int] = ..., decision_json: _Optional[str] = ..., invocation_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ForkRunResponse(_message.Message):
    __slots__ = ("run", "steps", "gates")
    RUN_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    run: RunState
    steps: int
    gates: int
    def __init__(self, run: _Optional[_Union[RunState, _Mapping]] = ..., steps: _Optional[int] = ..., gates: _Optional[int] = ...) -> None: ...

class ListRunStepsRequest(_message.Message):
    __slots__ = ("run_id", "cursor", "limit")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    cursor: str
    limit: int
    def __init__(self, run_id: _Optional[str] = ..., cursor: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListRunStepsResponse(_message.Message):
    __slots__ = ("steps", "next_cursor")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedCompositeFieldContainer[RunStep]
    next_cursor: str
    def __init__(self, steps: _Optional[_Iterable[_Union[RunStep, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class RunStep(_message.Message):
    __slots__ = ("decision", "effect")
    DECISION_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    decision: DecisionRecord
    effect: EffectRecord
    def __init__(self, decision: _Optional[_Union[DecisionRecord, _Mapping]] = ..., effect: _Optional[_Union[EffectRecord, _Mapping]] = ...) -> None: ...
