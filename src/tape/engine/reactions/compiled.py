"""All live reactions in memory, indexed so that an entry meets only those that can want it.

The trie of patterns finds those whose subject fits. Among them, a predicate that demands an equality
(`payload.status == "failed"`) is found by the value the entry has there: of ten thousand reactions
that differ in such a value, only those that ask for this entry's value are evaluated.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tape.cel import EntryView, IndexKey, Predicate, compile_predicate, read_path
from tape.engine.reactions import registry
from tape.engine.reactions.reaction import Reaction
from tape.model.entry import Entry
from tape.model.pattern import Pattern, PatternSet
from tape.store import Reader

Path = tuple[str, ...]


class Shard(msgspec.Struct):
    """How far one shard of a reaction has been matched: while it is not behind, at least as far as its lane."""

    lane: int
    position: int
    is_behind: bool


class Watch:
    """One live reaction, compiled, with its shards."""

    __slots__ = ("key", "pattern", "predicate", "reaction", "shards")

    def __init__(self, reaction: Reaction, shards: dict[int, Shard]) -> None:
        self.reaction = reaction
        self.pattern = Pattern(reaction.subject_pattern)
        self.predicate: Predicate | None = compile_predicate(reaction.predicate_cel) if reaction.predicate_cel else None
        self.key = _best_key(self.predicate)
        self.shards = shards


class Group:
    """The reactions that share a pattern."""

    __slots__ = ("always", "by_path")

    def __init__(self) -> None:
        self.always: dict[Watch, None] = {}
        self.by_path: dict[Path, dict[Any, dict[Watch, None]]] = {}

    def add(self, watch: Watch) -> None:
        """Let a reaction be found."""
        if watch.key is None:
            self.always[watch] = None
            return
        by_value = self.by_path.setdefault(watch.key.path, {})
        for value in watch.key.values:
            by_value.setdefault(value, {})[watch] = None

    def discard(self, watch: Watch) -> None:
        """Undo `add`."""
        if watch.key is None:
            self.always.pop(watch, None)
            return
        by_value = self.by_path.get(watch.key.path, {})
        for value in watch.key.values:
            if (found := by_value.get(value)) is not None:
                found.pop(watch, None)
                if not found:
                    del by_value[value]
        if not by_value:
            self.by_path.pop(watch.key.path, None)

    @property
    def is_empty(self) -> bool:
        """Whether nobody is left."""
        return not self.always and not self.by_path


class Catalog:
    """The live reactions as of one change of the registry."""

    def __init__(self) -> None:
        self.version = 0
        self.watches: dict[str, Watch] = {}
        self._groups: dict[Pattern, Group] = {}
        self._by_subject: PatternSet[Group] = PatternSet()

    def __len__(self) -> int:
        return len(self.watches)

    def apply(self, news: News) -> None:
        """Take over what has changed."""
        self.version = news.version
        for reaction in news.reactions:
            self._remove(reaction.reaction_id)
            if not reaction.deleted:
                self._add(Watch(reaction, news.shards.get(reaction.reaction_id, {})))

    def candidates(self, entry: Entry, envelope: EntryView) -> list[Watch]:
        """Those whose pattern fits and whose index key, if they have one, holds."""
        found: list[Watch] = []
        for group in self._by_subject.matching(entry.subject):
            if group.always:
                found += group.always
            for path, by_value in group.by_path.items():
                if (watches := by_value.get(read_path(envelope, path))) is not None:
                    found += watches
        return found

    def _add(self, watch: Watch) -> None:
        self.watches[watch.reaction.reaction_id] = watch
        group = self._groups.get(watch.pattern)
        if group is None:
            group = self._groups[watch.pattern] = Group()
            self._by_subject.add(watch.pattern, group)
        group.add(watch)

    def _remove(self, reaction_id: str) -> None:
        watch = self.watches.pop(reaction_id, None)
        if watch is None:
            return
        group = self._groups[watch.pattern]
        group.discard(watch)
        if group.is_empty:
            del self._groups[watch.pattern]
            self._by_subject.discard(watch.pattern, group)


class News(msgspec.Struct, frozen=True):
    """What has changed in the registry."""

    version: int
    reactions: list[Reaction]
    shards: dict[str, dict[int, Shard]]


def read_news(reader: Reader, version: int) -> News:
    """What has changed since a version of the registry."""
    # Read first: what comes in between is found again by its number the next time.
    latest = registry.read_version(reader)
    reactions = [found for found in registry.changed_since(reader, version) if found.version <= latest]
    return News(latest, reactions, read_shards(reader, [reaction.reaction_id for reaction in reactions]))


def read_shards(reader: Reader, reaction_ids: Iterable[str]) -> dict[str, dict[int, Shard]]:
    """How far the shards of reactions have been matched."""
    condition, ids = reader.is_any("reaction_id", list(reaction_ids))
    rows = reader.query(
        f"SELECT reaction_id, shard, lane, last_global_seq, behind FROM tape_reaction_cursors WHERE {condition}", ids
    )
    shards: dict[str, dict[int, Shard]] = {}
    for reaction_id, shard, lane, position, behind in rows:
        shards.setdefault(reaction_id, {})[shard] = Shard(lane, position, bool(behind))
    return shards


def _best_key(predicate: Predicate | None) -> IndexKey | None:
    """The key that lets the fewest entries through: what is in the payload tells more than the kind does."""
    if predicate is None or not predicate.index_keys:
        return None
    return min(predicate.index_keys, key=lambda key: (key.path[0] != "payload", len(key.values)))
