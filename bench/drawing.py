"""Plots for the docs: lines on two logarithmic axes, as SVG that reads on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 110, 20, 50
COLOURS = ("#3b7dd8", "#d9822b", "#3d9a58", "#b14fc5")


@dataclass(frozen=True)
class Line:
    """A name and its points."""

    name: str
    points: Sequence[tuple[float, float]]


def draw_lines(lines: Sequence[Line], across: str, up: str) -> str:
    """The lines in one picture, each labelled at its end."""
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    x_of = _scale(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    low, high = 10 ** math.floor(math.log10(min(ys))), 10 ** math.ceil(math.log10(max(ys)))
    y_of = _scale(low, max(high, low * 10), HEIGHT - BOTTOM, TOP)
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>']
    value = low
    while value <= high:
        y = y_of(value)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#88888855"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#888">{value:g}</text>')
        value *= 10
    for x in sorted(set(xs)):
        shown = f"{x / 1e6:g}M" if x >= 1e6 else f"{x / 1e3:g}k"
        parts.append(
            f'<text x="{x_of(x):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="#888">{shown}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle" fill="#888">{escape(across)}</text>')
    parts.append(f'<text x="14" y="{TOP + 10}" fill="#888">{escape(up)}</text>')
    for line, colour in zip(lines, COLOURS, strict=False):
        points = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in line.points)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3" fill="{colour}"/>' for x, y in line.points]
        end_x, end_y = line.points[-1]
        label = f'<text x="{x_of(end_x) + 8:.1f}" y="{y_of(end_y) + 4:.1f}" fill="{colour}">{escape(line.name)}</text>'
        parts.append(label)
    return "\n".join([*parts, "</svg>", ""])


def _scale(low: float, high: float, begin: float, end: float) -> Callable[[float], float]:
    span = math.log(high / low) or 1.0
    return lambda value: begin + (end - begin) * math.log(value / low) / span
