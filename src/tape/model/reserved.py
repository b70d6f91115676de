"""Reserved kinds: entries that only Tape itself writes.

The journal is the users' log and the server's control channel at once: reactions, watchers and workers act on these
entries. So a client cannot append them; each is written by the call that checks what it says.
"""

from __future__ import annotations

from collections.abc import Mapping

from tape.errors import ReservedKind
from tape.model.entry import Draft
from tape.model.event_types import EVENTS

# Each reserved kind, and how an entry of it comes about.
WRITTEN_BY: Mapping[str, str] = {
    "run": "BeginRun, EndRun or CompactRun",
    "decision": "RecordDecision",
    "effect": "BeginEffect, CompleteEffect or ReconcileEffect",
    "obligation": "RegisterCompensation, ResolveObligation or RecordObligationAttempt",
    "gate": "AwaitSignal or SendSignal",
    "timer": "SetTimer",
    "budget": "SetBudget",
    "value": "WriteValue or DeleteValue",
    "command": "Execute",
    "policy": "BeginEffect, when it denies a scope",
    "subscription": "the lifecycle calls and runtimes of subscriptions",
    "wallet": "`tape wallet`",
    "audit": "the server",
    "auth": "the server",
    "bus": "the server",
    "journal": "the server and `tape prune`",
}
# Types of Tape's own in kinds that are otherwise the users'.
_TYPES: Mapping[str, str] = {
    event.name: "AppendEvent" if event.name == "event.appended" else "the server"
    for event in EVENTS
    if event.name.partition(".")[0] not in WRITTEN_BY
}
_KINDS_WITH_TYPES = frozenset(name.partition(".")[0] for name in _TYPES)


def writer_of(kind: str, subject: str) -> str:
    """What writes entries of a reserved kind or type; empty if clients may append them. Takes a normal subject."""
    if kind in WRITTEN_BY:
        return WRITTEN_BY[kind]
    if kind in _KINDS_WITH_TYPES:
        verb = subject[len(kind) + 7 :].partition("/")[0]
        return _TYPES.get(f"{kind}.{verb}" if verb else kind, "")
    return ""


def is_reserved(draft: Draft) -> bool:
    """Whether a checked draft is of a reserved kind or type."""
    return bool(writer_of(draft.kind, draft.subject))


def refuse_reserved(draft: Draft) -> None:
    """Raise ReservedKind if a client cannot append this checked draft."""
    if writer := writer_of(draft.kind, draft.subject):
        raise ReservedKind(
            f"subject {draft.subject!r}: entries of the kind {draft.kind!r} are reserved; they are written by {writer}."
            " Choose another kind for your own events."
        )
