"""A push delivery as received, before it is verified."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple


class DeliveryRejection(NamedTuple):
    """A rejected delivery: HTTP status and reason code."""

    status: int
    reason: str


MISCONFIGURED = DeliveryRejection(403, "misconfigured")


class RequestTarget(NamedTuple):
    """What a request was sent to: its method, its path and its query as they were sent, and the client's certificate.

    The certificate is in DER; TLS has verified it. None without one.
    """

    method: str = "POST"
    path: str = ""
    query: str = ""
    certificate: bytes | None = None


POSTED = RequestTarget()


class PushDelivery:
    """The headers and the body of a request, byte for byte. It offers headers for verification and no parsing."""

    __slots__ = ("body", "headers", "received_at", "target")

    def __init__(
        self,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
        received_at: float | None = None,
        target: RequestTarget = POSTED,
    ) -> None:
        self.headers = headers
        self.body = body
        self.received_at = time.time() if received_at is None else received_at
        self.target = target

    def first(self, name: str) -> str | None:
        """The first value of a header, its name in any case; None without one."""
        wanted = name.lower().encode("latin-1", "replace")
        for key, value in self.headers:
            if key.lower() == wanted:
                return value.decode("latin-1")
        return None

    def __repr__(self) -> str:
        return f"Delivery({len(self.headers)} headers, {len(self.body)} bytes)"
