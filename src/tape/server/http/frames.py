"""Entries as Server-Sent Events, byte for byte as documented; each is encoded once and shared by all streams."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from tape.base.clock import now_ms
from tape.model.cloudevents import format_time
from tape.model.entry import Entry, type_of

RETRY = b"retry: 3000\n\n"
KEEPALIVE = b": keepalive\n\n"
REPLAY_UNAVAILABLE = "stream.replay_unavailable"

# Characters that are escaped inside JSON, and line ends, which are valid between JSON tokens
# but not in a line of the stream.
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_TABLE = str.maketrans(_ESCAPES | {"\n": " ", "\r": " "})
# Data is one line that begins with `data:`, so that no other line begins like this.
_EVENT_LINE = re.compile(rb"^event: [^\n]*\n", re.MULTILINE)


class SseFormat:
    """The wire form of the stream."""

    def entry(self, entry: Entry) -> bytes:
        """One entry: event, id, data."""
        return _frame(entry).encode()

    def notice(self, kind: str, payload: dict[str, Any]) -> bytes:
        """An event about the stream itself: without id, not in the journal."""
        return f"event: {kind}\ndata: {_notice(kind, 0, payload)}\n\n".encode()

    def replay_unavailable(self, reason: str) -> bytes:
        """Something cannot be replayed: a comment, and a notice because browsers do not show comments to a page."""
        return comment(f"{REPLAY_UNAVAILABLE} {reason}") + self.notice(REPLAY_UNAVAILABLE, {"Reason": reason})

    def unnamed(self, frames: bytes) -> bytes:
        """Frames without their `event:` lines: a browser passes these to `onmessage`."""
        return _EVENT_LINE.sub(b"", frames)

    def checkpoint(self, position: int) -> bytes:
        """Advances the client's cursor although no entry matched."""
        data = _notice("checkpoint", position, {"Position": position})
        return f"event: checkpoint\nid: {position}\ndata: {data}\n\n".encode()

    def join(self, frames: Sequence[bytes]) -> bytes:
        """Frames as one HTTP chunk."""
        size = sum(map(len, frames))
        return b"%x\r\n%b\r\n" % (size, b"".join(frames))


def comment(text: str) -> bytes:
    """An SSE comment line; clients that do not know it ignore it."""
    return f": {text}\n\n".encode()


def event_json(entry: Entry) -> str:
    """An entry as the JSON object that every HTTP read returns: the data of its frame."""
    return _frame(entry).partition("\ndata: ")[2].removesuffix("\n\n")


def _frame(entry: Entry) -> str:
    kind, number, payload = type_of(entry.kind, entry.subject), str(entry.global_seq), entry.payload_json
    if not payload.startswith("{"):
        payload = _as_object(payload)
    trace = f',"trace_id":"{entry.trace_id}"' if entry.trace_id else ""
    span = f'"span_id":"{entry.span_id}",' if entry.span_id else ""
    return (
        f'event: {kind}\nid: {number}\ndata: {{"type":"{kind}","sequence":{number},'
        f'"occurred_at":"{format_time(entry.ts_ms)}",'
        f'{_identity(entry.tenant, entry.user, entry.session, entry.run_id)},"payload":{escape(payload)},'
        f'"extra":{{"schema_version":"{entry.schema_version}",{span}"subject":"{entry.subject}"{trace}}}}}\n\n'
    )


def escape(text: str) -> str:
    """JSON text without characters that end a script or a line."""
    # A search for one character is many times faster than one for any of several.
    if text.isascii() and not ("<" in text or ">" in text or "&" in text or "\n" in text or "\r" in text):
        return text
    return text.translate(_TABLE)


def _as_object(payload: str) -> str:
    payload = payload.strip()
    return payload if payload.startswith("{") else f'{{"value":{payload}}}'


def _notice(kind: str, sequence: int, payload: dict[str, Any]) -> str:
    facts = {
        "type": kind,
        "sequence": sequence,
        "occurred_at": format_time(now_ms()),
        "tenant": "",
        "user": "",
        "session": "",
        "payload": payload,
    }
    return msgspec.json.encode(facts).decode()


@lru_cache(maxsize=4096)
def _identity(tenant: str, user: str, session: str, run: str) -> str:
    names = {"tenant": tenant, "user": user, "session": session} | ({"run": run} if run else {})
    return escape(msgspec.json.encode(names).decode())[1:-1]
