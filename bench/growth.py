"""How every figure grows with the journal, up to 10 million entries, and with the callers, from 1 to 200."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter

from bench.drawing import Line, draw_lines
from bench.growth_measures import (
    BY_CALLERS,
    BY_SIZE,
    REPLAYED,
    Figures,
    Plot,
    measure_callers,
    measure_size,
)
from bench.growth_page import Section, write_page
from bench.growth_store import ENTRIES_PER_RUN, MAX_COPIED, RARE, grown_stores
from bench.load import CALLERS
from bench.machine import describe
from bench.options import NAMES, Options
from bench.table import Table, count, milliseconds, ratio

TITLE = "Growth: longer journals, more callers"
SIZES = {"sqlite": (10_000, 1_000_000, 10_000_000), "postgres": (10_000, 1_000_000)}
QUICK_SIZES = (1_000, 20_000)
MANY_CALLERS, QUICK_CALLERS = (1, 4, 16, 64, 200), (1, 8)
# Which of the sizes the callers are measured on.
MIDDLE = 1
FOLDER = Path("build")
CALLERS_NOTES = (
    "asyncio callers of one client, 1.5 s each; concurrent appends of a client share a message, ledger calls do not",
    "server: CPU of its process",
)

# By the number of entries or of callers: the figures of each round, and their medians.
Measured = dict[int, list[Figures]]
Medians = dict[int, Figures]


def run(options: Options) -> list[Table]:
    """For each store one table by entries and one by callers; the same as a page of plots."""
    tables, sections = [], []
    for kind in options.stores:
        for table, section in _measure(options, kind):
            tables.append(table)
            sections.append(section)
    facts = describe(options.lab, with_postgres="postgres" in options.stores)
    page = write_page(options.scaled(FOLDER, FOLDER / "quick"), TITLE, facts, sections)
    return [replace(table, notes=[*table.notes, f"plots: {page}"]) for table in tables]


def _measure(options: Options, kind: str) -> list[tuple[Table, Section]]:
    """Rounds in turns over all sizes, then over all numbers of callers."""
    rounds = options.scaled(3, 1)
    sizes, callers = options.scaled(SIZES[kind], QUICK_SIZES), options.scaled(MANY_CALLERS, QUICK_CALLERS)
    by_size: Measured = {}
    by_callers: Measured = {}
    numbers = itertools.count(1)
    options.report(f"{TITLE}: filling {NAMES[kind]} with {sizes[-1]:,} entries")
    began = perf_counter()
    with grown_stores(options.lab, kind, sizes) as stores:
        filled_s = perf_counter() - began
        for number, store in itertools.product(range(1, rounds + 1), stores):
            options.report(f"{TITLE}: {NAMES[kind]}, {store.entries:,} entries, round {number}")
            by_size.setdefault(store.entries, []).append(measure_size(options, store, numbers))
        middle = stores[MIDDLE]
        for number in range(1, rounds + 1):
            options.report(f"{TITLE}: {NAMES[kind]}, {middle.entries:,} entries, callers, round {number}")
            for some, figures in measure_callers(options, middle, callers, numbers).items():
                by_callers.setdefault(some, []).append(figures)
    size_title = f"Growth: {NAMES[kind]}, as the journal grows"
    callers_title = f"Growth: {NAMES[kind]}, as callers grow, on {middle.entries:,} entries"
    notes = f"median of {rounds} round{'s' * (rounds > 1)}, in turns over all columns; the stores are filled once"
    return [
        _answer(size_title, kind, "entries", BY_SIZE, by_size, [notes, *_size_notes(kind, sizes, filled_s)]),
        _answer(callers_title, kind, "concurrent callers", BY_CALLERS, by_callers, [notes, *CALLERS_NOTES]),
    ]


def _size_notes(kind: str, sizes: Sequence[int], filled_s: float) -> list[str]:
    return [
        f"filled through the appender: {sizes[-1]:,} entries in {filled_s:.0f} s, in runs of {ENTRIES_PER_RUN}; each"
        " has a row in the tables of runs and of values, and the keys that calls use fall anywhere among them",
        f"what writes is measured last, 3 s each, on a copy of a store of up to {MAX_COPIED:,} entries; so the smallest"
        f" store grows to several times its {sizes[0]:,} entries",
        f"server: CPU of its process; commit: CPU of transactions with {CALLERS} entries and a request id, without a"
        " server around them" + (", of PostgreSQL too" if kind == "postgres" else ""),
        f"replay of {REPLAYED:,} entries from the middle to one reader, connecting included; at {sizes[0]:,} entries"
        f" there are {sizes[0] // 2:,} to replay, and connecting counts more",
        f"{RARE} rare entries: until Follow with a literal subject, from the oldest entry, has all entries of that"
        " subject, which are spread over the journal",
    ]


def _answer(
    title: str, kind: str, across: str, plots: Sequence[Plot], measured: Measured, notes: Sequence[str]
) -> tuple[Table, Section]:
    """The medians of all rounds as a table and as plots."""
    medians = {
        at: {key: median(figures[key] for figures in rounds) for key in rounds[0]} for at, rounds in measured.items()
    }
    steps = list(medians)
    rows = [_row(plot, line, [medians[at][plot, line] for at in steps]) for plot in plots for line in plot.lines]
    columns = [f"by {across}", *map(count, steps), f"{steps[-1]:,} ÷ {steps[0]:,}"]
    pictures = {f"growth-{kind}-{plot.name}": _draw(plot, medians, across) for plot in plots}
    return Table(title, columns, rows, notes), Section(title, pictures, notes)


def _row(plot: Plot, line: str, values: Sequence[float]) -> list[str]:
    shown = count if plot.unit.endswith("/s") else milliseconds
    return [f"{plot.title}: {line}, {plot.unit}", *map(shown, values), ratio(values[-1], values[0])]


def _draw(plot: Plot, medians: Medians, across: str) -> str:
    lines = [Line(name, [(at, figures[plot, name]) for at, figures in medians.items()]) for name in plot.lines]
    return draw_lines(lines, across, plot.unit, plot.title)
