"""Libraries for durable workflows, beside Tape's runs: each in its own environment, as durable as it says."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from bench.peers.servers import CLIENTS, ROOT, NotInstalled

TIMEOUT_S = 120
RESTATE_SERVERS = ROOT / ".venv-bench" / "node_modules" / "@restatedev"

Figures = dict[str, float]


def workflows(module: str, *arguments: str | int | Path) -> Figures:
    """The figures of a peer, which runs in the peers' environment."""
    python = CLIENTS / "python"
    if not python.exists():
        raise NotInstalled("not installed: make .venv/.bench")
    command = [str(python), "-m", module, *map(str, arguments)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"not done within {TIMEOUT_S} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise NotInstalled(f"failed: {lines[-1][:120] if lines else f'exit status {done.returncode}'}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def restate_server() -> Path:
    """The server of Restate, which npm has as a binary."""
    found = [path for path in RESTATE_SERVERS.glob("restate-server-*/bin/restate-server") if os.access(path, os.X_OK)]
    if not found:
        raise NotInstalled("no restate-server: make .venv/.bench, with npm")
    return found[0]
