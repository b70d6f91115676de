"""An entry as the message that sinks and bridges send: one body, one event id and one set of headers."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args
from urllib.parse import quote

import msgspec

from tape.base.telemetry.tracing import Trace, to_traceparent
from tape.errors import InvalidInput
from tape.model.cloudevents import STRUCTURED, to_cloudevent
from tape.model.entry import type_of

BodyFormat = Literal["standard", "expanded", "cloudevents"]

EVENT_ID = "tape-event-id"
SUBJECT = "tape-subject"
CLOUDEVENTS_SOURCE = "/tape"

_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
# `%` is encoded too, so that two run ids never have the same event id.
_UNAMBIGUOUS = _PRINTABLE.replace("%", "")
_UNAMBIGUOUS_TENANT = _UNAMBIGUOUS.replace(":", "")


class Message(NamedTuple):
    """What is sent for an entry. Messages with the same `run_id` keep their order.

    A receiver deduplicates on `event_id`; a broker that deduplicates by itself uses `deduplication_id`.
    """

    run_id: str
    event_id: str
    body: bytes
    headers: dict[str, str]
    content_type: str
    deduplication_id: str


class MessageBody(msgspec.Struct):
    """The fields of a body, in this order.

    `tenant` is there only among entries of several tenants, `payload` only in the format `expanded`.
    """

    run_id: str
    seq: int
    kind: str
    payload_json: str
    ts_ms: int
    global_seq: int
    subject: str
    type: str
    schema_version: int
    trace_id: str
    span_id: str
    tenant: str | msgspec.UnsetType = msgspec.UNSET
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_encode = msgspec.json.Encoder().encode


def to_message(entry: Any, body_format: BodyFormat = "standard") -> Message:
    """The message of an entry."""
    event_id = event_id_of(entry)
    headers = {EVENT_ID: event_id, "kind": entry.kind, SUBJECT: to_header(entry.subject)}
    if entry.trace_id and entry.span_id:
        headers["traceparent"] = to_traceparent(Trace(entry.trace_id, entry.span_id))
    content_type = content_type_of(body_format)
    if body_format == "cloudevents":
        headers["content-type"] = content_type
    return Message(entry.run_id, event_id, encode_body(entry, body_format), headers, content_type, event_id)


def encode_body(entry: Any, body_format: BodyFormat = "standard") -> bytes:
    """The body of an entry as JSON."""
    return _encode(_body_of(entry, body_format))


def _body_of(entry: Any, body_format: BodyFormat) -> MessageBody | dict[str, Any]:
    if body_format == "cloudevents":
        return to_cloudevent(entry, event_id=event_id_of(entry), source=CLOUDEVENTS_SOURCE)
    body = MessageBody(
        entry.run_id,
        entry.seq,
        entry.kind,
        entry.payload_json,
        entry.ts_ms,
        entry.global_seq,
        entry.subject,
        type_of(entry.kind, entry.subject),
        entry.schema_version,
        entry.trace_id,
        entry.span_id,
    )
    if isinstance(entry, TenantEntry):
        body.tenant = entry.tenant
    if body_format == "expanded":
        body.payload = msgspec.Raw((entry.payload_json or "null").encode())
    return body


def fields_of(entry: Any, body_format: BodyFormat = "standard") -> dict[str, Any]:
    """The body as a dictionary, for bodies that contain more fields or more than one entry."""
    body = _body_of(entry, body_format)
    if isinstance(body, dict):
        return body
    return {name: value for name, value in msgspec.structs.asdict(body).items() if value is not msgspec.UNSET}


def content_type_of(body_format: BodyFormat) -> str:
    """The media type of a body."""
    return STRUCTURED if body_format == "cloudevents" else "application/json"


class TenantEntry:
    """An entry among those of several tenants, which may have runs of the same id: its event id names the tenant."""

    __slots__ = ("_entry",)

    def __init__(self, entry: Any) -> None:
        self._entry = entry

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)


def event_id_of(entry: Any) -> str:
    """`<run_id>/<seq>`, of a TenantEntry `<tenant>:<run_id>/<seq>`.

    Everything but printable ASCII, and `%`, is percent-encoded, in the tenant `:` too. The tenant may be empty.
    """
    plain = f"{quote(entry.run_id, safe=_UNAMBIGUOUS)}/{entry.seq}"
    return f"{quote(entry.tenant, safe=_UNAMBIGUOUS_TENANT)}:{plain}" if isinstance(entry, TenantEntry) else plain


def run_key_of(entry: Any) -> str | tuple[str, str]:
    """What the entries of one run have in common: its id, of a TenantEntry also the tenant."""
    return (entry.tenant, entry.run_id) if isinstance(entry, TenantEntry) else entry.run_id


def to_header(text: str) -> str:
    """A text that every protocol can send as a header: everything but printable ASCII is percent-encoded."""
    return quote(text, safe=_PRINTABLE)


def check_body_format(text: str) -> BodyFormat:
    """The format of that name. Raises InvalidInput for any other."""
    if text not in get_args(BodyFormat):
        raise InvalidInput(f"body {text!r} must be one of {', '.join(get_args(BodyFormat))}.")
    return text  # type: ignore[return-value]  # checked above
