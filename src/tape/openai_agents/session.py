"""A session of the OpenAI Agents SDK on a Tape server, with every item on the journal."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any
from weakref import WeakKeyDictionary

from agents.items import TResponseInputItem
from agents.memory.session_settings import SessionSettings

from tape.base.ids import new_id
from tape.client.channel import DEFAULT_URL
from tape.client.shared import shared_client
from tape.client.sync import TapeClient
from tape.durable.effect_call import RunHandle, find_call
from tape.durable.server_retry import call_with_retry
from tape.proto import tape_pb2 as pb


class TapeSession:
    """The history of a conversation, kept by the server.

    A run that is resumed adds its items once: each has an id that is made of the run and its number. What the run has
    added before it was interrupted is hidden from it until it adds it again, so that it sees what it saw.
    """

    def __init__(
        self,
        session_id: str,
        *,
        app_name: str = "openai-agents",
        user_id: str = "",
        url: str = "",
        client: TapeClient | None = None,
        session_settings: SessionSettings | None = None,
    ) -> None:
        self.session_id = session_id
        self.session_settings = session_settings
        self._key = {"app_name": app_name, "user_id": user_id, "session_id": session_id}
        self._url = url or os.environ.get("TAPE_URL") or DEFAULT_URL
        self._client = client
        self._written: WeakKeyDictionary[RunHandle, int] = WeakKeyDictionary()

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """The items in order; with `limit` the latest ones."""
        items = await asyncio.to_thread(self._items)
        return items if limit is None else items[-limit:] if limit > 0 else []

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items."""
        for item in items:
            await self._append({"item": item})

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the latest item and return it; None if there is none. The journal keeps both."""
        items = await asyncio.to_thread(self._items)
        if not items:
            return None
        await self._append({"pop": True})
        return items[-1]

    async def clear_session(self) -> None:
        """Remove all items. The journal keeps them, and that they were removed."""
        await self._append({"clear": True})

    async def _append(self, content: dict[str, Any]) -> None:
        call = find_call()
        event_id = new_id()
        if call is not None:
            number = self._written.get(call.run, 0)
            self._written[call.run] = number + 1
            event_id = f"{call.run_id}:{number}"
        event = pb.EventRecord(
            id=event_id,
            invocation_id=call.run.invocation_id if call else "",
            author="openai-agents",
            content_json=json.dumps(content),
        )
        await asyncio.to_thread(call_with_retry, self._tape.append_event, **self._key, event=event)

    def _items(self) -> list[TResponseInputItem]:
        call = find_call()
        own, written = (f"{call.run_id}:", self._written.get(call.run, 0)) if call else ("", 0)
        found = call_with_retry(self._tape.get_session, **self._key)
        items: list[Any] = []
        for event in found.session.events:
            if own and event.id.startswith(own) and int(event.id.removeprefix(own)) >= written:
                continue  # added before this run was interrupted
            content = json.loads(event.content_json or "{}")
            if "item" in content:
                items.append(content["item"])
            elif content.get("clear"):
                items.clear()
            elif content.get("pop") and items:
                items.pop()
        return items

    @property
    def _tape(self) -> TapeClient:
        return self._client or shared_client(self._url)
