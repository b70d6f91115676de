"""The gate: what comes through has proven where it comes from. There is no other way to a `Proven`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.ingress.verification.bearer import check_token
from tape.subscriptions.ingress.verification.delivery import PushDelivery, Rejection
from tape.subscriptions.ingress.verification.oidc import IssuerKeys, check_identity
from tape.subscriptions.ingress.verification.signatures import check_signature

_GATE = object()


class VerifiedDelivery:
    """A delivery and the subscription that it has proven to be for. Only `prove` makes one."""

    __slots__ = ("delivery", "subscription")

    def __init__(self, gate: object, delivery: PushDelivery, subscription: Subscription) -> None:
        if gate is not _GATE:
            raise TypeError("A delivery is proven by verification alone: call prove().")
        self.delivery = delivery
        self.subscription = subscription


async def verify_delivery(
    subscription: Subscription, secrets: Sequence[str], issuers: IssuerKeys, delivery: PushDelivery
) -> VerifiedDelivery | Rejection:
    """Check a delivery as its subscription demands. `secrets` are what `verify.secret` stands for, the newest first."""
    if subscription.spec.ingress is None:
        return Rejection(403, "unsupported")
    verify = subscription.spec.ingress.verify
    match verify.type:
        case "hmac_sha256":
            refused = check_signature(verify, secrets, delivery)
        case "bearer":
            refused = check_token(verify, secrets, delivery)
        case "pubsub_oidc":
            refused = await check_identity(verify, issuers, delivery)
        case unknown:
            assert_never(unknown)
    return VerifiedDelivery(_GATE, delivery, subscription) if refused is None else refused
