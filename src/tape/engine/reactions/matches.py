"""Matching of entries against compiled reactions, in memory and without side effects."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from tape.cel import EntryView
from tape.engine.predicate_budget import REACTION, PredicateBudget
from tape.engine.reactions.compiled import CompiledReaction, ReactionIndex, Shard
from tape.engine.reactions.shards import fnv1a
from tape.model.entry import Entry
from tape.model.reaction_states import HandlerKind

log = logging.getLogger(__name__)

# (reaction, shard number, shard, global_seq): whether the shard matches this entry.
ShardFilter = Callable[[CompiledReaction, int, Shard, int], bool]


class Match(msgspec.Struct, frozen=True):
    """An entry that matches a reaction."""

    compiled: CompiledReaction
    shard: int
    entry: Entry


class PredicateErrors(msgspec.Struct):
    """The predicate errors of one shard in a batch: their number and the last one."""

    count: int
    last_error: str
    last_global_seq: int


class MatchResult(msgspec.Struct):
    """The matches and predicate errors of a batch of entries.

    `deferred` shards had no CPU budget left: the position up to which they are matched.
    """

    matches: list[Match]
    predicate_errors: dict[tuple[str, int], PredicateErrors]
    evaluated: int = 0
    deferred: dict[tuple[str, int], int] = {}


class TooLongForLoop(Exception):
    """A predicate takes more time than the event loop has for it."""


def match_entries(
    index: ReactionIndex,
    entries: Sequence[Entry],
    is_wanted: ShardFilter,
    budget: PredicateBudget | None = None,
    *,
    is_inline: bool = False,
) -> MatchResult:
    """Find the reactions that match each entry. A predicate error counts as no match of that reaction.

    With a budget, a reaction that has used it up is matched no further in this batch. Inline, on the event loop, it
    raises TooLongForLoop if a predicate takes long.
    """
    result = MatchResult([], {})
    matches, deferred = result.matches, result.deferred
    evaluations = budget.evaluations(REACTION) if budget is not None else None
    for entry in entries:
        envelope = EntryView(entry)
        hashed = -1
        for compiled in index.candidates(entry, envelope):
            if compiled.tenants and entry.tenant not in compiled.tenants:
                continue
            shards = compiled.shards
            if len(shards) == 1:
                number = 0
            else:
                hashed = hashed if hashed >= 0 else fnv1a(entry.run_id)
                number = hashed % compiled.reaction.num_shards
            shard = shards.get(number)
            if shard is None or not is_wanted(compiled, number, shard, entry.global_seq):
                continue
            predicate = compiled.predicate
            if predicate is not None:
                key = (compiled.reaction.reaction_id, number)
                account = compiled.open_account(budget) if budget is not None else None
                # Once deferred, a shard stays so for the batch: it is matched in the order of the journal.
                if account is not None and (key in deferred or account.wait_s > 0):
                    deferred.setdefault(key, entry.global_seq - 1)
                    continue
                result.evaluated += 1
                errors = predicate.errors
                try:
                    if evaluations is None or account is None:
                        is_match = predicate.matches(envelope)
                    elif not is_inline:
                        is_match = evaluations.matches(account, predicate, envelope)
                    elif (answer := evaluations.matches_inline(account, predicate, envelope)) is not None:
                        is_match = answer
                    else:
                        raise TooLongForLoop
                except TooLongForLoop:
                    raise
                except Exception as error:  # a defect of the evaluator must not stop the other reactions
                    log.exception("predicate of reaction %r raised", compiled.reaction.reaction_id)
                    record_error(result, key, entry.global_seq, repr(error))
                    continue
                if not is_match:
                    if predicate.errors != errors:
                        record_error(result, key, entry.global_seq, str(predicate.last_error))
                    continue
            matches.append(Match(compiled, number, entry))
    if evaluations is not None:
        evaluations.close()
    return result


def record_error(result: MatchResult, key: tuple[str, int], global_seq: int, error: str) -> None:
    """Count a predicate error of a shard."""
    errors_seen = result.predicate_errors.setdefault(key, PredicateErrors(0, "", 0))
    errors_seen.count += 1
    errors_seen.last_global_seq = global_seq
    errors_seen.last_error = error


def is_due_immediately(match: Match) -> bool:
    """Whether a match becomes a task that can be claimed immediately."""
    reaction = match.compiled.reaction
    return reaction.handler_kind != HandlerKind.AGENT and not reaction.debounce_ms
