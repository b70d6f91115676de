"""What the generated requests put into each field: the name of a thing, a fixed value, or nothing.

The suite makes its requests from the protobuf descriptors and the OpenAPI document. A field that is not in this table
fails the suite, so that a new field, RPC or route is tried as the other tenant too.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple


class Name(NamedTuple):
    """The field holds a name of one of these roles: each is tried.

    `is_new`: a caller that means its own things chooses a new one, as the server answers a known one from its records.
    """

    roles: tuple[str, ...]
    is_new: bool = False


def name(*roles: str) -> Name:
    """A field with a name."""
    return Name(roles)


def new_name(*roles: str) -> Name:
    """A field with a name that a caller uses once."""
    return Name(roles, is_new=True)


UNSET: Final = object()

JSON = '{"from": "the attacker"}'
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

# By `Message.field`, else by `field`.
FIELDS: dict[str, Any] = {
    # whose it is
    **dict.fromkeys(("tenant", "tenant_id", "tenant_ids"), name("tenant")),
    **dict.fromkeys(("user", "user_id", "user_ids", "actor"), name("user")),
    **dict.fromkeys(("session", "session_id", "session_ids", "X-Harbor-Session"), name("session")),
    # runs and what belongs to them
    **dict.fromkeys(("run_id", "before_run_id", "parent_run_id"), name("run")),
    "on_parent_cancel": UNSET,
    "Draft.run_id": name("run", "log"),
    **dict.fromkeys(("partitionkey", "run_ids", "run", "X-Harbor-Run"), name("run", "log")),
    "app_name": name("app"),
    **dict.fromkeys(("agent_app", "publish_target"), UNSET),  # go with another handler_kind
    **dict.fromkeys(("agent_id", "aiplex_instance_id", "gateway_route"), name("app")),
    "invocation_id": name("invocation"),
    **dict.fromkeys(("lease_owner", "owner", "claimer", "writer", "worker_id"), name("owner")),
    **dict.fromkeys(("idempotency_key", "effect_key"), name("effect")),
    "custom_key": new_name("effect"),
    "business_key": name("business"),
    **dict.fromkeys(("digest", "position", "change_check", "after_seq"), UNSET),
    **dict.fromkeys(("at_decision", "at_seq", "decision_json", "ListRunStepsRequest.cursor"), UNSET),
    "connector": name("connector"),
    "external_ref": name("business"),
    "gate_name": name("gate"),
    **dict.fromkeys(("risk", "ListGatesRequest.state", "ListGatesRequest.cursor"), UNSET),
    "AwaitSignalRequest.risk": "irreversible",
    **dict.fromkeys(("timeout_ms", "remind_after_ms", "escalate_after_ms", "on_timeout_json"), UNSET),
    "deadline_before_ms": UNSET,
    "duration_ms": 3_600_000,
    **dict.fromkeys(("Schedule.name", "DeleteScheduleRequest.name"), new_name("schedule")),
    **{f"{request}ScheduleRequest.name": name("schedule") for request in ("Get", "Pause", "Trigger")},
    "after_name": UNSET,
    "cron": "0 3 * * *",
    "time_zone": "UTC",
    "overlap": "skip",
    "input_json": JSON,
    "replace": True,
    "resume": False,
    **dict.fromkeys(("catch_up_ms", "jitter_ms", "playbook", "next_ms", "last_nominal_ms", "last_fired_at_ms"), UNSET),
    **dict.fromkeys(("last_run_id", "last_error", "begun", "skipped", "missed", "buffered_ms", "paused"), UNSET),
    **dict.fromkeys(("Schedule.created_at_ms", "created_by", "Schedule.tenant_id"), UNSET),
    "timer_id": name("timer"),
    "obligation_seq": name("obligation"),
    # values and sessions
    "namespace": name("namespace"),
    "key": name("key"),
    "Dedup.key": new_name("dedup"),
    "EventRecord.id": new_name("event"),
    # reactions and tasks
    **dict.fromkeys(("reaction_id", "reaction_ids"), name("reaction", "pool_reaction")),
    "cause": name("reaction"),
    "DispatchRequest.renew": name("task"),
    **dict.fromkeys(("task_id", "task_ids", "completed", "released"), name("task")),
    **dict.fromkeys(("ids", "GetDeadLetterRequest.id"), name("dead_letter")),
    "origins": "task",
    **dict.fromkeys(("ListDeadLettersRequest.cursor", "RedriveDeadLettersRequest.cursor"), UNSET),
    "DropDeadLettersRequest.cursor": UNSET,
    **dict.fromkeys(("dry_run", "group"), False),
    "preview_bytes": 5_000,
    "since_ms": 1,
    "global_seq": name("entry"),
    "subject_pattern": name("pattern"),
    # documents, secrets, subscriptions and executions
    **dict.fromkeys(("path", "after_path", "after"), name("path", "subscription")),
    "RegisterSubscriptionRequest.path": name("subscription", "path"),
    "catalog_id": name("catalog"),
    "subscription": name("subscription"),
    "subscription_id": name("registration"),
    "deliveries.list.path": name("subscription"),
    "deliveries.list.before": UNSET,
    "ResendRequest.execution_id": name("delivery"),
    "ResendRequest.dedup": "new",
    "listener": name("listener"),
    **dict.fromkeys(("ingress.deliver.listener", "ingress.handshake.listener"), name("address")),
    "hub.mode": "subscribe",
    **dict.fromkeys(("hub.verify_token", "hub.challenge"), "1158201444"),
    "alias": name("alias"),
    **dict.fromkeys(("execution_id", "parent_execution_id", "execution_ids"), name("execution")),
    **dict.fromkeys(("execution_pool", "pool"), name("pool")),
    "dedup_key": new_name("dedup"),
    "message_id": new_name("message"),
    "event_id": new_name("request"),
    "part": name("part"),
    "before": name("registration"),
    # the journal
    **dict.fromkeys(("request_id", "CloudEvent.id"), new_name("request")),
    "source": name("request"),
    "subject": name("subject"),
    "CloudEvent.subject": name("dimension"),
    "artifacts.get.id": name("artifact"),
    "events.subscribe.subject": name("pattern"),
    "events.subscribe.from": UNSET,  # goes without resume_seq
    "events.subscribe.named": "1",
    # what requests say beside names
    **dict.fromkeys(
        (
            *("actions_json", "content_json", "detail_json", "error_json", "payload_json", "request_json"),
            *("resolution_json", "response_json", "result_json", "state_delta_json", "state_json", "value_json"),
        ),
        JSON,
    ),
    "request_json": JSON,
    **dict.fromkeys(("author", "branch", "model", "rationale", "reason", "error", "step", "priority"), "attacker"),
    **dict.fromkeys(("policy_version", "compensator_ref", "compensate_on_duplicate_kind", "tool_name"), "attacker"),
    **dict.fromkeys(("error_contains", "scope", "scopes", "labels", "status_filter", "anchor"), UNSET),
    "kind": "undo",
    **dict.fromkeys(("SubscribeEventsRequest.kind", "FollowRequest.kind", "ListResourcesRequest.kind"), UNSET),
    "Draft.kind": UNSET,
    "Reaction.name": "attacker",
    "content": name("document"),
    "predicate_cel": "true",
    "traceparent": TRACEPARENT,
    **dict.fromkeys(("trace_id", "span_id", "parent_span_id"), UNSET),
    "resource_type": "Playbook",
    "ListDocumentsRequest.resource_type": UNSET,
    "resource_kind": "playbook",
    # numbers and flags
    **dict.fromkeys(("lease_ms", "lease_ttl_ms"), 60_000),
    **dict.fromkeys(("limit", "max", "max_entries", "max_events", "samples"), 100),
    **dict.fromkeys(("before_ms", "now_ms", "older_than_ms", "created_before_ms", "before_started_at_ms"), 1 << 50),
    **dict.fromkeys(("before_global_seq", "next_attempt_at_ms", "next_dispatch_at_ms", "fire_at_ms"), 1 << 50),
    **dict.fromkeys(("from_global_seq", "from_seq", "from_ts_ms", "from_version", "to_global_seq"), 0),
    **dict.fromkeys(("timestamp_ms", "created_at_ms", "updated_at_ms", "created_after_ms"), 0),
    **dict.fromkeys(("decision_index", "call_index", "shard", "cursor", "version"), 0),
    **dict.fromkeys(("ReadDocumentRequest.version",), "latest"),
    "ClaimTasksRequest.shard": -1,
    **dict.fromkeys(("max_attempts", "schema_version", "max_concurrency", "num_shards", "window"), 1),
    **dict.fromkeys(("debounce_ms", "rate_limit_per_s", "retry_max", "retry_backoff_ms", "dlq_after_n"), 1),
    **dict.fromkeys(("bucket_ms", "window_secs", "dedup_window_secs"), 3_600_000),
    **dict.fromkeys(("usd", "usd_cap", "usd_estimate", "tokens", "token_cap", "token_estimate"), 1),
    "if_version": -1,
    "part_of": 1,
    "part_at": 0,
    **dict.fromkeys(("claim", "everything", "permanent", "settle_run", "include_pending", "include_stuck"), True),
    **dict.fromkeys(("include_unknown", "include_committed_expired", "ignore_unowed", "if_absent"), True),
    **dict.fromkeys(("allow_self", "backfill", "bootstrap_from_head", "deleted", "strict_order"), False),
    **dict.fromkeys(("first_write_wins", "if_changed", "is_one_shard", "only_owed", "only_unresolved"), False),
    "skip_gaps": True,
    "force": False,
    **dict.fromkeys(("reasons", "emitter"), "attacker"),
    "ordering_key": "k",
    "record": "summary",
    "batch": 2,
    "max_bytes": 1_000,
    "downstream": "orders",
    "unavailable": "orders",
    "DownstreamRequest.name": "orders",
    "DownstreamRequest.action": "hold",
    "DownstreamRequest.may_repeat": True,
    "RetryRunsRequest.run_ids": name("execution"),
    "RetryRunsRequest.dry_run": False,
    "RetryRunsRequest.ended_after_ms": 0,
    **dict.fromkeys(("renew", "uncounted"), False),
    # choices
    "handler_kind": 2,
    "dispatch_mode": 2,
    "semantics": 1,
    "certainty": 2,
    "resolution": 1,
    "resolved_status": 2,
    "CompleteEffectRequest.status": 2,
    "ResolveObligationRequest.status": 3,
    "EndRunRequest.status": 4,
    **dict.fromkeys(("ListRunsRequest.status", "ListTasksRequest.status"), UNSET),
    "EventBody.status": "ok",
    # service keys and tokens
    "CreateKeyRequest.name": name("service_key"),
    "keys.change.key": name("service_key"),
    "keys.change.action": "rotate",
    "keys.list.after": UNSET,
    "keys.list.limit": "100",
    "all": "true",
    "CreateKeyRequest.scopes": "agent",
    **dict.fromkeys(("overlap_s", "expires_in_s", "for_s"), 3_600),
    **dict.fromkeys(("read", "write"), UNSET),
    "jti": name("token"),
    # HTTP
    **dict.fromkeys(("identity", "since", "until", "workload", "trace", "datacontenttype", "data_base64"), UNSET),
    **dict.fromkeys(("event_types", "X-Harbor-Event-Type", "type", "host", "access_token"), UNSET),
    "CloudEvent.type": "order.paid",
    "CloudEvent.specversion": "1.0",
    **{field: {"from": "the attacker"} for field in ("data", "payload", "context", "meta")},
    "by_tenant": True,
    "AggregateRequest.window": 3_600_000_000_000,
    "bucket": 3_600_000_000_000,
    **dict.fromkeys(("Last-Event-ID", "resume_seq"), "0"),
    **dict.fromkeys(("Upgrade", "Tape-Journal"), UNSET),
    "action": "pause",
    "event_type": "subscription.source.lost",
    "created_at": UNSET,
    **dict.fromkeys(("lane", "prefix"), ""),
    **dict.fromkeys(("OffsetRangeRequest.begin", "offset"), 0),
    "OffsetRangeRequest.end": 1,
    "letter": UNSET,  # vocabulary: name on the wire
    "ExecuteRequest.events": UNSET,
    "subscriptions.list.limit": "100",
}

# Fields of which a request has one: each is tried.
ONE_OF: dict[str, tuple[tuple[str, ...], ...]] = {
    "AppendRequest": ((), ("part_of", "part_at")),
    "RedriveTasksRequest": (("task_ids",), ("filter",), ("everything",)),
    "DropTasksRequest": (("task_ids",), ("filter",), ("everything",)),
    "RetryRunsRequest": (("run_ids",), ("subscription",)),
    "RedriveDeadLettersRequest": (("ids",), ("filter",), ("everything",)),
    "DropDeadLettersRequest": (("ids",), ("filter",), ("everything",)),
    "SendSignalRequest": (("run_id",), ("app_name", "user_id", "session_id")),
    "GetResourceRequest": (("path", "version"), ("catalog_id",)),
    "Execution": (("path",), ("catalog_id",)),
    "ExecuteRequest": (("path",), ("catalog_id",)),
}


def is_left_out(owner: str, field: str, choice: int) -> bool:
    """Whether a request leaves a field out because it has another one instead."""
    alternatives = ONE_OF.get(owner, ())
    chosen = alternatives[choice % len(alternatives)] if alternatives else ()
    return field not in chosen and any(field in each for each in alternatives)


def find(owner: str, field: str, default: Any = None) -> Any:
    """What a field of a message, schema or operation gets; `default` for one that has fields of its own."""
    found = FIELDS.get(f"{owner}.{field}", FIELDS.get(field, default))
    if found is not None:
        return found
    raise AssertionError(
        f"The adversarial suite does not know the field {owner}.{field}. Add it to FIELDS in"
        " tests/access/adversary/fields.py: name(ROLE) if it holds a name that belongs to a tenant, else a valid value"
        " or UNSET."
    )
