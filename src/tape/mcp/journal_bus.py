"""Change notifications of an MCP server for all its replicas, carried by the journal (protocol 2026-07-28).

`publish` appends `/tape/mcp/notified/<server>`; every replica follows that subject and calls its listeners. There is no
replay: a client that was disconnected listens again and reads what it needs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec
from mcp.server.subscriptions import InMemorySubscriptionBus
from mcp.shared.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)

from tape.base.retry import RECONNECT, Backoff
from tape.client.aio import AsyncTapeClient
from tape.client.channel import DEFAULT_URL
from tape.mcp.event_ids import subject_of

log = logging.getLogger(__name__)

MAX_URI = 2_000

_LISTS: dict[str, ServerEvent] = {
    "tools": ToolsListChanged(),
    "prompts": PromptsListChanged(),
    "resources": ResourcesListChanged(),
}
_NAMES = {type(event): name for name, event in _LISTS.items()}


class JournalBus:
    """A `SubscriptionBus` over the journal: `MCPServer(name, subscriptions=JournalBus(name, url))`.

    It decides nothing about who may watch which URI: a middleware of the server does. Use it as an async context
    manager, or call `close()`.
    """

    def __init__(
        self, server: str, url: str = DEFAULT_URL, *, token: str = "", client: AsyncTapeClient | None = None
    ) -> None:
        self._subject = subject_of("notified", server)
        self._url = url
        self._token = token
        self._client = client
        self._owns_client = client is None
        self._local = InMemorySubscriptionBus()
        self._following: asyncio.Task[None] | None = None
        self._is_ready = asyncio.Event()
        # Entries that are no notification: another program appended them.
        self.malformed = 0

    async def __aenter__(self) -> JournalBus:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Follow the journal from now on. Without it the first subscription or publication starts it."""
        self._start()
        await self._is_ready.wait()

    def _start(self) -> None:
        if self._following is None:
            self._following = asyncio.create_task(self._follow(), name="tape-mcp-bus")

    async def publish(self, event: ServerEvent) -> None:
        """Append a notification; it reaches the listeners of this replica by the journal, too."""
        self._start()
        if isinstance(event, ResourceUpdated):
            payload: dict[str, Any] = {"changed": "resource", "uri": event.uri[:MAX_URI]}
        else:
            payload = {"changed": _NAMES[type(event)]}
        await self._connected().append(self._subject, payload)

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Call a listener for each notification of any replica; returns the function that stops this."""
        self._start()
        return self._local.subscribe(listener)

    async def close(self) -> None:
        """Stop following, and disconnect unless the client was given."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
            self._following = None
        if self._owns_client and self._client is not None:
            client, self._client = self._client, None
            await client.close()

    def _connected(self) -> AsyncTapeClient:
        if self._client is None:
            self._client = AsyncTapeClient(self._url, id_token=self._token)
        return self._client

    async def _follow(self) -> None:
        position, backoff = -1, Backoff(RECONNECT)
        while True:
            try:
                if position < 0:
                    position = (await self._connected().head()).global_seq
                self._is_ready.set()
                async for batch in self._connected().follow_batches(
                    self._subject, from_global_seq=position, skip_gaps=True
                ):
                    backoff.reset()
                    position = batch.position
                    for entry in batch.entries:
                        if (event := self._parse(entry.payload_json, entry.global_seq)) is not None:
                            await self._local.publish(event)
            except Exception as error:
                log.warning("notifications of MCP replicas wait: %s", error)
            await backoff.wait_async()

    def _parse(self, payload_json: str, global_seq: int) -> ServerEvent | None:
        try:
            payload = msgspec.json.decode(payload_json)
            if payload["changed"] == "resource":
                return ResourceUpdated(uri=str(payload["uri"]))
            return _LISTS[payload["changed"]]
        except (msgspec.MsgspecError, KeyError, TypeError):
            self.malformed += 1
            log.warning("the entry %d is no notification of an MCP server; it is skipped", global_seq)
            return None
