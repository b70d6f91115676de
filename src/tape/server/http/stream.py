"""`GET /v1/events`: entries after a cursor, then live entries, as Server-Sent Events."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from bisect import bisect_left
from collections.abc import Callable, Collection
from functools import partial
from typing import cast

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from tape.base.retry import is_retryable
from tape.engine.fanout.audience import LiveScope
from tape.engine.fanout.hub import Hub
from tape.engine.fanout.live import Broadcast, LiveSubscription, encode_gap
from tape.engine.security.audit import Audit
from tape.errors import CursorExpired, PipelineError, StoreError
from tape.journal.appender import Head, read_head
from tape.journal.epochs import Holes
from tape.journal.history import ArchiveCursor, EntryFilter
from tape.journal.pruned_types import pruned_types
from tape.journal.reader import Cursor, Slice, has_run, has_run_from, open_identity_cursor
from tape.model.gap import JournalGap
from tape.model.principal import Principal
from tape.server.admission import TICKET
from tape.server.http.access import HttpAccess, require_widening
from tape.server.http.frames import KEEPALIVE, RETRY, SseFormat, comment
from tape.server.http.protocol import KEY, HttpConnection
from tape.server.http.socket_progress import bytes_taken
from tape.server.http.stream_request import Start, describe_unknown, read_scope, read_start
from tape.store import Reader

log = logging.getLogger(__name__)

HEADERS = [
    (b"cache-control", b"no-cache"),
    (b"connection", b"keep-alive"),
    (b"content-type", b"text/event-stream"),
    (b"x-accel-buffering", b"no"),
]

TOO_OLD = "reconnect cursor older than the retained window"
BEYOND_HEAD = "reconnect cursor beyond the head of this journal"
NOT_A_NUMBER = "reconnect cursor is not a sequence number"
FAILED = "replay failed"


class EventStream:
    """The route of the event stream, for any number of clients."""

    def __init__(
        self, broadcast: Broadcast, format_: SseFormat, access: HttpAccess, audit: Audit, keepalive_s: float
    ) -> None:
        self._broadcast = broadcast
        self._format = format_
        self._access = access
        self._audit = audit
        self._keepalive_s = keepalive_s
        self._streams: dict[_Stream, None] = {}
        self._keeping: asyncio.TimerHandle | None = None

    async def serve(self, asgi: AsgiScope, receive: Receive, send: Send) -> None:
        """Serve one request until the stream ends."""
        request = Request(asgi)
        caller = await self._access.caller_of(request, query_too=True)
        if request.method == "HEAD":
            await PlainTextResponse("event stream accepts GET only\n", 405)(asgi, receive, send)
            return
        is_admin = request.query_params.get("admin") == "1"
        if is_admin:
            require_widening(caller, "admin fan-in requires a verified `admin` or `console:fleet` scope")
        scope = read_scope(request, caller, is_admin=is_admin)
        start = read_start(request)
        asgi[TICKET].leave()  # a stream counts as a stream, not as a call
        with contextlib.closing(self._access.admission.open_stream(caller)):
            stream = _Stream(cast(HttpConnection, asgi[KEY]))
            stream.remark = describe_unknown(request)
            await self._serve_stream(stream, send, caller, scope, start, is_admin=is_admin)

    async def _serve_stream(
        self,
        stream: _Stream,
        send: Send,
        caller: Principal,
        scope: LiveScope,
        start: Start,
        *,
        is_admin: bool,
    ) -> None:
        subscription = stream.subscription = self._broadcast.open(scope, stream, None if is_admin else caller.triple)
        try:
            # Entries appended from here on arrive live, including the audit entry of this request.
            head = self._broadcast.hub.head
            if is_admin:
                await self._audit.admin_scope_used(caller, "events.subscribe", subscription.number)
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            stream.begin()
            stream.stop_watching = self._access.watch(caller, subscription.end)
            self._streams[stream] = None
            self._keep_alive()
            try:
                await self._play(stream, subscription, head, start)
            except (StoreError, PipelineError) as error:
                if not is_retryable(error):  # otherwise the stream or the server has ended while it waited
                    log.warning("stream replay failed: %s", error)
                    stream.send(self._unavailable(scope, FAILED))
                stream.end()  # the client reconnects with its Last-Event-ID and misses nothing
            await stream.ended
        finally:
            self._streams.pop(stream, None)
            stream.close()
        if not stream.is_gone:
            await stream.finish(send, self._broadcast.limits.idle_timeout_s)

    async def _play(self, stream: _Stream, subscription: LiveSubscription, head: int, start: Start) -> None:
        """Replay entries after the start from the journal, then attach to the live stream."""
        hub, has_ended = self._broadcast.hub, stream.ended.done
        history, cursor = hub.history, start.cursor
        if (at_ms := start.at_ms) is not None:
            cursor = await hub.retry_read(partial(history.position_before, at_ms), has_ended)
        position = head if cursor is None or isinstance(cursor, str) else cursor
        if isinstance(cursor, str):
            stream.send(self._unavailable(subscription.scope, NOT_A_NUMBER))
        elif cursor is not None:
            bounds = await hub.retry_read(lambda: history.database.read(read_head), has_ended)
            if cursor > bounds.global_seq:
                stream.send(self._unavailable(subscription.scope, BEYOND_HEAD))
                position = bounds.global_seq
            elif (
                cursor < bounds.oldest - 1
                and cursor < (oldest := await hub.retry_read(history.read_oldest, has_ended)) - 1
            ):
                await self._skip_pruned(stream, subscription.scope, cursor)
                position = oldest - 1
        replay = _Replay(subscription.scope, self._format, position, hub)
        while not has_ended() and not subscription.attach(replay.position):
            try:
                data = await hub.retry_read(replay.next, has_ended)
            except CursorExpired as error:  # pruned during the replay and not archived
                await self._skip_pruned(stream, subscription.scope, replay.position)
                replay.position = error.oldest - 1
                continue
            if data:
                stream.send(data)
                stream.last_id = replay.last_id
                await stream.drain(self._broadcast.limits.idle_timeout_s)

    def _unavailable(self, scope: LiveScope, reason: str) -> bytes:
        frames = self._format.replay_unavailable(reason)
        return frames if scope.is_named else self._format.unnamed(frames)

    async def _skip_pruned(self, stream: _Stream, scope: LiveScope, after: int) -> None:
        """Send a notice if entries after a cursor that retention removed were of the stream's scope."""
        hub = self._broadcast.hub
        read = partial(hub.database.read, partial(_has_lost, scope=scope, after=after))
        if await hub.retry_read(read, stream.ended.done):
            stream.send(self._unavailable(scope, TOO_OLD))

    # ── keep-alives, for all streams at once ─────────────────────────────────────────────────────

    def _keep_alive(self) -> None:
        if self._keeping is None:
            self._keeping = asyncio.get_running_loop().call_later(self._keepalive_s, self._keep_all_alive)

    def _keep_all_alive(self) -> None:
        self._keeping = None
        for stream in list(self._streams):
            stream.keep_alive(self._format)
        if self._streams:
            self._keep_alive()


