"""Verification of a delivery: `verify_delivery` is the only way to a `VerifiedDelivery`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from tape.subscriptions.document.spec import IngressSpec, Subscription
from tape.subscriptions.ingress.verification.basic import check_password
from tape.subscriptions.ingress.verification.bearer import check_token
from tape.subscriptions.ingress.verification.certificates import check_paypal, check_sns
from tape.subscriptions.ingress.verification.client_certificate import check_certificate
from tape.subscriptions.ingress.verification.delivery import DeliveryRejection, PushDelivery
from tape.subscriptions.ingress.verification.issuer_keys import IssuerKeys
from tape.subscriptions.ingress.verification.signatures import check_former_signature, check_signature
from tape.subscriptions.ingress.verification.trace import NO_TRACE, VerificationTrace

# Far more than senders and proxies add; every check looks for its headers among all of them.
MAX_HEADERS = 200
TOO_MANY_HEADERS = DeliveryRejection(431, "too_many_headers")

_VERIFIED = object()


class VerifiedDelivery:
    """A verified delivery and its subscription. Only `verify_delivery` creates one.

    `signer` is the secret that signed it, where there are several.
    """

    __slots__ = ("delivery", "signer", "subscription")

    def __init__(self, token: object, delivery: PushDelivery, subscription: Subscription, signer: str = "") -> None:
        if token is not _VERIFIED:
            raise TypeError("Call verify_delivery() to verify a delivery.")
        self.delivery = delivery
        self.subscription = subscription
        self.signer = signer


async def verify_delivery(
    subscription: Subscription,
    secrets: Sequence[str],
    issuers: IssuerKeys,
    delivery: PushDelivery,
    trace: VerificationTrace = NO_TRACE,
) -> VerifiedDelivery | DeliveryRejection:
    """Verify a delivery as its subscription configures. `secrets` are those that senders sign with, newest first."""
    ingress = subscription.spec.ingress
    if ingress is None:
        return DeliveryRejection(403, "unsupported")
    if len(delivery.headers) > MAX_HEADERS:
        trace.add("headers", False, f"{len(delivery.headers)}; at most {MAX_HEADERS} are looked at")
        return TOO_MANY_HEADERS
    found = await _check(ingress, secrets, issuers, delivery, trace)
    if isinstance(found, DeliveryRejection):
        return found
    return VerifiedDelivery(_VERIFIED, delivery, subscription, found or "")


async def _check(
    ingress: IngressSpec,
    secrets: Sequence[str],
    issuers: IssuerKeys,
    delivery: PushDelivery,
    trace: VerificationTrace,
) -> str | DeliveryRejection | None:
    """A rejection, or the secret that signed the delivery if that is known."""
    verify = ingress.verify
    rejection: DeliveryRejection | None
    match verify.type:
        case "signature" if verify.preset == "paypal-cert":
            return await check_paypal(verify, issuers.certificates, delivery, trace)
        case "signature" if verify.preset == "aws_sns":
            return await check_sns(verify, issuers.certificates, delivery, trace)
        case "signature":
            return check_signature(ingress, secrets, delivery, trace)
        case "hmac_sha256":
            return check_former_signature(ingress, secrets, delivery, trace)
        case "bearer":
            rejection = check_token(verify, secrets, delivery)
        case "basic":
            rejection = check_password(verify, secrets, delivery)
        case "mtls":
            rejection = check_certificate(verify, delivery)
        case "pubsub_oidc":
            from tape.subscriptions.ingress.verification.oidc import check_identity  # the libraries of tokens

            rejection = await check_identity(verify, issuers, delivery)
        case unknown:
            assert_never(unknown)
    trace.add(verify.type, rejection is None, "verified" if rejection is None else rejection.reason)
    return rejection
