"""A step of matching, made durable: the work, the counts and the positions in one transaction.

A step says where it started. If a lane or a cursor stands elsewhere by now, if it belongs to another
server, or if the registry has changed, nothing is written and the caller looks again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tape.base.clock import now_ms
from tape.engine.reactions import agent_runs
from tape.engine.reactions.enqueue import enqueue
from tape.engine.reactions.matches import Findings, Match
from tape.model.reaction_states import HandlerKind
from tape.store import Reader, Transaction

Key = tuple[str, int]


class Step(msgspec.Struct, frozen=True):
    """What a server has found between two positions and wants to be so."""

    owner: str
    version: int
    findings: Findings
    position: int
    # Where the lanes stood, for a step of the lanes.
    lanes: Mapping[int, int] = {}
    # Where shards that catch up stood, for a step of those.
    shards: Mapping[Key, int] = {}

    @property
    def size(self) -> int:
        """About how many bytes the step writes."""
        return 1_024 + sum(len(found.entry.payload_json) + 512 for found in self.findings.matches)


class Done(msgspec.Struct, frozen=True):
    """What a step has written; `ready` are the reactions that have new tasks."""

    tasks: int = 0
    runs: int = 0
    suppressed: int = 0
    ready: frozenset[str] = frozenset()
    joined: frozenset[Key] = frozenset()


class _Counts(msgspec.Struct):
    matched: int = 0
    suppressed: int = 0


def advance(tx: Transaction, step: Step) -> Done | None:
    """Write a step of the lanes that a server holds; None if it was out of date."""
    places = _places(tx)
    if places.version != step.version or any(
        places.owners[lane] != step.owner or places.positions[lane] != position for lane, position in step.lanes.items()
    ):
        return None
    numbers = ", ".join(map(str, step.lanes))
    tx.execute(
        f"UPDATE tape_reaction_lanes SET position = ? WHERE lane IN ({numbers}) AND position < ?",
        step.position,
        step.position,
    )
    return _write(tx, step, step.findings.matches, {}, places.newest_cause)


def catch_up(tx: Transaction, step: Step) -> Done | None:
    """Write a step of shards that are behind; those that have reached their lane join it. None if out of date."""
    places = _places(tx)
    if places.version != step.version:
        return None
    condition, ids = tx.is_any("reaction_id", list({reaction_id for reaction_id, _ in step.shards}))
    rows = tx.query(
        f"SELECT reaction_id, shard, lane, last_global_seq, behind FROM tape_reaction_cursors WHERE {condition}", ids
    )
    cursors = {(reaction_id, shard): (lane, last, behind) for reaction_id, shard, lane, last, behind in rows}
    joined = set()
    for key, position in step.shards.items():
        lane, last, behind = cursors.get(key, (0, -1, 0))
        if last != position or not behind or places.owners[lane] != step.owner:
            return None
        if step.position >= places.positions[lane]:
            joined.add(key)
    matches = _unknown(tx, step.findings.matches)
    places_after = {key: (step.position, int(key not in joined)) for key in step.shards}
    done = _write(tx, step, matches, places_after, places.newest_cause)
    return msgspec.structs.replace(done, joined=frozenset(joined))


class _Places(msgspec.Struct, frozen=True):
    version: int
    positions: dict[int, int]
    owners: dict[int, str]
    newest_cause: int


def _places(tx: Transaction) -> _Places:
    rows = tx.query(
        "SELECT lane, position, owner, (SELECT version FROM tape_reaction_catalog WHERE id = 1),"
        " (SELECT max(global_seq) FROM tape_entry_causes) FROM tape_reaction_lanes"
    )
    positions, owners = {row[0]: row[1] for row in rows}, {row[0]: row[2] for row in rows}
    return _Places(rows[0][3], positions, owners, rows[0][4] or 0)


def _write(
    tx: Transaction,
    step: Step,
    matches: Sequence[Match],
    places_after: Mapping[Key, tuple[int, int]],
    newest_cause: int,
) -> Done:
    now = now_ms()
    counts: dict[Key, _Counts] = {}
    fired: list[Match] = []
    own = own_work(tx, matches, newest_cause)
    for match in matches:
        reaction = match.watch.reaction
        count = counts.setdefault((reaction.reaction_id, match.shard), _Counts())
        if not reaction.allow_self and (reaction.reaction_id, match.entry.global_seq) in own:
            count.suppressed += 1
        else:
            count.matched += 1
            fired.append(match)
    at_once: dict[str, list[Match]] = {}
    waiting = []
    for match in fired:
        if match.watch.reaction.begins_runs_at_once:
            at_once.setdefault(match.watch.reaction.reaction_id, []).append(match)
        else:
            waiting.append(match)
    tasks = enqueue(tx, waiting, now)
    runs = 0
    for group in at_once.values():
        sources = [agent_runs.source_of(match.entry) for match in group]
        runs += agent_runs.launch(tx, group[0].watch.reaction, sources)
    _count(tx, step, counts, places_after, now)
    suppressed = len(matches) - len(fired)
    return Done(tasks, runs, suppressed, frozenset(match.watch.reaction.reaction_id for match in waiting))


def own_work(reader: Reader | Transaction, matches: Sequence[Match], newest_cause: int) -> set[tuple[str, int]]:
    """Those matches that a reaction's own work has caused: its runs' entries, and what its handlers wrote."""
    wary = [match for match in matches if not match.watch.reaction.allow_self]
    if not wary:
        return set()
    own: set[tuple[str, int]] = set()
    numbers = [match.entry.global_seq for match in wary]
    if newest_cause >= min(numbers):
        rows = reader.query(
            "SELECT reaction_id, global_seq FROM tape_entry_causes WHERE global_seq >= ? AND global_seq <= ?",
            min(numbers),
            max(numbers),
        )
        own |= {(reaction_id, global_seq) for reaction_id, global_seq in rows}
    agents = [match for match in wary if match.watch.reaction.handler_kind == HandlerKind.AGENT]
    if agents:
        condition, ids = reader.is_any("run_id", list({match.entry.run_id for match in agents}))
        runs = reader.query(f"SELECT run_id, app_name, invocation_id FROM tape_runs WHERE {condition}", ids)
        begun = {run_id: (app_name, invocation_id) for run_id, app_name, invocation_id in runs}
        for match in agents:
            reaction = match.watch.reaction
            app_name, invocation_id = begun.get(match.entry.run_id, ("", ""))
            if app_name == reaction.agent_app and agent_runs.is_begun_by(reaction.reaction_id, invocation_id):
                own.add((reaction.reaction_id, match.entry.global_seq))
    return own


def known_sources(tx: Transaction, reaction_id: str, numbers: Sequence[int]) -> set[int]:
    """Entries between the first and the last of these that are tasks of a reaction already, of whatever shard."""
    rows = tx.query(
        "SELECT source_global_seq FROM tape_tasks WHERE reaction_id = ? AND source_global_seq >= ?"
        " AND source_global_seq <= ?",
        reaction_id,
        min(numbers),
        max(numbers),
    )
    return {row[0] for row in rows}


def _unknown(tx: Transaction, matches: Sequence[Match]) -> list[Match]:
    """Without those that are tasks already: a reaction that was deleted and came back may begin further back."""
    if not matches:
        return []
    numbers = [match.entry.global_seq for match in matches]
    ids = {match.watch.reaction.reaction_id for match in matches}
    known = {reaction_id: known_sources(tx, reaction_id, numbers) for reaction_id in ids}
    return [match for match in matches if match.entry.global_seq not in known[match.watch.reaction.reaction_id]]


_COUNTED = ("matched", "suppressed", "errors", "last_error", "last_error_seq")


def _count(
    tx: Transaction,
    step: Step,
    counts: Mapping[Key, _Counts],
    places_after: Mapping[Key, tuple[int, int]],
    now: int,
) -> None:
    """Bring the cursor rows of the shards that had something to do up to date, all at once."""
    mishaps = step.findings.mishaps
    touched = counts.keys() | mishaps.keys() | places_after.keys()
    if not touched:
        return
    if len(touched) == 1 and not mishaps and not places_after:
        (key,) = touched
        _count_one(tx, key, counts[key], step.position, now)
        return
    condition, ids = tx.is_any("reaction_id", list({reaction_id for reaction_id, _ in touched}))
    names = ("reaction_id", "shard", "last_global_seq", "last_processed_at_ms", "lane", "behind", *_COUNTED)
    rows = tx.query(f"SELECT {', '.join(names)} FROM tape_reaction_cursors WHERE {condition}", ids)
    new = []
    for row in rows:
        key = (row[0], row[1])
        if key not in touched:
            continue
        position, behind = places_after.get(key, (max(step.position, row[2]), row[5]))
        matched, suppressed, errors, last_error, last_error_seq = row[6:]
        if (count := counts.get(key)) is not None:
            matched += count.matched
            suppressed += count.suppressed
        if (mishap := mishaps.get(key)) is not None:
            errors += mishap.count
            last_error, last_error_seq = mishap.error[:1_000].replace("\0", ""), mishap.global_seq
        new.append((*key, position, now, row[4], behind, matched, suppressed, errors, last_error, last_error_seq))
    tx.upsert("tape_reaction_cursors", ("reaction_id", "shard"), names, new)


def _count_one(tx: Transaction, key: Key, count: _Counts, position: int, now: int) -> None:
    """The same for the usual case of one entry that one reaction wants, in one statement."""
    tx.execute(
        "UPDATE tape_reaction_cursors SET last_global_seq = ?, last_processed_at_ms = ?, matched = matched + ?,"
        " suppressed = suppressed + ? WHERE reaction_id = ? AND shard = ?",
        position,
        now,
        count.matched,
        count.suppressed,
        *key,
    )
