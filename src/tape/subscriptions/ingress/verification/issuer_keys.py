"""The public keys that deliveries are verified with, fetched from those who sign."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tape.base.addresses import PUBLIC_ONLY
from tape.subscriptions.ingress.verification.certificates import SigningCertificates
from tape.subscriptions.ingress.verification.delivery import DeliveryRejection

if TYPE_CHECKING:
    from tape.engine.security.jwks import KeySet

GOOGLE_KEYS = "https://www.googleapis.com/oauth2/v3/certs"
KEYS_REFRESH_S = 3_600.0
KEYS_MAX_STALE_S = 86_400.0

NO_KEYS = DeliveryRejection(502, "jwks_error")


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
        from tape.engine.security.jwks import KeySet  # the libraries of tokens, which other senders do without

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
