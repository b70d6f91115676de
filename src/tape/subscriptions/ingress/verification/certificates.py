"""Signatures with a provider's certificate: PayPal's webhooks and Amazon SNS.

The certificate is fetched over TLS from an address that the delivery names, on a host that belongs to the provider.
What is verified: the host and its TLS certificate, the signing certificate's dates, its name and its key. Its chain and
its revocation are not: who can serve a file on the provider's host can sign.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import re
import time
import zlib
from collections import OrderedDict, deque
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from tape.base.addresses import PUBLIC_ONLY
from tape.base.http import HttpClient, shown
from tape.errors import AddressNotAllowed, HttpRequestFailed
from tape.subscriptions.document.verify_spec import VerifySpec
from tape.subscriptions.ingress.verification.delivery import DeliveryRejection, PushDelivery
from tape.subscriptions.ingress.verification.scheme import tolerance_of
from tape.subscriptions.ingress.verification.trace import NO_TRACE, VerificationTrace, shorten

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

log = logging.getLogger(__name__)

MAX_CERTIFICATE_BYTES = 64 << 10
FETCH_S = 5.0
KEPT_S = 86_400.0
FAILED_S = 60.0
MAX_KEPT = 32
# Certificates fetched in a minute at most: senders that are not verified yet choose the address.
MAX_FETCHES_PER_MINUTE = 10
MAX_SIGNATURE_CHARS = 2_048

MISSING = DeliveryRejection(401, "missing_signature")
MALFORMED = DeliveryRejection(401, "malformed_signature")
BAD = DeliveryRejection(401, "bad_signature")
BAD_TIMESTAMP = DeliveryRejection(401, "bad_timestamp")
STALE = DeliveryRejection(401, "stale_signature")
WRONG_HOST = DeliveryRejection(401, "certificate_host_not_allowed")
INVALID = DeliveryRejection(401, "certificate_invalid")
UNAVAILABLE = DeliveryRejection(502, "certificate_unavailable")
WRONG_TOPIC = DeliveryRejection(403, "topic_not_allowed")


class CertificateProvider(NamedTuple):
    """Which addresses a provider's certificates have, and which names are in them."""

    host: re.Pattern[str]
    path: re.Pattern[str]
    name: re.Pattern[str]


PAYPAL = CertificateProvider(
    re.compile(r"([a-z0-9-]+\.)+paypal\.com"),
    re.compile(r"/v1/notifications/certs/[A-Za-z0-9-]{1,100}"),
    re.compile(r"([a-z0-9-]+\.)+paypal\.com"),
)
SNS = CertificateProvider(
    re.compile(r"sns\.[a-z0-9-]{1,40}\.amazonaws\.com"),
    re.compile(r"/SimpleNotificationService-[A-Za-z0-9]{1,100}\.pem"),
    re.compile(r"sns(\.[a-z0-9-]{1,40})?\.amazonaws\.com"),
)


def is_address_of(provider: CertificateProvider, url: str) -> bool:
    """Whether an address is https on a host of the provider, without user, other port, query or fragment."""
    try:
        parts = urlsplit(url)
        return (
            len(url) <= 500
            and parts.scheme == "https"
            and parts.netloc == parts.hostname
            and provider.host.fullmatch(parts.netloc) is not None
            and provider.path.fullmatch(parts.path) is not None
            and not parts.query
            and not parts.fragment
        )
    except ValueError:
        return False


class _Kept(NamedTuple):
    key: RSAPublicKey | DeliveryRejection
    until: float


