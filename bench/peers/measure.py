"""Peers under the same load as Tape."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from bench.load import CALLERS, Bounds, Outcome, event, payload_text
from bench.peers.servers import CLIENTS, ROOT, NotInstalled, find_redis_benchmark, nats, redis

SLACK_S = 60


def redis_through_its_client(folder: Path, bounds: Bounds, warm_up_s: float) -> Outcome:
    """XADD through redis-py."""
    with redis(folder) as port:
        return _run_client("bench.peers.xadd", port, bounds, warm_up_s)


def redis_through_its_benchmark(folder: Path, bounds: Bounds, warm_up_s: float) -> Outcome:
    """XADD of one and the same entry through redis-benchmark, which is written in C."""
    binary = find_redis_benchmark()
    with redis(folder) as port:
        command = [binary, "-p", str(port), "-c", str(CALLERS), "--csv"]
        xadd = ["XADD", "orders", "*", "subject", event(1).subject, "payload", payload_text(1)]
        probe = _run_benchmark([*command, "-n", str(CALLERS * 20), *xadd], bounds)
        entries = min(bounds.entries, max(int(probe.rate * bounds.seconds), 1))
        return _run_benchmark([*command, "-n", str(entries), *xadd], bounds)


def nats_through_its_client(folder: Path, bounds: Bounds, warm_up_s: float) -> Outcome:
    """Publish to a JetStream stream in files through nats-py."""
    with nats(folder) as port:
        return _run_client("bench.peers.publish", port, bounds, warm_up_s)


def _run_client(module: str, port: int, bounds: Bounds, warm_up_s: float) -> Outcome:
    python = CLIENTS / "python"
    if not python.exists():
        raise NotInstalled("client not installed: make .venv/.bench")
    command = [str(python), "-m", module, str(port), str(bounds.entries), str(bounds.seconds), str(warm_up_s)]
    return Outcome(**json.loads(_output(command, bounds)))


def _run_benchmark(command: list[str], bounds: Bounds) -> Outcome:
    # Its CSV does not escape the quotes of the command in the first column; the last seven are numbers.
    figures = [float(figure) for figure in re.findall(r'"([\d.]+)"', _output(command, bounds))[-7:]]
    rate, _, _, p50_ms, _, p99_ms, _ = figures
    entries = int(command[command.index("-n") + 1])
    return Outcome(entries, entries / rate, p50_ms, p99_ms)


def _output(command: list[str], bounds: Bounds) -> str:
    timeout = bounds.seconds * 2 + SLACK_S
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=timeout).stdout
