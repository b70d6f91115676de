"""The version of service keys and revoked tokens: servers read what changed since the version that they know."""

from __future__ import annotations

from tape.store import Reader, Transaction

# The channel on which servers notify each other of changes.
CHANNEL = "tape_access"


def read_version(reader: Reader | Transaction) -> int:
    """The number of changes so far."""
    row = reader.one("SELECT version FROM tape_access_version")
    return int(row[0]) if row else 0


def next_version(tx: Transaction) -> int:
    """Count a change, and notify servers of it after the commit."""
    tx.execute("UPDATE tape_access_version SET version = version + 1")
    tx.notify(CHANNEL)
    return read_version(tx)
