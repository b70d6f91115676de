"""From entries to matches: which reactions fire, in memory and without side effects."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from tape.cel import EntryView
from tape.engine.reactions.compiled import Catalog, Shard, Watch
from tape.engine.reactions.shards import fnv1a
from tape.model.entry import Entry
from tape.model.reaction_states import HandlerKind

log = logging.getLogger(__name__)

# Whether a shard is to be asked about the entry with this number.
Scope = Callable[[Watch, int, Shard, int], bool]


class Match(msgspec.Struct, frozen=True):
    """An entry that a reaction fires on."""

    watch: Watch
    shard: int
    entry: Entry


class Mishap(msgspec.Struct):
    """How often a predicate failed in a batch, and how the last time."""

    count: int
    error: str
    global_seq: int


class Findings(msgspec.Struct):
    """What a batch of entries gave."""

    matches: list[Match]
    mishaps: dict[tuple[str, int], Mishap]
    evaluated: int = 0


def match(catalog: Catalog, entries: Sequence[Entry], scope: Scope) -> Findings:
    """Find what fires on each entry. A predicate that fails counts as no match, for that reaction alone."""
    findings = Findings([], {})
    matches = findings.matches
    for entry in entries:
        envelope = EntryView(entry)
        hashed = -1
        for watch in catalog.candidates(entry, envelope):
            shards = watch.shards
            if len(shards) == 1:
                number = 0
            else:
                hashed = hashed if hashed >= 0 else fnv1a(entry.run_id)
                number = hashed % watch.reaction.num_shards
            shard = shards.get(number)
            if shard is None or not scope(watch, number, shard, entry.global_seq):
                continue
            predicate = watch.predicate
            if predicate is not None:
                findings.evaluated += 1
                errors = predicate.errors
                try:
                    is_match = predicate.matches(envelope)
                except Exception as error:  # an error of ours: it must not hold up the other reactions
                    log.exception("the predicate of reaction %r failed", watch.reaction.reaction_id)
                    _note(findings, watch, number, entry, repr(error))
                    continue
                if not is_match:
                    if predicate.errors != errors:
                        _note(findings, watch, number, entry, str(predicate.last_error))
                    continue
            matches.append(Match(watch, number, entry))
    return findings


def _note(findings: Findings, watch: Watch, shard: int, entry: Entry, error: str) -> None:
    key = (watch.reaction.reaction_id, shard)
    mishap = findings.mishaps.setdefault(key, Mishap(0, "", 0))
    mishap.count += 1
    mishap.global_seq = entry.global_seq
    mishap.error = error


def is_due_at_once(match: Match) -> bool:
    """Whether a match is a task that can be handed out right away."""
    reaction = match.watch.reaction
    return reaction.handler_kind != HandlerKind.AGENT and not reaction.debounce_ms
