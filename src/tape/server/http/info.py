"""`POST /v1/control/runtime.info`: instance, version and capabilities of this server."""

from __future__ import annotations

import platform
import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tape import __version__
from tape.base.ids import new_id
from tape.server.http.access import HttpAccess
from tape.server.http.queries import PROTOCOL_VERSION, Identity
from tape.server.http.request_bodies import read_json

CAPABILITIES = (
    "artifacts_get",
    "events_aggregate",
    "events_checkpoint",
    "events_lag",
    "events_list",
    "events_publish",
    "events_replay",
    "events_subscribe",
)
MAX_BYTES = 32 << 10


class InfoRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A handshake."""

    identity: Identity | None = None


class InfoRoutes:
    """The route of the handshake."""

    def __init__(self, access: HttpAccess) -> None:
        self._access = access
        self._instance = new_id()
        self._started = time.monotonic()

    async def info(self, request: Request) -> Response:
        """Instance, version and capabilities."""
        await self._access.caller_of(request)
        await read_json(request, InfoRequest, MAX_BYTES)
        facts = {
            "instance_id": self._instance,
            "display_name": "Tape",
            "build_version": __version__,
            "build_commit": "",
            "build_python_version": platform.python_version(),
            "protocol_version": PROTOCOL_VERSION,
            "capabilities": CAPABILITIES,
            "uptime_seconds": int(time.monotonic() - self._started),
        }
        return Response(msgspec.json.encode(facts) + b"\n", media_type="application/json")
