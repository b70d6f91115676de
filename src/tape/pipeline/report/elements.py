"""HTML elements of the report: sections, tables, legends, and the numbers of a plot."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from tape.pipeline.report.formats import moment, text
from tape.pipeline.report.plots import Series

# The colours of series; further series share the last one, as "all others".
COLOURS = tuple(f"c{number}" for number in range(6))
REST = "c6"

K = TypeVar("K", bound=Hashable)


def section(title: str, about: str, *parts: str) -> str:
    """Return a section with its heading; `about` may contain markup."""
    body = "\n".join(part for part in parts if part)
    name = title.lower().replace(" ", "-")
    return (
        f'<section aria-labelledby="{name}">\n<h2 id="{name}">{text(title)}</h2>\n<p class="soft">{about}</p>\n'
        f"{body}\n</section>"
    )


def empty(message: str) -> str:
    """Return the text for a plot without data."""
    return f'<div class="empty">{text(message)}</div>'


def figure(plot: str, series: Sequence[Series]) -> str:
    """Return a plot with its legend."""
    names = legend([(one.name, one.colour) for one in series])
    return f'<figure>\n<div class="scroll">{plot}</div>\n<figcaption>{names}</figcaption>\n</figure>'


def legend(names: Iterable[tuple[str, str]]) -> str:
    """Return a legend of names and colours."""
    return listed(
        "legend",
        (f'<li><span class="dot {colour}" aria-hidden="true"></span>{text(name)}</li>' for name, colour in names),
    )


def listed(name: str, items: Iterable[str]) -> str:
    """Return a list with a CSS class."""
    return f'<ul class="{name}">{"".join(items)}</ul>'


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, wide: bool = False) -> str:
    """Return a table of markup; a column name with # has numbers. With `wide`, the last column holds a plot."""
    numeric = [name.startswith("#") for name in columns]
    head = "".join(
        f'<th scope="col"{_number(is_number)}>{text(name.lstrip("#"))}</th>'
        for name, is_number in zip(columns, numeric, strict=True)
    )
    body = []
    for row in rows:
        cells = [f"<td{_number(is_number)}>{cell}</td>" for cell, is_number in zip(row, numeric, strict=True)]
        if wide:
            cells[-1] = f'<td class="wide">{row[-1]}</td>'
        body.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f"<table>\n<caption>{text(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n"
        + "\n".join(body)
        + "\n</tbody>\n</table>"
    )


def details(summary: str, body: str) -> str:
    """Return a collapsed element."""
    return f'<details><summary>{text(summary)}</summary><div class="scroll">{body}</div></details>'


def numbers(starts: Sequence[int], series: Sequence[Series], form: Callable[[float], str]) -> str:
    """Return the numbers of a plot over time as a table, without empty bars."""
    rows = [
        (
            moment(start, seconds=False),
            *("–" if one.values[index] is None else form(one.values[index] or 0) for one in series),
        )
        for index, start in enumerate(starts)
        if any(one.values[index] for one in series)
    ]
    return details("The numbers of this plot", table("From", ("Time", *(f"#{one.name}" for one in series)), rows))


def series_of(starts: Sequence[int], points: Sequence[tuple[int, str, int]]) -> list[Series]:
    """Return counts by bar and name: the six largest names, and the rest as one series."""
    totals = sums((name, count, 0) for _, name, count in points)
    order = sorted(totals, key=lambda name: (-totals[name][0], name))
    named = order[: len(COLOURS)]
    by_bar = sums(((start, name if name in named else None), count, 0) for start, name, count in points)
    found = [
        Series(name or "–", colour, [by_bar.get((start, name), (0, 0))[0] for start in starts])
        for name, colour in zip(named, COLOURS, strict=False)
    ]
    if len(order) > len(named):
        found.append(Series("all others", REST, [by_bar.get((start, None), (0, 0))[0] for start in starts]))
    return found


def sums(rows: Iterable[tuple[K, int, int]]) -> dict[K, tuple[int, int]]:
    """Sum both numbers by key."""
    found: dict[K, tuple[int, int]] = {}
    for key, one, other in rows:
        before = found.get(key, (0, 0))
        found[key] = (before[0] + one, before[1] + other)
    return found


def short(name: str, most: int = 13) -> str:
    """Shorten a long id for display."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _number(is_number: bool) -> str:
    return ' class="num"' if is_number else ""
