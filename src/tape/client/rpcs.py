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


class UnaryRpc(Rpc[Request, Response]):
    """One request, one response."""


class ServerStreamRpc(Rpc[Request, Response]):
    """One request, many responses."""


class BidiStreamRpc(Rpc[Request, Response]):
    """Many requests, many responses."""


BEGIN_RUN = UnaryRpc("BeginRun", pb.BeginRunRequest, pb.BeginRunResponse)
RESUME_RUN = UnaryRpc("ResumeRun", pb.ResumeRunRequest, pb.ResumeRunResponse)
END_RUN = UnaryRpc("EndRun", pb.EndRunRequest, pb.EndRunResponse)
GET_RUN = UnaryRpc("GetRun", pb.GetRunRequest, pb.RunState)
LIST_RUNS_TO_RECOVER = UnaryRpc("ListRunsToRecover", pb.ListRunsToRecoverRequest, pb.ListRunsToRecoverResponse)
SUBSCRIBE_RUN = ServerStreamRpc("SubscribeRun", pb.SubscribeRunRequest, pb.JournalEntry)
RECORD_DECISION = UnaryRpc("RecordDecision", pb.RecordDecisionRequest, pb.DecisionRecord)
GET_DECISION = UnaryRpc("GetDecision", pb.GetDecisionRequest, pb.GetDecisionResponse)
BEGIN_EFFECT = UnaryRpc("BeginEffect", pb.BeginEffectRequest, pb.BeginEffectResponse)
COMPLETE_EFFECT = UnaryRpc("CompleteEffect", pb.CompleteEffectRequest, pb.EffectRecord)
GET_EFFECT = UnaryRpc("GetEffect", pb.GetEffectRequest, pb.GetEffectResponse)
RECONCILE_EFFECT = UnaryRpc("ReconcileEffect", pb.ReconcileEffectRequest, pb.EffectRecord)
LIST_EFFECTS_TO_DISPATCH = UnaryRpc(
    "ListEffectsToDispatch", pb.ListEffectsToDispatchRequest, pb.ListEffectsToDispatchResponse
)
CLAIM_EFFECT_DISPATCH = UnaryRpc("ClaimEffectDispatch", pb.ClaimEffectDispatchRequest, pb.ClaimEffectDispatchResponse)
RECORD_DISPATCH_ATTEMPT = UnaryRpc("RecordDispatchAttempt", pb.RecordDispatchAttemptRequest, pb.EffectRecord)
RECORD_EXTERNAL_OBSERVATION = UnaryRpc(
    "RecordExternalObservation", pb.RecordExternalObservationRequest, pb.EffectRecord
)
REGISTER_COMPENSATION = UnaryRpc("RegisterCompensation", pb.RegisterCompensationRequest, pb.ObligationRecord)
LIST_OBLIGATIONS = UnaryRpc("ListObligations", pb.ListObligationsRequest, pb.ListObligationsResponse)
RESOLVE_OBLIGATION = UnaryRpc("ResolveObligation", pb.ResolveObligationRequest, pb.ObligationRecord)
LIST_UNRESOLVED_OBLIGATIONS = UnaryRpc(
    "ListUnresolvedObligations", pb.ListUnresolvedObligationsRequest, pb.ListUnresolvedObligationsResponse
)
CLAIM_OBLIGATION = UnaryRpc("ClaimObligation", pb.ClaimObligationRequest, pb.ClaimObligationResponse)
RECORD_OBLIGATION_ATTEMPT = UnaryRpc("RecordObligationAttempt", pb.RecordObligationAttemptRequest, pb.ObligationRecord)
SET_BUDGET = UnaryRpc("SetBudget", pb.SetBudgetRequest, pb.BudgetState)
ADMIT_BUDGET = UnaryRpc("AdmitBudget", pb.AdmitBudgetRequest, pb.AdmitBudgetResponse)
CHARGE_BUDGET = UnaryRpc("ChargeBudget", pb.ChargeBudgetRequest, pb.BudgetState)
AWAIT_SIGNAL = UnaryRpc("AwaitSignal", pb.AwaitSignalRequest, pb.AwaitSignalResponse)
SEND_SIGNAL = UnaryRpc("SendSignal", pb.SendSignalRequest, pb.SendSignalResponse)
FORK_RUN = UnaryRpc("ForkRun", pb.ForkRunRequest, pb.ForkRunResponse)
LIST_RUN_STEPS = UnaryRpc("ListRunSteps", pb.ListRunStepsRequest, pb.ListRunStepsResponse)
LIST_GATES = UnaryRpc("ListGates", pb.ListGatesRequest, pb.ListGatesResponse)
LIST_PENDING_EFFECTS = UnaryRpc("ListPendingEffects", pb.ListPendingEffectsRequest, pb.ListPendingEffectsResponse)
SLEEP_RUN = UnaryRpc("SleepRun", pb.SleepRunRequest, pb.SleepRunResponse)
CREATE_SCHEDULE = UnaryRpc("CreateSchedule", pb.CreateScheduleRequest, pb.Schedule)
GET_SCHEDULE = UnaryRpc("GetSchedule", pb.GetScheduleRequest, pb.Schedule)
LIST_SCHEDULES = UnaryRpc("ListSchedules", pb.ListSchedulesRequest, pb.ListSchedulesResponse)
PAUSE_SCHEDULE = UnaryRpc("PauseSchedule", pb.PauseScheduleRequest, pb.Schedule)
DELETE_SCHEDULE = UnaryRpc("DeleteSchedule", pb.DeleteScheduleRequest, pb.DeleteScheduleResponse)
TRIGGER_SCHEDULE = UnaryRpc("TriggerSchedule", pb.TriggerScheduleRequest, pb.TriggerScheduleResponse)
SET_TIMER = UnaryRpc("SetTimer", pb.SetTimerRequest, pb.TimerRecord)
CANCEL_TIMER = UnaryRpc("CancelTimer", pb.CancelTimerRequest, pb.CancelTimerResponse)
LIST_DUE_TIMERS = UnaryRpc("ListDueTimers", pb.ListDueTimersRequest, pb.ListDueTimersResponse)
LIST_COMPACTABLE_RUNS = UnaryRpc("ListCompactableRuns", pb.ListCompactableRunsRequest, pb.ListCompactableRunsResponse)
COMPACT_RUN = UnaryRpc("CompactRun", pb.CompactRunRequest, pb.CompactRunResponse)
SUBSCRIBE_EVENTS = ServerStreamRpc("SubscribeEvents", pb.SubscribeEventsRequest, pb.EventEntry)
SUBSCRIBE_BY_SUBJECT = ServerStreamRpc("SubscribeBySubject", pb.SubscribeBySubjectRequest, pb.EventEntry)
REGISTER_REACTION = UnaryRpc("RegisterReaction", pb.Reaction, pb.Reaction)
DEREGISTER_REACTION = UnaryRpc("DeregisterReaction", pb.DeregisterReactionRequest, pb.DeregisterReactionResponse)
LIST_REACTIONS = UnaryRpc("ListReactions", pb.ListReactionsRequest, pb.ListReactionsResponse)
CLAIM_TASKS = UnaryRpc("ClaimTasks", pb.ClaimTasksRequest, pb.ClaimTasksResponse)
COMPLETE_TASK = UnaryRpc("CompleteTask", pb.CompleteTaskRequest, pb.CompleteTaskResponse)
NACK_TASK = UnaryRpc("NackTask", pb.NackTaskRequest, pb.NackTaskResponse)
LIST_TASKS = UnaryRpc("ListTasks", pb.ListTasksRequest, pb.ListTasksResponse)
WRITE_VALUE = UnaryRpc("WriteValue", pb.WriteValueRequest, pb.ValueRecord)
GET_VALUE = UnaryRpc("GetValue", pb.GetValueRequest, pb.GetValueResponse)
WATCH_VALUE = ServerStreamRpc("WatchValue", pb.WatchValueRequest, pb.ValueEvent)
DELETE_VALUE = UnaryRpc("DeleteValue", pb.DeleteValueRequest, pb.DeleteValueResponse)
CREATE_SESSION = UnaryRpc("CreateSession", pb.CreateSessionRequest, pb.Session)
GET_SESSION = UnaryRpc("GetSession", pb.GetSessionRequest, pb.GetSessionResponse)
LIST_SESSIONS = UnaryRpc("ListSessions", pb.ListSessionsRequest, pb.ListSessionsResponse)
DELETE_SESSION = UnaryRpc("DeleteSession", pb.DeleteSessionRequest, pb.DeleteSessionResponse)
APPEND_EVENT = UnaryRpc("AppendEvent", pb.AppendEventRequest, pb.AppendEventResponse)
APPEND = UnaryRpc("Append", pb.AppendRequest, pb.AppendResponse)
APPEND_STREAM = BidiStreamRpc("AppendStream", pb.AppendRequest, pb.AppendReply)
FOLLOW = ServerStreamRpc("Follow", pb.FollowRequest, pb.EntryBatch)
GET_HEAD = UnaryRpc("GetHead", pb.GetHeadRequest, pb.JournalHead)
GET_SERVER_INFO = UnaryRpc("GetServerInfo", pb.GetServerInfoRequest, pb.ServerInfo)
LIST_RUNS = UnaryRpc("ListRuns", pb.ListRunsRequest, pb.ListRunsResponse)
COMPLETE_TIMER = UnaryRpc("CompleteTimer", pb.CompleteTimerRequest, pb.CompleteTimerResponse)
DISPATCH_TASKS = BidiStreamRpc("DispatchTasks", pb.DispatchRequest, pb.DispatchReply)
SETTLE_TASKS = UnaryRpc("SettleTasks", pb.SettleTasksRequest, pb.SettleTasksResponse)
GET_TASK = UnaryRpc("GetTask", pb.GetTaskRequest, pb.Task)
REDRIVE_TASKS = UnaryRpc("RedriveTasks", pb.RedriveTasksRequest, pb.RedriveTasksResponse)
RETRY_RUNS = UnaryRpc("RetryRuns", pb.RetryRunsRequest, pb.RetryRunsResponse)
DROP_TASKS = UnaryRpc("DropTasks", pb.DropTasksRequest, pb.DropTasksResponse)
LIST_DEAD_LETTERS = UnaryRpc("ListDeadLetters", pb.ListDeadLettersRequest, pb.ListDeadLettersResponse)
GET_DEAD_LETTER = UnaryRpc("GetDeadLetter", pb.GetDeadLetterRequest, pb.DeadLetter)
REDRIVE_DEAD_LETTERS = UnaryRpc("RedriveDeadLetters", pb.RedriveDeadLettersRequest, pb.SettleDeadLettersResponse)
DROP_DEAD_LETTERS = UnaryRpc("DropDeadLetters", pb.DropDeadLettersRequest, pb.SettleDeadLettersResponse)
EXPLAIN_REACTION = UnaryRpc("ExplainReaction", pb.ExplainReactionRequest, pb.ExplainReactionResponse)
TEST_REACTION = UnaryRpc("TestReaction", pb.TestReactionRequest, pb.TestReactionResponse)
GET_REACTION_STATS = UnaryRpc("GetReactionStats", pb.GetReactionStatsRequest, pb.GetReactionStatsResponse)
ADVANCE_RUN = UnaryRpc("AdvanceRun", pb.AdvanceRunRequest, pb.AdvanceRunResponse)
ADVANCE_RUNS = UnaryRpc("AdvanceRuns", pb.AdvanceRunsRequest, pb.AdvanceRunsResponse)
REGISTER_RESOURCE = UnaryRpc("RegisterResource", pb.RegisterResourceRequest, pb.Resource)
GET_RESOURCE = UnaryRpc("GetResource", pb.GetResourceRequest, pb.Resource)
LIST_RESOURCES = UnaryRpc("ListResources", pb.ListResourcesRequest, pb.ListResourcesResponse)
EXECUTE = UnaryRpc("Execute", pb.ExecuteRequest, pb.ExecuteResponse)
