"""Start-up: the CPU time of short commands, and of a server until it is ready, beside that of two imports."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from statistics import median

from bench.lab import TAPE, TapeServer, cpu_seconds
from bench.options import NAMES, Options
from bench.table import NOTHING, Table, ratio

TITLE = "Start-up: CPU time beside import grpc, typer"
REFERENCE = "python -c 'import grpc, typer'"
COMMAND_AIM = 1.5
SERVER_AIM = 3


def run(options: Options) -> list[Table]:
    """Every command once in a round, in turns; the first round writes bytecode and is not counted."""
    # An installed package has its bytecode, which this variable would keep a checkout from writing.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    rounds = options.scaled(11, 1)
    with TapeServer(options.lab.fresh_store("sqlite")) as server:
        starts = _starts(options, server.url)
        seconds: dict[str, list[float]] = {name: [] for name in starts}
        for number in range(rounds + 1):
            options.report(f"{TITLE}: round {number} of {rounds}")
            for name, (start, _) in starts.items():
                used = start()
                if number:
                    seconds[name].append(used)
    reference = median(seconds[REFERENCE])
    rows = [
        [name, f"{median(seconds[name]):.3f}", ratio(median(seconds[name]), reference), f"≤ {aim}×" if aim else NOTHING]
        for name, (_, aim) in starts.items()
    ]
    notes = [
        f"median of {rounds} rounds in turns; user and system time of all threads of a process",
        "commands from their start to their exit, servers until they print their addresses (in steps of 10 ms); an"
        " existing store has its tables and no entries",
    ]
    return [Table(TITLE, ["", "CPU s", "÷ the imports", "aim"], rows, notes)]


def _starts(options: Options, url: str) -> dict[str, tuple[Callable[[], float], float | None]]:
    """What is started, by name, and how many times the reference it may take."""
    starts: dict[str, tuple[Callable[[], float], float | None]] = {
        REFERENCE: (lambda: _cpu_of(sys.executable, "-c", "import grpc, typer"), None),
        "tape --help": (lambda: _cpu_of(TAPE, "--help"), COMMAND_AIM),
        "tape append --help": (lambda: _cpu_of(TAPE, "append", "--help"), None),
        "tape append": (lambda: _cpu_of(TAPE, "append", "/tape/bench/started", "{}", "--url", url), COMMAND_AIM),
        "tape tail --no-follow": (lambda: _cpu_of(TAPE, "tail", "--no-follow", "--url", url), None),
    }
    for kind in options.stores:
        existing = options.lab.fresh_store(kind)
        _cpu_until_ready(existing)
        starts[f"{NAMES[kind]}: tape serve, new store"] = (
            lambda kind=kind: _cpu_until_ready(options.lab.fresh_store(kind)),
            SERVER_AIM,
        )
        starts[f"{NAMES[kind]}: tape serve, existing store"] = (
            lambda existing=existing: _cpu_until_ready(existing),
            SERVER_AIM,
        )
    return starts


def _cpu_of(*command: str) -> float:
    """Run a command to its end; the CPU seconds that it used."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime


def _cpu_until_ready(store: str) -> float:
    """Start a server; the CPU seconds that it used until it said that it runs."""
    with TapeServer(store) as server:
        return cpu_seconds(server.pid)
