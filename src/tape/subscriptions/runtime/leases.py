"""Leases on subscriptions: which of several servers runs one. Plain functions on a transaction."""

from __future__ import annotations

from collections.abc import Sequence

from tape.store import Transaction
from tape.store.lease import Lease, LeaseTable

LEASE_MS = 15_000
_LEASES = LeaseTable("tape_subscription_runtimes", "holder", "until_ms")
_COLUMNS = ("path", "holder", "until_ms", "due_ms")


def claim(tx: Transaction, path: str, holder: str, now_ms: int, until_ms: int) -> bool:
    """Acquire the lease on a subscription. False if another server holds it."""
    row = _row(tx, path)
    if row is not None and not Lease(*row[:2]).is_open_to(holder, now_ms, LEASE_MS):
        return False
    _write(tx, path, holder, until_ms, row[2] if row else 0)
    return True


def claim_due(
    tx: Transaction, path: str, holder: str, now_ms: int, until_ms: int, next_ms: int, latest_ms: int
) -> bool:
    """Acquire the lease on a scheduled subscription that is due, and set its next due time to `next_ms`.

    A new subscription is first due at `next_ms`, not now. So is one whose due time is later than `latest_ms`: the
    clock was ahead when it was set, or the cadence was changed.
    """
    row = _row(tx, path)
    if row is None or row[2] == 0:
        _write(tx, path, "", 0, next_ms)
        return False
    if row[2] > latest_ms:
        _write(tx, path, *row[:2], next_ms)
        return False
    if row[2] > now_ms or not Lease(*row[:2]).is_free(now_ms, LEASE_MS):
        return False
    _write(tx, path, holder, until_ms, next_ms)
    return True


def renew(tx: Transaction, paths: Sequence[str], holder: str, until_ms: int) -> set[str]:
    """Renew leases. Returns the paths that this holder still has."""
    ours = {path for path in paths if (row := _row(tx, path)) is not None and row[0] == holder}
    for path in ours:
        _LEASES.grant(tx, Lease(holder, until_ms), "path = ?", path)
    return ours


def release(tx: Transaction, path: str, holder: str) -> None:
    """Release a lease, so that another server does not wait for its expiry."""
    _LEASES.release(tx, holder, "path = ?", path)


def release_former(tx: Transaction, holder: str) -> int:
    """Release the leases of former processes of this server, before its first claim; returns their number."""
    return _LEASES.release_former(tx, holder)


def _row(tx: Transaction, path: str) -> tuple[str, int, int] | None:
    row = tx.one("SELECT holder, until_ms, due_ms FROM tape_subscription_runtimes WHERE path = ?", path)
    return None if row is None else (row[0], row[1], row[2])


def _write(tx: Transaction, path: str, holder: str, until_ms: int, due_ms: int) -> None:
    tx.upsert("tape_subscription_runtimes", ("path",), _COLUMNS, [(path, holder, until_ms, due_ms)])
