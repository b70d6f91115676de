"""Backfill: tasks and runs for entries that are older than the start of their reaction.

Servers match only entries after the start of a reaction. A backfill writes tasks for entries before it, in the
same transaction as its own position, and only for entries without a task.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tape.base.clock import now_ms
from tape.engine.reactions import agent_runs, matcher_steps, registry
from tape.engine.reactions.compiled import ReactionIndex, RegistryChanges, Shard
from tape.engine.reactions.enqueue import enqueue_backfill
from tape.engine.reactions.matches import Match, MatchResult, match_entries
from tape.engine.reactions.reaction import Reaction
from tape.engine.reactions.simulation import SimulatedTask
from tape.errors import InvalidReaction, ReactionChanged
from tape.model.entry import Entry
from tape.store import Reader, Transaction


class BackfillResult(msgspec.Struct, frozen=True):
    """How many tasks and runs were created, and how many matches had one already."""

    tasks: int = 0
    runs: int = 0
    known: int = 0


def index_reaction(reaction: Reaction) -> ReactionIndex:
    """An index with one reaction whose shards are at position 0."""
    shards = {number: Shard(0, 0, False) for number in range(reaction.num_shards)}
    index = ReactionIndex()
    index.apply(RegistryChanges(1, [msgspec.structs.replace(reaction, deleted=False)], {reaction.reaction_id: shards}))
    return index


def match_all(index: ReactionIndex, entries: Sequence[Entry]) -> MatchResult:
    """Match entries with the server's matcher, regardless of the positions of shards."""
    return match_entries(index, entries, lambda watch, number, shard, global_seq: True)


def find_by_name(reader: Reader, name: str) -> Reaction:
    """The registered reaction with that id, or the only one with that name."""
    found = registry.find(reader, name)
    if found is None:
        same = [one for one in registry.list_registered(reader) if one.name == name]
        if len(same) != 1:
            problem = f"{len(same)} reactions have the name {name!r}" if same else f"there is no reaction {name!r}"
            known = ", ".join(one.reaction_id for one in (same or registry.list_registered(reader)[:10]))
            raise InvalidReaction(f"{problem}; give an id" + (f": {known}." if known else "; none is registered."))
        found = same[0]
    if found.deleted:
        raise InvalidReaction(
            f"The reaction {name!r} is deregistered; register it again before its history is matched."
        )
    return found


def drop_own_work(reader: Reader, matches: Sequence[Match]) -> list[Match]:
    """Drop matches that the reaction caused itself, unless it has allow_self."""
    row = reader.one("SELECT max(global_seq) FROM tape_entry_causes")
    own = matcher_steps.find_own_work(reader, matches, (row[0] if row else 0) or 0)
    return [one for one in matches if (one.compiled.reaction.reaction_id, one.entry.global_seq) not in own]


class CoveredEntries:
    """Entries that were debounced into a task and therefore have no task of their own."""

    def __init__(self, reader: Reader, reaction_id: str) -> None:
        rows = reader.query(
            "SELECT subject, first_global_seq, source_global_seq FROM tape_tasks"
            " WHERE reaction_id = ? AND debounced = 1",
            reaction_id,
        )
        self._spans: dict[str, list[tuple[int, int]]] = {}
        for subject, first, last in rows:
            self._spans.setdefault(subject, []).append((first, last))

    def __contains__(self, match: Match) -> bool:
        number = match.entry.global_seq
        return any(first <= number <= last for first, last in self._spans.get(match.entry.subject, ()))


def write_backfill(tx: Transaction, reaction: Reaction, fired: Sequence[SimulatedTask[Match]]) -> BackfillResult:
    """Create tasks or runs for simulated tasks, in the order of the journal. Raises ReactionChanged."""
    present = registry.find(tx, reaction.reaction_id)
    if present is None or present.version != reaction.version:
        raise ReactionChanged(
            f"The reaction {reaction.reaction_id!r} was changed while its history was matched; what was written stays."
            " Match its history again under another --name: no entry gets a second task."
        )
    if not fired:
        return BackfillResult()
    if reaction.begins_runs_immediately:
        sources = [agent_runs.source_of(one.newest.entry) for one in fired]
        runs = agent_runs.launch_runs(tx, reaction, sources)
        return BackfillResult(runs=runs, known=len(fired) - runs)
    known = matcher_steps.read_known_sources(tx, reaction.reaction_id, [one.newest.entry.global_seq for one in fired])
    new = [one for one in fired if one.newest.entry.global_seq not in known]
    return BackfillResult(tasks=enqueue_backfill(tx, new, now_ms()), known=len(fired) - len(new))
