"""`POST /v1/events`: append CloudEvents 1.0, structured, batched or binary."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tape.base import structs
from tape.base.telemetry.tracing import parse_traceparent
from tape.errors import InvalidInput, InvalidRequest
from tape.journal.journal import Journal
from tape.model import subject as subjects
from tape.model.cloudevents import BATCHED, STRUCTURED
from tape.model.entry import Draft
from tape.model.principal import Principal
from tape.server.admission import TICKET
from tape.server.http.access import HttpAccess
from tape.server.http.request_bodies import read_body

MAX_BATCH = 1_000
# The body limit, in payloads of the largest size.
MAX_BODY_PAYLOADS = 4

_REQUIRED = ("specversion", "id", "source", "type")
_USED = frozenset({*_REQUIRED, "subject", "datacontenttype", "partitionkey", "traceparent", "data", "data_base64"})


class CloudEvent(NamedTuple):
    """A CloudEvent: its attributes, and its data as JSON text."""

    attributes: Mapping[str, str]
    payload_json: str


class PublishRoutes:
    """The route of publishing."""

    def __init__(self, journal: Journal, access: HttpAccess) -> None:
        self._journal = journal
        self._access = access

    async def publish(self, request: Request) -> Response:
        """Append events durably and return their global_seqs. Deduplicated by source and id."""
        caller = await self._access.caller_of(request)
        body = await read_body(request, self._journal.max_payload_bytes * MAX_BODY_PAYLOADS)
        events = _events(request, body)
        drafts, keys = [], []
        for index, event in enumerate(events):
            try:
                drafts.append(_draft(event, caller))
            except InvalidInput as error:
                raise InvalidRequest(f"events[{index}]: {error}" if len(events) > 1 else str(error)) from error
            keys.append(_request_id(event, caller))
        request.scope[TICKET].charge_appends(len(events))
        global_seqs = await self._journal.append_each(drafts, keys, of_client=True, inherits_tenant=caller.is_open)
        answer: dict[str, Any] = {"global_seqs": global_seqs}
        if ignored := sorted({name for event in events for name in event.attributes if name not in _USED}):
            answer["ignored"] = ignored
        return Response(msgspec.json.encode(answer) + b"\n", media_type="application/json")


def _events(request: Request, body: bytes) -> list[CloudEvent]:
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media == BATCHED:
        entries = _decode(body, list[dict[str, msgspec.Raw]])
        if not 0 < len(entries) <= MAX_BATCH:
            raise InvalidRequest(f"the batch has {len(entries)} events; send between 1 and {MAX_BATCH}.")
        return [_structured(entry) for entry in entries]
    if media == STRUCTURED:
        return [_structured(_decode(body, dict[str, msgspec.Raw]))]
    if "ce-specversion" in request.headers:
        return [_binary(request, media, body)]
    raise InvalidRequest(
        f"content-type {media!r} is not a CloudEvent; send {STRUCTURED}, {BATCHED}, or ce-* headers with the data."
    )


def _structured(entry: dict[str, msgspec.Raw]) -> CloudEvent:
    attributes: dict[str, str] = {}
    for name, raw in entry.items():
        if name not in ("data", "data_base64"):
            value = _decode(raw, Any)
            if value is not None:
                attributes[name] = value if isinstance(value, str) else bytes(raw).decode()
    if "data_base64" in entry:
        try:
            data = base64.b64decode(msgspec.json.decode(entry["data_base64"], type=str), validate=True)
        except (ValueError, msgspec.MsgspecError) as error:
            raise InvalidRequest(f"data_base64 is not base64: {error}") from error
        return CloudEvent(attributes, _as_json(data, attributes.get("datacontenttype", "")))
    return CloudEvent(attributes, _as_json(bytes(entry["data"]), "") if "data" in entry else "{}")


def _binary(request: Request, media: str, body: bytes) -> CloudEvent:
    attributes = {
        name[3:]: unquote(value) for name, value in request.headers.items() if name.startswith("ce-") and len(name) > 3
    }
    if media:
        attributes["datacontenttype"] = media
    return CloudEvent(attributes, _as_json(body, media) if body else "{}")


def _as_json(data: bytes, media: str) -> str:
    """Data as a JSON payload: JSON as it is, text as a string, anything else in base64."""
    if media in ("", "application/json", "text/json") or media.endswith("+json"):
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"the data is not UTF-8, which JSON has to be: {error}") from error
    if media.startswith("text/"):
        try:
            return msgspec.json.encode(data.decode()).decode()
        except UnicodeDecodeError:
            pass
    return msgspec.json.encode({"data_base64": base64.b64encode(data).decode(), "datacontenttype": media}).decode()


def _draft(event: CloudEvent, caller: Principal) -> Draft:
    attributes = event.attributes
    for name in _REQUIRED:
        if not attributes.get(name):
            raise InvalidRequest(f"the attribute {name!r} is missing; events have specversion, id, source and type.")
    if attributes["specversion"] != "1.0":
        raise InvalidRequest(f"specversion {attributes['specversion']!r} is not supported; send 1.0.")
    trace = parse_traceparent(attributes.get("traceparent", ""))
    return Draft(
        subject=_subject(attributes["type"], attributes.get("subject", "")),
        payload_json=event.payload_json,
        run_id=attributes.get("partitionkey", ""),
        tenant=caller.tenant,
        user=caller.user,
        session=caller.session,
        **trace._asdict(),
    )


def _subject(kind: str, about: str) -> str:
    """Type `order.created` with subject `42` becomes `/tape/order/created/42`."""
    first, _, verb = kind.partition(".")
    if not verb:
        raise InvalidRequest(f"type {kind!r} must have a dot, for example order.created.")
    if not about.startswith(f"/{subjects.ROOT}/"):
        return subjects.build(first, verb, *filter(None, about.split("/")))
    subject = subjects.normalize(about)
    if subjects.kind_of(subject) != first or subjects.verb_of(subject) != verb:
        raise InvalidRequest(f"subject {about!r} is not of type {kind!r}; it must begin with /tape/{first}/{verb}.")
    return subject


def _request_id(event: CloudEvent, caller: Principal) -> str:
    parts = (*caller.triple, event.attributes["source"], event.attributes["id"])
    return "ce-" + hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def _decode(body: bytes | msgspec.Raw, kind: Any) -> Any:
    try:
        return structs.decode(body, kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"failed to decode request body: {error}") from error
