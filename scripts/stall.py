"""Run a command while its processes are stopped for moments, as on a machine that has too much to do.

    .venv/bin/python scripts/stall.py .venv/bin/python -m pytest tests/system -n 3

What passes quietly and fails here depends on time: a lease that is too short, an order that is not guaranteed.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time

import psutil

PAUSE_S = (0.1, 0.8)
STALL_S = (0.05, 1.2)


def main() -> int:
    """The command's exit code."""
    if len(sys.argv) < 2:
        sys.exit("Say what to run: python scripts/stall.py COMMAND …")
    command = subprocess.Popen(sys.argv[1:])
    while command.poll() is None:
        time.sleep(random.uniform(*PAUSE_S))
        with contextlib.suppress(psutil.NoSuchProcess):
            stall(psutil.Process(command.pid).children(recursive=True))
    return command.returncode


def stall(family: list[psutil.Process]) -> None:
    """Stop one of them, a few, or all, and let them go on."""
    some = random.sample(family, min(random.choice((1, 1, 2, 4, len(family))), len(family)))
    try:
        for process in some:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        time.sleep(random.uniform(*STALL_S))
    finally:
        for process in some:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


if __name__ == "__main__":
    sys.exit(main())
