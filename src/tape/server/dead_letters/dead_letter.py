"""A dead letter of any origin, and the port of an origin."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from tape.errors import InvalidInput

MAX_REASON_CHARS = 2_000
_NUMBERS = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27,}|\d+")


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter. `redrive` says what a redrive would do, or why it is impossible."""

    id: str
    origin: str
    dead_at_ms: int
    reason: str
    subscription: str = ""
    reaction_id: str = ""
    subject: str = ""
    message_id: str = ""
    ordering_key: str = ""
    attempts: int = 0
    size_bytes: int = 0
    can_redrive: bool = True
    redrive: str = ""
    # The whole payload, which is cut where it is shown.
    payload: str = ""

    @property
    def name(self) -> str:
        """Its subscription or reaction, else its subject."""
        return self.subscription or self.reaction_id or self.subject

    @property
    def error(self) -> str:
        """Its reason with # for numbers and ids, so that equal errors are equal."""
        return _NUMBERS.sub("#", self.reason.partition("\n")[0])[:200]


class DeadLetterQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters: all conditions must hold; an empty one always holds. Names are qualified."""

    origins: tuple[str, ...] = ()
    subscription: str = ""
    reaction_id: str = ""
    since_ms: int = 0
    error_contains: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether it has no condition: more likely a mistake than a request for all."""
        return self == DeadLetterQuery()

    def matches(self, found: DeadLetter) -> bool:
        """Whether a dead letter meets the conditions that its origin does not check itself."""
        return found.dead_at_ms >= self.since_ms and self.error_contains in found.reason


class Page(NamedTuple):
    """Dead letters of one origin, and the cursor after them; None at the end."""

    found: Sequence[DeadLetter]
    after: str | None


class Unreachable(NamedTuple):
    """Dead letters that this server cannot reach, and where they are."""

    origin: str
    name: str
    reason: str


class Origin(Protocol):
    """A store of dead letters. Ids are given without the name of the origin."""

    name: str

    async def page(self, query: DeadLetterQuery, after: str, limit: int) -> Page:
        """The next dead letters. At most a few thousand rows are read, so a page may be empty."""

    async def find(self, key: str) -> DeadLetter:
        """One dead letter. Raises NotFound."""

    async def redrive(self, keys: Sequence[str]) -> Mapping[str, str]:
        """Bring dead letters back. Returns why, for each that stays."""

    async def drop(self, keys: Sequence[str], reason: str) -> Mapping[str, str]:
        """Give dead letters up. Returns why, for each that stays."""

    async def unreachable(self, query: DeadLetterQuery) -> Sequence[Unreachable]:
        """What this server cannot look at."""


def cut(text: Any) -> str:
    """A reason in a bounded form that every store and terminal takes."""
    return str(text).replace("\0", "")[:MAX_REASON_CHARS]


def split_id(text: str) -> tuple[str, str]:
    """The origin of an id, and the rest. Raises InvalidInput."""
    origin, slash, key = text.partition("/")
    if not slash or not key:
        raise InvalidInput(f"id {text[:200]!r} must look like task/<id> or spool/<subscription>/<key>.")
    return origin, key
