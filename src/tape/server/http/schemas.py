"""JSON schemas of what the HTTP routes answer, as the OpenAPI document shows them."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
TIME: Schema = {"type": "string", "format": "date-time"}
# 64-bit ids are strings: JSON numbers lose digits in many clients.
ID: Schema = {"type": "string", "pattern": "^[0-9]+$"}
OBJECT: Schema = {"type": "object"}
ANYTHING: Schema = {}


def ref(name: str) -> Schema:
    """A reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def array(items: Schema) -> Schema:
    """A list."""
    return {"type": "array", "items": items}


def record(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """An object with these properties."""
    return {"type": "object", "required": list(required), "properties": required | (optional or {})}


_COUNTS: Schema = {"type": "object", "additionalProperties": NUMBER}
_RESULT_STATUS: Schema = {"enum": ["started", "duplicate", "error", "skipped"]}
_DOCUMENT: dict[str, Schema] = {
    "path": TEXT,
    "version": NUMBER,
    "catalog_id": ID,
    "kind": TEXT,
    "labels": OBJECT,
    "created_at": TIME,
}
_MAYBE_MS: Schema = {"type": ["integer", "null"]}
_PATTERNS: Schema = {"type": ["array", "null"], "items": TEXT}
_KEY: dict[str, Schema] = {
    **dict.fromkeys(("name", "tenant", "key_id", "state", "user", "created_by"), TEXT),
    "scopes": array(TEXT),
    "read": _PATTERNS,
    "write": _PATTERNS,
    "created_at_ms": NUMBER,
    **dict.fromkeys(("expires_at_ms", "retires_at_ms", "revoked_at_ms", "last_used_at_ms"), _MAYBE_MS),
}

EVENT = record(
    {
        "type": TEXT,
        "sequence": NUMBER,
        "occurred_at": TIME,
        **dict.fromkeys(("tenant", "user", "session"), TEXT),
        "payload": OBJECT,
    },
    {"run": TEXT, "extra": {"type": "object", "additionalProperties": TEXT}},
)

# By the name that references use.
SCHEMAS: dict[str, Schema] = {
    "Error": record({"code": TEXT, "message": TEXT}) | {"additionalProperties": False},
    "ApiError": record(
        {"error": TEXT, "status": {"type": "integer", "minimum": 400}},
        {"code": {"type": "string", "pattern": "^TAPE-[0-9]{4}$"}, "problems": array(OBJECT)},
    ),
    "Status": record({"status": TEXT}),
    "Event": EVENT,
    "Gap": record(
        {"first": NUMBER, "last": NUMBER, "reason": {"enum": ["damaged", "missing", "diverged"]}, "detail": TEXT}
    ),
    "Page": record(
        {"events": array(ref("Event")), "next_cursor": NUMBER, "has_more": FLAG},
        {"truncated": FLAG, "gaps": array(ref("Gap"))},
    ),
    "Aggregate": record(
        {
            "buckets": array(
                record(
                    {"bucket_start": TIME, "bucket_end": TIME, "counts": _COUNTS},
                    {"counts_by_tenant": {"type": "object", "additionalProperties": _COUNTS}},
                )
            ),
            "protocol_version": TEXT,
        },
        {"truncated": FLAG},
    ),
    "CloudEvent": record(
        {
            "specversion": {"const": "1.0"},
            "id": {"type": "string", "minLength": 1},
            "source": {"type": "string", "minLength": 1},
            "type": {"type": "string", "pattern": r"^[a-z0-9][a-z0-9_-]*\.[a-z0-9][a-z0-9._-]*$"},
        },
        {
            **dict.fromkeys(("subject", "datacontenttype", "partitionkey", "traceparent"), TEXT),
            "data": ANYTHING,
            "data_base64": TEXT,
        },
    ),
    "Published": record({"global_seqs": array({"type": "integer", "minimum": 1})}, {"ignored": array(TEXT)}),
    "Info": record(
        {
            **dict.fromkeys(("instance_id", "build_version", "protocol_version"), TEXT),
            "capabilities": array(TEXT),
            "uptime_seconds": NUMBER,
        }
    ),
    "Delivery": record(
        {"status": {"enum": ["accepted", "rejected"]}},
        {
            **dict.fromkeys(("reason", "detail", "message_id"), TEXT),
            "execution_id": ANYTHING,
            **dict.fromkeys(("spooled", "duplicate"), FLAG),
        },
    ),
    "RegisteredDocument": record(
        {"status": TEXT, "message": TEXT, "path": TEXT, "version": NUMBER, "catalog_id": ID, "kind": TEXT}
    ),
    "DocumentSummary": record(_DOCUMENT),
    "Document": record({**_DOCUMENT, "content": TEXT}),
    "Documents": record({"entries": array(ref("DocumentSummary"))}),
    "Credential": record({"alias": TEXT, "version": NUMBER, "set_at": TIME}, {"data": ANYTHING}),
    "ListenerNames": record({"listeners": array(TEXT)}),
    "Listener": record(
        {
            **dict.fromkeys(("listener", "catalog_path", "source", "state"), TEXT),
            "subscription_id": ID,
            **dict.fromkeys(("verify", "dispatch", "directives", "subscription"), OBJECT),
            "secrets": array(TEXT),
        }
    ),
    "BatchRequest": record({"executions": {**array(ref("ExecuteRequest")), "maxItems": 1_000}}),
    "ExecutionStarted": record({"execution_id": ANYTHING, "status": _RESULT_STATUS, "commands_generated": NUMBER}),
    "BatchResult": record(
        {
            **dict.fromkeys(("count", "started", "duplicates", "failed"), NUMBER),
            "results": array(
                record(
                    {"index": NUMBER, "status": _RESULT_STATUS, "commands_generated": NUMBER},
                    {"execution_id": ANYTHING, "error": TEXT, "code": TEXT},
                )
            ),
        },
        {"skipped": NUMBER},
    ),
    "Execution": record(
        {"execution_id": TEXT, "status": TEXT, "started_at": TIME, "ended_at": {"type": ["string", "null"]}}
    ),
    "OffsetRangeRequest": record(
        {"subscription": TEXT, "part": TEXT, "begin": {"type": "integer"}, "end": {"type": "integer"}},
        {
            "records": {
                **array(
                    record(
                        {"offset": {"type": "integer"}},
                        {
                            "execution": ref("ExecuteRequest"),
                            "letter": ref("EventBody"),  # vocabulary: name on the wire
                        },
                    )
                ),
                "maxItems": 1_000,
            }
        },
    ),
    "OffsetResults": record(
        {
            "end": {"type": "integer"},
            "results": array(
                record({"offset": {"type": "integer"}, "status": TEXT}, {"execution_id": ANYTHING, "error": TEXT})
            ),
        }
    ),
    "OffsetRanges": record({"parts": {"type": "object", "additionalProperties": array(array({"type": "integer"}))}}),
    "Pool": record({"pool": TEXT, **dict.fromkeys(("waiting", "claimed", "backlog", "dead", "oldest_ms"), NUMBER)}),
    "Downstreams": record(
        {
            "downstreams": {
                "type": "object",
                "additionalProperties": record(
                    {
                        "failures": NUMBER,
                        "successes": NUMBER,
                        "is_failing": {"type": "boolean"},
                        "held": {"type": "boolean"},
                        "has_waiting": {"type": "boolean"},
                        "is_probe_open": {"type": "boolean"},
                    }
                ),
            },
            "resumed": array(record({"execution_id": ID, "message_id": TEXT})),
        }
    ),
    "Outcomes": record(
        {
            "outcomes": array(
                record({"execution_id": ID, "status": {"enum": ["open", "completed", "failed"]}, "error": TEXT})
            )
        }
    ),
    "Subscription": record(
        {
            "subscription_id": ID,
            "path": TEXT,
            "catalog_id": ID,
            "state": TEXT,
            "last_event_type": TEXT,
            "updated_at": TIME,
        },
        {
            "held": record({"reasons": array(TEXT), "since": TIME}),
            "problems": array(TEXT),
            "warnings": array(TEXT),
        },
    ),
    "Hold": record({"problems": array(record({"kind": TEXT, "name": TEXT, "reason": TEXT})), "held": array(TEXT)}),
    "Subscriptions": record({"subscriptions": array(ref("Subscription"))}, {"next": ID}),
    "Deliveries": record({"deliveries": array(ref("DeliveryOutcome"))}, {"next": TEXT}),
    "DeliveryOutcome": record(
        {"at": TIME, "outcome": {"enum": ["accepted", "duplicate", "spooled", "rejected", "handshake"]}},
        {
            "execution_id": ID,
            "message_id": TEXT,
            "status": TEXT,
            "playbook": TEXT,
            "reason": TEXT,
            "count": NUMBER,
        },
    ),
    "PostedEvent": record({"status": TEXT, "event_id": NUMBER, "commands_generated": NUMBER}),
    "PostedEvents": record({"events": array(ref("PostedEvent"))}),
    "Key": record(_KEY),
    "IssuedKey": record({**_KEY, "key": TEXT}),
    "Keys": record({"keys": array(ref("Key"))}, {"next": TEXT}),
    "RevokedToken": record({"jti": TEXT, "tenant": TEXT, "until_ms": NUMBER}),
}
