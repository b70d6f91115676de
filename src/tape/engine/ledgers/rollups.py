"""Rollups: counts, outcomes and durations per minute, hour and day.

A batch adds a range of the journal to the tables in the transaction that moves the position, so that each
entry is counted once, also after a crash and with several jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from tape.engine.ledgers.histogram import Histogram, pack, unpack
from tape.store import Reader, Transaction
from tape.store.connection import Row

WIDTHS_MS = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
MINUTE_MS = WIDTHS_MS["minute"]

_COUNTS = ("width_ms", "start_ms", "tenant", "type", "tool", "entries", "bytes")
_DURATIONS = (
    *("width_ms", "start_ms", "tenant", "measure", "tool", "outcome"),
    *("entries", "total_ms", "least_ms", "most_ms", "unpaired", "histogram"),
)
_OPEN_KEY = ("run_id", "tenant", "measure", "name")
_OPEN = (*_OPEN_KEY, "tool", "global_seq", "ts_ms")


# Run, tenant, measure and name of an interval.
IntervalKey = tuple[str, str, str, str]


class CountRollup(msgspec.Struct, frozen=True):
    """The entries of one tenant, type and tool in one window, and the bytes of their payloads."""

    start_ms: int
    tenant: str
    type: str
    tool: str
    entries: int
    bytes: int


class DurationRollup(msgspec.Struct, frozen=True):
    """Durations of effects of one tool, or of runs, of one tenant and outcome in one window.

    `unpaired` is the number of those whose beginning is unknown.
    """

    start_ms: int
    tenant: str
    measure: str
    tool: str
    outcome: str
    histogram: Histogram
    unpaired: int = 0


class OpenInterval(msgspec.Struct, frozen=True):
    """An effect or a run that has not ended yet; `name` is the effect's key."""

    run_id: str
    tenant: str
    measure: str
    name: str
    tool: str
    global_seq: int
    ts_ms: int

    @property
    def key(self) -> IntervalKey:
        """The key that its first and its last entry share."""
        return self.run_id, self.tenant, self.measure, self.name


class RollupPosition(msgspec.Struct, frozen=True):
    """The position of the rollups, the time range of complete windows, and the number of late entries."""

    global_seq: int = 0
    since_ms: int = 0
    watermark_ms: int = 0
    late: int = 0

    @property
    def complete(self) -> tuple[int, int]:
        """The time range in which every minute is complete.

        Timestamps never decrease along the journal, so entries that are not counted yet are not before the watermark.
        """
        if self.late:  # the journal's timestamps are not in order: no window is known to be complete
            return 0, 0
        return self.since_ms, self.watermark_ms // MINUTE_MS * MINUTE_MS


class RollupBatch(msgspec.Struct, frozen=True):
    """The sums of a range of the journal per minute, and the effects and runs that began and ended in it."""

    after: int
    position: RollupPosition
    counts: list[CountRollup]
    durations: list[DurationRollup]
    opened: list[OpenInterval]
    closed: list[IntervalKey]


def read_position(reader: Reader | Transaction) -> RollupPosition:
    """Read the position of the rollups."""
    row = reader.one("SELECT global_seq, since_ms, watermark_ms, late FROM tape_rollup_position WHERE id = 1")
    assert row is not None, "the migration puts the row there"
    return RollupPosition(*row)


def read_counts(reader: Reader | Transaction, width: str, since_ms: int, until_ms: int) -> list[CountRollup]:
    """The counts of the windows of a width that begin within a time, in order."""
    rows = _read_windows(reader, "tape_rollups", _COUNTS, WIDTHS_MS[width], since_ms, until_ms)
    return [CountRollup(*row[1:]) for row in rows]


def read_durations(reader: Reader | Transaction, width: str, since_ms: int, until_ms: int) -> list[DurationRollup]:
    """The durations of the windows of a width that begin within a time, in order."""
    rows = _read_windows(reader, "tape_rollup_durations", _DURATIONS, WIDTHS_MS[width], since_ms, until_ms)
    return [_load_duration(row) for row in rows]


