"""The message in a proven delivery: an HTTP request as it is, or what Pub/Sub has wrapped into one."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from tape.base.ids import new_id
from tape.subscriptions.ingress.verification import bearer, signatures
from tape.subscriptions.ingress.verification.delivery import PushDelivery
from tape.subscriptions.ingress.verification.verify import VerifiedDelivery
from tape.subscriptions.message import SourceMessage, receive

# What proves who sent a request, or could let somebody pose as him, goes no further.
WITHHELD = frozenset({"authorization", "cookie", "proxy-authorization"})
MESSAGE_ID = "x-message-id"
MAX_ID_CHARS = 200
PUSHED = {"mode": "push"}


def message_from_push(proven: VerifiedDelivery) -> SourceMessage:
    """The message of a delivery. It takes a proof, so that nothing unproven is ever parsed."""
    spec, delivery = proven.subscription.spec, proven.delivery
    if spec.source == "pubsub" and (wrapped := _unwrap(delivery.body)) is not None:
        return wrapped
    headers = list(_shown(proven))
    return receive(
        spec.source,
        _message_id(proven, headers),
        delivery.body or None,
        headers,
        metadata={"source": spec.source, **PUSHED},
    )


def _shown(proven: VerifiedDelivery) -> Iterable[tuple[str, str]]:
    """The headers that a playbook may see: without those that prove the sender, or that are not plain text."""
    assert proven.subscription.spec.ingress is not None
    verify = proven.subscription.spec.ingress.verify
    default = {"hmac_sha256": signatures.DEFAULT_HEADER, "bearer": bearer.DEFAULT_HEADER}.get(verify.type, "")
    withheld = WITHHELD | {(verify.header or default).lower()}
    for key, value in proven.delivery.headers:
        name, text = key.decode("latin-1").lower(), value.decode("latin-1")
        if name not in withheld and text.isascii() and text.replace("\t", " ").isprintable():
            yield name, text


def _message_id(proven: VerifiedDelivery, headers: Iterable[tuple[str, str]]) -> str:
    """What the sender calls the message. A signed id counts before one that anybody on the way could have changed."""
    spec, delivery = proven.subscription.spec, proven.delivery
    assert spec.ingress is not None
    verify = spec.ingress.verify
    if verify.type == "hmac_sha256" and verify.signature_scheme == "standard_webhooks":
        family = (verify.header or signatures.DEFAULT_HEADER).lower().removesuffix("-signature")
        return _short(delivery.first(f"{family}-id") or "")
    given = [value for name, value in headers if name == MESSAGE_ID]
    if len(given) == 1 and given[0]:
        return _short(given[0])
    if spec.source == "pubsub" and (named := delivery.first("x-goog-pubsub-message-id")):
        return _short(named)
    # Without a name two deliveries are the same message if they say the same, for a subscription that cares.
    return _digest(delivery) if spec.dedup.enabled else new_id()


def _unwrap(body: bytes) -> SourceMessage | None:
    """The message of a Pub/Sub push; None if the body is none."""
    try:
        document = msgspec.json.decode(body)
        message = document["message"]
        attributes: dict[str, Any] = message.get("attributes") or {}
        headers = [(name, value if isinstance(value, str) else "") for name, value in attributes.items()]
        message_id = message.get("messageId") or message.get("message_id") or new_id()
        deliveries = document.get("deliveryAttempt") or 1
        return receive(
            "pubsub",
            _short(str(message_id)),
            _data(message.get("data")),
            headers,
            attributes=attributes,
            metadata={"source": "pubsub", **PUSHED},
            ordering_key=str(message.get("orderingKey") or ""),
            deliveries=deliveries if isinstance(deliveries, int) else 1,
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError, AttributeError):
        return None


def _data(data: Any) -> bytes | None:
    if not data:
        return None
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError, TypeError):
        return msgspec.json.encode(data)  # as it stands there


def _short(message_id: str) -> str:
    if len(message_id) <= MAX_ID_CHARS and "\0" not in message_id:
        return message_id
    return f"sha256-{hashlib.sha256(message_id.encode(errors='surrogatepass')).hexdigest()}"


def _digest(delivery: PushDelivery) -> str:
    return f"sha256-{hashlib.sha256(delivery.body).hexdigest()}"
