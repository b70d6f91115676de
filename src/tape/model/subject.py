"""Subjects: `/tape/<kind>/<verb>/<dim>…`, where every entry says what it is about.

A segment is percent-encoded UTF-8, so that no key of a user can break the grammar. The empty
key is written `_` and the key `_` is written `%5F`: every key comes back as it went in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import quote, unquote_to_bytes

from tape.errors import InvalidSubject

ROOT = "tape"
MAX_BYTES = 2_000  # PostgreSQL refuses index entries beyond about 2,700 bytes
_SAFE = ":@+=,"  # kept as they are, besides letters, digits and -._~
_WORD = re.compile(r"[a-z0-9][a-z0-9._-]*")
_SEGMENT = re.compile(r"(?:[A-Za-z0-9\-._~:@+=,]|%[0-9A-F]{2})+")
_ALLOWED = "letters, digits, - . _ ~ : @ + = , and %XX"


def encode(key: str) -> str:
    """Any key as one segment."""
    if not key:
        return "_"
    if key == "_":
        return "%5F"
    try:
        return quote(key, safe=_SAFE)
    except UnicodeEncodeError as error:
        raise InvalidSubject(f"The key {key!r} has a lone surrogate, which is not Unicode text.") from error


def decode(segment: str) -> str:
    """The key that a segment stands for."""
    return "" if segment == "_" else unescape(segment)


def unescape(segment: str) -> str:
    """A segment without its percent-encoding; what two segments are compared by."""
    if "%" not in segment:
        return segment
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError as error:
        raise InvalidSubject(f"The segment {segment!r} is not percent-encoded UTF-8.") from error


def build(kind: str, verb: str, *dims: str) -> str:
    """The subject of a kind, a verb and any keys."""
    for name, word in (("kind", kind), ("verb", verb)):
        if not _WORD.fullmatch(word):
            raise InvalidSubject(
                f"The {name} {word!r} must be lower-case letters, digits, '.', '_' or '-', not beginning with a sign."
            )
    return _checked_length("/".join(("", ROOT, kind, verb, *map(encode, dims))))


def parse(subject: str) -> tuple[str, ...]:
    """The decoded segments after `/tape`: kind, verb, keys."""
    return tuple(decode(segment) for segment in normalize(subject).split("/")[2:])


@lru_cache(maxsize=4096)
def normalize(subject: str) -> str:
    """The one spelling of a subject, or an error that says what is wrong with it."""
    if not subject.startswith(f"/{ROOT}/"):
        raise InvalidSubject(f"The subject {subject!r} must begin with /{ROOT}/, for example /tape/order/created/42.")
    segments = subject.split("/")[2:]
    if not _WORD.fullmatch(segments[0]):
        raise InvalidSubject(
            f"The kind {segments[0]!r} in the subject {subject!r} must be lower-case letters, digits, '.', '_' or '-'."
        )
    if len(segments) > 1 and not _WORD.fullmatch(segments[1]):
        raise InvalidSubject(
            f"The verb {segments[1]!r} in the subject {subject!r} must be lower-case letters, digits, '.', '_' or '-'."
        )
    keys = [_respell(segment, subject) for segment in segments[2:]]
    return _checked_length("/".join(("", ROOT, *segments[:2], *keys)))


def kind_of(subject: str) -> str:
    """The kind of a normal subject."""
    return subject.split("/", 3)[2]


def verb_of(subject: str) -> str:
    """The verb of a normal subject, or an empty string."""
    parts = subject.split("/", 4)
    return parts[3] if len(parts) > 3 else ""


def _respell(segment: str, subject: str) -> str:
    if not segment:
        raise InvalidSubject(f"The subject {subject!r} has an empty segment; an empty key is written '_'.")
    if "*" in segment:
        raise InvalidSubject(f"The subject {subject!r} has a wildcard; only patterns may. A literal * is written %2A.")
    if _SEGMENT.fullmatch(segment) and "%" not in segment:
        return segment
    if "%" in segment and not re.fullmatch(r"(?:[^%]|%[0-9A-Fa-f]{2})+", segment):
        raise InvalidSubject(f"The segment {segment!r} in {subject!r} has a % that no two hex digits follow (use %25).")
    if segment.startswith("%") and segment.upper() == "%5F":
        return "%5F"
    respelt = encode(unescape(segment))
    if not _SEGMENT.fullmatch(respelt):  # pragma: no cover - encode() yields nothing else
        raise InvalidSubject(f"The segment {segment!r} in {subject!r} may have only {_ALLOWED}.")
    return respelt


def _checked_length(subject: str) -> str:
    if len(subject) > MAX_BYTES:
        raise InvalidSubject(
            f"The subject {subject[:60]!r}… has {len(subject)} bytes; {MAX_BYTES} is the limit. Use shorter keys."
        )
    return subject


# ── the subjects that Tape itself emits, one constructor each ─────────────────────────────────


def run(status: str, app: str, user: str, session: str, run_id: str) -> str:
    """A run began or changed its status."""
    return build("run", status.lower(), app, user, session, run_id)


def decision_recorded(run_id: str, decision_index: int) -> str:
    """A model's decision was recorded."""
    return build("decision", "recorded", run_id, str(decision_index))


def effect(status: str, tool: str, run_id: str) -> str:
    """An effect is pending, confirmed, failed, unknown or reconciled."""
    return build("effect", status.lower(), tool, run_id)


def obligation(status: str, kind: str, run_id: str) -> str:
    """An obligation was registered or changed its status."""
    return build("obligation", status.lower(), kind, run_id)


def gate(status: str, name: str, run_id: str) -> str:
    """A run waits at a gate, or was released from it."""
    return build("gate", status.lower(), name, run_id)


def timer(status: str, kind: str, run_id: str) -> str:
    """A timer was set or cancelled, or the server has fired it."""
    return build("timer", status.lower(), kind, run_id)


def value_changed(namespace: str, key: str) -> str:
    """A value was written."""
    return build("value", "changed", namespace, key)


def value_deleted(namespace: str, key: str) -> str:
    """A value was deleted."""
    return build("value", "deleted", namespace, key)


def event_appended(app: str, user: str, session: str) -> str:
    """An event was appended to a session."""
    return build("event", "appended", app, user, session)


def policy_denied(tool: str, run_id: str) -> str:
    """A run was refused a scope it was not granted."""
    return build("policy", "denied", tool, run_id)


def journal_pruned() -> str:
    """Retention removed the oldest entries."""
    return build("journal", "pruned")


def journal_diverged() -> str:
    """The database lost entries; the numbers go on above them."""
    return build("journal", "diverged")


def journal_damaged() -> str:
    """Entries are not what was written."""
    return build("journal", "damaged")


CANONICAL: Iterable[object] = (
    run,
    decision_recorded,
    effect,
    obligation,
    gate,
    timer,
    value_changed,
    value_deleted,
    event_appended,
    policy_denied,
    journal_pruned,
    journal_diverged,
    journal_damaged,
)
