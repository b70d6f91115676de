"""Standard Webhooks signatures: a receiver verifies origin, integrity and age of a body."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Sequence

from tape.errors import InvalidInput

PREFIX = "whsec_"


class Signer:
    """Signs bodies with one secret, or with several while receivers change over."""

    def __init__(self, secrets: str | Sequence[str]) -> None:
        given = [secrets] if isinstance(secrets, str) else list(secrets)
        self._keys = [_key(secret) for secret in given]
        if not self._keys:
            raise InvalidInput("secret is empty; leave it out to send without a signature.")

    def headers(self, event_id: str, body: bytes, *, now: float | None = None) -> dict[str, str]:
        """The headers webhook-id, webhook-timestamp and webhook-signature of a body."""
        moment = str(int(time.time() if now is None else now))
        signed = f"{event_id}.{moment}.".encode() + body
        signatures = [f"v1,{base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}" for key in self._keys]
        return {"webhook-id": event_id, "webhook-timestamp": moment, "webhook-signature": " ".join(signatures)}


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(f"The secret must be base64, best written {PREFIX}<base64> ({error}).") from error
    if len(key) < 16:
        raise InvalidInput(f"The secret has {len(key)} bytes; use 24 to 64 random ones.")
    return key
