"""The bytes that a sender signed, put together from the parts of its scheme."""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from tape.subscriptions.document.spec import IngressSpec
from tape.subscriptions.ingress.verification.delivery import DeliveryRejection, PushDelivery
from tape.subscriptions.ingress.verification.scheme import SignatureScheme

MAX_FORM_FIELDS = 1_000
FORM = "application/x-www-form-urlencoded"
# A digest of the body in the query, with which Twilio signs bodies that are no form.
BODY_DIGEST = "bodySHA256"

TOO_MANY_FIELDS = DeliveryRejection(401, "too_many_form_fields")
UNSIGNED_BODY = DeliveryRejection(401, "unsigned_body")
MISSING_HEADER = DeliveryRejection(401, "missing_signed_header")

_DEFAULT_PORTS = {"http": 80, "https": 443}


def signed_texts(
    scheme: SignatureScheme, ingress: IngressSpec, delivery: PushDelivery, timestamp: str, message_id: str
) -> list[bytes] | DeliveryRejection:
    """What the signature must be of; two texts where a URL may have its default port or not."""
    texts = []
    for url in signed_urls(scheme, ingress, delivery):
        parts = []
        for name in scheme.parts:
            part = _part(name, url, ingress, delivery, timestamp, message_id)
            if isinstance(part, DeliveryRejection):
                return part
            parts.append(part)
        texts.append(scheme.join.encode().join(parts))
    return texts


def _part(
    name: str, url: str, ingress: IngressSpec, delivery: PushDelivery, timestamp: str, message_id: str
) -> bytes | DeliveryRejection:
    kind, _, argument = name.partition(":")
    match kind:
        case "text":
            return argument.encode()
        case "header":
            value = delivery.first(argument)
            return MISSING_HEADER if value is None else value.encode("latin-1")
        case "timestamp":
            return timestamp.encode("latin-1")
        case "id":
            return message_id.encode("latin-1")
        case "method":
            return delivery.target.method.encode()
        case "url":
            return url.encode()
        case "path":
            return (urlsplit(url).path if ingress.public_url else delivery.target.path).encode()
        case "body_sha256":
            return hashlib.sha256(delivery.body).hexdigest().encode()
        case "body_sha512":
            return hashlib.sha512(delivery.body).hexdigest().encode()
        case "form":
            return _form(delivery)
        case _:
            assert name == "body", name
            return delivery.body


def _form(delivery: PushDelivery) -> bytes | DeliveryRejection:
    """The fields of a form sorted by name, each name before its value; empty if the URL has a digest of the body."""
    try:
        query = parse_qsl(delivery.target.query, keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS)
    except ValueError:
        return TOO_MANY_FIELDS
    digests = [value for name, value in query if name == BODY_DIGEST]
    if digests:
        expected = hashlib.sha256(delivery.body).hexdigest()
        is_same = len(digests) == 1 and hmac.compare_digest(digests[0].lower().encode(), expected.encode())
        return b"" if is_same else UNSIGNED_BODY
    media = (delivery.first("content-type") or "").partition(";")[0].strip().lower()
    if delivery.body and media != FORM:
        return UNSIGNED_BODY
    try:
        fields = parse_qsl(
            delivery.body.decode("latin-1"),
            keep_blank_values=True,
            encoding="utf-8",
            errors="surrogateescape",
            max_num_fields=MAX_FORM_FIELDS,
        )
    except ValueError:
        return TOO_MANY_FIELDS
    return "".join(f"{name}{value}" for name, value in sorted(set(fields))).encode(errors="surrogateescape")


def signed_urls(scheme: SignatureScheme, ingress: IngressSpec, delivery: PushDelivery) -> list[str]:
    """The address that the sender posted to, as it knows it."""
    query = delivery.target.query
    url = f"{ingress.public_url.rstrip('/')}{ingress.gateway_path}{'?' if query else ''}{query}"
    if "url" not in scheme.parts or not scheme.is_any_port:
        return [url]
    parts = urlsplit(url)
    default = _DEFAULT_PORTS.get(parts.scheme)
    host = parts.netloc.removesuffix(f":{parts.port}") if parts.port else parts.netloc
    other = host if parts.port else f"{host}:{default}"
    return [url, urlunsplit(parts._replace(netloc=other))]
