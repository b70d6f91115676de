"""Retention: removing the oldest entries without breaking what can be proven about the rest."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tape.errors import InvalidInput
from tape.journal.appender import append, read_head
from tape.journal.damage import clear_damage
from tape.journal.epochs import read_epochs
from tape.journal.key_index import drop_blocks
from tape.journal.pruned_types import record_pruned
from tape.journal.reader import position_before
from tape.model import subject
from tape.model.entry import Draft, checked
from tape.store import Database, Reader, Transaction

CHUNK = 10_000


async def prune(
    database: Database,
    *,
    before_seq: int | None = None,
    before_ms: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Remove entries below a global_seq, or older than a time; the number of those removed.

    Works in chunks, so writers wait only briefly. The chain value before the new oldest entry is
    kept as the anchor from which the rest is proven. Each chunk is journaled in the transaction that
    removes it, so that a prune that is interrupted can be proven too.
    """
    head = await database.read(read_head)
    if before_seq is None:
        if before_ms is None:
            raise InvalidInput("prune needs before_seq or before_ms.")
        moment = before_ms
        before_seq = await database.read(lambda reader: position_before(reader, moment)) + 1
    if before_seq > head.global_seq + 1:
        raise InvalidInput(f"before_seq {before_seq} is beyond the head of the journal ({head.global_seq}).")
    end = await database.read(lambda reader: _after_hole(reader, before_seq))
    total = max(end - head.oldest, 0)
    oldest, removed = head.oldest, 0
    while oldest < end:
        oldest, count = await database.write(lambda tx: _remove_chunk(tx, end))
        removed += count
        progress(min(oldest, end) - head.oldest, total)
    return removed


def _after_hole(reader: Reader, before_seq: int) -> int:
    """The number, or that of the next entry if an epoch says that no entry has it."""
    for epoch in read_epochs(reader):
        if epoch.cut_after < before_seq < epoch.resumes_at:
            return epoch.resumes_at
    return before_seq


def _remove_chunk(tx: Transaction, end: int) -> tuple[int, int]:
    """Remove up to 10,000 of the entries below `end`; the oldest that is left, and how many were removed."""
    before = read_head(tx)
    if before.oldest >= end:  # another process removes the same ones
        return before.oldest, 0
    sql = "SELECT global_seq FROM tape_journal WHERE global_seq >= ? ORDER BY global_seq LIMIT 1 OFFSET ?"
    row = tx.one(sql, before.oldest, CHUNK)
    oldest = min(row[0], end) if row else end
    row = tx.one("SELECT chain FROM tape_journal WHERE global_seq < ? ORDER BY global_seq DESC LIMIT 1", oldest)
    anchor = row[0] if row else before.anchor
    record_pruned(tx, oldest)
    removed = tx.execute("DELETE FROM tape_journal WHERE global_seq < ?", oldest)
    drop_blocks(tx, oldest)
    tx.execute("DELETE FROM tape_entry_causes WHERE global_seq < ?", oldest)
    clear_damage(tx, before.oldest, oldest - 1)
    tx.execute("UPDATE tape_head SET oldest = ?, anchor = ? WHERE id = 1", oldest, anchor)
    facts = {"oldest": oldest, "removed": removed, "anchor": anchor.hex()}
    note = Draft(
        subject=subject.journal_pruned(),
        run_id="journal",
        payload_json=msgspec.json.encode(facts).decode(),
    )
    append(tx, [checked(note)])
    return oldest, removed
