"""An event store of the MCP SDK on the journal: messages that a client missed are replayed when it comes back.

Each session has a store of its own (`for_session`), so that a client can only ask for its own messages. A message is
stored before it is sent; larger ones are stored in parts, all or none.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NoReturn

import msgspec
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp_types import JSONRPCMessage
from mcp_types.jsonrpc import jsonrpc_message_adapter

from tape.client.aio import AsyncTapeClient, to_entry
from tape.client.channel import DEFAULT_URL
from tape.errors import InvalidConfig, TapeError
from tape.mcp.event_ids import EventId, new_scope, run_id_of, stream_id_of, stream_token, subject_of
from tape.model.entry import Draft, Entry
from tape.model.json_depth import check_depth
from tape.model.payload import to_json

log = logging.getLogger(__name__)

# Characters of a message that is stored as it is, and of the parts of a longer one: with escapes below the 1 MiB that a
# payload may have.
PART_CHARS = 160_000
MAX_MESSAGE_BYTES = 16 << 20
# Seconds that a message waits for the connection of a stream that is being resumed, and between two looks for it.
CONNECT_S = 1.0
CONNECT_POLL_S = 0.005
# Messages that may wait to be stored if `durable` is off.
MAX_QUEUED = 10_000


class JournalEventStore(EventStore):
    """Stores the messages of MCP sessions on the journal of a server, or of a `sqlite:` file.

    Give it to `SessionManager` or `streamable_http_app` of this package. The manager of the SDK has one store for all
    sessions and does not say whose message it is, so it is rejected there.

    With `durable=False` a message is sent before it is stored: faster, and a crash of the process can lose what a
    client would have been sent again. A message of more than `max_message_bytes` is sent and not stored; a replay has
    an error instead of it.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str = "",
        client: AsyncTapeClient | None = None,
        durable: bool = True,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        session: str | None = None,
    ) -> None:
        """`session` is the session that entries are filed under: the scope, or a fixed one ("" is the token's own)."""
        if max_message_bytes < 1:
            raise InvalidConfig(f"max_message_bytes {max_message_bytes} must be at least 1.")
        self._url = url
        self._token = token
        self._client = client
        self._owns_client = client is None
        self._is_durable = durable
        self._session = session
        self.max_message_bytes = max_message_bytes
        # What was done: `stored`, `replayed`, `oversized`, `unstored`.
        self.counts: Counter[str] = Counter()

    def for_session(self) -> SessionEventStore:
        """A store for one new session."""
        if self._client is None:
            self._client = AsyncTapeClient(self._url, id_token=self._token)
        scope = new_scope()
        session = scope if self._session is None else self._session
        return SessionEventStore(self._client, scope, session, self, durable=self._is_durable)

    async def close(self) -> None:
        """Disconnect, unless the client was given."""
        if self._owns_client and self._client is not None:
            client, self._client = self._client, None
            await client.close()

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Rejected: see `for_session`."""
        self._reject()

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Rejected: see `for_session`."""
        self._reject()

    def _reject(self) -> NoReturn:
        raise InvalidConfig(
            "A JournalEventStore serves one session at a time: with the SDK's own session manager the messages of one"
            " client would be replayed to another. Use tape.mcp.SessionManager(app, event_store=store), or"
            " tape.mcp.streamable_http_app(server, store)."
        )


