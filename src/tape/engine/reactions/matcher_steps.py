"""Matcher steps: tasks, runs, counts and positions of a matched batch, written in one transaction.

A step names the positions it started from. If a partition or a cursor is at another position, if the partition
is leased by another server, or if the registry has changed, nothing is written and the matcher reloads its state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tape.base.clock import now_ms
from tape.engine.reactions import agent_runs
from tape.engine.reactions.enqueue import create_tasks
from tape.engine.reactions.matches import Match, MatchResult, is_due_immediately
from tape.engine.reactions.task_broker import ClaimRound, run_claim_round
from tape.model.reaction_states import HandlerKind
from tape.model.tenant_names import plain_name
from tape.store import Reader, Transaction

Key = tuple[str, int]


class MatcherStep(msgspec.Struct, frozen=True):
    """The result of matching between two positions, to be written."""

    owner: str
    version: int
    result: MatchResult
    position: int
    # The positions of the partitions before the step.
    partitions: Mapping[int, int] = {}
    # The positions of the shards before a step of a catch-up.
    shards: Mapping[Key, int] = {}
    # Which reaction caused an entry, by its global_seq, of entries that the same transaction appends.
    causes: Sequence[tuple[int, str]] = ()

    @property
    def deferred(self) -> Mapping[Key, int]:
        """The shards that were not matched up to the position: up to where they were."""
        return self.result.deferred

    @property
    def immediate_reactions(self) -> frozenset[str]:
        """The reactions whose new tasks can be claimed immediately."""
        return frozenset(
            match.compiled.reaction.reaction_id for match in self.result.matches if is_due_immediately(match)
        )

    @property
    def size(self) -> int:
        """Approximate size of the write in bytes."""
        return 1_024 + sum(len(found.entry.payload_json) + 512 for found in self.result.matches)


class StepResult(msgspec.Struct, frozen=True):
    """What a step has written; `ready_reactions` have new tasks, `joined` shards have caught up."""

    tasks: int = 0
    runs: int = 0
    suppressed: int = 0
    ready_reactions: frozenset[str] = frozenset()
    joined: frozenset[Key] = frozenset()


class _Counts(msgspec.Struct):
    matched: int = 0
    suppressed: int = 0


def advance_partitions(tx: Transaction, step: MatcherStep, claim_round: ClaimRound | None = None) -> StepResult | None:
    """Write a step of the server's leased partitions; deferred shards are behind after it. None if outdated.

    Dispatchers that wait for its tasks claim them in the same transaction, with a claim round.
    """
    state = _read_partition_state(tx)
    if state.version != step.version or any(
        state.owners[partition] != step.owner or state.positions[partition] != position
        for partition, position in step.partitions.items()
    ):
        return None
    numbers = ", ".join(map(str, step.partitions))
    tx.execute(
        f"UPDATE tape_reaction_lanes SET position = ? WHERE lane IN ({numbers}) AND position < ?",
        step.position,
        step.position,
    )
    deferred = {key: (position, 1) for key, position in step.deferred.items()}
    return _write(tx, step, step.result.matches, deferred, state.newest_cause, claim_round)


def advance_shards(tx: Transaction, step: MatcherStep) -> StepResult | None:
    """Write a step of shards that catch up; shards that reach their partition join it. None if outdated."""
    state = _read_partition_state(tx)
    if state.version != step.version:
        return None
    condition, ids = tx.is_any("reaction_id", list({reaction_id for reaction_id, _ in step.shards}))
    rows = tx.query(
        f"SELECT reaction_id, shard, lane, last_global_seq, behind FROM tape_reaction_cursors WHERE {condition}", ids
    )
    cursors = {(reaction_id, shard): (partition, last, behind) for reaction_id, shard, partition, last, behind in rows}
    joined = set()
    for key, position in step.shards.items():
        partition, last, behind = cursors.get(key, (0, -1, 0))
        if last != position or not behind or state.owners[partition] != step.owner:
            return None
        if step.position >= state.positions[partition] and key not in step.deferred:
            joined.add(key)
    matches = _without_tasks(tx, step.result.matches)
    cursors_after = {key: (step.deferred.get(key, step.position), int(key not in joined)) for key in step.shards}
    done = _write(tx, step, matches, cursors_after, state.newest_cause)
    return msgspec.structs.replace(done, joined=frozenset(joined))


class _PartitionState(msgspec.Struct, frozen=True):
    version: int
    positions: dict[int, int]
    owners: dict[int, str]
    newest_cause: int


def _read_partition_state(tx: Transaction) -> _PartitionState:
    rows = tx.query(
        "SELECT lane, position, owner, (SELECT version FROM tape_reaction_catalog WHERE id = 1),"
        " (SELECT max(global_seq) FROM tape_entry_causes) FROM tape_reaction_lanes"
    )
    positions, owners = {row[0]: row[1] for row in rows}, {row[0]: row[2] for row in rows}
    return _PartitionState(rows[0][3], positions, owners, rows[0][4] or 0)


def _write(
    tx: Transaction,
    step: MatcherStep,
    matches: Sequence[Match],
    cursors_after: Mapping[Key, tuple[int, int]],
    newest_cause: int,
    claim_round: ClaimRound | None = None,
) -> StepResult:
    now = now_ms()
    counts: dict[Key, _Counts] = {}
    fired: list[Match] = []
    own = find_own_work(tx, matches, newest_cause, step.causes)
    for match in matches:
        reaction = match.compiled.reaction
        count = counts.setdefault((reaction.reaction_id, match.shard), _Counts())
        if not reaction.allow_self and (reaction.reaction_id, match.entry.global_seq) in own:
            count.suppressed += 1
        else:
            count.matched += 1
            fired.append(match)
    immediate: dict[str, list[Match]] = {}
    waiting = []
    for match in fired:
        if match.compiled.reaction.begins_runs_immediately:
            immediate.setdefault(match.compiled.reaction.reaction_id, []).append(match)
        else:
            waiting.append(match)
    new = create_tasks(tx, waiting, now)
    if claim_round is not None:
        run_claim_round(tx, claim_round, new)
    new.insert(tx)
    runs = 0
    for group in immediate.values():
        sources = [agent_runs.source_of(match.entry) for match in group]
        runs += agent_runs.launch_runs(tx, group[0].compiled.reaction, sources)
    _update_cursors(tx, step, counts, cursors_after, now)
    suppressed = len(matches) - len(fired)
    return StepResult(len(new), runs, suppressed, frozenset(match.compiled.reaction.reaction_id for match in waiting))


def find_own_work(
    reader: Reader | Transaction, matches: Sequence[Match], newest_cause: int, causes: Sequence[tuple[int, str]] = ()
) -> set[tuple[str, int]]:
    """The matches that a reaction caused itself: entries of its runs, and entries that its handlers wrote.

    Causes are read up to the newest one, besides those that are given.
    """
    checked = [match for match in matches if not match.compiled.reaction.allow_self]
    if not checked:
        return set()
    numbers = [match.entry.global_seq for match in checked]
    if newest_cause >= min(numbers):
        causes = [
            *causes,
            *reader.query(
                "SELECT global_seq, reaction_id FROM tape_entry_causes WHERE global_seq >= ? AND global_seq <= ?",
                min(numbers),
                max(numbers),
            ),
        ]
    # A worker names a reaction for all tenants like one of its own tenant.
    own = {(name, global_seq) for global_seq, cause in causes for name in (cause, plain_name(cause))}
    agents = [match for match in checked if match.compiled.reaction.handler_kind == HandlerKind.AGENT]
    if agents:
        condition, ids = reader.is_any("run_id", list({match.entry.run_id for match in agents}))
        runs = reader.query(f"SELECT run_id, tenant, app_name, invocation_id FROM tape_runs WHERE {condition}", ids)
        # Another tenant may append to a run of its own with the same id.
        begun = {(run_id, tenant): (app_name, invocation_id) for run_id, tenant, app_name, invocation_id in runs}
        for match in agents:
            reaction = match.compiled.reaction
            tenants = match.compiled.tenants or {match.entry.tenant}
            runs_of_id = (begun.get((match.entry.run_id, tenant)) for tenant in tenants)
            app_name, invocation_id = next(filter(None, runs_of_id), ("", ""))
            if app_name == reaction.agent_app and agent_runs.is_begun_by(reaction.reaction_id, invocation_id):
                own.add((reaction.reaction_id, match.entry.global_seq))
    return own


def read_known_sources(tx: Transaction, reaction_id: str, numbers: Sequence[int]) -> set[int]:
    """The global_seqs between the first and the last of these that have a task of the reaction, in any shard."""
    rows = tx.query(
        "SELECT source_global_seq FROM tape_tasks WHERE reaction_id = ? AND source_global_seq >= ?"
        " AND source_global_seq <= ?",
        reaction_id,
        min(numbers),
        max(numbers),
    )
    return {row[0] for row in rows}


def _without_tasks(tx: Transaction, matches: Sequence[Match]) -> list[Match]:
    """Drop matches that have a task: a deleted reaction may be restored with an earlier start."""
    if not matches:
        return []
    numbers = [match.entry.global_seq for match in matches]
    ids = {match.compiled.reaction.reaction_id for match in matches}
    known = {reaction_id: read_known_sources(tx, reaction_id, numbers) for reaction_id in ids}
    return [match for match in matches if match.entry.global_seq not in known[match.compiled.reaction.reaction_id]]


_COUNTED = ("matched", "suppressed", "errors", "last_error", "last_error_seq")


def _update_cursors(
    tx: Transaction,
    step: MatcherStep,
    counts: Mapping[Key, _Counts],
    cursors_after: Mapping[Key, tuple[int, int]],
    now: int,
) -> None:
    """Update the cursor rows of the shards that this step touched, in one statement."""
    predicate_errors = step.result.predicate_errors
    touched = counts.keys() | predicate_errors.keys() | cursors_after.keys()
    if not touched:
        return
    if len(touched) == 1 and not predicate_errors and not cursors_after:
        (key,) = touched
        _update_cursor(tx, key, counts[key], step.position, now)
        return
    condition, ids = tx.is_any("reaction_id", list({reaction_id for reaction_id, _ in touched}))
    names = ("reaction_id", "shard", "last_global_seq", "last_processed_at_ms", "lane", "behind", *_COUNTED)
    rows = tx.query(f"SELECT {', '.join(names)} FROM tape_reaction_cursors WHERE {condition}", ids)
    new = []
    for row in rows:
        key = (row[0], row[1])
        if key not in touched:
            continue
        position, behind = cursors_after.get(key, (max(step.position, row[2]), row[5]))
        matched, suppressed, errors, last_error, last_error_seq = row[6:]
        if (count := counts.get(key)) is not None:
            matched += count.matched
            suppressed += count.suppressed
        if (failed := predicate_errors.get(key)) is not None:
            errors += failed.count
            last_error, last_error_seq = failed.last_error[:1_000].replace("\0", ""), failed.last_global_seq
        new.append((*key, position, now, row[4], behind, matched, suppressed, errors, last_error, last_error_seq))
    tx.upsert("tape_reaction_cursors", ("reaction_id", "shard"), names, new)


def _update_cursor(tx: Transaction, key: Key, count: _Counts, position: int, now: int) -> None:
    """Update one cursor row: the common case of one entry that matches one reaction."""
    tx.execute(
        "UPDATE tape_reaction_cursors SET last_global_seq = ?, last_processed_at_ms = ?, matched = matched + ?,"
        " suppressed = suppressed + ? WHERE reaction_id = ? AND shard = ?",
        position,
        now,
        count.matched,
        count.suppressed,
        *key,
    )
