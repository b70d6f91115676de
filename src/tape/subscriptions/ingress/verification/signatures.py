"""Signatures over a delivery: HMAC and Ed25519, and tokens in a header.

A signature without a timestamp can be replayed. One with a timestamp is rejected when that is too old or in the future.
Every comparison of secret bytes takes the same time whatever it compares.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Sequence

from tape.subscriptions.document.spec import IngressSpec
from tape.subscriptions.ingress.verification.delivery import MISCONFIGURED, DeliveryRejection, PushDelivery
from tape.subscriptions.ingress.verification.scheme import (
    DEFAULT_HEADER,
    WHITESPACE,
    SignatureScheme,
    SigningMethod,
    schemes_of,
    tolerance_of,
)
from tape.subscriptions.ingress.verification.signed_text import signed_texts
from tape.subscriptions.ingress.verification.trace import NO_TRACE, VerificationTrace, shorten

__all__ = ["DEFAULT_HEADER", "check_former_signature", "check_signature"]

# A signature header is tried no further than this.
MAX_HEADER_CHARS = 8_192
MAX_SIGNATURES = 20
MAX_KEYS = 20

MISSING = DeliveryRejection(401, "missing_signature")
BAD = DeliveryRejection(401, "bad_signature")
MALFORMED = DeliveryRejection(401, "malformed_signature")
TOO_MANY = DeliveryRejection(401, "too_many_signatures")
TOO_LONG = DeliveryRejection(401, "signature_too_long")
MISSING_TIMESTAMP = DeliveryRejection(401, "missing_timestamp")
BAD_TIMESTAMP = DeliveryRejection(401, "bad_timestamp")
MISSING_ID = DeliveryRejection(401, "missing_message_id")
STALE = DeliveryRejection(401, "stale_signature")
BAD_TOKEN = DeliveryRejection(401, "bad_token")

# What `hmac_sha256` answers where `signature` is more precise.
_FORMER_REASONS = {
    "malformed_signature": BAD,
    "too_many_signatures": BAD,
    "signature_too_long": BAD,
    "bad_timestamp": BAD,
    "missing_timestamp": MISSING,
    "missing_message_id": MISSING,
}
_DIGITS = re.compile(r"[0-9]{1,15}")
_MILLISECONDS_FROM = 10**11
_SIZES = {"hmac_sha1": 20, "hmac_sha256": 32, "hmac_sha512": 64, "ed25519": 64}
DIGESTS = {"hmac_sha1": "sha1", "hmac_sha256": "sha256", "hmac_sha512": "sha512"}


def check_former_signature(
    ingress: IngressSpec, secrets: Sequence[str], delivery: PushDelivery, trace: VerificationTrace = NO_TRACE
) -> DeliveryRejection | None:
    """The check of `hmac_sha256`, with the reasons that its senders know."""
    found = check_signature(ingress, secrets, delivery, trace)
    if isinstance(found, DeliveryRejection):
        return _FORMER_REASONS.get(found.reason, found)
    return None


def check_signature(
    ingress: IngressSpec, secrets: Sequence[str], delivery: PushDelivery, trace: VerificationTrace = NO_TRACE
) -> str | DeliveryRejection:
    """The secret that signed the delivery, within the tolerance if the scheme has a timestamp; else the rejection."""
    schemes = schemes_of(ingress.verify)
    keyed = [(scheme, keys) for scheme in schemes if (keys := usable_keys(scheme, schemes, secrets))]
    trace.add("secret", bool(keyed), f"{len(secrets)} secrets; {len(keyed)} schemes can use them")
    if not keyed:
        return MISCONFIGURED
    for scheme, keys in keyed:
        if (given := delivery.first(scheme.header)) is not None:
            trace.add("signature header", True, f"{scheme.header} is there, {len(given)} characters")
            return _check(scheme, keys, given, ingress, delivery, trace)
    trace.add("signature header", False, f"no header {' or '.join(scheme.header for scheme, _ in keyed)}")
    return MISSING


def _check(
    scheme: SignatureScheme,
    keys: Sequence[tuple[SigningMethod, str]],
    given: str,
    ingress: IngressSpec,
    delivery: PushDelivery,
    trace: VerificationTrace,
) -> str | DeliveryRejection:
    if scheme.methods[0].algorithm == "token":
        return _check_token(keys, given, trace)
    timestamp = message_id = ""
    if scheme.timestamp_header:
        found = _timestamp(scheme, delivery)
        trace.add("timestamp", isinstance(found, str), found if isinstance(found, str) else found.reason)
        if isinstance(found, DeliveryRejection):
            return found
        timestamp = found
    if scheme.id_header:
        message_id = delivery.first(scheme.id_header) or ""
        trace.add("message id", bool(message_id), message_id or f"no header {scheme.id_header}")
        if not message_id:
            return MISSING_ID
    texts = signed_texts(scheme, ingress, delivery, timestamp, message_id)
    if isinstance(texts, DeliveryRejection):
        trace.add("signed text", False, texts.reason)
        return texts
    for text in texts:
        trace.add("signed text", True, f"{len(text)} bytes: {_shown(text)}")
    signatures = _signatures(scheme, given)
    if isinstance(signatures, DeliveryRejection):
        trace.add("signatures", False, f"{signatures.reason}: {_expectation(scheme)}")
        return signatures
    secret = _find_signer(keys, texts, signatures, trace)
    if isinstance(secret, DeliveryRejection):
        return secret
    if not timestamp:
        return secret
    return _fresh(scheme, timestamp, delivery, tolerance_of(ingress.verify), trace) or secret


def _check_token(
    keys: Sequence[tuple[SigningMethod, str]], given: str, trace: VerificationTrace
) -> str | DeliveryRejection:
    token = given.strip().encode("latin-1")  # the bytes that were sent
    found = ""
    for _, key in keys:
        if hmac.compare_digest(token, key.encode()):
            found = key
    trace.add("token", bool(found), "it is one of the secrets" if found else "it is none of the secrets")
    return found or BAD_TOKEN


def _timestamp(scheme: SignatureScheme, delivery: PushDelivery) -> str | DeliveryRejection:
    value = delivery.first(scheme.timestamp_header)
    if value is None or (not value and not scheme.timestamp_prefix):
        return MISSING_TIMESTAMP
    if not scheme.timestamp_prefix:
        return value
    if len(value) > MAX_HEADER_CHARS:
        return TOO_LONG
    found = [each for each in _split(value, scheme.separator) if each.startswith(scheme.timestamp_prefix)]
    return found[0].removeprefix(scheme.timestamp_prefix) if len(found) == 1 else BAD_TIMESTAMP


def _signatures(scheme: SignatureScheme, given: str) -> list[tuple[SigningMethod, bytes]] | DeliveryRejection:
    """The signatures in a header, with the method that each was made by. Others are ignored."""
    if len(given) > MAX_HEADER_CHARS:
        return TOO_LONG
    found: list[tuple[SigningMethod, bytes]] = []
    for text in _split(given, scheme.separator):
        for method in scheme.methods:
            bare = _bare(method, text)
            if bare is not None and (signature := _decode(method, bare)):
                found.append((method, signature))
        if len(found) > MAX_SIGNATURES:
            return TOO_MANY
    return found or MALFORMED


def _split(text: str, separator: str) -> list[str]:
    if not separator:
        return [text.strip()]
    if separator == WHITESPACE:
        return text.split()
    return [each.strip() for each in text.split(separator)]


def _bare(method: SigningMethod, text: str) -> str | None:
    """A signature without its prefix; None if it has another one."""
    for prefix in (method.prefix, method.prefix.upper()) if method.is_prefix_optional else (method.prefix,):
        if prefix and text.startswith(prefix):
            return text[len(prefix) :].strip()
    return text if method.is_prefix_optional or not method.prefix else None


def _decode(method: SigningMethod, text: str) -> bytes:
    """The bytes of a signature; empty if it is not written as its method writes them."""
    size = _SIZES[method.algorithm]
    if method.encoding in ("hex", "either") and re.fullmatch(rf"[0-9a-fA-F]{{{2 * size}}}", text):
        return bytes.fromhex(text)
    if method.encoding == "hex":
        return b""
    if method.encoding != "base64":
        text = text.replace("-", "+").replace("_", "/")
        text += "=" * (-len(text) % 4)
    found = _from_base64(text)
    return found if len(found) == size else b""


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def usable_keys(
    scheme: SignatureScheme, schemes: Sequence[SignatureScheme], secrets: Sequence[str]
) -> list[tuple[SigningMethod, str]]:
    """The secrets that each method can use, in their order."""
    taken = {method.key_prefix for each in schemes for method in each.methods} - {""}
    found = []
    for secret in secrets[:MAX_KEYS]:
        prefix = next((each for each in taken if secret.startswith(each)), "")
        for method in scheme.methods:
            is_first_of_standard = method.key_prefix and not prefix and method is scheme.methods[0]
            is_for_it = method.key_prefix == prefix or (is_first_of_standard and len(schemes) == 1)
            if is_for_it and key_bytes(method, secret):
                found.append((method, secret))
    return found


def key_bytes(method: SigningMethod, secret: str) -> bytes:
    """The key itself; empty if it cannot be read."""
    text = secret.removeprefix(method.key_prefix)
    is_public = method.algorithm == "ed25519"
    encoding = method.key_encoding
    if encoding == "auto":
        encoding = "text" if not is_public else "hex" if len(text.strip()) == 64 else "base64"
    if encoding == "text":
        return text.encode()
    if encoding == "hex":
        try:
            found = bytes.fromhex(text.strip())
        except ValueError:
            return b""
    else:
        found = _from_base64(text.strip())
    return found if not is_public or len(found) == 32 else b""


def _find_signer(
    keys: Sequence[tuple[SigningMethod, str]],
    texts: Sequence[bytes],
    signatures: Sequence[tuple[SigningMethod, bytes]],
    trace: VerificationTrace,
) -> str | DeliveryRejection:
    """The secret that made one of the signatures. Every key is tried, also after one that fits."""
    signer = ""
    for number, (method, secret) in enumerate(keys, 1):
        key = key_bytes(method, secret)
        given = [signature for made_by, signature in signatures if made_by == method]
        for text in texts:
            is_good = False
            if method.algorithm == "ed25519":
                expected = "(made with the private key)"
                for each in given:
                    is_good |= _is_made_with(key, text, each)
            else:
                # Not hmac.digest: it releases the GIL even for short bodies and waits to get it back.
                made = hmac.new(key, text, DIGESTS[method.algorithm]).digest()
                expected = shorten(encode_signature(method, made))
                for each in given:
                    is_good |= hmac.compare_digest(made, each)
            received = (
                ", ".join(shorten(encode_signature(method, each)) for each in given) or f"none with {method.prefix!r}"
            )
            trace.add("signature", is_good, f"key {number}, {method.algorithm}: expected {expected}, got {received}")
            if is_good:
                signer = secret
    return signer or BAD


def _is_made_with(key: bytes, text: bytes, signature: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def _fresh(
    scheme: SignatureScheme, moment: str, delivery: PushDelivery, tolerance_s: int, trace: VerificationTrace
) -> DeliveryRejection | None:
    """Check the timestamp of a valid signature: not too old, not in the future."""
    if not _DIGITS.fullmatch(moment):
        trace.add("replay window", False, f"{moment[:40]!r} is no number of 1 to 15 digits")
        return BAD_TIMESTAMP
    signed_at = int(moment) / 1_000 if scheme.has_milliseconds and int(moment) >= _MILLISECONDS_FROM else int(moment)
    age_s = delivery.received_at - signed_at
    is_fresh = abs(age_s) <= tolerance_s
    trace.add("replay window", is_fresh, f"signed {age_s:.0f} s before it was received; {tolerance_s} s are tolerated")
    return None if is_fresh else STALE


def encode_signature(method: SigningMethod, signature: bytes) -> str:
    """A signature as its method writes it, without its prefix."""
    if method.encoding in ("hex", "either"):
        return signature.hex()
    encode = base64.urlsafe_b64encode if method.encoding == "base64url" else base64.b64encode
    return encode(signature).decode()


def _expectation(scheme: SignatureScheme) -> str:
    ways = " or ".join(f"{each.prefix}<{each.algorithm} in {each.encoding}>" for each in scheme.methods)
    return f"{scheme.header} must have {ways}" + (
        f", several with {scheme.separator!r} between" * bool(scheme.separator)
    )


def _shown(text: bytes) -> str:
    """The signed bytes for people: as text, what is not printable as escapes, cut after 400."""
    return repr(text[:400])[1:] + (" …" if len(text) > 400 else "")
