"""Which scopes may make which call: one table for RPCs and HTTP routes.

A call without scopes is for every principal; it reaches the principal's own tenant, user and session. `admin` may make
every call of its tenant but those for programs alone, `system` every call. `docs/security.md` shows the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tape.errors import ScopeRequired
from tape.model.pattern import Pattern
from tape.model.principal import (
    ADMIN,
    AGENT,
    ALL_TENANTS,
    APPROVER,
    FLEET,
    GATEWAY,
    OPERATOR,
    RUNTIME,
    SYSTEM_SCOPE,
    WORKER,
    Principal,
)

Scopes = frozenset[str]

EVERY: Scopes = frozenset()
_AGENT = frozenset({AGENT})
_RUNS = frozenset({AGENT, WORKER})
_ANSWERS = frozenset({AGENT, APPROVER, OPERATOR})
_READS = frozenset({AGENT, WORKER, APPROVER, OPERATOR, RUNTIME})
_TASKS = frozenset({WORKER})
_REACTIONS = frozenset({WORKER, OPERATOR})
_OPERATES = frozenset({OPERATOR})
_EXECUTES = frozenset({WORKER, OPERATOR, RUNTIME})
_RUNTIMES = frozenset({OPERATOR, RUNTIME})
_SECRETS = frozenset({RUNTIME})
_GATEWAYS = frozenset({GATEWAY})
_ADMINISTERS = frozenset({ADMIN})
# What these open is for programs, never for a person's token, whatever else it may do.
PROGRAMS_ONLY = (_SECRETS, _GATEWAYS)

RPCS: Mapping[str, Scopes] = {
    # the journal
    **dict.fromkeys(("Append", "AppendStream", "GetHead", "GetServerInfo"), EVERY),
    **dict.fromkeys(("Follow", "SubscribeRun", "SubscribeEvents", "SubscribeBySubject"), _READS),
    # runs and what belongs to them
    **dict.fromkeys(("BeginRun", "ResumeRun", "AdvanceRun", "AdvanceRuns"), _RUNS),
    "EndRun": frozenset({AGENT, WORKER, OPERATOR}),
    **dict.fromkeys(("GetRun", "ListRuns", "ListRunsToRecover", "ListCompactableRuns"), _READS),
    **dict.fromkeys(("CompactRun", "ForkRun", "ListRunSteps"), frozenset({AGENT, WORKER, OPERATOR})),
    **dict.fromkeys(("RecordDecision", "GetDecision"), _RUNS),
    **dict.fromkeys(
        (
            "BeginEffect",
            "CompleteEffect",
            "GetEffect",
            "ReconcileEffect",
            "ListEffectsToDispatch",
            "ClaimEffectDispatch",
            "RecordDispatchAttempt",
            "RecordExternalObservation",
        ),
        _RUNS,
    ),
    "ListPendingEffects": _READS,
    **dict.fromkeys(("RegisterCompensation", "ClaimObligation"), _RUNS),
    **dict.fromkeys(("ResolveObligation", "RecordObligationAttempt"), _RUNS | {OPERATOR}),
    **dict.fromkeys(("ListObligations", "ListUnresolvedObligations"), _READS),
    **dict.fromkeys(("SetBudget", "AdmitBudget", "ChargeBudget"), _RUNS),
    "AwaitSignal": _RUNS,
    "SendSignal": _ANSWERS,
    "ListGates": _READS,
    **dict.fromkeys(("SetTimer", "CancelTimer", "ListDueTimers", "CompleteTimer", "SleepRun"), _RUNS),
    **dict.fromkeys(("CreateSchedule", "PauseSchedule", "DeleteSchedule", "TriggerSchedule"), _OPERATES),
    **dict.fromkeys(("GetSchedule", "ListSchedules"), _READS),
    # values and sessions
    **dict.fromkeys(("WriteValue", "DeleteValue"), _RUNS),
    **dict.fromkeys(("GetValue", "WatchValue"), _READS),
    **dict.fromkeys(("CreateSession", "GetSession", "ListSessions", "DeleteSession", "AppendEvent"), _AGENT),
    # reactions and tasks
    **dict.fromkeys(("RegisterReaction", "DeregisterReaction"), _REACTIONS),
    **dict.fromkeys(("ListReactions", "ExplainReaction", "TestReaction", "GetReactionStats"), _READS),
    **dict.fromkeys(("ClaimTasks", "CompleteTask", "NackTask", "DispatchTasks", "SettleTasks"), _TASKS),
    **dict.fromkeys(("ListTasks", "GetTask"), _REACTIONS),
    **dict.fromkeys(("RedriveTasks", "DropTasks", "RetryRuns"), _OPERATES),
    **dict.fromkeys(("ListDeadLetters", "GetDeadLetter", "RedriveDeadLetters", "DropDeadLetters"), _OPERATES),
    # documents and executions
    "RegisterResource": _OPERATES,
    **dict.fromkeys(("GetResource", "ListResources"), frozenset({WORKER, OPERATOR, RUNTIME})),
    "Execute": _EXECUTES,
}

ROUTES: Mapping[str, Scopes] = {
    "POST /api/catalog/register": _OPERATES,
    "POST /api/catalog/resource": frozenset({WORKER, OPERATOR, RUNTIME}),
    "POST /api/catalog/list": frozenset({WORKER, OPERATOR, RUNTIME}),
    "GET /api/credentials/": _RUNTIMES,
    "GET /api/credentials/?include_data": _SECRETS,
    "GET /api/internal/ingress": _GATEWAYS,
    "GET /api/internal/ingress/": _GATEWAYS,
    "POST /api/execute": _EXECUTES,
    "POST /api/execute/batch": _EXECUTES,
    "GET /api/executions/": _READS,
    "POST /api/taken": _RUNTIMES,
    "GET /api/taken": _RUNTIMES,
    "GET /api/pools/": _READS,
    "POST /api/subscriptions": _RUNTIMES,
    "POST /api/subscriptions/register": _RUNTIMES,
    "GET /api/subscriptions": _RUNTIMES,
    "GET /api/subscriptions/": _RUNTIMES,
    "POST /api/subscriptions/{}/": _RUNTIMES,
    "GET /api/deliveries": _OPERATES,
    "POST /api/deliveries/resend": _OPERATES,
    "POST /api/events": _RUNTIMES,
    "POST /api/downstreams": _RUNTIMES | _GATEWAYS,
    "POST /api/holds": _RUNTIMES | _GATEWAYS,
    "POST /api/executions/outcomes": _RUNTIMES,
    "GET /api/keys": _ADMINISTERS,
    "POST /api/keys": _ADMINISTERS,
    "POST /api/keys/{}/": _ADMINISTERS,
    "POST /api/tokens/revoke": _ADMINISTERS,
}

# The journal over HTTP.
JOURNAL_ROUTES: Mapping[str, Scopes] = {
    **dict.fromkeys(("GET /v1/events", "POST /v1/events"), EVERY),
    "GET /v1/events?admin": frozenset({ADMIN, FLEET, ALL_TENANTS}),
    **dict.fromkeys(("POST /v1/events/list", "POST /v1/events/aggregate"), EVERY),
    **dict.fromkeys(("GET /v1/artifacts/", "POST /v1/control/runtime.info"), EVERY),
}
# Routes that look at no token. A delivery to /ingress/ proves its sender as its listener demands; on a connection of
# /v1/calls each call is one of RPCS.
TOKENLESS_ROUTES = frozenset(
    {
        "GET /",
        "GET /healthz",
        "GET /readyz",
        "GET /metrics",
        "GET /v1/openapi.json",
        "GET /v1/asyncapi.json",
        "GET /v1/calls",
        "POST /ingress/",
        "GET /ingress/",
    }
)

PERMISSIONS: Mapping[str, Scopes] = {**RPCS, **JOURNAL_ROUTES, **ROUTES}
# The calls that grants hold for, and which of them: those on subjects that callers choose.
GRANTS: Mapping[str, Literal["read", "write"]] = {
    **dict.fromkeys(("Append", "AppendStream", "POST /v1/events"), "write"),
    **dict.fromkeys(("WriteValue", "DeleteValue", "Execute", "POST /api/execute", "POST /api/execute/batch"), "write"),
    **dict.fromkeys(("Follow", "SubscribeRun", "SubscribeEvents", "SubscribeBySubject"), "read"),
    **dict.fromkeys(("GET /v1/events", "GET /v1/events?admin"), "read"),
    **dict.fromkeys(("POST /v1/events/list", "POST /v1/events/aggregate"), "read"),
    **dict.fromkeys(("GetValue", "WatchValue"), "read"),
    **dict.fromkeys(("RegisterReaction", "DeregisterReaction", "ListReactions", "GetReactionStats"), "read"),
    **dict.fromkeys(("ExplainReaction", "TestReaction"), "read"),
    **dict.fromkeys(("ClaimTasks", "CompleteTask", "NackTask", "DispatchTasks", "SettleTasks"), "read"),
    **dict.fromkeys(("ListTasks", "GetTask", "RedriveTasks", "DropTasks", "RetryRuns"), "read"),
    **dict.fromkeys(("ListDeadLetters", "GetDeadLetter", "RedriveDeadLetters", "DropDeadLetters"), "read"),
}
# A call that names a pattern must be granted all of it; other reads get the part that is.
WHOLLY_GRANTED = frozenset({"RegisterReaction", "DeregisterReaction", "ClaimTasks", "DispatchTasks"})
# On an open server with an internal token, that token guards these, over gRPC as over HTTP.
_GUARDED = frozenset(
    {
        *("RegisterResource", "Execute", "RedriveTasks", "DropTasks", "RetryRuns"),
        *("CreateSchedule", "PauseSchedule", "DeleteSchedule", "TriggerSchedule"),
        *("ListDeadLetters", "GetDeadLetter", "RedriveDeadLetters", "DropDeadLetters"),
        *ROUTES,
    }
)


def scopes_for(call: str) -> Scopes:
    """Every scope that suffices for a call, `admin` and `system` included; none if no scope is needed."""
    needed = PERMISSIONS[call]
    if not needed:
        return EVERY
    return needed | {SYSTEM_SCOPE} if needed in PROGRAMS_ONLY else needed | {ADMIN, SYSTEM_SCOPE}


def is_permitted(call: str, principal: Principal) -> bool:
    """Whether the principal's scopes suffice for an RPC (`BeginRun`) or a route (`POST /api/execute`)."""
    if principal.is_open and not principal.has(OPERATOR) and call in _GUARDED:
        return False
    scopes = scopes_for(call)
    return not scopes or principal.has(*scopes)


