"""Explanation: why a reaction matched or did not match an entry, and the state of the resulting task or run."""

from __future__ import annotations

import msgspec

from tape.base.clock import now_ms
from tape.cel import EntryView, Explanation, compile_predicate
from tape.engine.reactions import agent_runs, registry, tasks
from tape.engine.reactions.reaction import Reaction
from tape.engine.reactions.shards import shard_of
from tape.engine.reactions.task_order import WAITS_MS
from tape.engine.reactions.tasks import CLAIMED, Task
from tape.engine.security.tenant_aliases import read_owners
from tape.errors import NotFound
from tape.journal.entries import read_entry
from tape.model.entry import Entry
from tape.model.pattern import ONE, REST, Pattern, split
from tape.model.principal import current_principal
from tape.model.reaction_states import HandlerKind, TaskStatus
from tape.model.task_pacing import ahead_us, latest_attempt_ms
from tape.model.tenant_names import plain_name
from tape.store import Reader
from tape.store.lease import latest_expiry_ms
from tape.store.records import load


class ReactionExplanation(msgspec.Struct):
    """One reaction and one entry: the match result, what decided it, and the task or run."""

    reaction: Reaction
    entry: Entry
    matched: bool = False
    verdict: str = ""
    decided_by: str = ""
    predicate: Explanation | None = None
    outcome: str = ""
    task: Task | None = None
    run_id: str = ""
    # The tenant that the entry belongs to: it may have been written under a former name.
    owner: str = ""


def explain(reader: Reader, reaction_id: str, global_seq: int) -> ReactionExplanation:
    """Evaluate the reaction as registered now on an entry, and find the task or run of the match."""
    reaction = registry.get(reader, reaction_id)
    entry, principal = read_entry(reader, global_seq), current_principal()
    if entry is None or not (principal.sees(entry.tenant) and principal.may_read(entry.subject)):
        raise NotFound(f"There is no entry {global_seq}: it was never written, or retention has removed it.")
    account = ReactionExplanation(reaction, entry, owner=read_owners(reader).get(entry.tenant, entry.tenant))
    _evaluate(account)
    _find_outcome(reader, account)
    return account


def explain_mismatch(pattern: Pattern, subject: str) -> str:
    """The first segment at which a subject differs from a pattern; empty if it matches."""
    segments = split(subject)
    for position, wanted in enumerate(pattern.segments):
        if wanted is REST:
            return ""
        if position == len(segments):
            return f"the subject ends before segment {position + 1} of the pattern, {wanted!r}"
        if wanted is not ONE and wanted != segments[position]:
            return f"segment {position + 1} is {segments[position]!r}, the pattern wants {wanted!r}"
    if len(segments) > len(pattern.segments):
        return f"the subject goes on with {segments[len(pattern.segments)]!r} where the pattern ends"
    return ""


def _evaluate(account: ReactionExplanation) -> None:
    reaction, entry = account.reaction, account.entry
    if reaction.tenant and reaction.tenant not in (entry.tenant, account.owner):
        account.decided_by = f"the entry's tenant is {entry.tenant!r}, the reaction's {reaction.tenant!r}"
        account.verdict = f"No match: {account.decided_by}."
        return
    if reason := explain_mismatch(Pattern(reaction.subject_pattern), entry.subject):
        account.decided_by = reason
        account.verdict = f"No match: {reason}."
        return
    if reaction.predicate_cel:
        account.predicate = explanation = compile_predicate(reaction.predicate_cel).explain(EntryView(entry))
        decided = explanation.decided
        account.decided_by = f"{' '.join(decided.expression.split())} → {decided.outcome()}"
        if not explanation.matched:
            has_failed = explanation.root.error is not None
            what = "the predicate fails on this entry" if has_failed else "the predicate is not true"
            account.verdict = f"No match: {what}: {account.decided_by}."
            return
    else:
        account.decided_by = reaction.subject_pattern
    account.matched = True
    account.verdict = "Match: the subject fits" + (" and the predicate is true." if reaction.predicate_cel else ".")


def _find_outcome(reader: Reader, account: ReactionExplanation) -> None:
    reaction, entry = account.reaction, account.entry
    account.task = task = _task_of(reader, reaction, entry, account.owner)
    if reaction.handler_kind == HandlerKind.AGENT:
        account.run_id = _run_of(reader, reaction, entry.tenant, task.source_global_seq if task else entry.global_seq)
    if task is not None:
        account.outcome = _describe_task(reader, reaction, entry, task)
        if account.run_id:
            account.outcome += f" It became the run {account.run_id}."
    elif account.run_id:
        account.outcome = f"The run {account.run_id} was begun for it."
    elif account.matched:
        account.outcome = _explain_no_task(reader, reaction, entry)


def _task_of(reader: Reader, reaction: Reaction, entry: Entry, owner: str) -> Task | None:
    """The task of the entry, also if the entry was debounced into the task of a later one."""
    row = reader.one(
        f"SELECT {tasks.COLUMNS} FROM tape_tasks WHERE reaction_id = ? AND source_global_seq >= ?"
        " AND subject = ? AND first_global_seq <= ? AND tenant IN (?, ?, '') ORDER BY source_global_seq LIMIT 1",
        reaction.reaction_id,
        entry.global_seq,
        entry.subject,
        entry.global_seq,
        entry.tenant,
        owner,
    )
    task = load(Task, row)
    return task if task is not None and current_principal().sees(task.tenant) else None


