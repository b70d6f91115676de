"""The entries that a transaction has appended and not written yet."""

from __future__ import annotations

from typing import NamedTuple

from tape.journal.appender import Appender
from tape.model.entry import Entry
from tape.store import Transaction


class PendingEntries(NamedTuple):
    """Numbered entries, and which reaction caused some of them, by their global_seq."""

    entries: list[Entry]
    causes: list[tuple[int, str]]


def pending_entries(tx: Transaction) -> PendingEntries:
    """The entries of a transaction so far."""
    appender = tx.find(Appender)
    return PendingEntries([], []) if appender is None else PendingEntries(appender._entries[:], appender._causes[:])


def has_pending_entries(tx: Transaction) -> bool:
    """Whether a transaction appends entries."""
    appender = tx.find(Appender)
    return appender is not None and bool(appender._entries)
