"""Durable runs of Tape as a process of its own: `python -m bench.durable_client URL decision|effect LOAD`."""

from __future__ import annotations

import itertools
import sys
from concurrent.futures import ThreadPoolExecutor

import tape
from bench.workflow_load import load_of, report, timed


@tape.effect
def act(number: int) -> dict[str, int]:
    """The step: nothing but its record costs anything."""
    return {"n": number}


def main(url: str, kind: str, *arguments: str) -> None:
    """Measure steps of a kind."""
    load = load_of(list(arguments))
    numbers = itertools.count()
    with tape.TapeClient(url) as client, ThreadPoolExecutor(load.workflows) as threads:

        def run_one(steps: int) -> list[float]:
            with tape.durable_run("bench", invocation_id=f"{next(numbers)}", client=client) as run:
                if kind == "effect":
                    return timed(act, steps)
                return timed(lambda number: run.decide(lambda: {"n": number}), steps)

        report(load, lambda workflows, steps: list(threads.map(run_one, [steps] * workflows)))


if __name__ == "__main__":
    main(*sys.argv[1:])
