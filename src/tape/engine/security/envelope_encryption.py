"""Envelope encryption: a secret is encrypted with a data key of its own, and a master key wraps the data key.

Both layers are AES-256-GCM with alias and version as associated data: a secret that was sealed for one alias and
version does not open as another.

The library is imported by the first secret: most servers start without one.
"""

from __future__ import annotations

import os
from typing import NamedTuple, Protocol

from tape.errors import SecretDamaged

KEY_BYTES = 32
NONCE_BYTES = 12


class MasterKeys(Protocol):
    """Wraps data keys. It never sees a secret; its keys and the database together reveal all secrets."""

    name: str

    def wrap(self, data_key: bytes, associated_data: bytes) -> tuple[str, bytes]:
        """The id of the master key in use, and the data key wrapped with it."""

    def unwrap(self, master_key: str, wrapped: bytes, binding: bytes) -> bytes:
        """The data key. Raises SecretDamaged if it was wrapped for another alias or version, or altered."""

    def renew(self, in_use: frozenset[str]) -> str:
        """Create a new master key and return its id; keys that no secret uses may be removed."""

    def close(self) -> None:
        """Close connections."""


class SealedSecret(NamedTuple):
    """A secret as it is stored: nothing in it can be read without the master key."""

    master_key: str
    wrapped_key: bytes
    sealed: bytes


def seal(secret: bytes, binding: str, keys: MasterKeys) -> SealedSecret:
    """Seal a secret with a fresh data key. It is opened once right away: what cannot be read is not kept."""
    data_key = os.urandom(KEY_BYTES)
    master_key, wrapped = keys.wrap(data_key, _associated_data("key", binding))
    sealed = SealedSecret(master_key, wrapped, encrypt(data_key, secret, _associated_data("secret", binding)))
    if unseal(sealed, binding, keys) != secret:  # pragma: no cover - a broken key service
        raise SecretDamaged(f"{binding} was sealed by {keys.name} and came back different; nothing was stored.")
    return sealed


def unseal(sealed: SealedSecret, binding: str, keys: MasterKeys) -> bytes:
    """The secret. Raises SecretDamaged if it was sealed for another alias or version, or altered."""
    data_key = keys.unwrap(sealed.master_key, sealed.wrapped_key, _associated_data("key", binding))
    return decrypt(data_key, sealed.sealed, _associated_data("secret", binding))


def encrypt(key: bytes, plain: bytes, associated_data: bytes) -> bytes:
    """Nonce, ciphertext and tag in one."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plain, associated_data)


def decrypt(key: bytes, blob: bytes, associated_data: bytes) -> bytes:
    """Decrypt what `encrypt` returned. Raises SecretDamaged if key, associated data or content differ."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(blob[:NONCE_BYTES], blob[NONCE_BYTES:], associated_data)
    except (InvalidTag, ValueError):
        # Not chained: the cause says nothing, and its frames hold the key.
        raise SecretDamaged(
            "A sealed secret does not open: it was changed in the database, moved from another alias or version, or its"
            " key is another one of the same name. Set it again with `tape wallet set`."
        ) from None


def _associated_data(layer: str, binding: str) -> bytes:
    return f"tape-wallet/1/{layer}/{binding}".encode()