def _run_of(reader: Reader, reaction: Reaction, tenant: str, global_seq: int) -> str:
    row = reader.one(
        "SELECT run_id FROM tape_runs WHERE app_name = ? AND user_id = '' AND session_id = '' AND invocation_id = ?"
        " AND tenant = ?",
        reaction.agent_app,
        agent_runs.invocation_id(reaction.reaction_id, global_seq),
        agent_runs.tenant_of_run(reaction, tenant),
    )
    return str(row[0]) if row else ""


def _describe_task(reader: Reader, reaction: Reaction, entry: Entry, task: Task) -> str:
    prefix = ""
    if task.source_global_seq != entry.global_seq:
        prefix = (
            f"Debounced into the task of entry {task.source_global_seq} ({task.coalesced} earlier entries went in). "
        )
    return prefix + _describe_status(reader, reaction, task)


def _describe_status(reader: Reader, reaction: Reaction, task: Task) -> str:
    now = now_ms()
    match task.status:
        case TaskStatus.PENDING:
            return _describe_pending(reader, reaction, task, now)
        case TaskStatus.CLAIMED:
            left = task.lease_expires_at_ms - now
            until = f"its lease lasts another {left} ms" if left > 0 else f"its lease expired {-left} ms ago"
            if task.lease_expires_at_ms > latest_expiry_ms(now):
                until = "its lease is void, because the clock was ahead when it was granted"
            return f"Claimed by {task.lease_owner!r} (attempt {task.attempts}); {until}."
        case TaskStatus.DONE:
            return f"Done by {task.lease_owner!r} at attempt {task.attempts}."
        case TaskStatus.DLQ:
            return f"A dead letter after {task.attempts} attempts, because: {task.last_error or 'no reason was given'}."
        case TaskStatus.FAILED:
            return f"Dropped: {task.last_error}."


def _describe_pending(reader: Reader, reaction: Reaction, task: Task, now: int) -> str:
    if task.next_attempt_at_ms == WAITS_MS:
        return f"Waits for an earlier task with the ordering key {task.ordering_key!r} to be closed."
    wait = task.next_attempt_at_ms - now
    if task.next_attempt_at_ms > latest_attempt_ms(now, reaction.debounce_ms):
        wait = 0  # the clock was ahead when the time was written
    if wait > 0 and task.attempts:
        return f"Attempt {task.attempts} failed ({task.last_error}); tried again in {wait} ms."
    if wait > 0:
        return f"Held by the debounce of {reaction.debounce_ms} ms for another {wait} ms."
    running = _count_claimed(reader, reaction.reaction_id, now)
    if reaction.handler_kind != HandlerKind.AGENT and running >= reaction.max_concurrency:
        return f"Waits for a free slot: {running} of {reaction.max_concurrency} tasks are claimed (max_concurrency)."
    pace = reader.one("SELECT next_us FROM tape_reaction_pace WHERE reaction_id = ?", reaction.reaction_id)
    rate = reaction.rate_limit_per_s
    if rate and pace is not None and (ahead := ahead_us(rate, pace[0], now * 1_000)):
        return f"Rate limited to {rate} per second: the next slot is free within {ahead // 1_000 + 1} ms."
    return "Due now: it waits for a dispatcher to claim it."


def _count_claimed(reader: Reader, reaction_id: str, now: int) -> int:
    row = reader.one(
        f"SELECT count(*) FROM tape_tasks WHERE reaction_id = ? AND status = {CLAIMED}"
        " AND lease_expires_at_ms > ? AND lease_expires_at_ms <= ?",
        reaction_id,
        now,
        latest_expiry_ms(now),
    )
    return int(row[0]) if row else 0


def _explain_no_task(reader: Reader, reaction: Reaction, entry: Entry) -> str:
    if reaction.deleted:
        return "The reaction is deregistered."
    shard = shard_of(entry.run_id, reaction.num_shards)
    row = reader.one(
        "SELECT c.last_global_seq, c.behind, l.position FROM tape_reaction_cursors c JOIN tape_reaction_lanes l"
        " ON l.lane = c.lane WHERE c.reaction_id = ? AND c.shard = ?",
        reaction.reaction_id,
        shard,
    )
    position = 0 if row is None else row[0] if row[1] else max(row[0], row[2])
    if position < entry.global_seq:
        return f"Not matched yet: shard {shard} of the reaction is at entry {position}."
    cause = reader.one("SELECT reaction_id FROM tape_entry_causes WHERE global_seq = ?", entry.global_seq)
    sql = "SELECT app_name, invocation_id FROM tape_runs WHERE run_id = ? AND tenant = ?"
    run = reader.one(sql, entry.run_id, entry.tenant)
    own_run = run is not None and run[0] == reaction.agent_app and agent_runs.is_begun_by(reaction.reaction_id, run[1])
    is_cause = cause is not None and reaction.reaction_id in (cause[0], plain_name(cause[0]))
    if not reaction.allow_self and (is_cause or own_run):
        return "Suppressed: the reaction itself caused the entry, and allow_self is off."
    return (
        "There is no task: the reaction was registered or changed after the entry was matched, or its task was"
        " completed and purged."
    )