def explain_grants(call: str, principal: Principal, pattern: Pattern) -> tuple[bool, str]:
    """Whether the principal's grants let it make a call for a subject or pattern, and by which rule."""
    name = GRANTS.get(call)
    if name is None:
        return True, "grants do not hold for this call; its scopes decide"
    grants = principal.read_grants if name == "read" else principal.write_grants
    if grants is None:
        return True, f"it has no {name} grants: every subject is granted"
    if grants.covers(pattern):
        return True, f"the {name} grants include it: {grants}"
    if not pattern.is_literal and name == "read" and call not in WHOLLY_GRANTED and grants.overlapping(pattern):
        return True, f"the {name} grants include a part of it, and the call reaches that part: {grants}"
    what = "the subject is not" if pattern.is_literal else "not every subject of the pattern is"
    return False, f"{what} among the {name} grants: {grants}"


def authorize(call: str, principal: Principal) -> None:
    """Raise ScopeRequired unless the principal may make the call."""
    if not is_permitted(call, principal):
        scopes = " or ".join(f"`{scope}`" for scope in sorted(PERMISSIONS[call]))
        if principal.is_open:
            raise ScopeRequired(f"{call}: send 'Authorization: Bearer <internal token>', the server's internal_token.")
        held = ", ".join(f"`{scope}`" for scope in sorted(principal.scopes)) or "none"
        raise ScopeRequired(f"{call} needs the scope {scopes}; this caller's scopes: {held}.")
