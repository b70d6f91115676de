"""Matching of entries against compiled reactions, in memory and without side effects."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from tape.cel import EntryView
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
    """The matches and predicate errors of a batch of entries."""

    matches: list[Match]
    predicate_errors: dict[tuple[str, int], PredicateErrors]
    evaluated: int = 0


def match_entries(index: ReactionIndex, entries: Sequence[Entry], is_wanted: ShardFilter) -> MatchResult:
    """Find the reactions that match each entry. A predicate error counts as no match of that reaction."""
    result = MatchResult([], {})
    matches = result.matches
    for entry in entries:
        envelope = EntryView(entry)
        hashed = -1
        for compiled in index.candidates(entry, envelope):
            if compiled.tenant and compiled.tenant != entry.tenant:
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
                result.evaluated += 1
                errors = predicate.errors
                try:
                    is_match = predicate.matches(envelope)
                except Exception as error:  # a defect of the evaluator must not stop the other reactions
                    log.exception("predicate of reaction %r raised", compiled.reaction.reaction_id)
                    _record_error(result, compiled, number, entry, repr(error))
                    continue
                if not is_match:
                    if predicate.errors != errors:
                        _record_error(result, compiled, number, entry, str(predicate.last_error))
                    continue
            matches.append(Match(compiled, number, entry))
    return result


def _record_error(result: MatchResult, compiled: CompiledReaction, shard: int, entry: Entry, error: str) -> None:
    key = (compiled.reaction.reaction_id, shard)
    errors_seen = result.predicate_errors.setdefault(key, PredicateErrors(0, "", 0))
    errors_seen.count += 1
    errors_seen.last_global_seq = entry.global_seq
    errors_seen.last_error = error


def is_due_immediately(match: Match) -> bool:
    """Whether a match becomes a task that can be claimed immediately."""
    reaction = match.compiled.reaction
    return reaction.handler_kind != HandlerKind.AGENT and not reaction.debounce_ms
