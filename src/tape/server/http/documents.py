"""API descriptions: OpenAPI for the HTTP routes, AsyncAPI for the events of the stream."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tape import __version__
from tape.model.cloudevents import BATCHED, STRUCTURED
from tape.model.event_types import EVENTS, EventType
from tape.server.http.info import InfoRequest
from tape.server.http.queries import AggregateRequest, ListRequest

_TEXT = {"type": "string"}
_NUMBER = {"type": "integer", "minimum": 0}
_TIME = {"type": "string", "format": "date-time"}

_ERROR = {
    "type": "object",
    "required": ["code", "message"],
    "properties": {"code": _TEXT, "message": _TEXT},
}
_EVENT = {
    "type": "object",
    "required": ["type", "sequence", "occurred_at", "tenant", "user", "session", "payload"],
    "properties": {
        "type": _TEXT,
        "sequence": _NUMBER,
        "occurred_at": _TIME,
        **dict.fromkeys(("tenant", "user", "session", "run"), _TEXT),
        "payload": {"type": "object"},
        "extra": {"type": "object", "additionalProperties": _TEXT},
    },
}
_PAGE = {
    "type": "object",
    "required": ["events", "next_cursor", "has_more"],
    "properties": {
        "events": {"type": "array", "items": {"$ref": "#/components/schemas/Event"}},
        "next_cursor": _NUMBER,
        "has_more": {"type": "boolean"},
        "truncated": {"type": "boolean"},
    },
}
_COUNTS = {"type": "object", "additionalProperties": _NUMBER}
_AGGREGATE = {
    "type": "object",
    "required": ["buckets", "protocol_version"],
    "properties": {
        "buckets": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["bucket_start", "bucket_end", "counts"],
                "properties": {
                    "bucket_start": _TIME,
                    "bucket_end": _TIME,
                    "counts": _COUNTS,
                    "counts_by_tenant": {"type": "object", "additionalProperties": _COUNTS},
                },
            },
        },
        "protocol_version": _TEXT,
        "truncated": {"type": "boolean"},
    },
}
_CLOUD_EVENT = {
    "type": "object",
    "required": ["specversion", "id", "source", "type"],
    "properties": {
        "specversion": {"const": "1.0"},
        "id": {"type": "string", "minLength": 1},
        "source": {"type": "string", "minLength": 1},
        "type": {"type": "string", "pattern": r"^[a-z0-9][a-z0-9_-]*\.[a-z0-9][a-z0-9._-]*$"},
        "subject": _TEXT,
        "datacontenttype": _TEXT,
        "partitionkey": _TEXT,
        "traceparent": _TEXT,
        "data": {},
        "data_base64": _TEXT,
    },
}
_PUBLISHED = {
    "type": "object",
    "required": ["global_seqs"],
    "properties": {
        "global_seqs": {"type": "array", "items": {"type": "integer", "minimum": 1}},
        "ignored": {"type": "array", "items": _TEXT},
    },
}
_INFO = {
    "type": "object",
    "required": ["instance_id", "build_version", "protocol_version", "capabilities", "uptime_seconds"],
    "properties": {"capabilities": {"type": "array", "items": _TEXT}, "uptime_seconds": _NUMBER},
}
_SESSION = {
    "name": "X-Harbor-Session",
    "in": "header",
    "schema": _TEXT,
    "description": "Overrides the session of the token.",
}


@cache
def openapi() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    requests = (AggregateRequest, ListRequest, InfoRequest)
    _, schemas = msgspec.json.schema_components(requests, ref_template="#/components/schemas/{name}")
    stream_parameters = [
        _SESSION,
        _parameter("header", "X-Harbor-Run", "Only this run."),
        _parameter("header", "X-Harbor-Event-Type", "Only these types, separated by commas; may be repeated."),
        _parameter("header", "Last-Event-ID", "Replay everything after this sequence first."),
        _parameter("query", "resume_seq", "The same as Last-Event-ID, for clients that cannot send headers."),
        _parameter("query", "type", "Only this type; may be repeated."),
        _parameter("query", "admin", "1 streams the events of all identities; needs a scope."),
        _parameter("query", "access_token", "The token, for clients that cannot send headers."),
        _parameter("query", "session", "The session, with access_token."),
    ]
    stream = {"text/event-stream": {"schema": _TEXT}}
    publish = {
        STRUCTURED: {"schema": {"$ref": "#/components/schemas/CloudEvent"}},
        BATCHED: {"schema": {"type": "array", "items": {"$ref": "#/components/schemas/CloudEvent"}}},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tape", "version": __version__, "description": "The journal over HTTP."},
        "paths": {
            "/v1/events": {
                "get": {
                    "operationId": "events.subscribe",
                    "summary": "Events after a cursor, then live events, as Server-Sent Events.",
                    "parameters": stream_parameters,
                    "responses": _responses(stream, "429", "503"),
                },
                "post": {
                    "operationId": "events.publish",
                    "summary": "Append CloudEvents durably; deduplicated by source and id.",
                    "parameters": [_SESSION],
                    "requestBody": {"required": True, "content": publish},
                    "responses": _responses(_json(_PUBLISHED), "409", "413", "422", "429", "503"),
                },
            },
            "/v1/events/list": _post(
                "events.list",
                "The newest events, page by page.",
                "ListRequest",
                "Page",
                {BATCHED: publish[BATCHED]},
            ),
            "/v1/events/aggregate": _post(
                "events.aggregate", "Counts by type in equal buckets.", "AggregateRequest", "Aggregate"
            ),
            "/v1/control/runtime.info": _post(
                "runtime.info", "Instance, version and capabilities of this server.", "InfoRequest", "Info"
            ),
            "/v1/artifacts/{id}": {
                "get": {
                    "operationId": "artifacts.get",
                    "summary": "A field that was too large for its event.",
                    "parameters": [
                        {"name": "id", "in": "path", "required": True, "schema": _TEXT},
                        _SESSION,
                        *(_parameter("query", name, "Another session's artifact; needs a scope.") for name in _AXES),
                    ],
                    "responses": _responses({"*/*": {"schema": {}}}, "404", "503"),
                }
            },
        },
        "components": {
            "schemas": {
                **schemas,
                "Error": _ERROR,
                "Event": _EVENT,
                "Page": _PAGE,
                "Aggregate": _AGGREGATE,
                "CloudEvent": _CLOUD_EVENT,
                "Info": _INFO,
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
        },
        "security": [{"token": []}],
    }


@cache
def asyncapi() -> dict[str, Any]:
    """The AsyncAPI 3 document: the stream and every event type that Tape itself emits."""
    messages = {event.name: _message(event) for event in EVENTS}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Tape", "version": __version__, "description": "Events of the stream."},
        "channels": {
            "events": {
                "address": "/v1/events",
                "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
            }
        },
        "operations": {"subscribe": {"action": "send", "channel": {"$ref": "#/channels/events"}}},
        "components": {"messages": messages, "schemas": {"Event": _EVENT}},
    }


async def show_openapi(request: Request) -> Response:
    """`GET /v1/openapi.json`."""
    return Response(msgspec.json.encode(openapi()), media_type="application/json")


async def show_asyncapi(request: Request) -> Response:
    """`GET /v1/asyncapi.json`."""
    return Response(msgspec.json.encode(asyncapi()), media_type="application/json")


_AXES = ("tenant", "user", "session")


def _message(event: EventType) -> dict[str, Any]:
    fields = {name: {"description": text} for name, text in event.fields.items()}
    return {
        "name": event.name,
        "summary": event.when,
        "contentType": "application/json",
        "payload": {
            "allOf": [
                {"$ref": "#/components/schemas/Event"},
                {"type": "object", "properties": {"payload": {"type": "object", "properties": fields}}},
            ]
        },
    }


def _post(
    operation: str, summary: str, request: str, answer: str, also: dict[str, Any] | None = None
) -> dict[str, Any]:
    body = _json({"$ref": f"#/components/schemas/{request}"})
    return {
        "post": {
            "operationId": operation,
            "summary": summary,
            "parameters": [_SESSION],
            "requestBody": {"content": body},
            "responses": _responses(_json({"$ref": f"#/components/schemas/{answer}"}) | (also or {}), "503"),
        }
    }


def _parameter(location: str, name: str, text: str) -> dict[str, Any]:
    return {"name": name, "in": location, "description": text, "schema": _TEXT}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _responses(content: dict[str, Any], *errors: str) -> dict[str, Any]:
    refused = {"description": "Rejected", "content": _json({"$ref": "#/components/schemas/Error"})}
    good: dict[str, Any] = {"200": {"description": "OK", "content": content}}
    return good | dict.fromkeys(("400", "401", "403", *errors), refused)
