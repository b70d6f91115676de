"""`python -m tests.damage STORE [SEED …] [--cases N]`: repeat cases, or run many and print the table."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.damage.run import PROCESSES, run_cases
from tests.damage.table import print_table


def main() -> None:
    """Run the cases; exits with 1 if something was silent."""
    parser = argparse.ArgumentParser(prog="python -m tests.damage", description=__doc__)
    parser.add_argument("store", choices=["sqlite", "postgres", "archive"])
    parser.add_argument("seed", nargs="*", type=int)
    parser.add_argument("--cases", type=int, default=100, help="seeds 1 to N, unless seeds are given (100)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (1)")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    arguments = parser.parse_args()
    if os.access("/dev/shm", os.W_OK):
        os.environ["TMPDIR"] = tempfile.tempdir = str(Path("/dev/shm"))
    seeds = arguments.seed or range(arguments.first, arguments.first + arguments.cases)
    results = []
    for result in run_cases(arguments.store, seeds, arguments.processes):
        results.append(result)
        if arguments.seed or result.is_failed or result.alarm:
            sys.stdout.write(f"{result} ({result.seconds:.1f} s)\n")
            sys.stdout.flush()
    sys.stdout.write(print_table(results) + "\n")
    sys.exit(any(result.is_failed for result in results))


if __name__ == "__main__":
    main()
