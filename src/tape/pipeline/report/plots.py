"""Plots as SVG, coloured by the style sheet of the page, with a tooltip on every element."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from tape.pipeline.report.formats import count_marks, duration, duration_marks, moment, text, time_marks

WIDTH, HEIGHT = 1000, 264
LEFT, RIGHT, TOP, BOTTOM = 70, 14, 12, 34


class Series(msgspec.Struct, frozen=True):
    """One series of a plot: a value per bar, or None."""

    name: str
    colour: str
    values: Sequence[float | None]


class Span(msgspec.Struct, frozen=True):
    """The time axis of a plot: the start and the width of its bars."""

    starts: Sequence[int]
    width_ms: int

    @property
    def since_ms(self) -> int:
        return self.starts[0]

    @property
    def until_ms(self) -> int:
        return self.starts[-1] + self.width_ms

    def x_of(self, ms: float) -> float:
        """Return the x coordinate of a time in ms."""
        return LEFT + (ms - self.since_ms) / (self.until_ms - self.since_ms) * (WIDTH - LEFT - RIGHT)


def stacked_bars(identity: str, title: str, unit: str, span: Span, series: Sequence[Series]) -> str:
    """Plot counts over time as stacked bars."""
    totals = [sum(one.values[index] or 0 for one in series) for index in range(len(span.starts))]
    marks = count_marks(max(totals, default=0))
    step = (WIDTH - LEFT - RIGHT) / len(span.starts)
    gap = min(1.5, step * 0.15)
    parts = [*_count_axis(marks, unit), *_time_axis(span)]
    for index, start in enumerate(span.starts):
        below = 0.0
        when = moment(start, seconds=False)
        for one in series:
            value = one.values[index] or 0
            if not value:
                continue
            top, bottom = _height(below + value, marks[-1]), _height(below, marks[-1])
            below += value
            parts.append(
                f'<rect class="{one.colour}" x="{span.x_of(start) + gap / 2:.1f}" y="{top:.1f}"'
                f' width="{max(step - gap, 0.5):.1f}" height="{bottom - top:.1f}">'
                f"<title>{text(one.name)}: {value:,.0f} {text(unit)}, {when}</title></rect>"
            )
    return _svg(identity, title, HEIGHT, parts)


def duration_lines(identity: str, title: str, span: Span, series: Sequence[Series]) -> str:
    """Plot durations over time on a logarithmic axis; lines have a gap where there are no values."""
    values = [max(value, 1) for one in series for value in one.values if value is not None]
    marks = duration_marks(min(values), max(values))
    low, high = math.log(marks[0]), math.log(marks[-1])

    def height(value: float) -> float:
        share = (math.log(max(value, 1)) - low) / (high - low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    parts = [line for mark in marks for line in _level(height(mark), duration(mark))] + _time_axis(span)
    for one in series:
        points = [
            None if value is None else (span.x_of(start + span.width_ms / 2), height(value))
            for start, value in zip(span.starts, one.values, strict=True)
        ]
        parts.append(f'<path class="line {one.colour}" d="{_path(points)}"/>')
        for start, value, point in zip(span.starts, one.values, points, strict=True):
            if value is not None and point is not None:
                label = f"{text(one.name)}: {duration(value)}, {moment(start, seconds=False)}"
                parts.append(
                    f'<circle class="{one.colour}" cx="{point[0]:.1f}" cy="{point[1]:.1f}" r="2.4">'
                    f"<title>{label}</title></circle>"
                )
    return _svg(identity, title, HEIGHT, parts)


def timeline(title: str, total_ms: int, took_ms: int, steps: Sequence[tuple[int, int, str, str]]) -> str:
    """Plot a run as a line with its effects on it: start, end, colour and label of each."""
    width, height = 420, 18
    scale = width / max(total_ms, 1)
    parts = [f'<rect class="rail" x="0" y="7" width="{max(took_ms * scale, 1):.1f}" height="4" rx="2"/>']
    for begin, end, colour, label in steps:
        parts.append(
            f'<rect class="{colour}" x="{begin * scale:.1f}" y="2" width="{max((end - begin) * scale, 2):.1f}"'
            f' height="14" rx="1.5"><title>{text(label)}</title></rect>'
        )
    return (
        f'<svg class="timeline" viewBox="0 0 {width} {height}" role="img" aria-label="{text(title)}">'
        f"{''.join(parts)}</svg>"
    )


def bar(share: float, colour: str) -> str:
    """Return a bar for a table cell."""
    fill = f'<span class="fill {colour}" style="width:{100 * share:.1f}%"></span>'
    return f'<span class="track" aria-hidden="true">{fill}</span>'


def _height(value: float, most: float) -> float:
    return HEIGHT - BOTTOM - value / most * (HEIGHT - TOP - BOTTOM)


def _count_axis(marks: Sequence[int], unit: str) -> list[str]:
    lines = [line for mark in marks for line in _level(_height(mark, marks[-1]), f"{mark:,}")]
    return [*lines, f'<text class="unit" x="{LEFT - 8}" y="{HEIGHT - 8}" text-anchor="end">{text(unit)}</text>']


def _level(y: float, label: str) -> list[str]:
    return [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>',
        f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text(label)}</text>',
    ]


def _time_axis(span: Span) -> list[str]:
    base = HEIGHT - BOTTOM
    parts = [f'<line class="base" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>']
    for at, label in time_marks(span.since_ms, span.until_ms):
        x = span.x_of(at)
        anchor = "start" if x < LEFT + 20 else "end" if x > WIDTH - RIGHT - 20 else "middle"
        parts.append(f'<line class="base" x1="{x:.1f}" x2="{x:.1f}" y1="{base}" y2="{base + 4}"/>')
        parts.append(f'<text x="{x:.1f}" y="{base + 19}" text-anchor="{anchor}">{text(label)}</text>')
    return parts


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    commands, is_drawing = [], False
    for point in points:
        if point is None:
            is_drawing = False
            continue
        commands.append(f"{'L' if is_drawing else 'M'}{point[0]:.1f},{point[1]:.1f}")
        is_drawing = True
    return "".join(commands)


def _svg(identity: str, title: str, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="{identity}-title">'
        f'<title id="{identity}-title">{text(title)}</title>{"".join(parts)}</svg>'
    )
