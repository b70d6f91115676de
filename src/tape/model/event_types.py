"""The event types that Tape itself writes: when, with which payload, and whether it is stored as it is.

Everything else on a journal is its users'. `docs/events.md` and the AsyncAPI document are made from this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class EventType(NamedTuple):
    """One type. A *safe* payload is stored as it is; a notice is on a stream only, without an id."""

    name: str
    when: str
    fields: Mapping[str, str]
    is_safe: bool = True
    is_notice: bool = False


_RUN = {"run_id": "the run"}
_OWNER = {**_RUN, "app": "its app", "user": "its user", "session": "its session", "status": "where it stands now"}
_END = {
    **_OWNER,
    "result": "what it returned, without secrets",
    "result_bytes": "the size of a result that is too large for the entry",
    "error": "type and message of what failed it",
}
_ENDS = {
    "terminal": "A run ended well.",
    "failed": "A run failed.",
    "cancelled": "A run was cancelled.",
    "stuck": "A run cannot continue and needs an operator.",
    "compensating": "A run undoes what it did.",
}
_EFFECT = {**_RUN, "tool": "what was called", "idempotency_key": "which call", "status": "what is known of it"}
_SETTLED = {
    **_EFFECT,
    "transition": "how that became known, if not from the run itself",
    "external_ref": "what the outside world calls it",
    "dispatch_attempts": "tries so far",
    "error": "what went wrong",
    "next_dispatch_at_ms": "when it is tried again",
}
_OBLIGATION = {
    **_RUN,
    "obligation_seq": "which obligation",
    "effect_key": "the effect that it undoes",
    "kind": "how it is undone",
    "status": "where it stands now",
    "transition": "what happened to it",
    "claimer": "who took it",
    "attempts": "tries so far",
    "error": "what went wrong",
    "next_attempt_at_ms": "when it is tried again",
}
_GATE = {
    **_RUN,
    "gate": "which",
    "status": "what happened to it",
    "risk": "its risk",
    "payload": "what a person needs to know to answer, without secrets",
    "waiting_since_ms": "when the run reached it",
    "deadline_ms": "when it times out",
    "on_timeout": "its answer if it times out",
}
_ANSWER = {
    **_RUN,
    "gate": "which",
    "status": "what happened to it",
    "risk": "its risk",
    "answer": "the answer, without secrets",
    "answered_by": "the user, else `key:<id>`, else `anonymous`; `timeout` if its deadline passed",
    "answered_at_ms": "when",
    "timed_out": "true if its deadline passed",
}
_TIMER = {
    **_RUN,
    "timer_id": "which",
    "kind": "`wake`, `gate_timeout` or `reconcile`",
    "status": "what happened to it",
}
_SCHEDULE = {
    "schedule": "its name",
    "status": "what happened to it",
    "scheduled_at_ms": "the time of the cadence",
}
_DELETED = {"schedule": "its name", "status": "deleted", "by": "who did it"}
_SPEC = {
    "schedule": "its name",
    "status": "what happened to it",
    "cron": "its cadence",
    "time_zone": "of the cadence",
    "overlap": "its overlap policy",
    "catch_up_ms": "its catch-up window",
    "jitter_ms": "its jitter",
    "app_name": "whose runs it begins",
    "user_id": "their user",
    "session_id": "their session",
    "playbook": "or the playbook that it executes",
    "next_ms": "its next time",
    "by": "who did it",
}
_SECRET = {"alias": "its name; never what it says"}
_BY = {
    "By": "the user who did it",
    "ByTenant": "that user's tenant",
    "ByKey": "the key that proved it",
}
_KEY = {"Name": "its name", "KeyID": "its public id; never the secret", **_BY}
_VALUE = {
    **_RUN,
    "namespace": "where the value is",
    "key": "its name",
    "version": "its version from now on",
    "prev_value_json": "what it was",
    "prev_version": "its version until now",
}
_SUBSCRIPTION = {
    "subscription": "the subscription's path",
    "execution_id": "the registration it is about, or the run that a message became",
    "status": "the event in one word",
    "emitter": "what kind of process saw it",
    "created_at": "when it was seen, which can be before it reached the server",
    "worker_id": "which one",
}
_REGISTRATION = {
    **_SUBSCRIPTION,
    "subscription_id": "the registration",
    "path": "the subscription's path",
    "catalog_id": "the version of its document",
}
_LIFECYCLE = {
    "registered": "A subscription was registered.",
    "activated": "A subscription receives messages.",
    "paused": "A subscription stopped fetching for a while.",
    "resumed": "A paused subscription goes on.",
    "draining": "A subscription finishes what it has and fetches no more.",
    "deactivated": "A subscription ended.",
}
_SPOOLED = {
    **_SUBSCRIPTION,
    "message_id": "the source's id of the message",
    "recv_seq": "its position in the order of arrival",
    "spool_ref": "where it is in the spool",
}

EVENTS: tuple[EventType, ...] = (
    EventType(
        "run.running",
        "A run began.",
        {
            **_OWNER,
            "invocation_id": "which invocation",
            "tenant_id": "the tenant it is charged to",
            "actor": "who acts",
            "subject": "for whom",
            "agent_id": "the agent",
            "aiplex_instance_id": "the instance it runs on",
            "parent_run_id": "the run that began it",
            "forked_from": "the run that it was forked from",
            "forked_at_seq": "the seq there that it begins before",
            "forked_at_decision": "the decision there that it begins before",
            "shared_steps": "steps that both have",
            "reason": "why it was forked",
            "schedule": "the schedule that began it",
            "scheduled_at_ms": "the time of that schedule's cadence",
            "reaction_id": "the reaction that began it",
            "source_global_seq": "the entry that the reaction fired on",
            "source_run_id": "that entry's run",
            "source_subject": "that entry's subject",
            "source_payload": "that entry's payload",
        },
    ),
    *(EventType(f"run.{verb}", when, _END) for verb, when in _ENDS.items()),
    EventType(
        "run.waiting",
        "A run found its downstream unavailable and waits for it.",
        {**_OWNER, "waiting_on": "`downstream/<name>`", "error": "what failed"},
    ),
    EventType(
        "run.compacted",
        "The texts of an ended run were removed.",
        {
            **_RUN,
            "compacted_at_ms": "when",
            "decisions_zeroed": "decisions without texts now",
            "effects_zeroed": "effects without texts now",
            "bytes_saved": "how much that was",
        },
    ),
    EventType(
        "decision.recorded",
        "A model's decision was recorded.",
        {
            **_RUN,
            "decision_index": "its number in the run",
            "model": "which model",
            "policy_version": "under which policy",
            "rationale": "why",
        },
    ),
    EventType(
        "effect.pending",
        "An effect is about to be carried out.",
        {
            **_SETTLED,
            "decision_index": "the decision behind it",
            "semantics": "what repeating it would do",
            "dispatch_mode": "who carries it out",
            "business_key": "what makes it unique outside",
            "connector": "the outside system",
            "scope": "the scope it needs",
        },
    ),
    EventType("effect.confirmed", "An effect happened.", _SETTLED),
    EventType("effect.failed", "An effect did not happen.", _SETTLED),
    EventType("effect.unknown", "The outcome of an effect is unknown.", _SETTLED),
    EventType(
        "effect.reconciled",
        "The outcome of an unknown effect was resolved.",
        {**_EFFECT, "resolved_to": "what it turned out to be"},
    ),
    EventType("obligation.registered", "An effect may have to be undone.", _OBLIGATION),
    EventType("obligation.pending", "Undoing failed and is tried again.", _OBLIGATION),
    EventType("obligation.committed", "A worker has claimed an obligation to compensate it.", _OBLIGATION),
    EventType("obligation.compensated", "It was undone.", _OBLIGATION),
    EventType("obligation.stuck", "It cannot be undone without help.", _OBLIGATION),
    EventType("gate.waiting", "A run waits at a gate.", _GATE, is_safe=False),
    EventType("gate.reminded", "A gate has waited for its `remind_after`.", _GATE, is_safe=False),
    EventType("gate.escalated", "A gate has waited for its `escalate_after`.", _GATE, is_safe=False),
    EventType("gate.released", "A gate was answered, or timed out: its run may go on.", _ANSWER, is_safe=False),
    EventType("gate.answered", "A gate was answered while its run did not wait there.", _ANSWER, is_safe=False),
    EventType("timer.set", "A timer was set.", {**_TIMER, "fire_at_ms": "when it fires"}),
    EventType(
        "timer.fired",
        "The server fired a timer.",
        {
            **_TIMER,
            "outcome": "`woken`, `awake` (it was not parked), `timed_out`, `answered`, `no_gate`, `reported` or `over`",
            "late_ms": "milliseconds after its time",
        },
    ),
    EventType("timer.cancelled", "A timer was removed before it fired.", _TIMER),
    EventType("schedule.created", "A schedule was created.", _SPEC),
    EventType("schedule.updated", "A schedule was replaced.", _SPEC),
    EventType("schedule.paused", "A schedule was paused.", _SPEC),
    EventType("schedule.resumed", "A schedule was resumed.", _SPEC),
    EventType("schedule.deleted", "A schedule was deleted.", _DELETED),
    EventType(
        "schedule.fired",
        "A schedule began a run.",
        {
            **_SCHEDULE,
            "begun_run_id": "the run",
            "late_ms": "milliseconds after the time of the cadence",
            "triggered": "true if it was triggered by a caller",
        },
    ),
    EventType(
        "schedule.skipped",
        "A schedule began no run, because the one before was open.",
        {**_SCHEDULE, "open_run_id": "the run that was open"},
    ),
    EventType(
        "schedule.buffered",
        "An occurrence waits for the run before it.",
        {**_SCHEDULE, "open_run_id": "the run that is open"},
    ),
    EventType(
        "schedule.missed",
        "Occurrences were later than the catch-up window, and began no run.",
        {"schedule": "its name", "status": "missed", "count": "how many", "catch_up_ms": "the window"},
    ),
    EventType("schedule.failed", "A schedule could not begin a run.", {**_SCHEDULE, "error": "why"}),
    EventType(
        "policy.denied",
        "A run was refused a scope.",
        {
            **_RUN,
            "tool": "what it wanted to call",
            "decision_index": "the decision behind it",
            "required_scope": "the scope that takes",
            "granted_scopes": "the scopes it has",
            "violation": "what was violated",
        },
    ),
    EventType(
        "value.changed", "A value was written.", {**_VALUE, "writer": "who wrote it", "value": "the value as it is now"}
    ),
    EventType("value.deleted", "A value was deleted.", {**_VALUE, "deleted": "true"}),
    EventType(
        "event.appended",
        "An event was appended to a session.",
        {
            **_RUN,
            "app": "the session's app",
            "user": "its user",
            "session": "the session",
            "event_id": "the event's id",
            "invocation_id": "which invocation",
            "author": "who said it",
            "branch": "on which branch",
            "content_json": "what was said",
            "actions_json": "what it asks for",
            "timestamp_ms": "when",
            "state_delta": "what it changes in the session's state",
        },
    ),
    *(EventType(f"subscription.{verb}", when, _REGISTRATION) for verb, when in _LIFECYCLE.items()),
    EventType(
        "subscription.message.received",
        "A message was fetched; emitted in local mode only.",
        {**_SUBSCRIPTION, "source": "its source", "message_id": "the source's id of it", "headers": "its headers"},
        is_safe=False,
    ),
    EventType(
        "subscription.message.directives_applied",
        "Headers of a message changed how it is handled, or gave it a trace.",
        {
            **_SUBSCRIPTION,
            "message_id": "the source's id of the message",
            "applied": "each header that took effect: `header`, `controls`, `effective_value`",
            "route_override": "the `playbook` and the `pool` that headers chose, or null",
            "trace": "the trace context that was taken over, or null",
        },
    ),
    EventType(
        "subscription.message.deduplicated",
        "A duplicate of a message within the deduplication window started no second run.",
        {
            **_SUBSCRIPTION,
            "subscription_id": "the registration",
            "dedup_key": "what it was recognized by",
            "original_execution_id": "the run that the first one became",
            "suppressed_execution_id": "the run that this one would have become, if it had an id",
            "duplicate_suppressed": "true",
        },
    ),
    EventType(
        "subscription.message.rejected",
        "Deliveries were refused. Equal ones within a second are one event; bodies and secrets are not included.",
        {
            **_SUBSCRIPTION,
            "reason": "why, in one word",
            "status_code": "what the sender was answered",
            "count": "how many",
        },
    ),
    EventType(
        "subscription.message.resent",
        "An operator had a delivery dispatched again: a new run with the input of an earlier one.",
        {
            **_SUBSCRIPTION,
            "message_id": "the message",
            "original_execution_id": "the run whose input it has",
            "dedup": "`new`: whatever deduplication says; `same`: under the message's own key",
            "by": "the user who did it",
        },
    ),
    EventType(
        "subscription.handshake",
        "A provider's handshake was verified and answered; it is no message. Equal ones within a second are one event.",
        {**_SUBSCRIPTION, "kind": "which one, like `url_verification` or `ping`", "count": "how many"},
    ),
    EventType(
        "subscription.rate_limited",
        "A limit began to hold messages back; they wait at their source.",
        {
            **_SUBSCRIPTION,
            "reason": "`max_in_flight` or `dispatch_rate`",
            "max_in_flight": "the limit of outstanding messages, or null",
            "max_dispatch_per_sec": "the limit of the rate, or null",
            "action": "`stopped_fetching`",
            "loss_safe": "true",
        },
    ),
    EventType(
        "subscription.held",
        "A subscription is held: its configuration lets no run start. Its messages wait at their source or in the"
        " spool.",
        {
            **_SUBSCRIPTION,
            "subscription_id": "the registration",
            "reasons": "each missing playbook, secret or unreachable server, with the remedy",
        },
    ),
    EventType(
        "subscription.released",
        "A subscription is held no longer; its messages are dispatched.",
        {**_SUBSCRIPTION, "subscription_id": "the registration"},
    ),
    EventType(
        "subscription.source.lost",
        "A source cannot be reached; it is tried again.",
        {**_SUBSCRIPTION, "source": "its kind", "error": "what went wrong"},
    ),
    EventType(
        "subscription.source.restored",
        "A source can be reached again.",
        {**_SUBSCRIPTION, "source": "its kind", "outage_ms": "for how long it could not"},
    ),
    EventType(
        "subscription.circuit.opened",
        "A downstream failed too often: messages wait from now on.",
        {
            **_SUBSCRIPTION,
            "downstream": "which",
            "consecutive_failures": "failures in a row",
            "trips": "how often this has happened",
        },
    ),
    EventType("subscription.circuit.closed", "A downstream works again.", {**_SUBSCRIPTION, "downstream": "which"}),
    EventType(
        "subscription.message.spooled",
        "A message is durably in the spool.",
        {**_SPOOLED, "sha256": "of its data", "downstream": "what it waits for", "reason": "why it waits"},
    ),
    EventType(
        "subscription.spool.draining",
        "What waits in the spool is being replayed.",
        {**_SUBSCRIPTION, "pending": "how many messages wait"},
    ),
    EventType(
        "subscription.spool.recovered",
        "A runtime that starts found messages in the spool.",
        {
            **_SUBSCRIPTION,
            "pending": "how many messages wait",
            "recv_seq_high_water": "the position of the newest",
            "backend": "what they are written to",
        },
    ),
    EventType("subscription.message.replayed", "A message of the spool became a run.", _SPOOLED),
    EventType(
        "subscription.message.dead_lettered",
        "A message was dead-lettered: it is not retried and waits for an operator.",
        {**_SPOOLED, "attempts": "tries so far", "reason": "why", "message": "the message itself, if no spool has it"},
    ),
    EventType(
        "subscription.message.dropped",
        "A message was not kept: the spool is full, or there is none and its source will bring it no more.",
        {
            **_SUBSCRIPTION,
            "message_id": "the source's id of the message",
            "downstream": "what it waits for",
            "reason": "`retention_full` or `source_gives_up`",
        },
    ),
    EventType(
        "subscription.spool.alert",
        "The spool is larger than it should be.",
        {**_SUBSCRIPTION, "downstream": "what its messages wait for", "spool_bytes": "how large it is"},
    ),
    EventType(
        "subscription.spool.quarantined",
        "An item of the spool is torn or altered; it was quarantined, not replayed.",
        {**_SUBSCRIPTION, "spool_ref": "where it was", "reason": "what is wrong with it"},
    ),
    EventType(
        "command.issued",
        "A playbook is to run on a pool.",
        {
            "execution_id": "the run",
            "path": "the playbook",
            "version": "its version in the catalog",
            "catalog_id": "that version's id",
            "pool": "whose workers run it",
            "payload": "what it is given",
            "parent_execution_id": "the run or subscription that it comes from",
            "subscription": "the subscription whose message it is",
            "message_id": "that message",
            "priority": "the priority that the message asked for",
            "trace": "W3C trace context to go on with",
            "ordering_key": "the run takes turns with those of the same key in its pool",
            "downstream": "the run waits while this downstream of its subscription is held",
            "record": "what is kept of the runs, if several messages share the entry: `full` or `summary`",
            "source": "the source of their messages",
            "order_scope": "precedes their ordering keys",
            "batch": "true if they are one run; else each message has its own",
            "runs": "their messages or payloads. Number n has the entry's run id plus n; in a batch plus n + 1",
        },
    ),
    EventType(
        "run.summary",
        "Runs that are kept as a summary ended well.",
        {
            "app": "`playbooks`",
            "pool": "the pool that ran them",
            "status": "`terminal`",
            "runs": "their ids; `ID+N` stands for an id and the N ids after it",
        },
    ),
    EventType(
        "run.split",
        "A batch did not handle some of its messages; each runs on its own, or is a dead letter.",
        {"run_id": "the run of the batch", "messages": "their `message_id`, `run_id`, `result` and `reason`"},
    ),
    EventType(
        "journal.pruned",
        "Retention removed the oldest entries.",
        {"oldest": "the oldest that is left", "removed": "how many went", "anchor": "the chain value before it"},
    ),
    EventType(
        "journal.diverged",
        "The database lost entries: a replica that was behind took over, a backup was restored, or a file was cut.",
        {
            "epoch": "the epoch that begins with this entry",
            "cut_after": "the last entry that is left",
            "resumes_at": "the number of this entry; no entry has a number between the two",
            "last_known": "the highest number that is known to have been given out",
            "common": "the last entry that is as the server knew it: below `cut_after` if another server has given out"
            " numbers again",
            "lost": "how many entries were lost, as far as is known",
            "cause": "how it was noticed",
        },
    ),
    EventType(
        "journal.damaged",
        "Entries are not what was written. Readers get a gap instead of them.",
        {
            "first": "the first of them",
            "last": "the last of them",
            "problem": "what is wrong",
            "detail": "how it shows",
            "more": "whether this is the last such entry within an hour: more may be damaged, see `tape doctor`",
        },
    ),
    EventType(
        "audit.admin_scope_used",
        "A caller read beyond its own session, called with `tenant:*`, or appended reserved kinds, by a scope of its"
        " token.",
        {
            "Tenant": "the caller's",
            "User": "the caller's",
            "Session": "the caller's",
            "SubscriberID": "its stream, or 0",
            "Method": "what it called",
            "Scope": "the scope, if several uses are written together",
            "KeyID": "the key of its token, if several uses are written together",
            "Count": "how many uses since the last such entry, if several are written together",
        },
    ),
    EventType(
        "audit.tenant_moved",
        "What a tenant had was given to another: its rows were moved, its entries belong to the new one.",
        {"From": "the former tenant", "To": "the owner", "Rows": "the number of moved rows by table"},
    ),
    EventType(
        "audit.redaction_failed",
        "A payload could not be searched for secrets, so it was not stored.",
        {"OriginalSubject": "the subject it had", "Reason": "why"},
    ),
    *(
        EventType(
            f"audit.dead_letters_{verb}",
            f"A caller {verb} dead letters.",
            {
                "Count": "how many were asked for",
                "IDs": "the first 100 of their ids",
                "Failed": "how many of them stay dead letters",
                "Reason": "the reason that was given",
                "By": "the caller's user",
                "ByTenant": "its tenant",
                "ByKey": "the id of its service key, if it has one",
            },
        )
        for verb in ("redriven", "dropped")
    ),
    EventType(
        "audit.key_created",
        "A service key was created.",
        {**_KEY, "Scopes": "its scopes", "ExpiresAtMs": "when it expires, or 0"},
    ),
    EventType(
        "audit.key_rotated",
        "The secret of a service key was replaced.",
        {
            **_KEY,
            "Scopes": "its scopes",
            "ExpiresAtMs": "when it expires, or 0",
            "ReplacedKeyID": "the id of the secret before",
            "ReplacedUntilMs": "until when that one stays valid",
        },
    ),
    EventType("audit.key_revoked", "A service key was revoked.", _KEY),
    EventType(
        "audit.token_revoked",
        "A token was revoked.",
        {"TokenID": "its `jti`", "UntilMs": "until when it is rejected for that reason", **_BY},
    ),
    EventType(
        "auth.rejected",
        "Tokens or service keys were refused.",
        {
            "Reason": "why",
            "Count": "how many, within a second",
            "KeyID": "the key, if its secret was right and it has ended",
        },
    ),
    EventType(
        "wallet.set", "A secret was stored.", {**_SECRET, "version": "its version from now on", "by": "who did it"}
    ),
    EventType(
        "wallet.revealed",
        "A secret was given to a program.",
        {**_SECRET, "to": "what asked for it, and from where", "host": "the hosts it is sent to, if there are any"},
    ),
    EventType("wallet.deleted", "A secret was removed.", {**_SECRET, "by": "who did it"}),
    EventType(
        "wallet.rotated",
        "Secrets were sealed anew.",
        {"resealed": "how many", "master_key": "the id of the master key that wraps them", "by": "who did it"},
    ),
    EventType(
        "bus.dropped",
        "This stream was read too slowly and lost entries. They are on the journal: resume, or ask for a list.",
        {
            "FromSeq": "the first one lost",
            "ToSeq": "the last one lost",
            "DroppedCount": "how many that this stream would have had",
            "SubscriberID": "this stream",
        },
        is_notice=True,
    ),
    EventType(
        "bus.gap",
        "Numbers of the journal that there is no entry to deliver for. The stream goes on after them.",
        {
            "FromSeq": "the first of them",
            "ToSeq": "the last of them",
            "Reason": "`damaged`: not what was written, `missing`: not there, or `diverged`: lost by the database",
            "Detail": "how it shows",
        },
        is_notice=True,
    ),
    EventType(
        "bus.lag",
        "This stream is more than half a buffer behind; nothing was lost yet.",
        {"Behind": "entries that wait", "BufferSize": "how many may wait"},
        is_notice=True,
    ),
    EventType(
        "bus.subscription_idle_closed",
        "The stream was closed because its client did not read it.",
        {"SubscriberID": "this stream", "IdleSeconds": "for how long"},
        is_notice=True,
    ),
    EventType(
        "stream.replay_unavailable",
        "Entries after the cursor of a request cannot be replayed. A comment with the same words precedes it.",
        {"Reason": "why; the table under [coming back](stream.md#coming-back) has the reasons"},
        is_notice=True,
    ),
    EventType(
        "checkpoint",
        "Nothing matched up to here: the cursor moves on.",
        {"Position": "the sequence to resume after, which is also the frame's id"},
        is_notice=True,
    ),
)
