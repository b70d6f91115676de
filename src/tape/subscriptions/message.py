"""A message of any source, in one form: id, body, headers, attributes, metadata; and the payload of its run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tape.base.clock import now_ms
from tape.brokers.source import Delivery
from tape.model.shared_command import RESERVED
from tape.subscriptions.document.spec import DispatchSpec, HeaderRule, HeadersSpec

# Header names in lower case; a header has any number of values, in wire order.
HeaderMap = Mapping[str, tuple[str, ...]]


class SourceMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as received. Only the header names are normalized.

    `attributes` are the source's own headers, unchanged. `body` is None if the message has none; a playbook sees null.
    `deliveries` counts deliveries of this message, this one included, if the source reports them. `ordering_key` is the
    source's (Kafka key, Pub/Sub ordering key). `ack_id` is set only if a playbook may see it.
    """

    message_id: str
    source: str
    body: bytes | None
    headers: dict[str, tuple[str, ...]] = {}
    attributes: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    received_at_ms: int = 0
    ordering_key: str = ""
    deliveries: int = 1
    ack_id: str = ""

    @property
    def data(self) -> Any:
        """The body: parsed if it is JSON, else text."""
        return decode_body(self.body)


def receive(
    source: str,
    message_id: str,
    body: bytes | None,
    headers: Iterable[tuple[str, str]] = (),
    *,
    attributes: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
    ordering_key: str = "",
    deliveries: int = 1,
    ack_id: str = "",
) -> SourceMessage:
    """A message received now. `headers` are name-value pairs in wire order, names in any case."""
    return SourceMessage(
        message_id=message_id,
        source=source,
        body=body,
        headers=normalize_headers(headers),
        attributes=attributes or {},
        metadata=metadata or {},
        received_at_ms=now_ms(),
        ordering_key=ordering_key,
        deliveries=deliveries,
        ack_id=ack_id,
    )


def message_of(source: str, delivery: Delivery, *, shows_receipt: bool = False) -> SourceMessage:
    """The message of a broker's delivery. With `shows_receipt` a playbook sees the receipt as `ack_id`."""
    return receive(
        source,
        delivery.message_id,
        delivery.body,
        delivery.headers,
        attributes=_source_headers(delivery.headers),
        metadata=dict(delivery.metadata),
        ordering_key=delivery.ordering_key,
        deliveries=delivery.deliveries,
        ack_id=delivery.receipt if shows_receipt else "",
    )


def _source_headers(headers: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Headers by the name that the source uses: one value as text, several as a list."""
    found: dict[str, Any] = {}
    for name, value in headers:
        if name not in found:
            found[name] = value
        elif isinstance(found[name], list):
            found[name].append(value)
        else:
            found[name] = [found[name], value]
    return found


def normalize_headers(headers: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Headers by name in ASCII lower case, with all values of a name in order."""
    found: dict[str, tuple[str, ...]] = {}
    for name, value in headers:
        key = lower_ascii(name)
        found[key] = (*found.get(key, ()), value)
    return found


def lower_ascii(name: str) -> str:
    """A header name in ASCII lower case: Unicode case rules would make one name of two."""
    return name.lower() if name.isascii() else name.encode(errors="replace").lower().decode()


def decode_body(body: bytes | None) -> Any:
    """A body as data: JSON if it parses, else text with U+FFFD for each byte that is not UTF-8."""
    if body is None:
        return None
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    text = body.decode(errors="replace")
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def message_fields(message: SourceMessage, headers: HeadersSpec, data: Any) -> dict[str, Any]:
    """The message as a playbook sees it: `id`, `data`, `headers`, `attributes`, `metadata`, and `ack_id` if set."""
    shown: HeaderMap = message.headers if headers.normalize else {}
    attributes = message.attributes
    if headers.passthrough == "none":
        named = directive_headers(headers.directives)
        shown = {name: values for name, values in shown.items() if name in named}
        attributes = {name: value for name, value in attributes.items() if lower_ascii(name) in named}
    fields: dict[str, Any] = {
        "id": message.message_id,
        "data": data,
        "headers": {name: values[0] if len(values) == 1 else list(values) for name, values in shown.items()},
        "attributes": attributes,
        "metadata": message.metadata,
    }
    if message.ack_id:
        fields["ack_id"] = message.ack_id
    return fields


def kept_fields(message: SourceMessage, headers: HeadersSpec) -> dict[str, Any]:
    """The fields that a dead letter keeps, so that it can be redriven: also the source's own ordering key."""
    fields = message_fields(message, headers, message.data)
    return fields | ({"ordering_key": message.ordering_key} if message.ordering_key else {})


def directive_headers(rules: Iterable[HeaderRule]) -> frozenset[str]:
    """The headers that rules name, in lower case."""
    return frozenset(lower_ascii(rule.header) for rule in rules)


def payload_of(message: SourceMessage, path: str, dispatch: DispatchSpec, headers: HeadersSpec) -> dict[str, Any]:
    """The payload of the message's run: the message, and at the top level what `payload_from` selects."""
    data = message.data
    fields = message_fields(message, headers, data)
    payload: dict[str, Any] = {"message": fields, "subscription": path, "source": message.source}
    selected: Any
    match dispatch.payload_from:
        case "message.json":
            selected = data
        case "message.body":
            selected = data if isinstance(data, str) else msgspec.json.encode(data).decode()
        case "message.attributes":
            selected = fields["attributes"]
    if isinstance(selected, dict):
        payload |= {name: value for name, value in selected.items() if name not in RESERVED}
    else:
        payload["body"] = selected
    return payload
