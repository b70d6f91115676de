"""API descriptions: OpenAPI for the HTTP routes, AsyncAPI for the events of the stream."""

from __future__ import annotations

from functools import cache
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tape import __version__
from tape.engine.executions.execute import ExecuteRequest
from tape.model.event_types import EVENTS, EventType
from tape.server.calls import VARIANTS
from tape.server.http.catalog import ListDocumentsRequest, ReadDocumentRequest, RegisterDocumentRequest
from tape.server.http.deliveries import ResendRequest
from tape.server.http.downstreams import DownstreamRequest, OutcomesRequest
from tape.server.http.holds import HoldRequest
from tape.server.http.info import InfoRequest
from tape.server.http.keys import ChangeKeyRequest, CreateKeyRequest, RevokeTokenRequest
from tape.server.http.operations import JSON, OPERATIONS, Content, Operation
from tape.server.http.queries import AggregateRequest, ListRequest
from tape.server.http.schemas import EVENT, SCHEMAS, ref
from tape.server.http.subscriptions import ActRequest, EventBody, RegisterSubscriptionRequest
from tape.server.permissions import TOKENLESS_ROUTES, scopes_for

_REQUESTS = (
    AggregateRequest,
    ChangeKeyRequest,
    CreateKeyRequest,
    EventBody,
    ExecuteRequest,
    InfoRequest,
    ListDocumentsRequest,
    ListRequest,
    ReadDocumentRequest,
    RegisterDocumentRequest,
    RegisterSubscriptionRequest,
    ActRequest,
    DownstreamRequest,
    HoldRequest,
    OutcomesRequest,
    ResendRequest,
    RevokeTokenRequest,
)
_DESCRIPTION = """\
The journal and the control routes over HTTP. `x-scopes` of an operation lists the scopes of which a token needs one;
an empty list means every token. Every GET route also answers HEAD. The limits of connections can answer any request
with 408, 414, 431 or 503."""


@cache
def openapi() -> dict[str, Any]:
    """The OpenAPI 3.1 document: every route of the server, with the scopes that the table of permissions has for it."""
    _, requests = msgspec.json.schema_components(_REQUESTS, ref_template="#/components/schemas/{name}")
    paths: dict[str, dict[str, Any]] = {}
    for route, operation in OPERATIONS.items():
        method, _, path = route.partition(" ")
        paths.setdefault(operation.path or path, {})[method.lower()] = _operation(route, operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tape", "version": __version__, "description": _DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": requests | SCHEMAS,
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
        "components": {"messages": messages, "schemas": {"Event": EVENT}},
    }


async def show_openapi(request: Request) -> Response:
    """`GET /v1/openapi.json`."""
    return Response(msgspec.json.encode(openapi()), media_type="application/json")


async def show_asyncapi(request: Request) -> Response:
    """`GET /v1/asyncapi.json`."""
    return Response(msgspec.json.encode(asyncapi()), media_type="application/json")


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


def _operation(route: str, operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {"operationId": operation.name, "summary": operation.summary}
    if operation.parameters:
        described["parameters"] = [_with_scopes(route, each) for each in operation.parameters]
    if operation.body:
        described["requestBody"] = {"required": operation.needs_body, "content": _content(operation.body)}
    statuses = set(operation.errors)
    if route in TOKENLESS_ROUTES:
        described["security"] = []
    else:
        described["x-scopes"] = sorted(scopes_for(route))
        statuses |= {400, 401, 403}
    described["responses"] = {
        str(operation.status): {"description": "OK", "content": _content(operation.answer)},
        **{
            str(status): {"description": HTTPStatus(status).phrase, "content": _content(_error(route, operation))}
            for status in sorted(statuses)
        },
    }
    return described


def _with_scopes(route: str, parameter: dict[str, Any]) -> dict[str, Any]:
    """The parameter; with the scopes that the route needs if it is given, where these are others."""
    variant = f"{route}?{parameter['name']}"
    return parameter | {"x-scopes": sorted(scopes_for(variant))} if variant in VARIANTS else parameter


def _error(route: str, operation: Operation) -> Content:
    if route in TOKENLESS_ROUTES:
        return operation.answer or {JSON: ref("Error")}
    return {JSON: ref("ApiError" if " /api/" in route else "Error")}


def _content(content: Content) -> dict[str, Any]:
    return {media: {"schema": schema} for media, schema in content.items()}
