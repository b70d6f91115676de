"""The tail of the journal: its last committed entry, as the database has it and as a witness knows it."""

from __future__ import annotations

import logging

import msgspec

from tape.errors import StoreDamaged, TailLost
from tape.store.connection import Reader

log = logging.getLogger(__name__)


class Tail(msgspec.Struct, frozen=True, gc=False):
    """The last entry of a journal at some time: a journal that has it lost nothing up to it."""

    journal_id: str
    epoch: int
    global_seq: int
    chain: bytes

    @property
    def order(self) -> tuple[int, int]:
        """What sorts the tails of one journal from old to new."""
        return self.epoch, self.global_seq


class TailLoss(msgspec.Struct, frozen=True):
    """Acknowledged entries that the database no longer has: `first` to `last`, as far as is known."""

    known: Tail
    head: Tail
    first: int
    last: int

    @property
    def is_cut(self) -> bool:
        """Whether the journal ends before the last known entry; else that entry was replaced by another."""
        return self.head.global_seq < self.known.global_seq

    def __str__(self) -> str:
        if self.is_cut:
            count = self.last - self.first + 1
            which = f"entry {self.first} is" if count == 1 else f"entries {self.first} to {self.last} ({count:,}) are"
            return f"{which} gone although acknowledged, the database ends at {self.head.global_seq}"
        return (
            f"entry {self.last} is not the one that was acknowledged: its chain value was {self.known.chain.hex()}, so"
            " entries up to it were replaced"
        )

    def error(self, store: str, witness: str) -> TailLost:
        """The error with which a process refuses to write to the database."""
        return TailLost(
            f"{store} lost the tail of its journal: {self} (witness: {witness}). Restore a backup that has what is gone"
            " (`tape info` says how far the last one goes), or go on without it: `tape serve --accept-loss`. No"
            " number is given out again.",
            self.first,
            self.last,
        )


def read_tail(reader: Reader) -> Tail:
    """The last entry as the database has it."""
    row = reader.one("SELECT journal_id, epoch, global_seq, chain FROM tape_head WHERE id = 1")
    assert row is not None, "the migration puts the head row there"
    return Tail(*row)


def find_loss(reader: Reader, known: Tail) -> TailLoss | None:
    """What the database lost of a journal whose last known entry was `known`; None if it has that entry.

    Entries below the oldest one are pruned, and a range that `tape_epochs` names is lost and known to be.
    """
    head = read_tail(reader)
    if head.journal_id != known.journal_id or not known.global_seq:
        return None
    if head.global_seq < known.global_seq:
        return TailLoss(known, head, head.global_seq + 1, known.global_seq)
    chain = _chain_at(reader, known.global_seq)
    if chain is None or chain == known.chain or _is_named(reader, known):
        return None
    return TailLoss(known, head, known.global_seq, known.global_seq)


def _chain_at(reader: Reader, global_seq: int) -> bytes | None:
    """The chain value of an entry; None if it is pruned or cannot be read, empty if it is missing."""
    try:
        row = reader.one("SELECT chain FROM tape_journal WHERE global_seq = ?", global_seq)
    except StoreDamaged as error:
        log.warning("entry %d, the last one that the witness knows, cannot be read: %s", global_seq, error)
        return None
    if row is not None:
        return bytes(row[0])
    row = reader.one("SELECT oldest, anchor FROM tape_head WHERE id = 1")
    assert row is not None, "the migration puts the head row there"
    oldest, anchor = row
    if global_seq == oldest - 1:
        return bytes(anchor)
    return None if global_seq < oldest else b""


def _is_named(reader: Reader, known: Tail) -> bool:
    """Whether a later epoch says that the entry was lost."""
    sql = "SELECT 1 FROM tape_epochs WHERE epoch > ? AND cut_after < ? AND resumes_at > ?"
    return reader.one(sql, known.epoch, known.global_seq, known.global_seq) is not None