class SessionEventStore(EventStore):
    """The event store of one session; made by `JournalEventStore.for_session`."""

    def __init__(
        self, client: AsyncTapeClient, scope: str, session: str, parent: JournalEventStore, *, durable: bool
    ) -> None:
        self.scope = scope
        self._client = client
        self._session = session
        self._parent = parent
        self._is_durable = durable
        self._number = 0
        # The last number of each stream that was handed to its connection, or that a replay has to send.
        self._handed_over: dict[str, int] = {}
        # Streams between the end of their replay and their connection: the SDK drops what it is handed meanwhile.
        self._resuming: set[str] = set()
        self.is_connected: Callable[[str], bool] | None = None
        self._queue: asyncio.Queue[list[Draft]] = asyncio.Queue(MAX_QUEUED)
        self._sending: asyncio.Task[None] | None = None

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Store a message, or None: a position to resume from before anything was sent. Returns its event id."""
        token = stream_token(stream_id)
        self._number += 1
        event_id = EventId(self.scope, self._number, token)
        await self._append(self._drafts(event_id, message))
        if message is not None:
            if stream_id in self._resuming:
                await self._until_connected(stream_id)
            self._handed_over[token] = event_id.number
        return str(event_id)

    async def _until_connected(self, stream_id: str) -> None:
        """Wait until a stream that was replayed has its connection, or until its client is gone again."""
        deadline = time.monotonic() + CONNECT_S
        # The SDK has no event for it.
        while self.is_connected is not None and not self.is_connected(stream_id) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(CONNECT_POLL_S)
        self._resuming.discard(stream_id)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send the messages of a stream after an event, up to now; None if the event is not of this session."""
        event = EventId.parse(last_event_id)
        if event is None or event.scope != self.scope or event.number > self._number:
            return None
        stream_id = stream_id_of(event.stream)
        if stream_id is None:
            return None
        sent = event.number
        while sent < (last := self._handed_over.get(event.stream, 0)):
            await self._flush()
            try:
                stored = [found async for found in self._read(event._replace(number=sent)) if found[0] <= last]
            except TapeError as error:
                log.warning("the stream %s of MCP session %s is not replayed: %s", event.stream, self.scope, error)
                self._parent.counts["unreplayed"] += 1
                return None
            for number, message in stored:
                self._parent.counts["replayed"] += 1
                await send_callback(EventMessage(message, str(event._replace(number=number))))
            sent = last
        # Nothing is awaited from here to the caller's next step: what is handed over from now on waits for it.
        if self.is_connected is not None:
            self._resuming.add(stream_id)
        return stream_id

    async def end(self) -> None:
        """The session has ended: an entry says so, and how many messages it had."""
        if not self._number:
            return
        await self._flush()
        subject = subject_of("ended", self.scope)
        payload = to_json({"messages": self._number})
        draft = Draft(subject=subject, payload_json=payload, run_id=f"mcp:{self.scope}", session=self._session)
        try:
            await self._client.append_many([draft])
        except TapeError as error:
            log.warning("the end of MCP session %s is not on the journal: %s", self.scope, error)
        if self._sending is not None:
            self._sending.cancel()

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    def _drafts(self, event: EventId, message: JSONRPCMessage | None) -> list[Draft]:
        if message is None:
            return [self._draft("primed", event, {"n": event.number})]
        content = message.model_dump(by_alias=True, exclude_unset=True, mode="json")
        text = msgspec.json.encode(content).decode()
        size = len(text.encode())
        if size > self._parent.max_message_bytes:
            self._parent.counts["oversized"] += 1
            log.warning("a message of %d bytes of MCP session %s is sent and not stored", size, self.scope)
            omitted = {"n": event.number, "bytes": size, "omitted": True, "message": _without_content(content, size)}
            return [self._draft("message", event, omitted)]
        if len(text) <= PART_CHARS and not _is_deep(text):
            return [self._draft("message", event, {"n": event.number, "message": content})]
        parts = [text[start : start + PART_CHARS] for start in range(0, len(text), PART_CHARS)]
        return [
            self._draft("message", event, {"n": event.number, "part": number, "parts": len(parts), "text": part})
            for number, part in enumerate(parts, 1)
        ]

    def _draft(self, verb: str, event: EventId, payload: Mapping[str, Any]) -> Draft:
        return Draft(
            subject=subject_of(verb, self.scope, event.stream),
            payload_json=to_json(payload),
            run_id=run_id_of(self.scope, event.stream),
            session=self._session,
        )

    async def _append(self, drafts: list[Draft]) -> None:
        if self._is_durable:
            await self._client.append_many(drafts)
            self._parent.counts["stored"] += 1
            return
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_queued(), name=f"tape-mcp-{self.scope}")
        await self._queue.put(drafts)

    async def _send_queued(self) -> None:
        while True:
            drafts = await self._queue.get()
            try:
                await self._client.append_many(drafts)
                self._parent.counts["stored"] += 1
            except Exception as error:
                self._parent.counts["unstored"] += 1
                log.error("a message of MCP session %s is not on the journal: %s", self.scope, error)
            finally:
                self._queue.task_done()

    async def _flush(self) -> None:
        if self._sending is not None:
            await self._queue.join()

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    async def _read(self, after: EventId) -> AsyncIterator[tuple[int, JSONRPCMessage]]:
        parts: list[str] = []
        async for entry in self._entries(run_id_of(self.scope, after.stream)):
            payload = msgspec.json.decode(entry.payload_json)
            number = payload["n"]
            if number <= after.number or "/primed/" in entry.subject:
                continue
            if "text" in payload:
                parts.append(payload["text"])
                if payload["part"] < payload["parts"]:
                    continue
                content, parts = msgspec.json.decode("".join(parts)), []
            else:
                content = payload["message"]
            if content is not None:
                yield number, jsonrpc_message_adapter.validate_python(content)

    async def _entries(self, run_id: str) -> AsyncIterator[Entry]:
        """The entries of a run up to the present head."""
        head = (await self._client.head()).global_seq
        batches = self._client.follow_batches(run_id=run_id, reconnect=False)
        try:
            async for batch in batches:
                for event in batch.entries:
                    yield to_entry(event)
                if batch.position >= head:
                    return
        finally:
            await batches.aclose()  # type: ignore[attr-defined]  # it is an async generator


def _is_deep(text: str) -> bool:
    """Whether a message is nested more deeply than a payload may be: as a text it is not."""
    try:
        check_depth(f"[{text}]".encode())
    except TapeError:
        return True
    return False


def _without_content(message: Mapping[str, Any], size: int) -> Any:
    """What a replay has in place of a message that was not stored: the error of a request, nothing for the others."""
    if "id" not in message or "method" in message:
        return None
    error = {"code": -32603, "message": f"The answer had {size} bytes and was not stored; call again."}
    return {"jsonrpc": "2.0", "id": message["id"], "error": error}
