"""One message, whatever it came from: the same fields, the same headers, the same payload for its run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tape.base.clock import now_ms
from tape.subscriptions.document.spec import DispatchSpec, HeaderRule, HeadersSpec

# A header has any number of values, in the order in which they came. Names are lower-case.
HeaderMap = Mapping[str, tuple[str, ...]]

# Keys of a payload that no message can replace.
RESERVED = ("message", "subscription", "source")


class SourceMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it was received. Nothing of it was interpreted but the names of its headers.

    `attributes` is the source's own map of headers, untouched. `body` is None when the message has none, which a
    playbook sees as null. `deliveries` counts this delivery too, as far as the source tells. `ordering_key` is the
    source's (a Kafka key, a Pub/Sub ordering key). `ack_id` is set where it may be shown to a playbook.
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
        """The body: parsed if it is JSON, else as text."""
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
    """An envelope received now. `headers` are name and value in the order of the wire, names in any case."""
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


def normalize_headers(headers: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Headers by their name in ASCII lower case; the values of one name together, in order."""
    found: dict[str, tuple[str, ...]] = {}
    for name, value in headers:
        key = lower_ascii(name)
        found[key] = (*found.get(key, ()), value)
    return found


def lower_ascii(name: str) -> str:
    """A header's name in lower case: ASCII letters only, so that no two names become one by accident of Unicode."""
    return name.lower() if name.isascii() else name.encode(errors="replace").lower().decode()


def decode_body(body: bytes | None) -> Any:
    """What a body says: JSON if it parses, else its text, with a mark for each byte that is not UTF-8."""
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


def message_fields(envelope: SourceMessage, headers: HeadersSpec, data: Any) -> dict[str, Any]:
    """The message as a playbook sees it: `id`, `data`, `headers`, `attributes`, `metadata` and perhaps `ack_id`."""
    shown: HeaderMap = envelope.headers if headers.normalize else {}
    attributes = envelope.attributes
    if headers.passthrough == "none":
        named = directive_headers(headers.directives)
        shown = {name: values for name, values in shown.items() if name in named}
        attributes = {name: value for name, value in attributes.items() if lower_ascii(name) in named}
    message: dict[str, Any] = {
        "id": envelope.message_id,
        "data": data,
        "headers": {name: values[0] if len(values) == 1 else list(values) for name, values in shown.items()},
        "attributes": attributes,
        "metadata": envelope.metadata,
    }
    if envelope.ack_id:
        message["ack_id"] = envelope.ack_id
    return message


def directive_headers(rules: Iterable[HeaderRule]) -> frozenset[str]:
    """The headers that rules are about, in lower case."""
    return frozenset(lower_ascii(rule.header) for rule in rules)


def payload_of(envelope: SourceMessage, path: str, dispatch: DispatchSpec, headers: HeadersSpec) -> dict[str, Any]:
    """The payload of the run that a message becomes: the message, and what `payload_from` selects at the top."""
    data = envelope.data
    message = message_fields(envelope, headers, data)
    payload: dict[str, Any] = {"message": message, "subscription": path, "source": envelope.source}
    selected: Any
    match dispatch.payload_from:
        case "message.json":
            selected = data
        case "message.body":
            selected = data if isinstance(data, str) else msgspec.json.encode(data).decode()
        case "message.attributes":
            selected = message["attributes"]
    if isinstance(selected, dict):
        payload |= {name: value for name, value in selected.items() if name not in RESERVED}
    else:
        payload["body"] = selected
    return payload