def _load_duration(row: Row) -> DurationRollup:
    _, start_ms, tenant, measure, tool, outcome, entries, total_ms, least_ms, most_ms, unpaired, histogram = row
    found = Histogram(entries, total_ms, least_ms, most_ms, unpack(histogram))
    return DurationRollup(start_ms, tenant, measure, tool, outcome, found, unpaired)


def read_open(reader: Reader) -> list[OpenInterval]:
    """Everything that has begun and not ended yet."""
    return [
        OpenInterval(*row)
        for row in reader.query(f"SELECT {','.join(_OPEN)} FROM tape_rollup_open ORDER BY global_seq")
    ]


def add_batch(tx: Transaction, batch: RollupBatch) -> bool:
    """Add a batch to all widths; False if another job has moved the position."""
    if read_position(tx).global_seq != batch.after:
        return False
    _add_counts(tx, batch.counts)
    _add_durations(tx, batch.durations)
    for key in batch.closed:
        tx.execute(f"DELETE FROM tape_rollup_open WHERE {' AND '.join(f'{name} = ?' for name in _OPEN_KEY)}", *key)
    tx.upsert("tape_rollup_open", _OPEN_KEY, _OPEN, [msgspec.structs.astuple(one) for one in batch.opened])
    tx.execute(
        "UPDATE tape_rollup_position SET global_seq = ?, since_ms = ?, watermark_ms = ?, late = ? WHERE id = 1",
        *msgspec.structs.astuple(batch.position),
    )
    return True


def _add_counts(tx: Transaction, minutes: Iterable[CountRollup]) -> None:
    for width, start_ms, rows in _by_width(minutes, lambda one: one.start_ms):
        sums: dict[Row, list[int]] = {}
        for one in (*rows, *read_counts(tx, width, *start_ms)):
            start = one.start_ms // WIDTHS_MS[width] * WIDTHS_MS[width]
            total = sums.setdefault((WIDTHS_MS[width], start, one.tenant, one.type, one.tool), [0, 0])
            total[0] += one.entries
            total[1] += one.bytes
        tx.upsert("tape_rollups", _COUNTS[:5], _COUNTS, [(*key, *total) for key, total in sums.items()])


def _add_durations(tx: Transaction, minutes: Iterable[DurationRollup]) -> None:
    for width, start_ms, rows in _by_width(minutes, lambda one: one.start_ms):
        sums: dict[Row, tuple[Histogram, list[int]]] = {}
        for one in (*rows, *read_durations(tx, width, *start_ms)):
            start = one.start_ms // WIDTHS_MS[width] * WIDTHS_MS[width]
            key = (WIDTHS_MS[width], start, one.tenant, one.measure, one.tool, one.outcome)
            histogram, unpaired = sums.setdefault(key, (Histogram(), [0]))
            histogram.add(one.histogram)
            unpaired[0] += one.unpaired
        changed = [
            (*key, one.entries, one.total_ms, one.least_ms, one.most_ms, unpaired[0], pack(one.buckets))
            for key, (one, unpaired) in sums.items()
        ]
        tx.upsert("tape_rollup_durations", _DURATIONS[:6], _DURATIONS, changed)


T = TypeVar("T")


def _by_width(minutes: Iterable[T], start_of: Callable[[T], int]) -> Iterable[tuple[str, tuple[int, int], list[T]]]:
    """For each width, the windows that minutes fall into, from the first to after the last, and the minutes."""
    found = list(minutes)
    starts = [start_of(one) for one in found]
    for name, width in WIDTHS_MS.items() if found else ():
        yield name, (min(starts) // width * width, max(starts) + 1), found


def _read_windows(
    reader: Reader | Transaction, table: str, columns: tuple[str, ...], width_ms: int, since_ms: int, until_ms: int
) -> list[Row]:
    keys = ", ".join(columns[1 : columns.index("entries")])
    return reader.query(
        f"SELECT {', '.join(columns)} FROM {table} WHERE width_ms = ? AND start_ms >= ? AND start_ms < ?"
        f" ORDER BY {keys}",
        width_ms,
        since_ms,
        until_ms,
    )
