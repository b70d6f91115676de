"""Peers' servers: as durable as Tape, on a free port of the loopback, in a temporary folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from bench.lab import stop

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / ".venv-bench" / "bin"
START_S = 20
INSTALL_S = 300


class NotInstalled(Exception):
    """A peer that is not there; the text says how to get it."""


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[int]:
    """The port of a Redis that has every write on disk before it answers."""
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    command += ["--appendonly", "yes", "--appendfsync", "always", "--loglevel", "warning"]
    # No snapshot and no rewrite of the log gets in the way.
    command += ["--save", "", "--auto-aof-rewrite-percentage", "0"]
    with running(command, _redis_binary(), port):
        yield port


@contextlib.contextmanager
def nats(folder: Path) -> Iterator[int]:
    """The port of a NATS whose streams are on disk before it answers."""
    binary = CLIENTS / "nats-server"
    if not binary.exists():
        raise NotInstalled("not installed: make .venv/.bench")
    port = free_port()
    settings = folder / "nats.conf"
    settings.write_text(f'jetstream {{ store_dir: "{folder}", sync_interval: always }}\n')
    command = ["nats-server", "-c", str(settings), "-a", "127.0.0.1", "-p", str(port), "-l", str(folder / "log")]
    with running(command, str(binary), port):
        yield port


def free_port() -> int:
    """A free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def find_redis_benchmark() -> str:
    """Redis' own load generator."""
    _redis_binary()
    if (found := shutil.which("redis-benchmark")) is None:
        raise NotInstalled("not installed: apt-get install redis-tools")
    return found


def _redis_binary() -> str:
    if shutil.which("redis-server") is None and os.geteuid() == 0 and shutil.which("apt-get"):
        # Debian's redis-tools has the server too, under the name of its checker, and starts no service.
        command = ["apt-get", "install", "-y", "--no-install-recommends", "redis-tools"]
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, env=environment, capture_output=True, check=False, timeout=INSTALL_S)
    found = shutil.which("redis-server") or shutil.which("redis-check-rdb")
    if found is None:
        raise NotInstalled("not installed: apt-get install redis-server")
    return found


@contextlib.contextmanager
def running(command: list[str], binary: str, port: int) -> Iterator[int]:
    """A server as a process of ours, from when it answers; its process id."""
    process = subprocess.Popen(command, executable=binary, stdout=subprocess.DEVNULL, text=True)
    try:
        deadline = time.monotonic() + START_S
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} did not start")
            time.sleep(0.02)
        yield process.pid
    finally:
        stop(process)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