class _Stream:
    """One client's stream: an outlet of the broadcast, a writer of the connection."""

    def __init__(self, connection: HttpConnection) -> None:
        self.subscription: LiveSubscription | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_gone = False
        self._connection = connection
        self._transport = connection.transport
        self.last_id = 0
        # A comment at the beginning of the stream.
        self.remark = ""
        self.stop_watching: Callable[[], None] = lambda: None

    def begin(self) -> None:
        """Send the retry interval."""
        self._connection.writer = self
        if self._connection.is_refused or self._transport.is_closing():
            self.gone()
            return
        self.send(RETRY + comment(self.remark) if self.remark else RETRY)

    def send(self, frames: bytes) -> None:
        """Frames in a chunk of their own; many of them are not copied for it."""
        if not self.ended.done():
            self._transport.writelines((b"%x\r\n" % len(frames), frames, b"\r\n"))

    def write(self, data: bytes) -> None:
        if not self.ended.done():
            self._transport.write(data)

    def bytes_taken(self) -> int:
        return bytes_taken(self._transport)

    async def drain(self, timeout_s: float) -> None:
        """Wait until the client has read the written data; disconnect it after `timeout_s` without taking a byte."""
        before: int | None = None
        while self._connection.flow.write_paused and not self.is_gone:
            before, taken = self.bytes_taken(), before
            if taken == before:
                self._transport.abort()
                self.gone()
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._connection.flow.drain()

    async def finish(self, send: Send, timeout_s: float) -> None:
        """End the body after the unread data; disconnect the client after `timeout_s` without taking a byte."""
        await self.drain(timeout_s)
        if not self.is_gone:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def keep_alive(self, format_: SseFormat) -> None:
        """Send a keep-alive, with a checkpoint if the cursor moved without a match."""
        if self._connection.flow.write_paused:
            return
        frames = KEEPALIVE
        position = self.subscription.position if self.subscription is not None else None
        if position is not None and position > self.last_id:
            checkpoint = format_.checkpoint(position)
            is_named = self.subscription is None or self.subscription.scope.is_named
            frames += checkpoint if is_named else format_.unnamed(checkpoint)
            self.last_id = position
        self.send(frames)

    def end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def pause(self) -> None:
        if self.subscription is not None:
            self.subscription.pause()

    def resume(self) -> None:
        if self.subscription is not None:
            self.subscription.resume()

    def gone(self) -> None:
        self.is_gone = True
        if self.subscription is not None:
            self.subscription.close()
        self.end()

    def close(self) -> None:
        """Detach from connection, broadcast and the watch on the token."""
        self.end()
        self.stop_watching()
        if self._connection.writer is self:
            self._connection.writer = None
        if self.subscription is not None:
            self.subscription.close()


