"""Active probes: whether a downstream answers."""

from __future__ import annotations

import asyncio
import logging
from functools import cache
from urllib.parse import urlsplit

from tape.base.addresses import PUBLIC_ONLY, open_connection
from tape.base.http import HttpClient
from tape.errors import AddressNotAllowed, HttpRequestFailed, InvalidHttpRequest
from tape.subscriptions.document.spool_spec import DownstreamSpec

TIMEOUT_S = 3.0

log = logging.getLogger(__name__)

_http = HttpClient(timeout_s=TIMEOUT_S, connections=32)


async def is_up(downstream: DownstreamSpec) -> bool:
    """Whether a downstream answers within 3 s: HTTP with any status below 500, TCP and NATS by accepting.

    A downstream whose address is not allowed counts as down; the log says once what to set.
    """
    try:
        match downstream.type:
            case "http":
                return (await _http.send("GET", downstream.target, cut=0)).status < 500
            case "tcp" | "nats":
                return await _accepts(downstream.target, 4222 if downstream.type == "nats" else None)
            case "passive":
                return True
    except AddressNotAllowed as error:
        _warn(downstream.name, str(error))
        return False
    except (HttpRequestFailed, InvalidHttpRequest):
        return False


async def _accepts(target: str, default_port: int | None) -> bool:
    try:
        parts = urlsplit(target if "://" in target else f"tcp://{target}")
        async with asyncio.timeout(TIMEOUT_S):
            _, writer = await open_connection(parts.hostname or "", parts.port or default_port or 0, PUBLIC_ONLY)
    except (OSError, ValueError):  # TimeoutError is an OSError; a target that cannot be read is a ValueError
        return False
    writer.close()
    return True


@cache
def _warn(downstream: str, reason: str) -> None:
    log.warning("cannot probe the downstream %s, which counts as down: %s", downstream, reason)
