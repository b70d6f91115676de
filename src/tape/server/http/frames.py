"""Entries as Server-Sent Events, byte for byte as documented; each is encoded once, whoever receives it."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from tape.journal.entry import Entry

RETRY = b"retry: 3000\n\n"
KEEPALIVE = b": keepalive\n\n"

# Characters that are written escaped inside JSON, and line ends, which may stand between its tokens
# but not in a line of the stream.
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_TABLE = str.maketrans(_ESCAPES | {"\n": " ", "\r": " "})
_SPECIAL = re.compile("[<>&\u2028\u2029\n\r]")


class SseFormat:
    """The wire form of the stream."""

    def entry(self, entry: Entry) -> bytes:
        """One entry: event, id, data."""
        kind = entry.type
        return f"event: {kind}\nid: {entry.global_seq}\ndata: {event_json(entry, kind)}\n\n".encode()

    def notice(self, kind: str, payload: dict[str, Any]) -> bytes:
        """Something about the stream itself: it has no id and is not on the journal."""
        return f"event: {kind}\ndata: {_notice(kind, 0, payload)}\n\n".encode()

    def checkpoint(self, position: int) -> bytes:
        """Moves the client's cursor on, although nothing matched."""
        data = _notice("checkpoint", position, {"Position": position})
        return f"event: checkpoint\nid: {position}\ndata: {data}\n\n".encode()

    def join(self, frames: Sequence[bytes]) -> bytes:
        """Frames as one HTTP chunk."""
        size = sum(map(len, frames))
        return b"%x\r\n%b\r\n" % (size, b"".join(frames))


def comment(text: str) -> bytes:
    """A line that clients ignore unless they know it."""
    return f": {text}\n\n".encode()


def event_json(entry: Entry, kind: str = "") -> str:
    """An entry as the JSON object that every read over HTTP has."""
    run = f',"run":{_text(entry.run_id)}' if entry.run_id else ""
    trace = f',"trace_id":"{entry.trace_id}"' if entry.trace_id else ""
    span = f'"span_id":"{entry.span_id}",' if entry.span_id else ""
    return (
        f'{{"type":"{kind or entry.type}","sequence":{entry.global_seq},"occurred_at":"{moment(entry.ts_ms)}",'
        f'"tenant":{_text(entry.tenant)},"user":{_text(entry.user)},"session":{_text(entry.session)}{run},'
        f'"payload":{_payload(entry.payload_json)},'
        f'"extra":{{"schema_version":"{entry.schema_version}",{span}"subject":"{escape(entry.subject)}"{trace}}}}}'
    )


def moment(ts_ms: int) -> str:
    """A time in UTC with nine fractional digits."""
    return f"{_second(ts_ms // 1000)}.{ts_ms % 1000:03d}000000Z"


def escape(text: str) -> str:
    """JSON text in which no character can end a script or a line."""
    return text.translate(_TABLE) if _SPECIAL.search(text) else text


def _payload(text: str) -> str:
    text = escape(text.strip())
    return text if text.startswith("{") else f'{{"value":{text}}}'


def _notice(kind: str, sequence: int, payload: dict[str, Any]) -> str:
    facts = {
        "type": kind,
        "sequence": sequence,
        "occurred_at": moment(time.time_ns() // 1_000_000),
        "tenant": "",
        "user": "",
        "session": "",
        "payload": payload,
    }
    return msgspec.json.encode(facts).decode()


@lru_cache(maxsize=4096)
def _text(value: str) -> str:
    return escape(msgspec.json.encode(value).decode())


@lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
