"""Names of MCP sessions and streams on the journal.

A session has a scope of its own: stream ids are the ids of requests, and every client has a request `1`.
"""

from __future__ import annotations

import base64
import re
from typing import NamedTuple

from tape.base.clock import now_ms
from tape.base.ids import new_time_ordered_id
from tape.errors import InvalidInput
from tape.model import subject

KIND = "mcp"
# Bytes of a stream id, which is the id that a client chose for its request.
MAX_STREAM_ID = 128

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_EVENT_ID = re.compile(r"(?P<scope>[0-9a-f]{32})\.(?P<number>[0-9]{1,18})\.(?P<stream>~?[A-Za-z0-9_-]{0,180})")


class EventId(NamedTuple):
    """A position in a stream of a session: `<scope>.<number>.<stream>`, opaque to clients."""

    scope: str
    number: int
    stream: str

    def __str__(self) -> str:
        return f"{self.scope}.{self.number}.{self.stream}"

    @classmethod
    def parse(cls, text: str) -> EventId | None:
        """The inverse of `str`; None for any other text."""
        found = _EVENT_ID.fullmatch(text)
        return cls(found["scope"], int(found["number"]), found["stream"]) if found else None


def new_scope() -> str:
    """A new scope: 32 hexadecimal digits that begin with the time and cannot be guessed."""
    return new_time_ordered_id(now_ms()).replace("-", "")


def stream_token(stream_id: str) -> str:
    """A stream id as a segment of subjects, run ids and event ids. InvalidInput if it is longer than 128 bytes."""
    data = stream_id.encode(errors="surrogatepass")
    if len(data) > MAX_STREAM_ID:
        raise InvalidInput(f"the request id has {len(data)} bytes; {MAX_STREAM_ID} is the limit of a resumable one.")
    if _PLAIN.fullmatch(stream_id):
        return stream_id
    return "~" + base64.urlsafe_b64encode(data).decode().rstrip("=")


def stream_id_of(token: str) -> str | None:
    """The inverse of `stream_token`; None for a text that it does not return."""
    if not token.startswith("~"):
        return token
    try:
        text = base64.urlsafe_b64decode(token[1:] + "=" * (-len(token[1:]) % 4)).decode(errors="surrogatepass")
    except ValueError:
        return None
    return text if stream_token(text) == token else None


def run_id_of(scope: str, token: str) -> str:
    """The run whose entries are the messages of a stream, in order."""
    return f"mcp:{scope}:{token}"


def subject_of(verb: str, *keys: str) -> str:
    """The subject of an entry about MCP."""
    return subject.build(KIND, verb, *keys)