class _Replay:
    """Reads a scope from the journal in slices; the reading thread also encodes."""

    def __init__(self, scope: LiveScope, format_: SseFormat, position: int, hub: Hub) -> None:
        self.position = position
        self._history = hub.history
        self._recorder = hub.gaps
        self._gaps: tuple[JournalGap, ...] = ()
        self._scope = scope
        self._format = format_
        self._cursor: Cursor = open_identity_cursor(scope.identity, scope.run)
        self._past: ArchiveCursor | None = None
        self.last_id = 0

    async def next(self) -> bytes:
        """The next slice as bytes; empty if nothing matched."""
        try:
            data = await self._history.database.read(
                lambda reader: self._encoded(self._cursor.read(reader, self.position))
            )
        except CursorExpired as expired:
            data = await self._history.read_expired(expired, self._read_past)
        if self._gaps:
            self._recorder.record(self._gaps)
        return data

    def _read_past(self, head: Head, holes: Holes) -> bytes:
        if self._past is None:
            self._past = self._history.open_archive_cursor(_wanted(self._scope))
        return self._encoded(self._past.read(self.position, head, holes))

    def _encoded(self, found: Slice) -> bytes:
        self.position = found.position
        encode, wanted = self._format.entry, found.entries
        if not self._scope.is_identity_only:
            wanted = [entry for entry in wanted if self._scope.matches_beyond_identity(entry)]
        if wanted:
            self.last_id = wanted[-1].global_seq
        frames = [encode(entry) for entry in wanted]
        self._gaps = found.gaps
        for gap in reversed(found.gaps):
            at = bisect_left(wanted, gap.first, key=lambda entry: entry.global_seq)
            frames.insert(at, encode_gap(self._format, gap))
        if not self._scope.is_named:
            frames = [self._format.unnamed(frame) for frame in frames]
        return b"".join(frames)


def _has_lost(reader: Reader, scope: LiveScope, after: int) -> bool:
    """Whether retention removed an entry of a scope after a cursor; True if that was not recorded."""
    if scope.identity is None:
        return True
    types = pruned_types(reader, scope.identity.triples, after)
    if types is None or not scope.run:
        return types is None or any(map(scope.has_type, types))
    is_whole = has_run_from(reader, scope.run, scope.identity.tenants) or not has_run(
        reader, scope.run, scope.identity.tenants
    )
    return not is_whole and any(map(scope.has_type, types))


def _wanted(scope: LiveScope) -> EntryFilter:
    values: dict[str, Collection[str]] = {}
    if (identity := scope.identity) is not None:
        values |= {"tenant": identity.tenants, "user": [identity.user], "session": [identity.session]}
    if scope.run:
        values["run_id"] = [scope.run]
    if scope.types and not scope.type_patterns:
        values["type"] = scope.types
    # What the filter leaves in, the scope takes out: the grants narrow more than the subjects, if there are both.
    return EntryFilter(values=values, grants=scope.grants or scope.subjects)
