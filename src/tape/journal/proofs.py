"""Proofs beyond the chain: what the rows beside the entries claim, and what others know of the journal.

The chain proves that no entry between two others was changed. It does not prove where the journal begins and ends, nor
which numbers were never given out: rows say so, and a row can be changed by SQL. Each of these claims must be on the
chain itself, in an entry of the server, and the end must reach what a witness or a checkpoint knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tape.journal.appender import read_head
from tape.journal.epochs import Epoch
from tape.journal.findings import Finding
from tape.journal.key_index import look_up_subject
from tape.journal.verifier import Check, VerifyContext
from tape.model import subject
from tape.model.entry import MAX_SEQ
from tape.store import Reader
from tape.store.tail import Tail, find_loss

# Entries of one type that are looked through, newest first.
MAX_LOOKED_AT = 10_000
# Times that a check begins again because a prune moved the beginning of the journal meanwhile.
_TRIES = 5


def find_unproven_prune(reader: Reader, context: VerifyContext) -> Iterator[Finding]:
    """A beginning that no `journal.pruned` entry names: entries were removed in another way, or the row was changed."""
    head = read_head(reader)
    for _ in range(_TRIES):
        if head.oldest <= 1 or _is_journaled(reader, head.oldest, head.anchor):
            return
        before, head = head, read_head(reader)
        if head.oldest == before.oldest:
            break
    detail = (
        f"entries below {head.oldest} are gone, and no journal.pruned entry says so with this anchor: they were removed"
        " without tape prune, or the head row was changed (or a prune of an older version was interrupted: prune again)"
    )
    yield Finding(head.oldest, "prune", detail)


def find_forged_epochs(reader: Reader, context: VerifyContext) -> Iterator[Finding]:
    """Rows of `tape_epochs` and entries `journal.diverged` that do not say the same."""
    by_entry = {epoch.resumes_at: epoch for epoch in context.epochs}
    for epoch in context.epochs:
        if epoch.resumes_at >= context.oldest and epoch.resumes_at <= context.head:
            yield from _find_forged_epoch(reader, epoch)
    rows = _entries(reader, subject.journal_diverged(), context.oldest)
    for global_seq, payload in rows:
        if global_seq not in by_entry and global_seq <= context.head:
            facts = _facts(payload)
            detail = f"journal.diverged begins epoch {facts.get('epoch')!r:.20}, and tape_epochs has no such row"
            yield Finding(global_seq, "epoch", detail)
    newest = max((epoch.epoch for epoch in context.epochs), default=1)
    if (now := read_head(reader)).epoch != newest and now.global_seq == context.head:
        yield Finding(now.global_seq, "epoch", f"the head row is of epoch {now.epoch}, tape_epochs ends with {newest}")


def find_lost_tail(known: Tail, source: str) -> Check:
    """A check that the journal still has the last entry that a witness knows."""

    def check_tail(reader: Reader, context: VerifyContext) -> Iterator[Finding]:
        if (loss := find_loss(reader, known)) is not None:
            yield Finding(loss.first, "tail", f"{loss} (known from {source})", loss.last)

    return check_tail


def find_unexpected(global_seq: int, chain: bytes, source: str) -> Check:
    """A check that an entry is there with a chain value that was noted before."""

    def check_expected(reader: Reader, context: VerifyContext) -> Iterator[Finding]:
        head = read_head(reader)
        if global_seq > head.global_seq:
            lost = f"the journal ends at {head.global_seq}, {source} knows entry {global_seq}"
            yield Finding(head.global_seq + 1, "tail", lost, global_seq)
            return
        found = chain_at(reader, global_seq)
        if found is None and global_seq < head.oldest:
            yield Finding(global_seq, "unproven", f"is pruned, so it cannot be compared with {source}; give --archive")
        elif found is None:
            yield Finding(global_seq, "missing", f"{source} knows this entry, and it is not there")
        elif found != chain:
            yield Finding(global_seq, "altered", f"has the chain value {found.hex()}, {source} says {chain.hex()}")

    return check_expected


def find_other_journal(journal_id: str, source: str) -> Check:
    """A check that the journal is the one with that id."""

    def check_journal(reader: Reader, context: VerifyContext) -> Iterator[Finding]:
        if (found := read_head(reader).journal_id) != journal_id:
            yield Finding(
                0, "head", f"this is the journal {found!r:.40}, {source} is of the journal {journal_id!r:.40}"
            )

    return check_journal


OWN_CHECKS: Sequence[Check] = (find_unproven_prune, find_forged_epochs)


def chain_at(reader: Reader, global_seq: int) -> bytes | None:
    """The chain value of an entry of the journal, also of the last pruned one; None if it is not there."""
    row = reader.one("SELECT chain FROM tape_journal WHERE global_seq = ?", global_seq)
    if row is None:
        row = reader.one("SELECT anchor FROM tape_head WHERE oldest = ?", global_seq + 1)
    return None if row is None else bytes(row[0])


def _is_journaled(reader: Reader, oldest: int, anchor: bytes) -> bool:
    for _, payload in _entries(reader, subject.journal_pruned(), oldest):
        facts = _facts(payload)
        if facts.get("oldest") == oldest and facts.get("anchor") == anchor.hex():
            return True
    return False


def _find_forged_epoch(reader: Reader, epoch: Epoch) -> Iterator[Finding]:
    first, last = epoch.cut_after + 1, epoch.resumes_at - 1
    sql = "SELECT payload_json FROM tape_journal WHERE global_seq = ? AND subject = ?"
    row = reader.one(sql, epoch.resumes_at, subject.journal_diverged())
    facts = _facts(row[0]) if row is not None else {}
    claims = {"epoch": epoch.epoch, "cut_after": epoch.cut_after, "resumes_at": epoch.resumes_at}
    if {name: facts.get(name) for name in claims} != claims:
        detail = f"tape_epochs says that epoch {epoch.epoch} begins at {epoch.resumes_at}; no journal.diverged says so"
        yield Finding(first, "epoch", detail, last)
    elif reader.one("SELECT 1 FROM tape_journal WHERE global_seq BETWEEN ? AND ? LIMIT 1", first, last) is not None:
        yield Finding(first, "epoch", f"epoch {epoch.epoch} names this range as lost, and it has entries", last)


def _entries(reader: Reader, name: str, oldest: int) -> list[tuple[Any, ...]]:
    lookup = look_up_subject(name)
    return lookup.select(reader, "global_seq, payload_json", oldest - 1, MAX_SEQ, MAX_LOOKED_AT, newest=True)


def _facts(payload: object) -> dict[str, Any]:
    try:
        facts = msgspec.json.decode(payload if isinstance(payload, str | bytes) else b"null")
    except (msgspec.DecodeError, UnicodeError):
        return {}
    return facts if isinstance(facts, dict) else {}
