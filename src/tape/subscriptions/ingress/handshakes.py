"""Provider handshakes: requests that check or confirm a listener. They are verified, answered, and never messages.

Slack, Discord and Zoom send them like deliveries, signed. Meta sends a GET with a token. Amazon SNS asks for an address
of its own to be fetched.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import msgspec

from tape.errors import AddressNotAllowed, HttpRequestFailed
from tape.subscriptions.document.verify_spec import VerifySpec
from tape.subscriptions.ingress.listeners import Listener
from tape.subscriptions.ingress.verification.certificates import SigningCertificates, parse_sns
from tape.subscriptions.ingress.verification.delivery import MISCONFIGURED, DeliveryRejection
from tape.subscriptions.ingress.verification.scheme import schemes_of
from tape.subscriptions.ingress.verification.verify import VerifiedDelivery

log = logging.getLogger(__name__)

MAX_CHALLENGE_CHARS = 1_024
MAX_QUERY_FIELDS = 20
# Where Amazon's confirmation addresses are.
CONFIRMATION_HOST = re.compile(r"sns\.[a-z0-9-]{1,40}\.amazonaws\.com")

BAD_TOKEN = DeliveryRejection(403, "bad_verify_token")
BAD_CHALLENGE = DeliveryRejection(400, "bad_challenge")
UNCONFIRMED = DeliveryRejection(502, "confirmation_failed")
WRONG_CONFIRMATION = DeliveryRejection(403, "confirmation_host_not_allowed")


class Handshake(NamedTuple):
    """A handshake that was answered: its kind, and the body of the answer."""

    kind: str
    answer: dict[str, Any] | str


async def answer_handshake(
    verified: VerifiedDelivery, certificates: SigningCertificates
) -> Handshake | DeliveryRejection | None:
    """The answer to a verified delivery that is a handshake; None if it is a message."""
    assert verified.subscription.spec.ingress is not None
    verify = verified.subscription.spec.ingress.verify
    if verify.preset == "aws_sns":
        return await _confirm_topic(verified, certificates)
    kind = _kind(verify)
    if not kind:
        return None
    try:
        body = msgspec.json.decode(verified.delivery.body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    match kind:
        case "slack" if body.get("type") == "url_verification":
            challenge = _challenge(body.get("challenge"))
            return Handshake("url_verification", {"challenge": challenge}) if challenge else BAD_CHALLENGE
        case "discord" if body.get("type") == 1:
            return Handshake("ping", {"type": 1})
        case "zoom" if body.get("event") == "endpoint.url_validation":
            payload = body.get("payload")
            token = _challenge(payload.get("plainToken") if isinstance(payload, dict) else None)
            if not token:
                return BAD_CHALLENGE
            made = hmac.new(verified.signer.encode(), token.encode(), hashlib.sha256).hexdigest()
            return Handshake("url_validation", {"plainToken": token, "encryptedToken": made})
        case _:
            return None


def has_get_handshake(listener: Listener) -> bool:
    """Whether the provider verifies the address with a GET."""
    ingress = listener.subscription.spec.ingress
    return ingress is not None and _kind(ingress.verify) == "meta" and bool(ingress.verify.verify_token)


def answer_get(listener: Listener, query: str) -> Handshake | DeliveryRejection:
    """The answer to the GET with which Meta verifies an address."""
    if not listener.handshake_secrets:
        return MISCONFIGURED
    try:
        given = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS))
    except ValueError:
        return BAD_CHALLENGE
    token = given.get("hub.verify_token", "").encode(errors="replace")
    is_good = False
    for secret in listener.handshake_secrets:
        is_good |= hmac.compare_digest(token, secret.encode())
    if not is_good:
        return BAD_TOKEN
    challenge = _challenge(given.get("hub.challenge"))
    if given.get("hub.mode") != "subscribe" or not challenge:
        return BAD_CHALLENGE
    return Handshake("hub_challenge", challenge)


async def _confirm_topic(
    verified: VerifiedDelivery, certificates: SigningCertificates
) -> Handshake | DeliveryRejection | None:
    """Confirm the subscription of a topic. Its signature is verified, and it is in `topics`."""
    message = parse_sns(verified.delivery.body)
    if message is None or message["Type"] == "Notification":
        return None
    if message["Type"] == "UnsubscribeConfirmation":
        log.warning("%s: %s delivers here no more", verified.subscription.path, message["TopicArn"][:200])
        return Handshake("unsubscribe_confirmation", {"status": "noted"})
    url = message["SubscribeURL"]
    if not _is_confirmation(url):
        return WRONG_CONFIRMATION
    try:
        response = await certificates.http.send("GET", url, cut=1_024)
    except (HttpRequestFailed, AddressNotAllowed) as error:
        log.warning("%s: the topic cannot be confirmed: %s", verified.subscription.path, error)
        return UNCONFIRMED
    if not response.is_success:
        log.warning("%s: the topic cannot be confirmed: status %d", verified.subscription.path, response.status)
        return UNCONFIRMED
    return Handshake("subscription_confirmation", {"status": "confirmed"})


def _is_confirmation(url: str) -> bool:
    try:
        parts = urlsplit(url)
        is_plain = parts.scheme == "https" and parts.netloc == parts.hostname and parts.path in ("", "/")
        return len(url) <= 2_048 and is_plain and CONFIRMATION_HOST.fullmatch(parts.netloc) is not None
    except ValueError:
        return False


def _challenge(value: object) -> str:
    """A challenge that may be sent back: printable ASCII, not too long; else empty."""
    is_text = isinstance(value, str) and 0 < len(value) <= MAX_CHALLENGE_CHARS and value.isascii()
    return value if isinstance(value, str) and is_text and value.isprintable() else ""


def _kind(verify: VerifySpec) -> str:
    return next((scheme.handshake for scheme in schemes_of(verify) if scheme.handshake), "")
