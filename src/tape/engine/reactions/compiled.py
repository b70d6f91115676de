"""Compiled reactions in memory, indexed by subject pattern and by values that their predicates require.

A trie of patterns finds the reactions whose subject matches. Among them, a predicate that requires an equality
(`payload.status == "failed"`) is looked up by the value in the entry: of 10,000 reactions that differ in that
value, only those for this entry's value are evaluated.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tape.cel import EntryView, IndexKey, Predicate, compile_predicate, read_path
from tape.engine.predicate_budget import REACTION, PredicateAccount, PredicateBudget
from tape.engine.reactions import registry
from tape.engine.reactions.reaction import Reaction
from tape.engine.security.tenant_aliases import names_by_owner, read_owners
from tape.model.entry import Entry
from tape.model.pattern import Pattern, PatternSet
from tape.store import Reader

Path = tuple[str, ...]


class Shard(msgspec.Struct):
    """The position of one shard of a reaction; a shard that is not behind is at least at its partition's position."""

    partition: int
    position: int
    is_behind: bool


class CompiledReaction:
    """A registered reaction with its compiled predicate and its shards."""

    __slots__ = ("account", "index_key", "pattern", "predicate", "reaction", "shards", "tenants")

    def __init__(self, reaction: Reaction, shards: dict[int, Shard], former_tenants: Iterable[str] = ()) -> None:
        self.reaction = reaction
        self.pattern = Pattern(reaction.subject_pattern)
        self.predicate: Predicate | None = compile_predicate(reaction.predicate_cel) if reaction.predicate_cel else None
        self.index_key = _select_index_key(self.predicate)
        self.shards = shards
        # Whose entries it fires on: those of its tenant, also under former names; empty is those of all.
        self.tenants = frozenset((reaction.tenant, *former_tenants)) if reaction.tenant else frozenset()
        self.account: PredicateAccount | None = None

    def open_account(self, budget: PredicateBudget) -> PredicateAccount:
        """The account that evaluations of the predicate are charged to."""
        if self.account is None:
            self.account = budget.open(REACTION, self.reaction.tenant, f"reaction {self.reaction.reaction_id!r}")
        return self.account

    @property
    def budget_wait_s(self) -> float:
        """Seconds until the predicate may be evaluated; 0 if it may be evaluated now."""
        return 0.0 if self.account is None else self.account.wait_s


class PatternGroup:
    """The compiled reactions that share a subject pattern, by the value of their index key."""

    __slots__ = ("always", "by_path")

    def __init__(self) -> None:
        self.always: dict[CompiledReaction, None] = {}
        self.by_path: dict[Path, dict[Any, dict[CompiledReaction, None]]] = {}

    def add(self, compiled: CompiledReaction) -> None:
        """Add a reaction to the group."""
        if compiled.index_key is None:
            self.always[compiled] = None
            return
        by_value = self.by_path.setdefault(compiled.index_key.path, {})
        for value in compiled.index_key.values:
            by_value.setdefault(value, {})[compiled] = None

    def discard(self, compiled: CompiledReaction) -> None:
        """Undo `add`."""
        if compiled.index_key is None:
            self.always.pop(compiled, None)
            return
        by_value = self.by_path.get(compiled.index_key.path, {})
        for value in compiled.index_key.values:
            if (found := by_value.get(value)) is not None:
                found.pop(compiled, None)
                if not found:
                    del by_value[value]
        if not by_value:
            self.by_path.pop(compiled.index_key.path, None)

    @property
    def is_empty(self) -> bool:
        """Whether the group has no reaction."""
        return not self.always and not self.by_path


class ReactionIndex:
    """The registered reactions as of one version of the registry."""

    def __init__(self) -> None:
        self.version = 0
        self.reactions: dict[str, CompiledReaction] = {}
        self._groups: dict[Pattern, PatternGroup] = {}
        self._by_subject: PatternSet[PatternGroup] = PatternSet()

    def __len__(self) -> int:
        return len(self.reactions)

    def apply(self, changes: RegistryChanges) -> None:
        """Apply changes of the registry."""
        self.version = changes.version
        for reaction in changes.reactions:
            self._remove(reaction.reaction_id)
            if not reaction.deleted:
                shards = changes.shards.get(reaction.reaction_id, {})
                self._add(CompiledReaction(reaction, shards, changes.former_tenants.get(reaction.tenant, ())))

    def candidates(self, entry: Entry, envelope: EntryView) -> list[CompiledReaction]:
        """The reactions whose pattern matches and whose index key, if any, has the entry's value."""
        found: list[CompiledReaction] = []
        for group in self._by_subject.matching(entry.subject):
            if group.always:
                found += group.always
            for path, by_value in group.by_path.items():
                if (matching := by_value.get(read_path(envelope, path))) is not None:
                    found += matching
        return found

    def _add(self, compiled: CompiledReaction) -> None:
        self.reactions[compiled.reaction.reaction_id] = compiled
        group = self._groups.get(compiled.pattern)
        if group is None:
            group = self._groups[compiled.pattern] = PatternGroup()
            self._by_subject.add(compiled.pattern, group)
        group.add(compiled)

    def _remove(self, reaction_id: str) -> None:
        compiled = self.reactions.pop(reaction_id, None)
        if compiled is None:
            return
        group = self._groups[compiled.pattern]
        group.discard(compiled)
        if group.is_empty:
            del self._groups[compiled.pattern]
            self._by_subject.discard(compiled.pattern, group)


class RegistryChanges(msgspec.Struct, frozen=True):
    """Reactions that changed up to a version of the registry, and their shards."""

    version: int
    reactions: list[Reaction]
    shards: dict[str, dict[int, Shard]]
    former_tenants: dict[str, tuple[str, ...]] = {}


def read_registry_changes(reader: Reader, version: int) -> RegistryChanges:
    """Read the changes since a version of the registry."""
    # The version is read first: a change in between is found again by its number the next time.
    latest = registry.read_version(reader)
    reactions = [found for found in registry.list_changed_since(reader, version) if found.version <= latest]
    shards = read_shards(reader, [reaction.reaction_id for reaction in reactions])
    return RegistryChanges(latest, reactions, shards, names_by_owner(read_owners(reader)) if reactions else {})


def read_shards(reader: Reader, reaction_ids: Iterable[str]) -> dict[str, dict[int, Shard]]:
    """Read the shards of reactions, by reaction and shard number."""
    condition, ids = reader.is_any("reaction_id", list(reaction_ids))
    rows = reader.query(
        f"SELECT reaction_id, shard, lane, last_global_seq, behind FROM tape_reaction_cursors WHERE {condition}", ids
    )
    shards: dict[str, dict[int, Shard]] = {}
    for reaction_id, shard, partition, position, behind in rows:
        shards.setdefault(reaction_id, {})[shard] = Shard(partition, position, bool(behind))
    return shards


def _select_index_key(predicate: Predicate | None) -> IndexKey | None:
    """The most selective key: payload fields before entry fields, fewer values before more."""
    if predicate is None or not predicate.index_keys:
        return None
    return min(predicate.index_keys, key=lambda key: (key.path[0] != "payload", len(key.values)))
