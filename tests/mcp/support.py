"""MCP servers on a real port, and a client of the wire of 2025 that can be cut off at any event."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx
import uvicorn

from tests.services import free_port

VERSION = "2025-11-25"
HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


@contextlib.asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """An ASGI application on a port of this host; its URL."""
    port = free_port()
    config = uvicorn.Config(
        app, host="127.0.0.1", port=port, log_level="warning", ws="none", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        assert not task.done(), task.exception()
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await asyncio.gather(task, return_exceptions=True)


class Event(NamedTuple):
    """One event of a stream."""

    id: str
    message: dict[str, Any] | None


async def events(response: httpx.Response) -> AsyncIterator[Event]:
    """The events of an SSE response."""
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        elif fields:
            data = fields.get("data", "")
            if "id" in fields or data:
                yield Event(fields.get("id", ""), json.loads(data) if data else None)
            fields = {}


class WireClient:
    """A client of the streamable HTTP of 2025."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        self.url = f"{url}/mcp"
        self.headers = {**HEADERS, **(headers or {})}
        self._http = httpx.AsyncClient(timeout=60)

    async def __aenter__(self) -> WireClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def post(self, message: Any) -> httpx.Response:
        """Send a message and read the whole response."""
        content = message if isinstance(message, bytes) else json.dumps(message).encode()
        return await self._http.post(self.url, content=content, headers=self.headers)

    async def initialize(self) -> httpx.Response:
        """Open a session."""
        params = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        response = await self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        if response.status_code == 200:
            self.headers |= {"mcp-session-id": response.headers["mcp-session-id"], "mcp-protocol-version": VERSION}
            await self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return response

    @contextlib.asynccontextmanager
    async def calling(self, tool: str, arguments: dict[str, Any], request_id: int | str = 1) -> AsyncIterator[Any]:
        """The events of a tool call; leaving the block cuts the connection."""
        params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": request_id}}
        message = {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}
        async with self._http.stream("POST", self.url, json=message, headers=self.headers) as response:
            assert response.status_code == 200, await response.aread()
            yield events(response)

    async def call(self, tool: str, arguments: dict[str, Any], request_id: int | str = 1) -> list[Event]:
        """A tool call to its end."""
        async with self.calling(tool, arguments, request_id) as stream:
            return [event async for event in stream]

    async def resume(self, event_id: str, cut_after: int = 1_000_000) -> list[Event]:
        """The events after one, up to the answer of the request.

        It comes back when the stream ends, as clients do, and cuts each connection after some events.
        """
        found: list[Event] = []
        for _ in range(1_000):
            headers = {**self.headers, "last-event-id": found[-1].id if found else event_id}
            seen = 0
            async with self._http.stream("GET", self.url, headers=headers) as response:
                assert response.status_code == 200, await response.aread()
                async for event in events(response):
                    found.append(event)
                    if event.message is not None and "id" in event.message:
                        return found
                    seen += 1
                    if seen == cut_after:
                        break
        raise AssertionError(f"no answer after {len(found)} events")
