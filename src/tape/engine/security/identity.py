"""Who a caller is: a JWT proves tenant, user and session, and the scopes that reach beyond them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jwt
import msgspec

from tape.engine.security.jwks import ALGORITHMS, KeySet
from tape.errors import IdentityRequired, InvalidPattern, SessionOutOfReach, TokenRejected
from tape.model.grants import compile_grants
from tape.model.principal import CLOCK_SKEW_S, Principal, expand_scopes

# Verifying a signature takes about 0.1 ms, so verified tokens are cached.
MAX_CACHED_TOKENS = 1_024
# A token whose `exp` is further ahead is rejected, unless the server is configured otherwise.
MAX_LIFETIME_S = 86_400.0
# Times beyond this are no times; JSON can write integers that no float holds.
MAX_TIME_S = 1 << 53
# The key of a principal that came from a JWT: this and the `kid` of the token.
KEY_ID_PREFIX = "jwt:"
# The claim with the grants, and the reason for which a token is rejected if it cannot be read.
GRANTS_CLAIM = "tape"
BAD_GRANTS = "tape_claim_invalid"


class Authenticator:
    """Checks tokens against a set of keys; an issuer and an audience where they are configured."""

    def __init__(
        self, keys: KeySet, issuer: str = "", audience: str = "", max_lifetime_s: float = MAX_LIFETIME_S
    ) -> None:
        self.keys = keys
        self._issuer = issuer
        self._audience = audience
        self._max_lifetime_s = max_lifetime_s
        self._jws = jwt.PyJWS(algorithms=sorted(ALGORITHMS))
        # The key id and the claims of tokens whose signature was good, with the generation of the keys that said so.
        self._verified: dict[str, tuple[int, str, Mapping[str, Any]]] = {}

    async def verify(self, token: str, session: str = "") -> Principal:
        """The caller that a token proves. A session given beside it overrides that of the claims."""
        generation, kid, claims = self._verified.get(token, (-1, "", {}))
        if generation != self.keys.generation:
            kid, claims = await self._verify_signature(token)
            if len(self._verified) >= MAX_CACHED_TOKENS:
                self._verified.clear()
            self._verified[token] = (self.keys.generation, kid, claims)
        self.keys.check_fresh()
        self._check_claims(claims)
        return _principal_of(claims, session, KEY_ID_PREFIX + kid)

    def on_withdrawn(self, report: Callable[[Sequence[str]], None]) -> None:
        """Call `report` with the `key_id` of principals whose key is withdrawn."""
        self.keys.on_withdrawn = lambda kids: report([KEY_ID_PREFIX + kid for kid in kids])

    def is_withdrawn(self, principal: Principal) -> bool:
        """Whether the key that a principal was verified with has been withdrawn."""
        kid = principal.key_id.removeprefix(KEY_ID_PREFIX)
        return principal.key_id.startswith(KEY_ID_PREFIX) and not self.keys.has(kid)

    def examine(self, token: str, session: str = "") -> Principal:
        """The caller that a token names, its signature unchecked: for explanations, never for access."""
        try:
            decoded = jwt.decode_complete(token, options={"verify_signature": False})
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            raise TokenRejected("token_malformed") from error
        if decoded["header"].get("alg") not in ALGORITHMS:
            raise TokenRejected("alg_not_allowed")
        self._check_claims(decoded["payload"])
        return _principal_of(decoded["payload"], session, KEY_ID_PREFIX)

    async def _verify_signature(self, token: str) -> tuple[str, Mapping[str, Any]]:
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            raise TokenRejected("token_malformed") from error
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in ALGORITHMS:
            raise TokenRejected("alg_not_allowed")
        key = await self.keys.find(kid) if isinstance(kid, str) else None
        if not isinstance(kid, str) or key is None or algorithm not in key.algorithms:
            raise TokenRejected("unknown_key")
        try:
            payload = self._jws.decode(token, key.public, algorithms=[algorithm])
        except jwt.DecodeError as error:
            raise TokenRejected("signature_invalid") from error
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise TokenRejected("verification_failed") from error
        try:
            claims = msgspec.json.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise TokenRejected("token_malformed") from error
        if not isinstance(claims, dict):
            raise TokenRejected("token_malformed")
        return kid, claims

    def _check_claims(self, claims: Mapping[str, Any]) -> None:
        if self._issuer and claims.get("iss") != self._issuer:
            raise TokenRejected("issuer_mismatch")
        audience = claims.get("aud")
        if self._audience and self._audience not in (audience if isinstance(audience, list) else [audience]):
            raise TokenRejected("audience_mismatch")
        now = time.time()
        if not _is_time(claims.get("exp")) or now >= claims["exp"]:
            raise TokenRejected("token_expired")
        if claims["exp"] - now > self._max_lifetime_s + CLOCK_SKEW_S:
            raise TokenRejected("lifetime_too_long")
        if (begins := claims.get("nbf")) is not None and not (_is_time(begins) and now >= begins):
            raise TokenRejected("token_not_yet_valid")


def _principal_of(claims: Mapping[str, Any], session: str, key_id: str) -> Principal:
    names = {name: claims.get(name) for name in ("tenant", "user", "session")}
    names["session"] = session or names["session"]
    for name, value in names.items():
        if not isinstance(value, str) or not value or "\0" in value:
            raise IdentityRequired(f"jwt rejected: identity_claim_missing ({name})")
    reach = claims.get("session_reach")
    if isinstance(reach, list) and names["session"] not in reach:
        raise SessionOutOfReach(f"the session {names['session']!r} is not in the token's session_reach")
    token_id = claims.get("jti")
    return Principal(
        **names,  # type: ignore[arg-type]  # checked just above
        scopes=_scopes(claims.get("scopes")),
        read=_grants(claims.get(GRANTS_CLAIM), "read"),
        write=_grants(claims.get(GRANTS_CLAIM), "write"),
        key_id=key_id,
        token_id=token_id if isinstance(token_id, str) else "",
        expires_at=float(claims["exp"]),
    )


def _scopes(claim: Any) -> frozenset[str]:
    names = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else []
    return expand_scopes(frozenset(name for name in names if isinstance(name, str)))


def _grants(claim: Any, name: str) -> tuple[str, ...] | None:
    """The read or write grants of a claim such as `{"read": ["/tape/order/**"]}`. A missing list grants all.

    Other members of the claim are rejected: a grant that is spelt wrongly must not become access to everything.
    """
    if claim is None:
        return None
    if not isinstance(claim, dict) or (others := claim.keys() - {"read", "write"}):
        problem = f"{min(others)[:40]!r} is not known" if isinstance(claim, dict) else "not an object"
        raise TokenRejected(BAD_GRANTS, f"{problem}; it may have the lists read and write")
    if name not in claim:
        return None
    patterns = claim[name]
    if not isinstance(patterns, list) or not all(isinstance(each, str) and each for each in patterns):
        raise TokenRejected(BAD_GRANTS, f"{name} is not a list of subject patterns")
    try:
        compile_grants(tuple(patterns))
    except InvalidPattern as error:
        raise TokenRejected(BAD_GRANTS, f"{name}: {str(error)[:200]}") from error
    return tuple(patterns)


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_TIME_S
