"""The stream as one writes it first: Starlette, a queue per client, a message per send."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

clients: set[asyncio.Queue[bytes]] = set()


async def publish(request: Request) -> Response:
    """Put the body into every queue."""
    frame = b"data: " + await request.body() + b"\n\n"
    for queue in clients:
        queue.put_nowait(frame)
    return Response(status_code=202)


async def subscribe(request: Request) -> Response:
    """Send what comes into the queue."""

    async def frames() -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        clients.add(queue)
        try:
            yield b"retry: 3000\n\n"
            while True:
                yield await queue.get()
        finally:
            clients.discard(queue)

    return StreamingResponse(frames(), media_type="text/event-stream")


if __name__ == "__main__":
    routes = [Route("/pub", publish, methods=["POST"]), Route("/sub", subscribe)]
    uvicorn.run(Starlette(routes=routes), port=int(sys.argv[1]), log_level="warning", access_log=False)
