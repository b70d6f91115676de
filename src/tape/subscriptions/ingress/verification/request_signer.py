"""Signs a request as a sender would, for trying a listener. The headers never hold a shared token itself."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import NamedTuple

from tape.base.ids import new_id
from tape.errors import InvalidSample
from tape.subscriptions.document.spec import IngressSpec
from tape.subscriptions.ingress.verification import bearer
from tape.subscriptions.ingress.verification.delivery import PushDelivery
from tape.subscriptions.ingress.verification.scheme import SignatureScheme, schemes_of
from tape.subscriptions.ingress.verification.signatures import DIGESTS, encode_signature, key_bytes, usable_keys
from tape.subscriptions.ingress.verification.signed_text import signed_texts

SECRET_VARIABLE = "TAPE_INGRESS_SECRET"  # noqa: S105 - where a secret is, not one


class SignedHeaders(NamedTuple):
    """Headers to add. A value in `shell` is an expression of the shell, because it has the secret in it."""

    plain: dict[str, str]
    shell: dict[str, str]


def sign_request(ingress: IngressSpec, secrets: Sequence[str], delivery: PushDelivery) -> SignedHeaders:
    """The headers that prove the sender of a request. Raises InvalidSample if only the provider can make them."""
    verify = ingress.verify
    if verify.type == "bearer":
        value = f"${SECRET_VARIABLE}" if verify.header else f"Bearer ${SECRET_VARIABLE}"
        return SignedHeaders({}, {verify.header or bearer.DEFAULT_HEADER: value})
    if verify.type == "basic":
        login = f"$(printf %s '{verify.user}:'\"${SECRET_VARIABLE}\" | base64 -w0)"
        return SignedHeaders({}, {"authorization": f"Basic {login}"})
    schemes = schemes_of(verify)
    if not schemes:
        kind = verify.preset or verify.type
        raise InvalidSample(f"only the sender can prove itself by {kind}; have it send a test delivery.")
    for scheme in schemes:
        keys = usable_keys(scheme, schemes, secrets)
        if keys and keys[0][0].algorithm == "token":
            return SignedHeaders({}, {scheme.header: f"${SECRET_VARIABLE}"})
        for method, secret in keys:
            if method.algorithm in DIGESTS:
                headers = _added(scheme, delivery)
                timestamp = str(int(delivery.received_at))
                message_id = headers.get(scheme.id_header) or delivery.first(scheme.id_header) or ""
                texts = signed_texts(scheme, ingress, delivery, timestamp, message_id)
                if not isinstance(texts, list):
                    raise InvalidSample(f"the request cannot be signed: {texts.reason}.")
                made = hmac.new(key_bytes(method, secret), texts[0], DIGESTS[method.algorithm]).digest()
                signature = method.prefix + encode_signature(method, made)
                if scheme.timestamp_prefix:
                    signature = f"{scheme.timestamp_prefix}{timestamp}{scheme.separator}{signature}"
                return SignedHeaders(headers | {scheme.header: signature}, {})
    raise InvalidSample(
        "no secret here can sign: an Ed25519 key is a public one, and without a secret nothing is signed."
    )


def _added(scheme: SignatureScheme, delivery: PushDelivery) -> dict[str, str]:
    headers = {}
    if scheme.timestamp_header and not scheme.timestamp_prefix:
        headers[scheme.timestamp_header] = str(int(delivery.received_at))
    if scheme.id_header and delivery.first(scheme.id_header) is None:
        headers[scheme.id_header] = f"msg_{new_id()}"
    return headers
