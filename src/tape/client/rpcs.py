"""Every RPC of the service, with the types of its request and of its response.

`tests/client/test_rpcs.py` compares this list with the proto.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

from tape.proto import tape_pb2 as pb

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


@dataclass(frozen=True, eq=False)  # compared and hashed by identity: a channel looks them up on every call
class Rpc(Generic[Request, Response]):
    """One RPC: its name and its messages."""

    name: str
    request: type[Request]
    response: type[Response]


class Unary(Rpc[Request, Response]):
    """One request, one response."""


class ServerStream(Rpc[Request, Response]):
    """One request, many responses."""


class BidiStream(Rpc[Request, Response]):
    """Many requests, many responses."""


BEGIN_RUN = Unary("BeginRun", pb.BeginRunRequest, pb.BeginRunResponse)
RESUME_RUN = Unary("ResumeRun", pb.ResumeRunRequest, pb.ResumeRunResponse)
END_RUN = Unary("EndRun", pb.EndRunRequest, pb.EndRunResponse)
GET_RUN = Unary("GetRun", pb.GetRunRequest, pb.RunState)
LIST_RUNS_TO_RECOVER = Unary("ListRunsToRecover", pb.ListRunsToRecoverRequest, pb.ListRunsToRecoverResponse)
SUBSCRIBE_RUN = ServerStream("SubscribeRun", pb.SubscribeRunRequest, pb.JournalEntry)
RECORD_DECISION = Unary("RecordDecision", pb.RecordDecisionRequest, pb.DecisionRecord)
GET_DECISION = Unary("GetDecision", pb.GetDecisionRequest, pb.GetDecisionResponse)
BEGIN_EFFECT = Unary("BeginEffect", pb.BeginEffectRequest, pb.BeginEffectResponse)
COMPLETE_EFFECT = Unary("CompleteEffect", pb.CompleteEffectRequest, pb.EffectRecord)
GET_EFFECT = Unary("GetEffect", pb.GetEffectRequest, pb.GetEffectResponse)
RECONCILE_EFFECT = Unary("ReconcileEffect", pb.ReconcileEffectRequest, pb.EffectRecord)
LIST_EFFECTS_TO_DISPATCH = Unary(
    "ListEffectsToDispatch", pb.ListEffectsToDispatchRequest, pb.ListEffectsToDispatchResponse
)
CLAIM_EFFECT_DISPATCH = Unary("ClaimEffectDispatch", pb.ClaimEffectDispatchRequest, pb.ClaimEffectDispatchResponse)
RECORD_DISPATCH_ATTEMPT = Unary("RecordDispatchAttempt", pb.RecordDispatchAttemptRequest, pb.EffectRecord)
RECORD_EXTERNAL_OBSERVATION = Unary("RecordExternalObservation", pb.RecordExternalObservationRequest, pb.EffectRecord)
REGISTER_COMPENSATION = Unary("RegisterCompensation", pb.RegisterCompensationRequest, pb.ObligationRecord)
LIST_OBLIGATIONS = Unary("ListObligations", pb.ListObligationsRequest, pb.ListObligationsResponse)
RESOLVE_OBLIGATION = Unary("ResolveObligation", pb.ResolveObligationRequest, pb.ObligationRecord)
LIST_UNRESOLVED_OBLIGATIONS = Unary(
    "ListUnresolvedObligations", pb.ListUnresolvedObligationsRequest, pb.ListUnresolvedObligationsResponse
)
CLAIM_OBLIGATION = Unary("ClaimObligation", pb.ClaimObligationRequest, pb.ClaimObligationResponse)
RECORD_OBLIGATION_ATTEMPT = Unary("RecordObligationAttempt", pb.RecordObligationAttemptRequest, pb.ObligationRecord)
SET_BUDGET = Unary("SetBudget", pb.SetBudgetRequest, pb.BudgetState)
ADMIT_BUDGET = Unary("AdmitBudget", pb.AdmitBudgetRequest, pb.AdmitBudgetResponse)
CHARGE_BUDGET = Unary("ChargeBudget", pb.ChargeBudgetRequest, pb.BudgetState)
AWAIT_SIGNAL = Unary("AwaitSignal", pb.AwaitSignalRequest, pb.AwaitSignalResponse)
SEND_SIGNAL = Unary("SendSignal", pb.SendSignalRequest, pb.SendSignalResponse)
LIST_PENDING_EFFECTS = Unary("ListPendingEffects", pb.ListPendingEffectsRequest, pb.ListPendingEffectsResponse)
SET_TIMER = Unary("SetTimer", pb.SetTimerRequest, pb.TimerRecord)
CANCEL_TIMER = Unary("CancelTimer", pb.CancelTimerRequest, pb.CancelTimerResponse)
LIST_DUE_TIMERS = Unary("ListDueTimers", pb.ListDueTimersRequest, pb.ListDueTimersResponse)
LIST_COMPACTABLE_RUNS = Unary("ListCompactableRuns", pb.ListCompactableRunsRequest, pb.ListCompactableRunsResponse)
COMPACT_RUN = Unary("CompactRun", pb.CompactRunRequest, pb.CompactRunResponse)
SUBSCRIBE_EVENTS = ServerStream("SubscribeEvents", pb.SubscribeEventsRequest, pb.EventEntry)
SUBSCRIBE_BY_SUBJECT = ServerStream("SubscribeBySubject", pb.SubscribeBySubjectRequest, pb.EventEntry)
REGISTER_REACTION = Unary("RegisterReaction", pb.Reaction, pb.Reaction)
DEREGISTER_REACTION = Unary("DeregisterReaction", pb.DeregisterReactionRequest, pb.DeregisterReactionResponse)
LIST_REACTIONS = Unary("ListReactions", pb.ListReactionsRequest, pb.ListReactionsResponse)
CLAIM_TASKS = Unary("ClaimTasks", pb.ClaimTasksRequest, pb.ClaimTasksResponse)
COMPLETE_TASK = Unary("CompleteTask", pb.CompleteTaskRequest, pb.CompleteTaskResponse)
NACK_TASK = Unary("NackTask", pb.NackTaskRequest, pb.NackTaskResponse)
LIST_TASKS = Unary("ListTasks", pb.ListTasksRequest, pb.ListTasksResponse)
WRITE_VALUE = Unary("WriteValue", pb.WriteValueRequest, pb.ValueRecord)
GET_VALUE = Unary("GetValue", pb.GetValueRequest, pb.GetValueResponse)
WATCH_VALUE = ServerStream("WatchValue", pb.WatchValueRequest, pb.ValueEvent)
DELETE_VALUE = Unary("DeleteValue", pb.DeleteValueRequest, pb.DeleteValueResponse)
CREATE_SESSION = Unary("CreateSession", pb.CreateSessionRequest, pb.Session)
GET_SESSION = Unary("GetSession", pb.GetSessionRequest, pb.GetSessionResponse)
LIST_SESSIONS = Unary("ListSessions", pb.ListSessionsRequest, pb.ListSessionsResponse)
DELETE_SESSION = Unary("DeleteSession", pb.DeleteSessionRequest, pb.DeleteSessionResponse)
APPEND_EVENT = Unary("AppendEvent", pb.AppendEventRequest, pb.AppendEventResponse)
APPEND = Unary("Append", pb.AppendRequest, pb.AppendResponse)
APPEND_STREAM = BidiStream("AppendStream", pb.AppendRequest, pb.AppendReply)
FOLLOW = ServerStream("Follow", pb.FollowRequest, pb.EntryBatch)
GET_HEAD = Unary("GetHead", pb.GetHeadRequest, pb.JournalHead)
LIST_RUNS = Unary("ListRuns", pb.ListRunsRequest, pb.ListRunsResponse)
COMPLETE_TIMER = Unary("CompleteTimer", pb.CompleteTimerRequest, pb.CompleteTimerResponse)
DISPATCH_TASKS = BidiStream("DispatchTasks", pb.DispatchRequest, pb.DispatchReply)
SETTLE_TASKS = Unary("SettleTasks", pb.SettleTasksRequest, pb.SettleTasksResponse)
GET_TASK = Unary("GetTask", pb.GetTaskRequest, pb.Task)
REDRIVE_TASKS = Unary("RedriveTasks", pb.RedriveTasksRequest, pb.RedriveTasksResponse)
DROP_TASKS = Unary("DropTasks", pb.DropTasksRequest, pb.DropTasksResponse)
EXPLAIN_REACTION = Unary("ExplainReaction", pb.ExplainReactionRequest, pb.ExplainReactionResponse)
TEST_REACTION = Unary("TestReaction", pb.TestReactionRequest, pb.TestReactionResponse)
GET_REACTION_STATS = Unary("GetReactionStats", pb.GetReactionStatsRequest, pb.GetReactionStatsResponse)
ADVANCE_RUN = Unary("AdvanceRun", pb.AdvanceRunRequest, pb.AdvanceRunResponse)
ADVANCE_RUNS = Unary("AdvanceRuns", pb.AdvanceRunsRequest, pb.AdvanceRunsResponse)
REGISTER_RESOURCE = Unary("RegisterResource", pb.RegisterResourceRequest, pb.Resource)
GET_RESOURCE = Unary("GetResource", pb.GetResourceRequest, pb.Resource)
LIST_RESOURCES = Unary("ListResources", pb.ListResourcesRequest, pb.ListResourcesResponse)
EXECUTE = Unary("Execute", pb.ExecuteRequest, pb.ExecuteResponse)
