"""Histograms of durations that can be added up in any order: whole milliseconds in buckets that grow with them.

Below 128 ms every millisecond has a bucket of its own. Above, each power of two has 64 of them, so that a bucket's
middle is at most 1/128 (0.8 %) away from every duration in it. Counts are whole numbers: however the durations were
cut into batches, the sums, and so the percentiles, are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

# Buckets in each power of two.
STEPS = 64
_EXACT = 2 * STEPS

Pairs = list[tuple[int, int]]


def bucket_of(duration_ms: int) -> int:
    """The number of the bucket that a duration falls into."""
    shift = max(duration_ms.bit_length() - _EXACT.bit_length() + 1, 0)
    return shift * STEPS + (duration_ms >> shift)


def middle_of(bucket: int) -> int:
    """The duration in the middle of a bucket."""
    if bucket < _EXACT:
        return bucket
    shift = bucket // STEPS - 1
    return ((bucket - shift * STEPS) << shift) + ((1 << shift) - 1) // 2


def bucket_sql(duration: str) -> str:
    """`bucket_of` as an expression of Spark's SQL."""
    shift = f"greatest(length(bin({duration})) - {_EXACT.bit_length() - 1}, 0)"
    return f"cast({shift} * {STEPS} + shiftright({duration}, {shift}) as int)"


class Histogram(msgspec.Struct):
    """How many durations there were, their sum and extremes in ms, and how many in each bucket."""

    entries: int = 0
    total_ms: int = 0
    least_ms: int = 0
    most_ms: int = 0
    buckets: dict[int, int] = {}

    def add(self, other: Histogram) -> None:
        """Take in everything that another one has counted."""
        if not other.entries:
            return
        self.least_ms = min(self.least_ms, other.least_ms) if self.entries else other.least_ms
        self.most_ms = max(self.most_ms, other.most_ms)
        self.entries += other.entries
        self.total_ms += other.total_ms
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def percentile(self, percent: float) -> int | None:
        """The duration that so many percent did not exceed, within 0.8 %; None if there were none."""
        if not self.entries:
            return None
        rank = max(-(-self.entries * percent // 100), 1)
        if rank >= self.entries:
            return self.most_ms
        for bucket, count in sorted(self.buckets.items()):
            rank -= count
            if rank <= 0:
                return min(max(middle_of(bucket), self.least_ms), self.most_ms)
        return self.most_ms

    @property
    def mean_ms(self) -> float | None:
        """The average; None if there were none."""
        return self.total_ms / self.entries if self.entries else None


def histogram_of(durations: Iterable[int]) -> Histogram:
    """The histogram of some durations."""
    found = Histogram()
    for duration in durations:
        found.add(Histogram(1, duration, duration, duration, {bucket_of(duration): 1}))
    return found


def pack(buckets: Mapping[int, int]) -> str:
    """Buckets as the store keeps them: the same counts are always the same text."""
    return msgspec.json.encode(sorted(buckets.items())).decode()


def unpack(text: str) -> dict[int, int]:
    """Buckets as they were packed."""
    return dict(msgspec.json.decode(text, type=Pairs))
