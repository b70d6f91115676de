"""Plots: lines on two logarithmic axes, as SVG that reads on light and dark pages."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 130, 56, 50
COLOURS = ("#3b7dd8", "#d9822b", "#3d9a58", "#b14fc5")
# Between two lines of text.
LINE_HEIGHT = 14
# Over more decades than this, only the powers of ten are drawn.
FINE_DECADES = 4


@dataclass(frozen=True)
class Line:
    """A name and its points. A point at or below zero has no position on these axes and is left out."""

    name: str
    points: Sequence[tuple[float, float]]


def draw_lines(lines: Sequence[Line], across: str, up: str, title: str = "") -> str:
    """The lines in one picture, each labelled at its end. `across` and `up` name the axes with their units."""
    drawn = [Line(line.name, [(x, y) for x, y in line.points if x > 0 and y > 0]) for line in lines]
    xs = [x for line in drawn for x, _ in line.points] or [1.0]
    ys = [y for line in drawn for _, y in line.points] or [1.0]
    ticks = _ticks(min(ys), max(ys))
    x_of = _scale(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    y_of = _scale(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP)
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>']
    if title:
        parts.append(_text(12, 18, title, 'font-size="14" font-weight="bold"'))
    parts.append(_text(12, TOP - 16, up))
    for value in ticks:
        y = y_of(value)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#88888855"/>')
        parts.append(_text(LEFT - 8, y + 4, _short(value), 'text-anchor="end"'))
    for x in sorted(set(xs)):
        parts.append(_text(x_of(x), HEIGHT - BOTTOM + 18, _short(x), 'text-anchor="middle"'))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, across, 'text-anchor="middle"'))
    ended = [(line, colour) for line, colour in zip(drawn, COLOURS, strict=False) if line.points]
    heights = _spread([y_of(line.points[-1][1]) for line, _ in ended])
    for (line, colour), height in zip(ended, heights, strict=True):
        points = [(x_of(x), y_of(y)) for x, y in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for (x, y), (_, value) in zip(points, line.points, strict=True):
            shown = f"<title>{escape(line.name)}: {value:,.4g} {escape(up)}</title>"
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}">{shown}</circle>')
        parts.append(
            f'<text x="{points[-1][0] + 8:.1f}" y="{height + 4:.1f}" fill="{colour}">{escape(line.name)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _text(x: float, y: float, text: str, attributes: str = "") -> str:
    """A text of an axis. A page may give the class a colour of its own."""
    return f'<text class="axis" x="{x:.1f}" y="{y:.1f}" fill="#888" {attributes}>{escape(text)}</text>'


def _ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10 … around all values, two at least; over many decades only the powers of ten."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1, 2, 5) if len(exponents) <= FINE_DECADES else (1,)
    every = [digit * 10.0**exponent for exponent in exponents for digit in digits]
    first = max(bisect_right(every, low) - 1, 0)
    return every[first : max(bisect_left(every, high), first + 1) + 1]


def _spread(heights: Sequence[float]) -> list[float]:
    """The heights of labels, moved down where they would overlap, and up where they would leave the picture."""
    moved = list(heights)
    order = sorted(range(len(heights)), key=heights.__getitem__)
    for upper, lower in pairwise(order):
        moved[lower] = max(moved[lower], moved[upper] + LINE_HEIGHT)
    limit = float(HEIGHT - BOTTOM)
    for index in reversed(order):
        moved[index] = min(moved[index], limit)
        limit = moved[index] - LINE_HEIGHT
    return moved


def _short(value: float) -> str:
    """1M, 20k, 64, 0.5"""
    for factor, suffix in ((1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:g}{suffix}"
    return f"{value:g}"


def _scale(low: float, high: float, begin: float, end: float) -> Callable[[float], float]:
    span = math.log(high / low) or 1.0
    return lambda value: begin + (end - begin) * math.log(value / low) / span
