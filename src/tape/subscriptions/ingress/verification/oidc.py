"""`pubsub_oidc`: the identity token that Google signs for the service account of a push subscription."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import jwt
import msgspec

from tape.base.addresses import PUBLIC_ONLY
from tape.engine.security.jwks import KeySet
from tape.errors import TokenRejected
from tape.subscriptions.document.verify_spec import VerifySpec
from tape.subscriptions.ingress.verification.bearer import bare_token
from tape.subscriptions.ingress.verification.certificates import SigningCertificates
from tape.subscriptions.ingress.verification.delivery import MISCONFIGURED, DeliveryRejection, PushDelivery

GOOGLE_KEYS = "https://www.googleapis.com/oauth2/v3/certs"
GOOGLE_ISSUERS = ("https://accounts.google.com", "accounts.google.com")
LEEWAY_S = 60
KEYS_REFRESH_S = 3_600.0
KEYS_MAX_STALE_S = 86_400.0

NO_KEYS = DeliveryRejection(502, "jwks_error")
INVALID = DeliveryRejection(401, "oidc_invalid")

_JWS = jwt.PyJWS(algorithms=["RS256"])


class IssuerKeys:
    """The public keys of those who sign tokens, by address; fetched when first needed, kept fresh from then on.

    `certificates` are those of PayPal and Amazon SNS.
    """

    def __init__(self) -> None:
        self.certificates = SigningCertificates()
        self._sets: dict[str, KeySet] = {}
        self._opening = asyncio.Lock()

    async def keys(self, url: str) -> KeySet:
        """The keys at an address, or Google's. Raises InvalidConfig for an address that keys cannot come from."""
        address = url or GOOGLE_KEYS
        if (found := self._sets.get(address)) is not None:
            return found
        async with self._opening:
            if address not in self._sets:
                keys = KeySet(address, KEYS_REFRESH_S, KEYS_MAX_STALE_S, PUBLIC_ONLY)
                await keys.start()
                self._sets[address] = keys
        return self._sets[address]

    async def close(self) -> None:
        """Stop refreshing."""
        await asyncio.gather(*(keys.close() for keys in self._sets.values()))
        self.certificates.close()


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
