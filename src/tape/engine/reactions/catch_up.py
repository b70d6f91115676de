"""Catch-ups: shards that are behind read the journal on their own until they reach their matcher partition.

Shards with close positions share one catch-up and its reads, so a long catch-up does not delay a short one. A shard is
behind because its reaction began with older entries, or because its predicate has used its CPU budget; then the
catch-up waits for the budget.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tape.engine.reactions.compiled import CompiledReaction, ReactionIndex, Shard
from tape.journal.reader import EVERYTHING, Cursor, Selection, SubjectCursor

Key = tuple[str, int]

# Shards no further apart than this number of entries share a catch-up.
MAX_DISTANCE = 5_000
MAX_CATCH_UPS = 8


class CatchUp:
    """Shards with their positions, and the cursor that reads for all of them."""

    def __init__(self, position: int, index: ReactionIndex) -> None:
        self.position = position
        self.shards: dict[Key, int] = {}
        self._index = index
        self._cursor: Cursor | None = None

    @property
    def cursor(self) -> Cursor:
        """The cursor: by subject pattern if all shards share one, otherwise over all entries."""
        if self._cursor is None:
            patterns = {self._index.reactions[reaction_id].pattern for reaction_id, _ in self.shards}
            selection = Selection(patterns.pop()) if len(patterns) == 1 else EVERYTHING
            self._cursor = SubjectCursor(selection)
        return self._cursor

    @property
    def wait_s(self) -> float:
        """Seconds until a shard has CPU budget to be matched; 0 if one has it now."""
        shortest = math.inf
        for reaction_id, _ in self.shards:
            wait_s = self._index.reactions[reaction_id].budget_wait_s
            if not wait_s:
                return 0.0
            shortest = min(shortest, wait_s)
        return shortest

    def is_wanted(self, compiled: CompiledReaction, number: int, shard: Shard, global_seq: int) -> bool:
        """Whether a shard belongs to this catch-up and its position is before the entry."""
        position = self.shards.get((compiled.reaction.reaction_id, number))
        return position is not None and position < global_seq

    def add(self, shards: Mapping[Key, int]) -> None:
        """Add shards; the catch-up goes back to the first of their positions."""
        self.shards.update(shards)
        self.position = min(self.position, *shards.values())
        self._cursor = None

    def shards_before(self, position: int) -> dict[Key, int]:
        """The shards whose position is before the given one."""
        return {key: cursor_position for key, cursor_position in self.shards.items() if cursor_position < position}


def defer(catch_ups: list[CatchUp], index: ReactionIndex, deferred: Mapping[Key, int]) -> None:
    """Add shards that had no CPU budget to a catch-up of their own; beyond 8, to the one with the closest position."""
    if not deferred:
        return
    position = min(deferred.values())
    if len(catch_ups) < MAX_CATCH_UPS:
        catch_ups.append(CatchUp(position, index))
        closest = catch_ups[-1]
    else:
        closest = min(catch_ups, key=lambda one: abs(one.position - position))
    closest.add(deferred)


def plan_catch_ups(index: ReactionIndex, partitions: frozenset[int]) -> list[CatchUp]:
    """Plan catch-ups for all shards of these partitions that are behind; at most 8."""
    waiting = sorted(
        (shard.position, compiled.reaction.reaction_id, number)
        for compiled in index.reactions.values()
        for number, shard in compiled.shards.items()
        if shard.is_behind and shard.partition in partitions
    )
    catch_ups: list[CatchUp] = []
    last = 0
    for position, reaction_id, number in waiting:
        if not catch_ups or (position > last + MAX_DISTANCE and len(catch_ups) < MAX_CATCH_UPS):
            catch_ups.append(CatchUp(position, index))
        catch_ups[-1].shards[reaction_id, number] = last = position
    return catch_ups
