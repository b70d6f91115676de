"""`bearer`: a shared token."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from tape.subscriptions.document.verify_spec import VerifySpec
from tape.subscriptions.ingress.verification.delivery import MISCONFIGURED, DeliveryRejection, PushDelivery

DEFAULT_HEADER = "authorization"

MISSING = DeliveryRejection(401, "missing_token")
BAD = DeliveryRejection(401, "bad_token")


def check_token(verify: VerifySpec, secrets: Sequence[str], delivery: PushDelivery) -> DeliveryRejection | None:
    """None if the delivery has one of the secrets as its token."""
    if not secrets:
        return MISCONFIGURED
    given = delivery.first(verify.header or DEFAULT_HEADER)
    if given is None:
        return MISSING
    token = bare_token(given).encode("latin-1")  # the bytes that were sent
    is_good = False
    for secret in secrets:
        is_good |= hmac.compare_digest(token, secret.encode())
    return None if is_good else BAD


def bare_token(header: str) -> str:
    """A token without its `Bearer` prefix."""
    text = header.strip()
    return text[7:].strip() if text[:7] in ("Bearer ", "bearer ") else text
