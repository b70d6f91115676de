"""Asking a downstream whether it is there."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import urllib3

from tape.subscriptions.document.spool_spec import DownstreamSpec

TIMEOUT_S = 3.0

_http = urllib3.PoolManager(retries=False, timeout=TIMEOUT_S)


async def is_up(downstream: DownstreamSpec) -> bool:
    """Whether a downstream answers within three seconds: HTTP with any status below 500, TCP by accepting."""
    match downstream.type:
        case "http":
            return await asyncio.to_thread(_answers, downstream.target)
        case "tcp" | "nats":
            return await _accepts(downstream.target, 4222 if downstream.type == "nats" else None)
        case "passive":
            return True


def _answers(url: str) -> bool:
    try:
        with _http.request("GET", url, preload_content=False, redirect=False) as response:
            return response.status < 500
    except (urllib3.exceptions.HTTPError, OSError):
        return False


async def _accepts(target: str, default_port: int | None) -> bool:
    place = urlsplit(target if "://" in target else f"tcp://{target}")
    port = place.port or default_port
    try:
        async with asyncio.timeout(TIMEOUT_S):
            _, writer = await asyncio.open_connection(place.hostname, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
