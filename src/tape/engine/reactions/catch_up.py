"""Sweeps: shards that begin further back read the journal for themselves until they have reached their lane.

Shards that stand close together share a sweep, and so share reading; a long way does not hold up a short one.
"""

from __future__ import annotations

from tape.engine.reactions.compiled import Catalog, Shard, Watch
from tape.journal.reader import EVERYTHING, Cursor, Selection, SubjectCursor

Key = tuple[str, int]

# Shards no further apart than this go together: reading these entries twice would cost more.
NEAR = 5_000
MAX_SWEEPS = 8


class Sweep:
    """Some shards, where each stands, and the cursor that reads for them all."""

    def __init__(self, position: int, catalog: Catalog) -> None:
        self.position = position
        self.shards: dict[Key, int] = {}
        self._catalog = catalog
        self._cursor: Cursor | None = None

    @property
    def cursor(self) -> Cursor:
        """Reads what the shards can want: by their pattern, if they share one."""
        if self._cursor is None:
            patterns = {self._catalog.watches[reaction_id].pattern for reaction_id, _ in self.shards}
            selection = Selection(patterns.pop()) if len(patterns) == 1 else EVERYTHING
            self._cursor = SubjectCursor(selection)
        return self._cursor

    def wants(self, watch: Watch, number: int, shard: Shard, global_seq: int) -> bool:
        """Whether a shard is part of this sweep and has not seen the entry."""
        position = self.shards.get((watch.reaction.reaction_id, number))
        return position is not None and position < global_seq

    def behind(self, position: int) -> dict[Key, int]:
        """The shards that stand before a position."""
        return {key: place for key, place in self.shards.items() if place < position}


def plan(catalog: Catalog, lanes: frozenset[int]) -> list[Sweep]:
    """The sweeps that bring every shard of these lanes that is behind to its lane."""
    waiting = sorted(
        (shard.position, watch.reaction.reaction_id, number)
        for watch in catalog.watches.values()
        for number, shard in watch.shards.items()
        if shard.is_behind and shard.lane in lanes
    )
    sweeps: list[Sweep] = []
    last = 0
    for position, reaction_id, number in waiting:
        if not sweeps or (position > last + NEAR and len(sweeps) < MAX_SWEEPS):
            sweeps.append(Sweep(position, catalog))
        sweeps[-1].shards[reaction_id, number] = last = position
    return sweeps
