"""A window of equal buckets, and the ready-made sums that it can be put together from.

A piece of time that lies in one bucket is covered by the widest sums that fit into it: days, then hours, minutes and
slots of ten seconds. What is left at the edges of buckets is counted entry by entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

MS = 1_000_000
# A slot is ten seconds: few enough that the two at each edge of a bucket are quickly counted one by one.
SLOT_MS = 10_000

Ranges = list[tuple[int, int]]


class Window(msgspec.Struct, frozen=True):
    """Equal buckets from a time on, in nanoseconds; `since_ns` and `until_ns` narrow what is counted."""

    start_ns: int
    bucket_ns: int
    buckets: int
    since_ns: int | None = None
    until_ns: int | None = None

    @property
    def low_ms(self) -> int:
        """The first millisecond that counts."""
        return divide_up(max(self.start_ns, self.since_ns if self.since_ns is not None else self.start_ns))

    @property
    def high_ms(self) -> int:
        """The first millisecond that does not count any more."""
        end = self.start_ns + self.buckets * self.bucket_ns
        return divide_up(min(end, self.until_ns if self.until_ns is not None else end))

    def edges_ms(self) -> list[int]:
        """Where the window and its buckets begin and end, in order."""
        low, high = self.low_ms, self.high_ms
        edges = {divide_up(self.start_ns + index * self.bucket_ns) for index in range(self.buckets + 1)}
        return sorted({low, high, *(edge for edge in edges if low < edge < high)})


class Cover(msgspec.Struct, frozen=True):
    """What a window is put together from: ranges of times in ms for each width of sums, and slots to look into."""

    ranges: dict[int, Ranges]
    cut_slots: list[int]

    def ranges_of(self, widths: Sequence[int]) -> Ranges:
        """Everything that sums of these widths answer."""
        return join_ranges(sorted(one for width in widths for one in self.ranges.get(width, [])))


def cover_window(window: Window, widths: Sequence[int] = (), complete: tuple[int, int] = (0, 0)) -> Cover:
    """Cover a window with slots and, within the times in which they are complete, with sums of other widths.

    Every width must be a multiple of a slot, and the complete times whole multiples of the smallest width.
    """
    ranges: dict[int, Ranges] = {width: [] for width in (*widths, SLOT_MS)}
    edges = window.edges_ms()
    order = sorted(widths, reverse=True)
    for low, high in pairwise(edges):
        since, until = (min(max(edge, low), high) for edge in complete) if order else (low, low)
        _fill(ranges, low, since, [SLOT_MS])
        _fill(ranges, since, until, [*order, SLOT_MS])
        _fill(ranges, until, high, [SLOT_MS])
    cuts = sorted({edge // SLOT_MS for edge in edges if edge % SLOT_MS})
    return Cover({width: join_ranges(found) for width, found in ranges.items()}, cuts)


def _fill(ranges: dict[int, Ranges], low: int, high: int, widths: Sequence[int]) -> None:
    """Cover a piece of one bucket, the widest first; what no width fits into is left to the cut slots."""
    if low >= high or not widths:
        return
    width = widths[0]
    first, last = divide_up(low, width) * width, high // width * width
    if first >= last:
        _fill(ranges, low, high, widths[1:])
        return
    ranges[width].append((first, last))
    _fill(ranges, low, first, widths[1:])
    _fill(ranges, last, high, widths[1:])


def join_ranges(ranges: Ranges) -> Ranges:
    """Ranges in order, those that touch made one."""
    found: Ranges = []
    for low, high in ranges:
        if found and found[-1][1] == low:
            found[-1] = (found[-1][0], high)
        else:
            found.append((low, high))
    return found


def divide_up(value: int, step: int = MS) -> int:
    """Divided and rounded up."""
    return -(-value // step)
