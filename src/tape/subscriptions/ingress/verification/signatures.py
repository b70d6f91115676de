"""`hmac_sha256`: a signature over the body, in three schemes.

`plain` is the HMAC of the body alone, in hex or base64, with an optional `sha256=` prefix. It has no timestamp, so that
a request can be replayed. `stripe` and `standard_webhooks` sign a timestamp too and are rejected when it is too old.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence

from tape.subscriptions.document.spec import VerifySpec
from tape.subscriptions.ingress.verification.delivery import DeliveryRejection, PushDelivery

DEFAULT_HEADER = "x-signature"
WHSEC = "whsec_"

MISCONFIGURED = DeliveryRejection(403, "misconfigured")
MISSING = DeliveryRejection(401, "missing_signature")
BAD = DeliveryRejection(401, "bad_signature")
STALE = DeliveryRejection(401, "stale_signature")

_HEX = re.compile(r"[0-9a-fA-F]{64}")
_SECONDS = re.compile(r"[0-9]{1,15}")


def check_signature(verify: VerifySpec, secrets: Sequence[str], delivery: PushDelivery) -> DeliveryRejection | None:
    """None if one of the secrets signed the delivery, within the tolerance if the scheme has a timestamp."""
    if not secrets:
        return MISCONFIGURED
    header = verify.header or DEFAULT_HEADER
    given = delivery.first(header)
    if given is None:
        return MISSING
    match verify.signature_scheme:
        case "plain":
            return _plain(given, secrets, delivery)
        case "stripe":
            return _stripe(given, secrets, delivery, verify.tolerance_secs)
        case "standard_webhooks":
            return _standard(header, given, secrets, delivery, verify.tolerance_secs)


def _plain(given: str, secrets: Sequence[str], delivery: PushDelivery) -> DeliveryRejection | None:
    text = given.strip()
    if text[:7] in ("sha256=", "SHA256="):
        text = text[7:].strip()
    keys = [secret.encode() for secret in secrets]
    return None if _is_signed(keys, delivery.body, [_digest(text)]) else BAD


def _stripe(given: str, secrets: Sequence[str], delivery: PushDelivery, tolerance_s: int) -> DeliveryRejection | None:
    parts = [part.strip().partition("=") for part in given.split(",")]
    moments = [value for name, _, value in parts if name == "t"]
    signatures = [_digest(value) for name, _, value in parts if name == "v1" and _HEX.fullmatch(value)]
    if len(moments) != 1:
        return BAD
    keys = [secret.encode() for secret in secrets]
    signed = b"%b.%b" % (moments[0].encode("latin-1"), delivery.body)
    return _fresh(moments[0], delivery, tolerance_s) if _is_signed(keys, signed, signatures) else BAD


def _standard(
    header: str, given: str, secrets: Sequence[str], delivery: PushDelivery, tolerance_s: int
) -> DeliveryRejection | None:
    # The other two headers have the same prefix: webhook-id, or svix-id with svix-signature.
    family = header.lower().removesuffix("-signature")
    message_id, moment = delivery.first(f"{family}-id"), delivery.first(f"{family}-timestamp")
    if not message_id or not moment:
        return MISSING
    keys = [_standard_key(secret) for secret in secrets]
    if b"" in keys:
        return MISCONFIGURED
    signatures = [
        _digest(text) for version, _, text in (each.partition(",") for each in given.split()) if version == "v1"
    ]
    signed = b"%b.%b.%b" % (message_id.encode("latin-1"), moment.encode("latin-1"), delivery.body)
    return _fresh(moment, delivery, tolerance_s) if _is_signed(keys, signed, signatures) else BAD


def _fresh(moment: str, delivery: PushDelivery, tolerance_s: int) -> DeliveryRejection | None:
    """Check the timestamp of a valid signature: not too old, not in the future."""
    if not _SECONDS.fullmatch(moment):
        return BAD
    return None if abs(delivery.received_at - int(moment)) <= tolerance_s else STALE


def _is_signed(keys: Iterable[bytes], signed: bytes, signatures: Iterable[bytes]) -> bool:
    given = list(signatures)
    is_good = False
    for key in keys:
        # Not hmac.digest: it releases the GIL even for short bodies and waits to get it back.
        expected = hmac.new(key, signed, hashlib.sha256).digest()
        for each in given:
            is_good |= hmac.compare_digest(each, expected)
    return is_good


def _digest(text: str) -> bytes:
    """The bytes of a hex or base64 digest; empty if it is neither."""
    if _HEX.fullmatch(text):
        return bytes.fromhex(text)
    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _standard_key(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix(WHSEC), validate=True)
    except (binascii.Error, ValueError):
        return b""
