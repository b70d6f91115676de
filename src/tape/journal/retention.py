"""Retention: removing the oldest entries without breaking what can be proven about the rest."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tape.errors import InvalidInput
from tape.journal.appender import append, read_head
from tape.journal.reader import position_before
from tape.model import subject
from tape.model.entry import Draft, checked
from tape.store import Database, Transaction

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
    kept as the anchor from which the rest is proven, and the removal is itself journaled.
    """
    head = await database.read(read_head)
    if before_seq is None:
        if before_ms is None:
            raise InvalidInput("prune needs before_seq or before_ms.")
        moment = before_ms
        before_seq = await database.read(lambda reader: position_before(reader, moment)) + 1
    if before_seq > head.global_seq + 1:
        raise InvalidInput(f"before_seq {before_seq} is beyond the head of the journal ({head.global_seq}).")
    total = max(before_seq - head.oldest, 0)
    done = 0
    while done < total:
        oldest = min(head.oldest + done + CHUNK, before_seq)
        is_last = oldest == before_seq
        done += await database.write(lambda tx: _remove_below(tx, oldest, total if is_last else None))  # noqa: B023
        progress(done, total)
    return done


def _remove_below(tx: Transaction, oldest: int, total: int | None) -> int:
    """Remove entries below `oldest`; with a total, the removal ends here and is journaled."""
    before = read_head(tx)
    row = tx.one("SELECT chain FROM tape_journal WHERE global_seq = ?", oldest - 1)
    anchor = row[0] if row else before.anchor
    removed = tx.execute("DELETE FROM tape_journal WHERE global_seq < ?", oldest)
    tx.execute("DELETE FROM tape_entry_causes WHERE global_seq < ?", oldest)
    tx.execute("UPDATE tape_head SET oldest = ?, anchor = ? WHERE id = 1", oldest, anchor)
    if total is not None:
        facts = {"oldest": oldest, "removed": total, "anchor": anchor.hex()}
        note = Draft(
            subject=subject.journal_pruned(),
            run_id="journal",
            payload_json=msgspec.json.encode(facts).decode(),
        )
        append(tx, [checked(note)])
    return removed
