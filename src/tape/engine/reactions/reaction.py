"""A reaction: subject pattern, predicate, handler kind and limits."""

from __future__ import annotations

import re

import msgspec

from tape.cel import compile_predicate
from tape.engine.reactions.shards import MAX_SHARDS
from tape.errors import InvalidPattern, InvalidPredicate, InvalidReaction
from tape.model.entry import check_id
from tape.model.pattern import Pattern
from tape.model.reaction_states import HandlerKind
from tape.store.records import Record, columns

# The id is part of the invocation id of the runs that a reaction begins.
MAX_ID_BYTES = 400
HOUR_MS = 3_600_000
MAX_DEBOUNCE_MS = 24 * HOUR_MS

# Field: (default, which 0 on the wire stands for; maximum).
NUMBERS = {
    "max_concurrency": (1, 100_000),
    "rate_limit_per_s": (0, 1_000_000),
    "debounce_ms": (0, MAX_DEBOUNCE_MS),
    "retry_max": (5, 10_000),
    "retry_backoff_ms": (1_000, HOUR_MS),
    "dlq_after_n": (5, 10_000),
    "num_shards": (1, MAX_SHARDS),
}
_TARGET = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+/\S+")


class Reaction(Record, frozen=True):
    """A row of tape_reactions."""

    reaction_id: str
    name: str
    subject_pattern: str
    predicate_cel: str
    handler_kind: HandlerKind
    agent_app: str = ""
    publish_target: str = ""
    max_concurrency: int = 1
    rate_limit_per_s: int = 0
    debounce_ms: int = 0
    retry_max: int = 5
    retry_backoff_ms: int = 1_000
    dlq_after_n: int = 5
    num_shards: int = 1
    created_at_ms: int = 0
    deleted: bool = False
    allow_self: bool = False
    strict_order: bool = False
    updated_at_ms: int = 0
    version: int = 0
    # It fires on the entries of this tenant; empty is every tenant, as for the reactions of pools.
    tenant: str = ""
    # Whether what it begins belongs to the tenant of its entry; else, without a tenant, to that of the app.
    in_source_tenant: bool = False

    @property
    def max_attempts(self) -> int:
        """The number of attempts before a task is dead-lettered: the smaller of the two limits."""
        return min(self.dlq_after_n, self.retry_max + 1)

    @property
    def begins_runs_immediately(self) -> bool:
        """Whether a match becomes a run at once; with a debounce or a rate limit it becomes a task first."""
        return self.handler_kind == HandlerKind.AGENT and not self.debounce_ms and not self.rate_limit_per_s


COLUMNS = columns(Reaction)


def check_reaction(wanted: Reaction) -> Reaction:
    """Fill in the defaults. Raises InvalidReaction, InvalidPattern or InvalidPredicate, which name the field."""
    _check_texts(wanted)
    try:
        Pattern(wanted.subject_pattern)
    except InvalidPattern as error:
        raise InvalidPattern(f"subject_pattern: {error}") from error
    _check_predicate(wanted.predicate_cel)
    _check_target(wanted)
    numbers = {name: _number(name, getattr(wanted, name)) for name in NUMBERS}
    return msgspec.structs.replace(wanted, **numbers)


def _check_texts(wanted: Reaction) -> None:
    for name in ("reaction_id", "name", "agent_app", "publish_target"):
        check_id(name, getattr(wanted, name))
    if len(wanted.reaction_id.encode()) > MAX_ID_BYTES:
        raise InvalidReaction(f"reaction_id {wanted.reaction_id[:40]!r}… has more than {MAX_ID_BYTES} bytes.")
    if not wanted.subject_pattern:
        raise InvalidReaction("subject_pattern is empty; to react to every entry write ** as the pattern.")
    check_id("subject_pattern", wanted.subject_pattern)


def _check_predicate(text: str) -> None:
    predicate = compile_predicate(text)
    if (found := predicate.result_type.name) not in ("bool", "dyn"):
        raise InvalidPredicate(f"the predicate gives {found}, so it can never match; compare it with something", text)


def _check_target(wanted: Reaction) -> None:
    kind = wanted.handler_kind
    needed = {HandlerKind.AGENT: "agent_app", HandlerKind.PUBLISH: "publish_target"}
    for owner, name in needed.items():
        value = getattr(wanted, name)
        if owner == kind and not value:
            raise InvalidReaction(f"{name} is empty; a reaction of kind {kind.name} needs one.")
        if owner != kind and value:
            raise InvalidReaction(
                f"{name} {value!r} does not go with kind {kind.name}; leave it out, or use {owner.name}."
            )
    if wanted.publish_target and not _TARGET.fullmatch(wanted.publish_target):
        raise InvalidReaction(
            f"publish_target {wanted.publish_target!r} must look like pubsub://project/topic, nats://host/subject"
            " or kafka://broker/topic."
        )


def _number(name: str, value: int) -> int:
    default, most = NUMBERS[name]
    if not 0 <= value <= most:
        raise InvalidReaction(f"{name} {value} must lie between 0 and {most}; 0 means {default}.")
    return value or default
