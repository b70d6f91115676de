"""Verification of a delivery: `verify_delivery` is the only way to a `VerifiedDelivery`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.ingress.verification.bearer import check_token
from tape.subscriptions.ingress.verification.delivery import DeliveryRejection, PushDelivery
from tape.subscriptions.ingress.verification.oidc import IssuerKeys, check_identity
from tape.subscriptions.ingress.verification.signatures import check_signature

_VERIFIED = object()


class VerifiedDelivery:
    """A verified delivery and its subscription. Only `verify_delivery` creates one."""

    __slots__ = ("delivery", "subscription")

    def __init__(self, token: object, delivery: PushDelivery, subscription: Subscription) -> None:
        if token is not _VERIFIED:
            raise TypeError("Call verify_delivery() to verify a delivery.")
        self.delivery = delivery
        self.subscription = subscription


async def verify_delivery(
    subscription: Subscription, secrets: Sequence[str], issuers: IssuerKeys, delivery: PushDelivery
) -> VerifiedDelivery | DeliveryRejection:
    """Verify a delivery as its subscription configures. `secrets` are those of `verify.secret`, newest first."""
    if subscription.spec.ingress is None:
        return DeliveryRejection(403, "unsupported")
    verify = subscription.spec.ingress.verify
    match verify.type:
        case "hmac_sha256":
            rejection = check_signature(verify, secrets, delivery)
        case "bearer":
            rejection = check_token(verify, secrets, delivery)
        case "pubsub_oidc":
            rejection = await check_identity(verify, issuers, delivery)
        case unknown:
            assert_never(unknown)
    return VerifiedDelivery(_VERIFIED, delivery, subscription) if rejection is None else rejection
