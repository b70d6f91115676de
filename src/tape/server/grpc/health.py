"""The standard health service of gRPC, which answers what the readiness finds."""

from __future__ import annotations

from typing import Any

from grpc_health.v1 import health, health_pb2

from tape.server.readiness import Readiness

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class HealthService(health.aio.HealthServicer):  # type: ignore[misc]  # the library ships no types
    """The status of the services it was given, once the server serves."""

    def __init__(self, readiness: Readiness) -> None:
        super().__init__()
        self._readiness = readiness
        self._services: tuple[str, ...] = ()

    async def serve(self, *services: str) -> None:
        """Report these services as serving whenever the server is ready."""
        self._services = services
        for service in services:
            await self.set(service, SERVING)

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - the name of the RPC
        """The current status; those who watch are notified of a change too."""
        if request.service in self._services:
            status = NOT_SERVING if await self._readiness.problem() else SERVING
            for service in self._services:
                await self.set(service, status)
        return await super().Check(request, context)
