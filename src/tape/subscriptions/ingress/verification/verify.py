"""The gate: what comes through has proven where it comes from. There is no other way to a `Proven`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.ingress.verification.bearer import check_token
from tape.subscriptions.ingress.verification.delivery import Delivery, Refused
from tape.subscriptions.ingress.verification.oidc import Issuers, check_identity
from tape.subscriptions.ingress.verification.signatures import check_signature

_GATE = object()


class Proven:
    """A delivery and the subscription that it has proven to be for. Only `prove` makes one."""

    __slots__ = ("delivery", "subscription")

    def __init__(self, gate: object, delivery: Delivery, subscription: Subscription) -> None:
        if gate is not _GATE:
            raise TypeError("A delivery is proven by verification alone: call prove().")
        self.delivery = delivery
        self.subscription = subscription


async def prove(
    subscription: Subscription, secrets: Sequence[str], issuers: Issuers, delivery: Delivery
) -> Proven | Refused:
    """Check a delivery as its subscription demands. `secrets` are what `verify.secret` stands for, the newest first."""
    if subscription.spec.ingress is None:
        return Refused(403, "unsupported")
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
    return Proven(_GATE, delivery, subscription) if refused is None else refused
