"""The data of a report: counts and durations of one time window."""

from __future__ import annotations

import msgspec

from tape.engine.ledgers.histogram import Histogram
from tape.engine.ledgers.rollups import DurationRollup

# The outcomes that count as failures.
FAILED = frozenset({"failed", "stuck"})

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
# The widths of bars in ms, from one second to a year.
WIDTHS = (
    *(1_000, 5_000, 15_000, MINUTE_MS, 5 * MINUTE_MS, 15 * MINUTE_MS, 30 * MINUTE_MS),
    *(HOUR_MS, 3 * HOUR_MS, 6 * HOUR_MS, 12 * HOUR_MS, DAY_MS, 7 * DAY_MS, 28 * DAY_MS, 91 * DAY_MS, 364 * DAY_MS),
)
MOST_BARS = 120


class Volume(msgspec.Struct, frozen=True):
    """Entries of one tenant and kind in one bar of the plot."""

    start_ms: int
    tenant: str
    kind: str
    entries: int
    bytes: int


class EffectSpan(msgspec.Struct, frozen=True):
    """An effect of a slow run; without an end it was still open when the window ended."""

    tool: str
    began_ms: int
    ended_ms: int | None
    outcome: str


class SlowRun(msgspec.Struct, frozen=True):
    """One of the slowest runs, with its effects."""

    run_id: str
    tenant: str
    began_ms: int
    ended_ms: int
    outcome: str
    steps: list[EffectSpan]

    @property
    def took_ms(self) -> int:
        """The duration of the run in ms."""
        return self.ended_ms - self.began_ms


class OpenSpans(msgspec.Struct, frozen=True):
    """The spans of one measure and tool that were open when the window ended."""

    measure: str
    tool: str
    entries: int
    oldest_ms: int


class DeadLetterGroup(msgspec.Struct, frozen=True):
    """The dead letters of one reaction whose entries are in the window, and the error of the newest one."""

    reaction_id: str
    dead_letters: int
    first_ms: int
    last_ms: int
    last_error: str


class ReaderLag(msgspec.Struct, frozen=True):
    """A reader of the journal: its position, its lag in entries, and the age of its next entry."""

    name: str
    position: int
    behind: int
    age_ms: int


class Facts(msgspec.Struct, frozen=True):
    """Everything that the page shows."""

    store: str
    lake: str
    since_ms: int
    until_ms: int
    width_ms: int
    made_ms: int
    head: int
    oldest: int
    looked_back_ms: int
    volume: list[Volume]
    durations: list[DurationRollup]
    slow: list[SlowRun]
    open: list[OpenSpans]
    dead_letters: list[DeadLetterGroup]
    readers: list[ReaderLag]

    @property
    def entries(self) -> int:
        """The number of entries in the window."""
        return sum(one.entries for one in self.volume)

    @property
    def starts(self) -> list[int]:
        """The start of each bar, including empty ones."""
        return list(range(self.since_ms // self.width_ms * self.width_ms, self.until_ms, self.width_ms))

    @property
    def unpaired(self) -> int:
        """The number of ended spans whose beginning was not found."""
        return sum(one.unpaired for one in self.durations)

    def histogram(self, measure: str, tool: str | None = None, start_ms: int | None = None) -> Histogram:
        """Return the durations of effects or runs: of all, of one tool, or of one bar."""
        found = Histogram()
        for one in self.ended(measure, tool, start_ms):
            found.add(one.histogram)
        return found

    def ended(self, measure: str, tool: str | None = None, start_ms: int | None = None) -> list[DurationRollup]:
        """Return the ended effects or runs: all, of one tool, or of one bar."""
        return [
            one
            for one in self.durations
            if one.measure == measure
            and (tool is None or one.tool == tool)
            and (start_ms is None or one.start_ms == start_ms)
        ]

    def failures(self, measure: str, tool: str | None = None, start_ms: int | None = None) -> tuple[int, int]:
        """Return the number of failed and of all ended effects or runs."""
        rows = self.ended(measure, tool, start_ms)
        ends = [(one.outcome, one.histogram.entries + one.unpaired) for one in rows]
        return sum(count for outcome, count in ends if outcome in FAILED), sum(count for _, count in ends)

    @property
    def tools(self) -> list[str]:
        """The names of the tools whose effects ended in the window."""
        return sorted({one.tool for one in self.durations if one.measure == "effect"})


def width_for(window_ms: int) -> int:
    """Return the bar width that splits a window into at most 120 bars."""
    return next((width for width in WIDTHS if window_ms / width <= MOST_BARS), WIDTHS[-1])
