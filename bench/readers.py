"""Readers of event streams: a small C program, built here, so that reading is not what is measured."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.lab import Lab, stop
from bench.peers.servers import NotInstalled

SOURCES = Path(__file__).parent / "c"
READ_TIMEOUT_MS = 15_000
# Stands before the time at which an event was sent.
SENT = 'sent_ns":'


@dataclass(frozen=True)
class Received:
    """What all readers of one stream got."""

    events: int
    wanted: int
    bytes: int
    first_ns: int
    last_ns: int
    p50_ms: float
    p99_ms: float


def build(lab: Lab, name: str = "sse_reader") -> Path:
    """A program of `bench/c`, compiled."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NotInstalled(f"no C compiler: {name} cannot be built")
    program = lab.folder / name
    if not program.exists():
        subprocess.run([compiler, "-O2", "-o", program, SOURCES / f"{name}.c"], check=True)
    return program


class Readers:
    """Some readers that are connected; `received()` waits until they have everything."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def received(self) -> Received:
        """What they got, once that is all or nothing more comes."""
        answer, _ = self._process.communicate()
        return Received(**json.loads(answer))


@contextmanager
def reading(lab: Lab, port: int, path: str, connections: int, events: int, token: str = SENT) -> Iterator[Readers]:
    """Readers of a path, from when all are connected. Each event has the token once, with digits behind it."""
    request = lab.fresh_folder() / "request"
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: text/event-stream\r\n\r\n"
    request.write_text(head, newline="")
    command = [str(build(lab)), str(port), str(request), str(connections), str(events), str(READ_TIMEOUT_MS), token]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"the readers ended with {process.wait()}")
        yield Readers(process)
    finally:
        stop(process)