class SigningCertificates:
    """Fetches certificates and keeps their public keys for a day, or until they expire; a failure for a minute."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._fetched_at: deque[float] = deque()
        self._lock = asyncio.Lock()
        self._http: HttpClient | None = None

    @property
    def http(self) -> HttpClient:
        """The client for the providers' hosts: public addresses only, 5 s and 64 KiB at most, no redirects."""
        if self._http is None:
            self._http = HttpClient(PUBLIC_ONLY, timeout_s=FETCH_S, max_body_bytes=MAX_CERTIFICATE_BYTES, connections=2)
        return self._http

    def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            self._http.close()

    async def key(self, provider: CertificateProvider, url: str) -> RSAPublicKey | DeliveryRejection:
        """The public key of the certificate at an address of the provider, or the reason why there is none."""
        if not is_address_of(provider, url):
            return WRONG_HOST
        if (kept := self._kept.get(url)) is not None and time.time() < kept.until:
            return kept.key
        async with self._lock:  # one fetch at a time
            if (kept := self._kept.get(url)) is not None and time.time() < kept.until:
                return kept.key
            if not self._may_fetch():
                log.warning("certificates: %d were fetched in a minute, no more now", MAX_FETCHES_PER_MINUTE)
                return UNAVAILABLE
            kept = self._kept[url] = await self._fetch(provider, url)
            self._kept.move_to_end(url)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
            return kept.key

    def _may_fetch(self) -> bool:
        now = time.monotonic()
        while self._fetched_at and now - self._fetched_at[0] > 60:
            self._fetched_at.popleft()
        if len(self._fetched_at) >= MAX_FETCHES_PER_MINUTE:
            return False
        self._fetched_at.append(now)
        return True

    async def _fetch(self, provider: CertificateProvider, url: str) -> _Kept:
        failed_until = time.time() + FAILED_S
        try:
            response = await self.http.send("GET", url)
        except (HttpRequestFailed, AddressNotAllowed) as error:
            log.warning("the certificate at %s cannot be fetched: %s", shown(url), error)
            return _Kept(UNAVAILABLE, failed_until)
        if response.status != 200:
            log.warning("the certificate at %s cannot be fetched: status %d", shown(url), response.status)
            return _Kept(UNAVAILABLE, failed_until)
        # The library of certificates is for these senders only.
        from tape.subscriptions.ingress.verification.rsa_signatures import read_signing_key

        try:
            key, expires_at = read_signing_key(response.body, provider.name)
        except ValueError as error:
            log.warning("the certificate at %s is not used: %s", shown(url), error)
            return _Kept(INVALID, failed_until)
        return _Kept(key, min(time.time() + KEPT_S, expires_at))


async def check_paypal(
    verify: VerifySpec,
    certificates: SigningCertificates,
    delivery: PushDelivery,
    trace: VerificationTrace = NO_TRACE,
) -> DeliveryRejection | None:
    """None if PayPal signed transmission id, time, webhook id and the CRC-32 of the body."""
    named = {name: delivery.first(f"paypal-{name}") for name in ("transmission-id", "transmission-time")}
    signature, url = delivery.first("paypal-transmission-sig"), delivery.first("paypal-cert-url")
    algorithm = delivery.first("paypal-auth-algo")
    found = [*named.values(), signature, url, algorithm]
    trace.add("signature headers", all(found), "paypal-transmission-id, -time, -sig, paypal-cert-url, -auth-algo")
    if not all(found) or signature is None or url is None:
        return MISSING
    if algorithm != "SHA256withRSA":
        trace.add("algorithm", False, f"{str(algorithm)[:40]!r} is not SHA256withRSA")
        return MALFORMED
    if rejection := _check_time(str(named["transmission-time"]), verify, delivery, trace):
        return rejection
    checksum = str(zlib.crc32(delivery.body))
    text = "|".join((str(named["transmission-id"]), str(named["transmission-time"]), verify.webhook_id, checksum))
    trace.add("signed text", True, f"{len(text)} bytes: {text[:400]!r}")
    return await _check_rsa(PAYPAL, certificates, url, signature, text.encode("latin-1"), "sha256", trace)


# The fields that SNS signs, in their order, by the type of the message.
_CONFIRMATION = ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")
_SIGNED_FIELDS = {
    "Notification": ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"),
    "SubscriptionConfirmation": _CONFIRMATION,
    "UnsubscribeConfirmation": _CONFIRMATION,
}


