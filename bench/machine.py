"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import apsw

from bench.lab import Lab

SYNCS = 200


def describe(lab: Lab, *, with_postgres: bool) -> dict[str, str]:
    """The machine and the versions, by name."""
    facts = {
        "CPU": f"{_cpu()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "disk": f"{_file_system(lab.folder)}, fdatasync of 4 KiB p50 {_sync_ms(lab.folder):.2f} ms",
        "load before": f"{os.getloadavg()[0]:.2f}",
        "kernel": platform.release(),
        "Python": platform.python_version(),
        "SQLite": f"{apsw.sqlite_lib_version()} (apsw {version('apsw')}), WAL, synchronous=FULL",
    }
    if with_postgres:
        facts["PostgreSQL"] = _postgres(lab.postgres_url())
    facts["gRPC"] = version("grpcio")
    facts["date"] = datetime.now(UTC).date().isoformat()
    return facts


def _cpu() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def _file_system(folder: Path) -> str:
    command = ["df", "--output=fstype", str(folder)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    return answer[-1] if answer else "unknown file system"


def _sync_ms(folder: Path) -> float:
    """What a durable commit cannot do without."""
    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(SYNCS):
            os.write(file.fileno(), bytes(4096))
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e3


def _postgres(url: str) -> str:
    import psycopg

    with psycopg.connect(url) as connection:
        names = ("server_version", "fsync", "synchronous_commit")
        number, fsync, commit = (connection.execute(f"SHOW {name}").fetchall()[0][0] for name in names)
    return f"{number} (psycopg {version('psycopg')}), fsync={fsync}, synchronous_commit={commit}"
