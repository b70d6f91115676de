"""The load of durable workflows: one alone, then many at once; the same for Tape and for every peer."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

WARM_UP = 20


class Load(NamedTuple):
    """How many steps a single workflow has, how many workflows run at once, and how many steps each of them has."""

    steps: int
    workflows: int
    steps_each: int


def load_of(arguments: list[str]) -> Load:
    """The load that the command line names."""
    return Load(*map(int, arguments))


def timed(step: Callable[[int], object], steps: int) -> list[float]:
    """Make steps one after another; what each of them took, in seconds."""
    waits = []
    for number in range(steps):
        began = time.perf_counter()
        step(number)
        waits.append(time.perf_counter() - began)
    return waits


def report(load: Load, run_all: Callable[[int, int], list[list[float]]]) -> None:
    """Print the figures as JSON: `run_all(workflows, steps)` runs them and returns the waits of each."""
    run_all(1, WARM_UP)
    figures: dict[str, float] = {}
    for name, workflows, steps in (("one", 1, load.steps), ("many", load.workflows, load.steps_each)):
        began = time.perf_counter()
        waits = sorted(wait * 1_000 for each in run_all(workflows, steps) for wait in each)
        figures[f"{name}_rate"] = len(waits) / (time.perf_counter() - began)
        figures[f"{name}_p50_ms"] = waits[len(waits) // 2]
        figures[f"{name}_p99_ms"] = waits[len(waits) * 99 // 100]
    sys.stdout.write(json.dumps(figures) + "\n")
