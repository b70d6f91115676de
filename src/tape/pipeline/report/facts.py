"""What a report says, before anybody draws it: plain numbers over one window."""

from __future__ import annotations

import msgspec

from tape.engine.ledgers.histogram import Histogram
from tape.engine.ledgers.rollups import DurationRollup

# What went wrong, of all that ended.
FAILED = frozenset({"failed", "stuck"})

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
# The widths of bars: those that people think in.
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


class Step(msgspec.Struct, frozen=True):
    """An effect of a slow run; without an end it was under way when the window ended."""

    tool: str
    began_ms: int
    ended_ms: int | None
    outcome: str


class SlowRun(msgspec.Struct, frozen=True):
    """One of the runs that took longest, and what it did."""

    run_id: str
    tenant: str
    began_ms: int
    ended_ms: int
    outcome: str
    steps: list[Step]

    @property
    def took_ms(self) -> int:
        """From its start to its end."""
        return self.ended_ms - self.began_ms


class Open(msgspec.Struct, frozen=True):
    """What had begun and not ended when the window ended."""

    measure: str
    tool: str
    entries: int
    oldest_ms: int


class Letters(msgspec.Struct, frozen=True):
    """The dead letters of one reaction whose entries lie in the window; the newest one's error."""

    reaction_id: str
    letters: int
    first_ms: int
    last_ms: int
    last_error: str


class Reader(msgspec.Struct, frozen=True):
    """Somebody who reads the journal: how far it is, and how old the first entry is that it has not read."""

    name: str
    position: int
    behind: int
    age_ms: int


class Facts(msgspec.Struct, frozen=True):
    """Everything on the page."""

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
    took: list[DurationRollup]
    slow: list[SlowRun]
    open: list[Open]
    letters: list[Letters]
    readers: list[Reader]

    @property
    def entries(self) -> int:
        """All entries of the window."""
        return sum(one.entries for one in self.volume)

    @property
    def starts(self) -> list[int]:
        """Where the bars begin, also those without anything."""
        return list(range(self.since_ms // self.width_ms * self.width_ms, self.until_ms, self.width_ms))

    @property
    def unpaired(self) -> int:
        """Ends whose beginning was not found."""
        return sum(one.unpaired for one in self.took)

    def histogram(self, measure: str, tool: str | None = None, start_ms: int | None = None) -> Histogram:
        """The durations of effects or runs: of all of them, of one tool, of one bar."""
        found = Histogram()
        for one in self.ended(measure, tool, start_ms):
            found.add(one.histogram)
        return found

    def ended(self, measure: str, tool: str | None = None, start_ms: int | None = None) -> list[DurationRollup]:
        """What has ended: of all effects or runs, of one tool, in one bar."""
        return [
            one
            for one in self.took
            if one.measure == measure
            and (tool is None or one.tool == tool)
            and (start_ms is None or one.start_ms == start_ms)
        ]

    def failures(self, measure: str, tool: str | None = None, start_ms: int | None = None) -> tuple[int, int]:
        """How many failed, of how many that ended."""
        rows = self.ended(measure, tool, start_ms)
        ends = [(one.outcome, one.histogram.entries + one.unpaired) for one in rows]
        return sum(count for outcome, count in ends if outcome in FAILED), sum(count for _, count in ends)

    @property
    def tools(self) -> list[str]:
        """The tools whose effects ended in the window, by name."""
        return sorted({one.tool for one in self.took if one.measure == "effect"})


def width_for(window_ms: int) -> int:
    """How wide a bar is, so that a window has a readable number of them."""
    return next((width for width in WIDTHS if window_ms / width <= MOST_BARS), WIDTHS[-1])
