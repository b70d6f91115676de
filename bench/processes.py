"""How many entries become durable in a second when many processes append, with a few callers each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from statistics import median, median_low

from bench.lab import TapeServer
from bench.load import Bounds, Outcome
from bench.options import NAMES, Options
from bench.peers.servers import CLIENTS, ROOT, NotInstalled, redis
from bench.table import NOTHING, Table, count, milliseconds, ratio

PROCESSES = 8
CALLERS = 8
AIM = 1.5
SLACK_S = 60
TITLE = f"Append: {PROCESSES} processes with {CALLERS} concurrent callers each"
REDIS = "Redis, appendfsync always (redis-py)"


def run(options: Options) -> list[Table]:
    """Tape and Redis, in turns; of each the round with the median rate."""
    bounds = options.scaled(Bounds(200_000, 5.0), Bounds(500, 0.3))
    processes = options.scaled(PROCESSES, 2)
    answers: dict[str, list[Outcome]] = {}
    missing = ""
    for number in range(1, options.scaled(3, 1) + 1):
        options.report(f"{TITLE}: round {number}")
        for kind in options.stores:
            with TapeServer(options.lab.fresh_store(kind)) as server:
                command = [sys.executable, "-m", "bench.append_client", server.url.rpartition(":")[2]]
                answers.setdefault(f"Tape on {NAMES[kind]}", []).append(_measure(command, processes, bounds))
        try:
            answers.setdefault(REDIS, []).append(_measure_redis(options, processes, bounds))
        except NotInstalled as error:
            missing = str(error)
    best = {name: _median(rounds) for name, rounds in answers.items() if rounds}
    peer = best.get(REDIS)
    rows = [_row(name, outcome, peer) for name, outcome in best.items() if name != REDIS]
    rows.append(_row(REDIS, peer, None) if peer else [REDIS, missing, *[NOTHING] * 4])
    notes = ["every process has one client; p50 and p99 are the medians of the processes"]
    return [Table(TITLE, ["", "entries/s", "p50 ms", "p99 ms", "÷ Redis", "aim"], rows, notes)]


def _measure_redis(options: Options, processes: int, bounds: Bounds) -> Outcome:
    python = CLIENTS / "python"
    if not python.exists():
        raise NotInstalled("client not installed: make .venv/.bench")
    with redis(options.lab.fresh_folder()) as port:
        return _measure([str(python), "-m", "bench.peers.xadd", str(port)], processes, bounds)


def _measure(command: list[str], processes: int, bounds: Bounds) -> Outcome:
    """The sum of what the processes append. All of them warm up for a second, so that they run at the same time."""
    load = [str(bounds.entries), str(bounds.seconds), "1.0", str(CALLERS)]
    started = [
        subprocess.Popen([*command, *load], cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    outcomes = []
    try:
        for process in started:
            text, _ = process.communicate(timeout=bounds.seconds * 4 + SLACK_S)
            outcomes.append(Outcome(**json.loads(text)))
    finally:
        for process in started:
            process.kill()

    def middle(figure: Callable[[Outcome], float]) -> float:
        return median(map(figure, outcomes))

    seconds = max(outcome.seconds for outcome in outcomes)
    entries = sum(outcome.entries for outcome in outcomes)
    return Outcome(entries, seconds, middle(lambda each: each.p50_ms), middle(lambda each: each.p99_ms))


def _median(rounds: list[Outcome]) -> Outcome:
    rate = median_low(outcome.rate for outcome in rounds)
    return next(outcome for outcome in rounds if outcome.rate == rate)


def _row(name: str, outcome: Outcome, peer: Outcome | None) -> list[str]:
    against = ratio(outcome.rate, peer.rate) if peer else NOTHING
    aim = f"≥ {AIM:g}×" if name != REDIS else NOTHING
    return [name, count(outcome.rate), milliseconds(outcome.p50_ms), milliseconds(outcome.p99_ms), against, aim]
