"""`pubsub_oidc`: the identity token that Google signs for the service account of a push subscription."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jwt
import msgspec

from tape.engine.security.jwks import KeySet
from tape.errors import TokenRejected
from tape.subscriptions.document.verify_spec import VerifySpec
from tape.subscriptions.ingress.verification.bearer import bare_token
from tape.subscriptions.ingress.verification.delivery import MISCONFIGURED, DeliveryRejection, PushDelivery
from tape.subscriptions.ingress.verification.issuer_keys import NO_KEYS, IssuerKeys

GOOGLE_ISSUERS = ("https://accounts.google.com", "accounts.google.com")
LEEWAY_S = 60

INVALID = DeliveryRejection(401, "oidc_invalid")

_JWS = jwt.PyJWS(algorithms=["RS256"])


async def check_identity(verify: VerifySpec, issuers: IssuerKeys, delivery: PushDelivery) -> DeliveryRejection | None:
    """None if the delivery shows a token of the service account, for our audience, signed by its issuer."""
    keys = await issuers.keys(verify.jwks_url)
    given = delivery.first("authorization")
    if given is None:
        return DeliveryRejection(401, "missing_token")
    if not verify.audience or not verify.service_account:
        return MISCONFIGURED
    claims = await _signed_claims(bare_token(given), keys)
    return claims if isinstance(claims, DeliveryRejection) else _check(claims, verify, delivery.received_at)


async def _signed_claims(token: str, keys: KeySet) -> Mapping[str, Any] | DeliveryRejection:
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError):
        return DeliveryRejection(401, "oidc_malformed")
    kid = header.get("kid")
    if not isinstance(kid, str) or not kid:
        return DeliveryRejection(401, "oidc_malformed")
    try:
        key = await keys.find(kid)
    except TokenRejected:
        return NO_KEYS
    if key is None:
        return DeliveryRejection(401, "oidc_unknown_kid")
    if "RS256" not in key.algorithms:
        return DeliveryRejection(403, "oidc_bad_key")
    if header.get("alg") != "RS256":
        return INVALID
    try:
        claims = msgspec.json.decode(_JWS.decode(token, key.public, algorithms=["RS256"]))
    except jwt.InvalidSignatureError:
        return DeliveryRejection(401, "oidc_bad_signature")
    except (jwt.PyJWTError, msgspec.DecodeError, ValueError, TypeError):
        return INVALID
    return claims if isinstance(claims, dict) else INVALID


def _check(claims: Mapping[str, Any], verify: VerifySpec, now: float) -> DeliveryRejection | None:
    expires, begins = claims.get("exp"), claims.get("nbf", 0)
    if not _is_time(expires) or not _is_time(begins):
        return INVALID
    if now >= float(expires or 0) + LEEWAY_S:
        return DeliveryRejection(401, "oidc_expired")
    if now < float(begins) - LEEWAY_S:
        return DeliveryRejection(401, "oidc_not_yet_valid")
    if claims.get("iss") not in ((verify.issuer,) if verify.issuer else GOOGLE_ISSUERS):
        return DeliveryRejection(403, "oidc_wrong_issuer")
    audience = claims.get("aud")
    if verify.audience not in (audience if isinstance(audience, list) else [audience]):
        return DeliveryRejection(403, "oidc_wrong_audience")
    if not claims.get("email"):
        return DeliveryRejection(403, "oidc_unverified_email")
    if claims["email"] != verify.service_account:
        return DeliveryRejection(403, "oidc_wrong_sa")
    return None if claims.get("email_verified") is True else DeliveryRejection(403, "oidc_unverified_email")


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
