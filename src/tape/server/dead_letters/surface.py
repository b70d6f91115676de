"""The surface over all origins: pages, groups, and redrive and drop in bounded numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from tape.engine.security.audit import record_dead_letters
from tape.errors import InvalidInput, NotFound
from tape.journal.journal import Journal
from tape.server.dead_letters.dead_letter import DeadLetter, DeadLetterQuery, Origin, Unreachable, split_id

DEFAULT_LIST = 100
DEFAULT_BULK = 200
MAX_LIMIT = 1_000
MAX_GROUPED = 10_000
# Pages of origins that one call reads at most; the cursor goes on from there.
MAX_PAGES = 50

Action = Literal["redriven", "dropped"]


class DeadLetterList(NamedTuple):
    """Dead letters, the cursor after them (empty at the end), and what cannot be reached."""

    found: list[DeadLetter]
    cursor: str
    unreachable: list[Unreachable]


class ErrorGroup(msgspec.Struct, kw_only=True):
    """Dead letters of one origin, name and error."""

    origin: str
    name: str
    error: str
    count: int = 0
    first_ms: int = 0
    last_ms: int = 0
    sample_id: str = ""

    def add(self, found: DeadLetter) -> None:
        """Count one more."""
        self.count += 1
        self.first_ms = min(self.first_ms or found.dead_at_ms, found.dead_at_ms)
        self.last_ms = max(self.last_ms, found.dead_at_ms)
        self.sample_id = self.sample_id or found.id


class SettledDeadLetters(NamedTuple):
    """What was redriven or dropped, why others stay, and the cursor for the next call."""

    ids: list[str]
    failures: dict[str, str]
    cursor: str
    unreachable: list[Unreachable]


class DeadLetters:
    """The dead letters of a server, for its callers: each sees those of its own tenant."""

    def __init__(self, journal: Journal, origins: Sequence[Origin]) -> None:
        self._journal = journal
        self._origins: Mapping[str, Origin] = {origin.name: origin for origin in origins}

    async def list_page(self, query: DeadLetterQuery, cursor: str, limit: int) -> DeadLetterList:
        """A page: origin by origin, each in its own order. An origin that cannot be reached is named on the first."""
        limit = _checked_limit(limit, DEFAULT_LIST)
        found, following = await self._collect(query, cursor, limit)
        return DeadLetterList(found, following, [] if cursor else await self._unreachable(query))

    async def group(self, query: DeadLetterQuery, cursor: str) -> tuple[list[ErrorGroup], str, list[Unreachable]]:
        """Counts by origin, name and error of at most 10,000 dead letters, and the cursor after them."""
        groups: dict[tuple[str, str, str], ErrorGroup] = {}
        counted, following = 0, cursor
        while counted < MAX_GROUPED:
            found, following = await self._collect(query, following, MAX_LIMIT)
            counted += len(found)
            for each in found:
                key = (each.origin, each.name, each.error)
                if key not in groups:
                    groups[key] = ErrorGroup(origin=each.origin, name=each.name, error=each.error)
                groups[key].add(each)
            if not following:
                break
        ordered = sorted(groups.values(), key=lambda group: -group.count)
        return ordered, following, [] if cursor else await self._unreachable(query)

    async def find(self, dead_letter_id: str) -> DeadLetter:
        """One dead letter. Raises NotFound."""
        origin, key = self._split(dead_letter_id)
        return await origin.find(key)

    async def settle(
        self,
        action: Action,
        *,
        ids: Sequence[str],
        query: DeadLetterQuery,
        everything: bool,
        limit: int,
        cursor: str,
        dry_run: bool,
        reason: str = "",
    ) -> SettledDeadLetters:
        """Redrive or drop dead letters: these, those that fit, or all. An audit entry is durable before the first."""
        if sum((bool(ids), not query.is_empty, everything)) != 1:
            raise InvalidInput("Say which dead letters: ids, or a filter with at least one condition, or everything.")
        limit = _checked_limit(limit, DEFAULT_BULK)
        following, unreachable = "", list[Unreachable]()
        if ids:
            if len(ids) > MAX_LIMIT:
                raise InvalidInput(f"{len(ids)} ids exceed the {MAX_LIMIT} of one request.")
            chosen = list(dict.fromkeys(ids))
            if dry_run:
                found = [await self.find(each) for each in chosen]
                return SettledDeadLetters([each.id for each in found], _refusals(action, found), "", [])
        else:
            found, following = await self._collect(query, cursor, limit)
            unreachable = [] if cursor else await self._unreachable(query)
            if dry_run:
                return SettledDeadLetters([each.id for each in found], _refusals(action, found), following, unreachable)
            chosen = [each.id for each in found]
        failures = await self._settle(action, chosen, reason) if chosen else {}
        return SettledDeadLetters([each for each in chosen if each not in failures], failures, following, unreachable)

    async def _settle(self, action: Action, chosen: Sequence[str], reason: str) -> dict[str, str]:
        by_origin: dict[str, list[str]] = {}
        for each in chosen:
            origin, key = self._split(each)
            by_origin.setdefault(origin.name, []).append(key)
        await record_dead_letters(self._journal, f"dead_letters_{action}", chosen, 0, reason)
        failures: dict[str, str] = {}
        for name, keys in by_origin.items():
            origin = self._origins[name]
            failed = await (origin.redrive(keys) if action == "redriven" else origin.drop(keys, reason))
            failures |= {f"{name}/{key}": why for key, why in failed.items()}
        if failures:
            await record_dead_letters(self._journal, f"dead_letters_{action}", list(failures), len(failures), reason)
        return failures

    async def _collect(self, query: DeadLetterQuery, cursor: str, limit: int) -> tuple[list[DeadLetter], str]:
        names = [name for name in self._origins if not query.origins or name in query.origins]
        if unknown := set(query.origins) - set(self._origins):
            known = ", ".join(self._origins)
            raise InvalidInput(f"origins {', '.join(sorted(unknown))[:200]!r} must be among {known}.")
        start, _, after = cursor.partition(":")
        if cursor and start not in self._origins:
            raise InvalidInput(f"cursor {cursor[:100]!r} is none that ListDeadLetters returned.")
        if start:
            names = names[names.index(start) :] if start in names else []
        found: list[DeadLetter] = []
        pages = 0
        for name in names:
            position: str | None = after if name == start else ""
            while position is not None:
                if len(found) >= limit or pages >= MAX_PAGES:
                    return found, f"{name}:{position}"
                page = await self._origins[name].page(query, position, limit - len(found))
                found += page.found
                position = page.after
                pages += 1
        return found, ""

    async def _unreachable(self, query: DeadLetterQuery) -> list[Unreachable]:
        found: list[Unreachable] = []
        for name, origin in self._origins.items():
            if not query.origins or name in query.origins:
                found += await origin.unreachable(query)
        return found

    def _split(self, dead_letter_id: str) -> tuple[Origin, str]:
        name, key = split_id(dead_letter_id)
        origin = self._origins.get(name)
        if origin is None:
            raise NotFound(f"There is no dead letter {dead_letter_id[:200]!r}; origins are {', '.join(self._origins)}.")
        return origin, key


def _refusals(action: Action, found: Sequence[DeadLetter]) -> dict[str, str]:
    return {each.id: each.redrive for each in found if action == "redriven" and not each.can_redrive}


def _checked_limit(limit: int, default: int) -> int:
    if not 0 <= limit <= MAX_LIMIT:
        raise InvalidInput(f"limit {limit} must lie between 0 and {MAX_LIMIT}; 0 means {default}.")
    return limit or default
