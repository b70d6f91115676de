"""Due times of effects and obligations, which their callers choose freely.

A row that is written while the clock is ahead has a due time that lies ahead of the journal's time in the row. Once
the clock is back, that time lies in the future too, and the row is due.
"""

from __future__ import annotations

from tape.base.clock import latest_ms


def is_due(due_ms: int, written_ms: int, now: int) -> bool:
    """Whether a row is due: its time has come, or it was written while the clock was ahead."""
    return due_ms <= now or due_ms >= written_ms > latest_ms(now)


def due_condition(column: str) -> str:
    """The same as SQL, for a table with the column `ts_ms`; its parameters are those of `due_parameters`."""
    return f"({column} <= ? OR ({column} > ? AND {column} >= ts_ms AND ts_ms > ?))"


def due_parameters(now: int) -> list[int]:
    """The parameters of `due_condition`."""
    return [now, latest_ms(now), latest_ms(now)]
