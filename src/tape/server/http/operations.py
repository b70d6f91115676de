"""The operations of the HTTP routes: what each takes and answers, under the name that the table of permissions has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST

from tape.model.cloudevents import BATCHED, STRUCTURED
from tape.server.http.schemas import ANYTHING, OBJECT, TEXT, Schema, array, ref
from tape.subscriptions.lifecycle import ACTIONS

# Media types with the schema of each.
Content = Mapping[str, Schema]

JSON = "application/json"
NOTHING: Content = {}


class Operation(NamedTuple):
    """What a route takes and answers. `path` names the parameters of the path, if it has any."""

    name: str
    summary: str
    answer: Content
    body: Content = NOTHING
    parameters: tuple[dict[str, Any], ...] = ()
    errors: tuple[int, ...] = ()
    path: str = ""
    status: int = 200
    needs_body: bool = True


def parameter(location: str, name: str, text: str, schema: Schema = TEXT, **more: Any) -> dict[str, Any]:
    """A parameter of a request."""
    return {"name": name, "in": location, "description": text, "schema": schema, **more}


def in_path(name: str, text: str, schema: Schema = TEXT) -> dict[str, Any]:
    """A parameter in the path, which a request always has."""
    return parameter("path", name, text, schema, required=True)


_SESSION = parameter("header", "X-Harbor-Session", "Overrides the session of the token.")
_STREAM_PARAMETERS = (
    _SESSION,
    parameter("header", "X-Harbor-Run", "Only this run."),
    parameter("header", "X-Harbor-Event-Type", "Only these types, separated by commas; may be repeated."),
    parameter("header", "Last-Event-ID", "Replay everything after this sequence first."),
    parameter("query", "resume_seq", "The same as Last-Event-ID, for clients that cannot send headers."),
    parameter("query", "from", "Where to start: a global_seq, after which it starts, `start`, `now` or a time."),
    parameter("query", "type", "Only this type, in which `*` stands for any text; may be repeated."),
    parameter("query", "subject", "Only subjects that fit this pattern; may be repeated."),
    parameter("query", "run", "Only this run."),
    parameter("query", "named", "0 sends frames without the line `event:`, so that `onmessage` of a browser sees all."),
    parameter("query", "admin", "1 streams the events of all identities; needs a scope."),
    parameter("query", "access_token", "The token, for clients that cannot send headers."),
    parameter("query", "session", "The session, with access_token."),
)
_OTHER_SESSION = tuple(
    parameter("query", name, "Another session's artifact; needs a scope.") for name in ("tenant", "user", "session")
)
_CLOUD_EVENTS = {STRUCTURED: ref("CloudEvent"), BATCHED: array(ref("CloudEvent"))}


def _json(name: str) -> Content:
    return {JSON: ref(name)}


_STATUS: Content = {"text/plain": TEXT, JSON: ref("Status")}

_PROBES: Mapping[str, Operation] = {
    "GET /": Operation("status", "Whether the process serves requests.", _STATUS),
    "GET /healthz": Operation("healthz", "Whether the process serves requests.", _STATUS),
    "GET /readyz": Operation("readyz", "Whether the database answers.", _STATUS, errors=(503,)),
    "GET /metrics": Operation("metrics", "Metrics for Prometheus.", {CONTENT_TYPE_LATEST: TEXT}),
    "GET /v1/openapi.json": Operation("openapi", "This document.", {JSON: OBJECT}),
    "GET /v1/asyncapi.json": Operation(
        "asyncapi", "The events of the stream, as an AsyncAPI document.", {JSON: OBJECT}
    ),
    "GET /v1/calls": Operation(
        "calls",
        "Upgrade the connection to the call protocol `tape/1`, which carries calls of every unary RPC.",
        NOTHING,
        parameters=(
            parameter("header", "Upgrade", "`tape/1`, together with `Connection: Upgrade`."),
            parameter("header", "Tape-Journal", "The id of the journal that the client means."),
        ),
        errors=(400, 403, 421, 426, 503),
        status=101,
    ),
    "POST /ingress/": Operation(
        "ingress.deliver",
        "A delivery of a webhook or Pub/Sub push. It proves its sender as its subscription demands.",
        _json("Delivery"),
        {"*/*": ANYTHING},
        (in_path("listener", "The listener, which a push subscription names."),),
        (400, 401, 403, 404, 408, 409, 413, 422, 429, 502, 503),
        "/ingress/{listener}",
        202,
    ),
    "GET /ingress/": Operation(
        "ingress.handshake",
        "The handshake with which Meta verifies a listener; the answer is its challenge. 405 for other listeners.",
        {"text/plain": TEXT},
        parameters=(
            in_path("listener", "The listener, which a push subscription names."),
            parameter("query", "hub.mode", "`subscribe`."),
            parameter("query", "hub.verify_token", "The token of the listener."),
            parameter("query", "hub.challenge", "What is answered, at most 1,024 printable characters."),
        ),
        errors=(400, 403, 404, 405, 429, 502, 503),
        path="/ingress/{listener}",
    ),
}

_JOURNAL: Mapping[str, Operation] = {
    "GET /v1/events": Operation(
        "events.subscribe",
        "Events after a cursor, then live events, as Server-Sent Events.",
        {"text/event-stream": TEXT},
        parameters=_STREAM_PARAMETERS,
        errors=(429, 503),
    ),
    "POST /v1/events": Operation(
        "events.publish",
        "Append CloudEvents durably; deduplicated by source and id.",
        _json("Published"),
        _CLOUD_EVENTS,
        (_SESSION,),
        (409, 413, 415, 422, 429, 503),
    ),
    "POST /v1/events/list": Operation(
        "events.list",
        "The newest events, page by page.",
        {**_json("Page"), BATCHED: _CLOUD_EVENTS[BATCHED]},
        _json("ListRequest"),
        (_SESSION,),
        (429, 503),
        needs_body=False,
    ),
    "POST /v1/events/aggregate": Operation(
        "events.aggregate",
        "Counts by type in equal buckets.",
        _json("Aggregate"),
        _json("AggregateRequest"),
        (_SESSION,),
        (429, 503),
        needs_body=False,
    ),
    "POST /v1/control/runtime.info": Operation(
        "runtime.info",
        "Instance, version and capabilities of this server.",
        _json("Info"),
        _json("InfoRequest"),
        (_SESSION,),
        (429, 503),
        needs_body=False,
    ),
    "GET /v1/artifacts/": Operation(
        "artifacts.get",
        "A field that was too large for its event.",
        {"*/*": ANYTHING},
        parameters=(in_path("id", "The id that the field has in its event."), _SESSION, *_OTHER_SESSION),
        errors=(404, 429, 503),
        path="/v1/artifacts/{id}",
    ),
}

_WRITES = (409, 413, 415, 422, 429, 503)
_READS = (404, 413, 415, 422, 429, 503)
_CHANGES = (404, *_WRITES)
_SUBSCRIPTION_ID = in_path("subscription_id", "The id of the registration.")

_API: Mapping[str, Operation] = {
    "POST /api/catalog/register": Operation(
        "catalog.register",
        "Validate a document and store it as the next version of its path.",
        _json("RegisteredDocument"),
        _json("RegisterDocumentRequest"),
        errors=_WRITES,
    ),
    "POST /api/catalog/resource": Operation(
        "catalog.resource",
        "A document with its content.",
        _json("Document"),
        _json("ReadDocumentRequest"),
        errors=_READS,
    ),
    "POST /api/catalog/list": Operation(
        "catalog.list",
        "The latest version of every path, without contents.",
        _json("Documents"),
        _json("ListDocumentsRequest"),
        errors=_READS,
        needs_body=False,
    ),
    "GET /api/credentials/": Operation(
        "credentials.get",
        "Version and age of a secret, and with `include_data` the secret itself.",
        _json("Credential"),
        parameters=(
            in_path("alias", "The alias of the secret."),
            parameter("query", "include_data", "`true` returns the secret; the journal records it."),
            parameter("query", "host", "A host that the caller will send the secret to; may be repeated."),
        ),
        errors=(404, 422, 429, 503),
        path="/api/credentials/{alias}",
    ),
    "GET /api/internal/ingress": Operation(
        "ingress.names", "The names of all listeners.", _json("ListenerNames"), errors=(429, 503)
    ),
    "GET /api/internal/ingress/": Operation(
        "ingress.show",
        "A listener with its signing secrets, for a gateway.",
        _json("Listener"),
        parameters=(in_path("listener", "The listener, which a push subscription names."),),
        errors=(404, 422, 429, 503),
        path="/api/internal/ingress/{listener}",
    ),
    "POST /api/execute": Operation(
        "execute", "Start one playbook.", _json("ExecutionStarted"), _json("ExecuteRequest"), errors=_CHANGES
    ),
    "POST /api/execute/batch": Operation(
        "execute.batch",
        "Start up to 1,000 playbooks in one commit; each has its own result.",
        _json("BatchResult"),
        _json("BatchRequest"),
        errors=_CHANGES,
    ),
    "GET /api/executions/": Operation(
        "executions.show",
        "The state of an execution, with its output or error.",
        _json("Execution"),
        parameters=(in_path("execution_id", "The id of the execution."),),
        errors=(404, 422, 429, 503),
        path="/api/executions/{execution_id}",
    ),
    "POST /api/taken": Operation(
        "offsets.take",
        "Start executions of records that are read by offset, each exactly once.",
        _json("OffsetResults"),
        _json("OffsetRangeRequest"),
        errors=_CHANGES,
    ),
    "GET /api/taken": Operation(
        "offsets.show",
        "The consumed ranges of each partition of a subscription's source, as pairs (first offset, next offset).",
        _json("OffsetRanges"),
        parameters=(parameter("query", "subscription", "The path of the subscription.", required=True),),
        errors=(422, 429, 503),
    ),
    "GET /api/pools/": Operation(
        "pools.show",
        "Queue length of a pool, for autoscalers; zeros for a pool without tasks.",
        _json("Pool"),
        parameters=(in_path("pool", "The pool."),),
        errors=(422, 429, 503),
        path="/api/pools/{pool}",
    ),
    "POST /api/subscriptions": Operation(
        "subscriptions.register",
        "Register the subscription of a path, or return the active registration.",
        _json("Subscription"),
        _json("RegisterSubscriptionRequest"),
        errors=_CHANGES,
    ),
    "POST /api/subscriptions/register": Operation(
        "subscriptions.register.alias",
        "Another path of `POST /api/subscriptions`.",
        _json("Subscription"),
        _json("RegisterSubscriptionRequest"),
        errors=_CHANGES,
    ),
    "GET /api/subscriptions": Operation(
        "subscriptions.list",
        "Registrations, newest first; `next` is the cursor of the next page.",
        _json("Subscriptions"),
        parameters=(
            parameter("query", "path", "Only registrations of this path."),
            parameter("query", "before", "Only registrations before this id: the next page.", {"type": "string"}),
            parameter("query", "limit", "At most so many.", {"type": "string"}),
        ),
        errors=(422, 429, 503),
    ),
    "GET /api/subscriptions/": Operation(
        "subscriptions.show",
        "The state of a registration.",
        _json("Subscription"),
        parameters=(_SUBSCRIPTION_ID,),
        errors=(404, 422, 429, 503),
        path="/api/subscriptions/{subscription_id}",
    ),
    "POST /api/subscriptions/{}/": Operation(
        "subscriptions.act",
        "Change the state of a registration.",
        _json("Subscription"),
        _json("ActRequest"),
        parameters=(_SUBSCRIPTION_ID, in_path("action", "The change.", {"enum": sorted(ACTIONS)})),
        errors=_CHANGES,
        path="/api/subscriptions/{subscription_id}/{action}",
        needs_body=False,
    ),
    "GET /api/deliveries": Operation(
        "deliveries.list",
        "What became of the deliveries of a subscription, newest first; `next` is the cursor of the next page.",
        _json("Deliveries"),
        parameters=(
            parameter("query", "path", "The path of the subscription.", required=True),
            parameter("query", "before", "Only deliveries before this cursor: the next page.", {"type": "string"}),
            parameter("query", "limit", "At most so many, 1 to 200.", {"type": "string"}),
        ),
        errors=(404, 422, 429, 503),
    ),
    "POST /api/deliveries/resend": Operation(
        "deliveries.resend",
        "Dispatch a delivery again: a new run with the same input.",
        _json("ExecutionStarted"),
        _json("ResendRequest"),
        errors=_CHANGES,
    ),
    "POST /api/events": Operation(
        "subscriptions.events",
        "Append an event of a subscription, or a list of them: all or none.",
        {JSON: {"anyOf": [ref("PostedEvent"), ref("PostedEvents")]}},
        {JSON: {"anyOf": [ref("EventBody"), array(ref("EventBody"))]}},
        errors=_CHANGES,
    ),
    "POST /api/downstreams": Operation(
        "downstreams.act",
        "Outcomes of runs by downstream of a subscription; hold, probe or release one of them.",
        _json("Downstreams"),
        _json("DownstreamRequest"),
        errors=_CHANGES,
    ),
    "POST /api/holds": Operation(
        "holds.act",
        "What prevents runs of a subscription from starting; hold it for reasons, or release it.",
        _json("Hold"),
        _json("HoldRequest"),
        errors=_CHANGES,
    ),
    "POST /api/executions/outcomes": Operation(
        "executions.outcomes",
        "Whether executions of a subscription have ended, and how.",
        _json("Outcomes"),
        _json("OutcomesRequest"),
        errors=_CHANGES,
    ),
    "GET /api/keys": Operation(
        "keys.list",
        "Service keys by tenant and name, without secrets; `next` is the cursor of the next page.",
        _json("Keys"),
        parameters=(
            parameter("query", "tenant", "Only keys of this tenant; another than the caller's needs a scope."),
            parameter("query", "all", "`true` lists revoked and replaced keys too."),
            parameter("query", "after", "The cursor of the next page."),
            parameter("query", "limit", "At most so many, 1,000 by default.", {"type": "string"}),
        ),
        errors=(422, 429, 503),
    ),
    "POST /api/keys": Operation(
        "keys.create",
        "Create a service key. Only this response shows its secret.",
        _json("IssuedKey"),
        _json("CreateKeyRequest"),
        errors=_WRITES,
    ),
    "POST /api/keys/{}/": Operation(
        "keys.change",
        "Replace the secret of a service key, or revoke the key.",
        {JSON: {"anyOf": [ref("IssuedKey"), ref("Key")]}},
        _json("ChangeKeyRequest"),
        (in_path("key", "The name of the key."), in_path("action", "The change.", {"enum": ["revoke", "rotate"]})),
        _CHANGES,
        "/api/keys/{key}/{action}",
        needs_body=False,
    ),
    "POST /api/tokens/revoke": Operation(
        "tokens.revoke",
        "Reject a token by its `jti`, and end its streams.",
        _json("RevokedToken"),
        _json("RevokeTokenRequest"),
        errors=_WRITES,
    ),
}

# Every route of the server, by its name in the table of permissions.
OPERATIONS: Mapping[str, Operation] = {**_PROBES, **_JOURNAL, **_API}
