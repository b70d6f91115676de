"""Development tokens: a key pair on this machine, and tokens signed with it."""

from __future__ import annotations

import base64
import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jwt
import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from tape.base.ids import new_id
from tape.engine.security.identity import GRANTS_CLAIM
from tape.errors import InvalidConfig, InvalidInput
from tape.model.grants import compile_grants
from tape.model.principal import SCOPES

ISSUER = "tape-dev"
AUDIENCE = "tape"


class SigningKey:
    """An ES256 key pair. The private half is a file that only its owner can read."""

    def __init__(self, private: ec.EllipticCurvePrivateKey) -> None:
        self._private = private
        self._jwk: dict[str, Any] = ECAlgorithm.to_jwk(private.public_key(), as_dict=True)
        self.kid = _thumbprint(self._jwk)

    def jwks(self) -> bytes:
        """The public half, as the document that `auth_jwks` names."""
        entry = {**self._jwk, "kid": self.kid, "alg": "ES256", "use": "sig"}
        return msgspec.json.format(msgspec.json.encode({"keys": [entry]})) + b"\n"

    def mint(
        self,
        *,
        tenant: str,
        user: str,
        session: str = "",
        scopes: Sequence[str] = (),
        read: Sequence[str] | None = None,
        write: Sequence[str] | None = None,
        lifetime_s: float = 86_400,
    ) -> str:
        """A signed token. Without a session, callers name one with each request. `read` and `write` are grants."""
        for name, value in (("tenant", tenant), ("user", user)):
            if not value:
                raise InvalidInput(f"{name} is empty; a token must say whose it is.")
        if unknown := set(scopes) - SCOPES:
            known = ", ".join(sorted(SCOPES))
            raise InvalidInput(f"The scope {min(unknown)!r} is not known; there are {known}.")
        if lifetime_s <= 0:
            raise InvalidInput(f"lifetime {lifetime_s} must be positive.")
        grants = {name: list(texts) for name, texts in (("read", read), ("write", write)) if texts is not None}
        for texts in grants.values():
            compile_grants(tuple(texts))
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": user,
            "tenant": tenant,
            "user": user,
            **({"session": session} if session else {}),
            "scopes": sorted(scopes),
            **({GRANTS_CLAIM: grants} if grants else {}),
            "iat": now,
            "jti": new_id(),
            "exp": now + lifetime_s,
        }
        return jwt.encode(claims, self._private, algorithm="ES256", headers={"kid": self.kid})


def load_key(path: Path) -> tuple[SigningKey, bool]:
    """The key pair in a file, made if there is none, and whether it was made. Its JWKS is written beside it."""
    try:
        key, is_new = _create(path), True
    except FileExistsError:
        key, is_new = _read(path), False
    except OSError as error:
        raise InvalidConfig(f"The key {path} cannot be written: {error.strerror}.") from error
    public = jwks_path(path)
    if is_new or not public.exists():
        public.write_bytes(key.jwks())
    return key, is_new


def jwks_path(path: Path) -> Path:
    """Where the public half of a key file stands."""
    return path.with_suffix(".jwks.json")


def _create(path: Path) -> SigningKey:
    private = ec.generate_private_key(ec.SECP256R1())
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(
            private.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
    return SigningKey(private)


def _read(path: Path) -> SigningKey:
    if path.stat().st_mode & 0o077:
        raise InvalidConfig(f"The key {path} can be read by others; it is no secret any more. Run: chmod 600 {path}")
    try:
        private = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidConfig(f"The key {path} cannot be read: {error}.") from error
    if not isinstance(private, ec.EllipticCurvePrivateKey) or not isinstance(private.curve, ec.SECP256R1):
        raise InvalidConfig(f"The key {path} is not a P-256 key; remove it and `tape token` makes one.")
    return SigningKey(private)


def _thumbprint(jwk: dict[str, Any]) -> str:
    """RFC 7638: the same key has the same id everywhere."""
    required = msgspec.json.encode({name: jwk[name] for name in ("crv", "kty", "x", "y")}, order="sorted")
    return base64.urlsafe_b64encode(hashlib.sha256(required).digest()).rstrip(b"=").decode()
