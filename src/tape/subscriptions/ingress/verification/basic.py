"""`basic`: a user name and a password (RFC 7617)."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Sequence

from tape.subscriptions.document.verify_spec import VerifySpec
from tape.subscriptions.ingress.verification.bearer import BAD, MISSING
from tape.subscriptions.ingress.verification.delivery import MISCONFIGURED, DeliveryRejection, PushDelivery

HEADER = "authorization"
MAX_CHARS = 8_192


def check_password(verify: VerifySpec, secrets: Sequence[str], delivery: PushDelivery) -> DeliveryRejection | None:
    """None if the delivery has the user with one of the secrets as its password."""
    if not secrets:
        return MISCONFIGURED
    given = delivery.first(HEADER)
    if given is None:
        return MISSING
    scheme, _, text = given.strip().partition(" ")
    if scheme.lower() != "basic" or len(text) > MAX_CHARS:
        return BAD
    try:
        login = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        return BAD
    is_good = False
    for secret in secrets:
        is_good |= hmac.compare_digest(login, f"{verify.user}:{secret}".encode())
    return None if is_good else BAD
