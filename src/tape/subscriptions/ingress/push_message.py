"""The message of a verified delivery: an HTTP request, or the Pub/Sub message inside it."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from tape.base.ids import new_id
from tape.subscriptions.document.verify_spec import VerifySpec
from tape.subscriptions.ingress.verification import bearer
from tape.subscriptions.ingress.verification.certificates import parse_sns
from tape.subscriptions.ingress.verification.delivery import PushDelivery
from tape.subscriptions.ingress.verification.scheme import schemes_of
from tape.subscriptions.ingress.verification.verify import VerifiedDelivery
from tape.subscriptions.message import SourceMessage, receive

# Headers with credentials are not passed to playbooks.
WITHHELD = frozenset({"authorization", "cookie", "proxy-authorization"})
MESSAGE_ID = "x-message-id"
MAX_ID_CHARS = 200
PAYPAL_PROOF = "paypal-transmission-sig"
PUSHED = {"mode": "push"}


def message_from_push(verified: VerifiedDelivery) -> SourceMessage:
    """The message of a verified delivery; unverified ones cannot be passed."""
    spec, delivery = verified.subscription.spec, verified.delivery
    if spec.source == "pubsub" and (wrapped := _unwrap(delivery.body)) is not None:
        return wrapped
    headers = list(_shown(verified))
    return receive(
        spec.source,
        _message_id(verified, headers),
        delivery.body or None,
        headers,
        metadata={"source": spec.source, **PUSHED},
    )


def _shown(verified: VerifiedDelivery) -> Iterable[tuple[str, str]]:
    """Headers for the playbook: without credentials, and printable ASCII only."""
    assert verified.subscription.spec.ingress is not None
    verify = verified.subscription.spec.ingress.verify
    withheld = WITHHELD | proof_headers(verify)
    for key, value in verified.delivery.headers:
        name, text = key.decode("latin-1").lower(), value.decode("latin-1")
        if name not in withheld and text.isascii() and text.replace("\t", " ").isprintable():
            yield name, text


def _message_id(verified: VerifiedDelivery, headers: Iterable[tuple[str, str]]) -> str:
    """The message id of the sender. A signed id takes precedence over an unsigned one."""
    spec, delivery = verified.subscription.spec, verified.delivery
    assert spec.ingress is not None
    verify = spec.ingress.verify
    if own := _provider_id(verify, delivery):
        return _short(own)
    given = [value for name, value in headers if name == MESSAGE_ID]
    if len(given) == 1 and given[0]:
        return _short(given[0])
    if spec.source == "pubsub" and (named := delivery.first("x-goog-pubsub-message-id")):
        return _short(named)
    # Without an id, and with dedup on, deliveries with equal bodies are one message.
    return _digest(delivery) if spec.dedup.enabled else new_id()


def proof_headers(verify: VerifySpec) -> frozenset[str]:
    """The headers that prove the sender. Playbooks do not get them."""
    if verify.type == "bearer":
        return frozenset({(verify.header or bearer.DEFAULT_HEADER).lower()})
    return frozenset().union(*(scheme.proof_headers for scheme in schemes_of(verify)), {PAYPAL_PROOF})


def _provider_id(verify: VerifySpec, delivery: PushDelivery) -> str:
    """The message id where its provider puts it; empty if there is none."""
    if verify.preset == "aws_sns":
        return (parse_sns(delivery.body) or {}).get("MessageId", "")
    if verify.preset == "paypal-cert":
        return _field(delivery.body, "id")
    for scheme in schemes_of(verify):
        if scheme.message_id and (named := delivery.first(scheme.message_id)):
            return named
        if scheme.message_id_field and (found := _field(delivery.body, scheme.message_id_field)):
            return found
    return ""


def _field(body: bytes, name: str) -> str:
    """A text field of a verified JSON body; empty if there is none."""
    try:
        found = msgspec.json.decode(body, type=dict[str, Any]).get(name)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return found if isinstance(found, str) else ""


def _unwrap(body: bytes) -> SourceMessage | None:
    """The message of a Pub/Sub push body; None if it is not one."""
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
        return msgspec.json.encode(data)  # not base64: keep the value


def _short(message_id: str) -> str:
    if len(message_id) <= MAX_ID_CHARS and "\0" not in message_id:
        return message_id
    return f"sha256-{hashlib.sha256(message_id.encode(errors='surrogatepass')).hexdigest()}"


def _digest(delivery: PushDelivery) -> str:
    return f"sha256-{hashlib.sha256(delivery.body).hexdigest()}"