async def check_sns(
    verify: VerifySpec,
    certificates: SigningCertificates,
    delivery: PushDelivery,
    trace: VerificationTrace = NO_TRACE,
) -> DeliveryRejection | None:
    """None if Amazon SNS signed the body's fields for one of the topics. The signature is inside of the body."""
    message = parse_sns(delivery.body)
    trace.add("SNS message", message is not None, "a JSON object with its signed fields" if message else "not one")
    if message is None:
        return MALFORMED
    is_listed = message["TopicArn"] in verify.topics
    trace.add("topic", is_listed, f"{message['TopicArn'][:200]}{'' if is_listed else ' is not in topics'}")
    if not is_listed:
        return WRONG_TOPIC
    if rejection := _check_time(message["Timestamp"], verify, delivery, trace):
        return rejection
    fields = [name for name in _SIGNED_FIELDS[message["Type"]] if name in message]
    text = "".join(f"{name}\n{message[name]}\n" for name in fields)
    trace.add("signed text", True, f"{len(text)} characters of {', '.join(fields)}")
    algorithm = "sha256" if message["SignatureVersion"] == "2" else "sha1"
    signed = text.encode(errors="surrogatepass")
    url, signature = message["SigningCertURL"], message["Signature"]
    return await _check_rsa(SNS, certificates, url, signature, signed, algorithm, trace)


def parse_sns(body: bytes) -> dict[str, str] | None:
    """The fields of an SNS message; None if one that it needs is missing or is no text."""
    try:
        found: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("Type"), str) or found["Type"] not in _SIGNED_FIELDS:
        return None
    needed = {*_SIGNED_FIELDS[found["Type"]], "SignatureVersion", "Signature", "SigningCertURL"} - {"Subject"}
    wanted = needed | ({"Subject"} if found.get("Subject") is not None else set())
    if not all(isinstance(found.get(name), str) for name in wanted) or found["SignatureVersion"] not in ("1", "2"):
        return None
    return {name: found[name] for name in wanted}


def _check_time(
    text: str, verify: VerifySpec, delivery: PushDelivery, trace: VerificationTrace
) -> DeliveryRejection | None:
    try:
        if len(text) > 40:
            raise ValueError("too long")
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError("no time zone")
        age_s = delivery.received_at - moment.timestamp()
    except (ValueError, OverflowError):
        trace.add("timestamp", False, f"{text[:40]!r} is no time of ISO 8601 with a zone")
        return BAD_TIMESTAMP
    tolerance_s = tolerance_of(verify)
    is_fresh = abs(age_s) <= tolerance_s
    trace.add("replay window", is_fresh, f"signed {age_s:.0f} s before it was received; {tolerance_s} s are tolerated")
    return None if is_fresh else STALE


async def _check_rsa(
    provider: CertificateProvider,
    certificates: SigningCertificates,
    url: str,
    signature: str,
    text: bytes,
    algorithm: str,
    trace: VerificationTrace,
) -> DeliveryRejection | None:
    try:
        if len(signature) > MAX_SIGNATURE_CHARS:
            raise ValueError("too long")
        made = base64.b64decode(signature, validate=True)
    except (binascii.Error, ValueError):
        trace.add("signature", False, "it is no base64 of at most 2,048 characters")
        return MALFORMED
    key = await certificates.key(provider, url)
    is_key = not isinstance(key, DeliveryRejection)
    trace.add("certificate", is_key, shown(url) if is_key else f"{getattr(key, 'reason', '')}: {shown(url)[:200]}")
    if isinstance(key, DeliveryRejection):
        return key
    from tape.subscriptions.ingress.verification.rsa_signatures import is_signed

    if not is_signed(key, made, text, algorithm):
        trace.add("signature", False, f"{shorten(signature)} is not made with the key of the certificate")
        return BAD
    trace.add("signature", True, f"RSA, {algorithm}: {shorten(signature)}")
    return None
