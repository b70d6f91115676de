"""Deduplication: a key is claimed in the transaction that starts the run."""

from __future__ import annotations

from collections.abc import Iterable

from tape.base.clock import CLOCK_TOLERANCE_MS
from tape.store import Transaction


class Claims:
    """Dedup claims for one transaction: existing ones, and new ones."""

    def __init__(self, tx: Transaction, wanted: Iterable[tuple[str, str]]) -> None:
        self._tx = tx
        self._known: dict[tuple[str, str], tuple[str, int]] = {}
        self._new: list[tuple[str, str, str, int, int]] = []
        by_scope: dict[str, list[str]] = {}
        for scope, key in wanted:
            by_scope.setdefault(scope, []).append(key)
        for scope, keys in by_scope.items():
            condition, values = tx.is_any("key", keys)
            rows = tx.query(
                f"SELECT key, execution_id, claimed_at_ms FROM tape_dedup WHERE scope = ? AND {condition}",
                scope,
                values,
            )
            self._known |= {(scope, key): (execution_id, claimed) for key, execution_id, claimed in rows}

    def holder(self, scope: str, key: str, window_ms: int, now: int) -> str:
        """The execution that claimed the key within the window; empty if it is free.

        A claim that was made while the clock was ahead counts as made now: its window is never cut, and ends.
        """
        execution_id, claimed = self._known.get((scope, key), ("", 0))
        if execution_id and claimed > now + CLOCK_TOLERANCE_MS:
            self.claim(scope, key, execution_id, window_ms, now)
        return execution_id if execution_id and claimed > now - window_ms else ""

    def claim(self, scope: str, key: str, execution_id: str, window_ms: int, now: int) -> None:
        """Claim a free key. `write` writes it."""
        self._known[(scope, key)] = (execution_id, now)
        self._new.append((scope, key, execution_id, now, now + window_ms))

    def write(self) -> None:
        """Write the new claims."""
        if self._new:
            columns = ("scope", "key", "execution_id", "claimed_at_ms", "expires_at_ms")
            self._tx.upsert("tape_dedup", ("scope", "key"), columns, self._new)


def forget_claims(tx: Transaction, now: int, limit: int = 10_000) -> int:
    """Delete up to `limit` expired claims. Returns their number."""
    return tx.execute(
        "DELETE FROM tape_dedup WHERE (scope, key) IN"
        " (SELECT scope, key FROM tape_dedup WHERE expires_at_ms < ? ORDER BY expires_at_ms LIMIT ?)",
        now,
        limit,
    )
