"""A backfill: work for entries that came before their reaction did, written once beside what servers match.

Servers match what comes after the place where a reaction began, and never look back. A backfill writes tasks only
for what lies behind them, in the same transaction as its own position, and only for entries that have no task.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tape.base.clock import now_ms
from tape.engine.reactions import agent_runs, matcher_steps, registry
from tape.engine.reactions.compiled import Catalog, News, Shard
from tape.engine.reactions.enqueue import enqueue_past
from tape.engine.reactions.matches import Findings, Match, match
from tape.engine.reactions.reaction import Reaction
from tape.engine.reactions.simulation import Fired
from tape.errors import InvalidReaction, ReactionChanged
from tape.model.entry import Entry
from tape.store import Reader, Transaction


class Made(msgspec.Struct, frozen=True):
    """What was written: tasks, runs, and how many of the matches had their task already."""

    tasks: int = 0
    runs: int = 0
    known: int = 0


def alone(reaction: Reaction) -> Catalog:
    """A catalog of one reaction that has not looked at anything yet."""
    shards = {number: Shard(0, 0, False) for number in range(reaction.num_shards)}
    catalog = Catalog()
    catalog.apply(News(1, [msgspec.structs.replace(reaction, deleted=False)], {reaction.reaction_id: shards}))
    return catalog


def match_all(catalog: Catalog, entries: Sequence[Entry]) -> Findings:
    """What fires on entries, by the matcher of the servers, wherever shards stand."""
    return match(catalog, entries, lambda watch, number, shard, global_seq: True)


def named(reader: Reader, name: str) -> Reaction:
    """The registered reaction with that id, or the only one with that name."""
    found = registry.find(reader, name)
    if found is None:
        same = [one for one in registry.registered(reader) if one.name == name]
        if len(same) != 1:
            problem = f"{len(same)} reactions have the name {name!r}" if same else f"there is no reaction {name!r}"
            known = ", ".join(one.reaction_id for one in (same or registry.registered(reader)[:10]))
            raise InvalidReaction(f"{problem}; give an id" + (f": {known}." if known else "; none is registered."))
        found = same[0]
    if found.deleted:
        raise InvalidReaction(
            f"The reaction {name!r} is deregistered; register it again before its history is matched."
        )
    return found


def without_own_work(reader: Reader, matches: Sequence[Match]) -> list[Match]:
    """The matches that the reaction's own work has not caused, unless it allows that."""
    row = reader.one("SELECT max(global_seq) FROM tape_entry_causes")
    own = matcher_steps.own_work(reader, matches, (row[0] if row else 0) or 0)
    return [one for one in matches if (one.watch.reaction.reaction_id, one.entry.global_seq) not in own]


class Covered:
    """What tasks of servers have taken in already: with a debounce, entries that have no task of their own."""

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


def write(tx: Transaction, reaction: Reaction, fired: Sequence[Fired[Match]]) -> Made:
    """Make the work of what would have fired, in the order of the journal. Raises ReactionChanged."""
    present = registry.find(tx, reaction.reaction_id)
    if present is None or present.version != reaction.version:
        raise ReactionChanged(
            f"The reaction {reaction.reaction_id!r} was changed while its history was matched; what was written stays."
            " Match its history again under another --name: no entry gets a second task."
        )
    if not fired:
        return Made()
    if reaction.begins_runs_at_once:
        sources = [agent_runs.source_of(one.newest.entry) for one in fired]
        runs = agent_runs.launch(tx, reaction, sources)
        return Made(runs=runs, known=len(fired) - runs)
    known = matcher_steps.known_sources(tx, reaction.reaction_id, [one.newest.entry.global_seq for one in fired])
    new = [one for one in fired if one.newest.entry.global_seq not in known]
    return Made(tasks=enqueue_past(tx, new, now_ms()), known=len(fired) - len(new))
