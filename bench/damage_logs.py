"""Logs to damage, each read through its own documented interface: Tape, bare SQLite, NATS JetStream and UmaDB."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType, StreamConfig
from tests.forked import Forked
from tests.services import ServerProcess, free_port

from bench.load import payload_text
from bench.peers.servers import CLIENTS, ROOT, NotInstalled
from tape.client import AsyncTapeClient
from tape.errors import TapeError
from tape.model.entry import Draft

Run = Callable[[Coroutine[Any, Any, None]], None]

# A case ends after these, also on a loaded machine.
START_S, READ_S, CHECK_S = 30.0, 30.0, 60.0
FILL_S = 300.0
BATCH = 50


@dataclass
class Read:
    """What a reader got: numbers and payloads; what was named; the number that one more append got."""

    found: list[tuple[int, str]] = field(default_factory=list)
    named: str = ""
    # It neither ended nor named anything within the time limits.
    is_stuck: bool = False
    gaps: list[tuple[int, int]] = field(default_factory=list)
    appended: int = 0
    # Whether the log's own check names damage; None if it has none.
    check: bool | None = None


class Log(Protocol):
    """A log in the files of a folder."""

    name: str

    def fill(self, folder: Path, entries: int) -> None:
        """Append entries, all acknowledged, and end as kill -9 does."""

    def read(self, folder: Path, entries: int) -> Read:
        """Start it on the files, read everything, append one more."""

    def files(self, folder: Path) -> list[Path]:
        """The files to damage."""


class _QuietServer(ServerProcess):
    """A server that reports its errors to a file."""

    def __init__(self, store: str, errors: Path) -> None:
        super().__init__(store)
        self._errors = errors

    def _begin(self, arguments: list[str]) -> Forked:
        with self._errors.open("w") as errors:
            return Forked(arguments, stderr=errors)


class TapeLog:
    """Tape on SQLite, with its documented defaults."""

    name = "Tape (SQLite)"

    def __init__(self, run: Run) -> None:
        self._run = run

    def fill(self, folder: Path, entries: int) -> None:
        """Through the SDK; the last entries are in the write-ahead log only."""
        with ServerProcess(f"sqlite:{folder / 'tape.db'}") as server:
            self._run(self._append(server.url, entries))

    async def _append(self, url: str, entries: int) -> None:
        async with AsyncTapeClient(url) as client:
            for start in range(1, entries + 1, BATCH):
                numbers = range(start, min(start + BATCH, entries + 1))
                drafts = [Draft(subject="/tape/order/paid", payload_json=payload_text(number)) for number in numbers]
                assert await client.append_many(drafts) == list(numbers)

    def read(self, folder: Path, entries: int) -> Read:
        """`Follow` from the beginning, past what is named."""
        store = f"sqlite:{folder / 'tape.db'}"
        answer = Read(check=self._verify(store, folder))
        server = _QuietServer(store, folder / "server.err")
        limit = threading.Timer(START_S, server.kill)  # its start waits for a line of the server
        limit.start()
        began = time.monotonic()
        try:
            server.start()
        except AssertionError:
            answer.named = (folder / "server.err").read_text() or "it did not start"
            answer.is_stuck = time.monotonic() - began >= START_S
        else:
            limit.cancel()
            self._run(self._read(server.url, entries, answer))
        finally:
            limit.cancel()
            server.kill()
        return answer

    async def _read(self, url: str, entries: int, answer: Read) -> None:
        async with AsyncTapeClient(url, append_timeout_s=2) as client:
            try:
                answer.appended = await client.append("/tape/order/paid", {})
            except TapeError as error:
                answer.named = str(error)
            try:
                async with asyncio.timeout(READ_S if answer.appended else 2):
                    async for batch in client.follow_batches(reconnect=False, skip_gaps=True):
                        found = [(one.global_seq, one.payload_json, one.kind) for one in batch.entries]
                        answer.found += [(number, text) for number, text, kind in found if kind == "order"]
                        answer.gaps += [(gap.first, gap.last) for gap in batch.gaps]
                        if answer.appended and batch.position >= answer.appended:
                            break
            except TapeError as error:
                answer.named = str(error)
            except TimeoutError:
                answer.is_stuck = not answer.named

    def _verify(self, store: str, folder: Path) -> bool:
        """Whether it names damage; one that does not end names nothing."""
        with (folder / "verify.out").open("w") as out:
            process = Forked(["verify", "--store", store], stdout=out, stderr=out, cwd=folder)
            try:
                return process.wait(CHECK_S) != 0
            except subprocess.TimeoutExpired:
                return False
            finally:
                process.kill()

    def files(self, folder: Path) -> list[Path]:
        """The database, its log and what is beside it; SQLite makes its shared memory anew."""
        return [path for path in folder.iterdir() if path.is_file() and not path.name.endswith("-shm")]


class SqliteLog:
    """A table in SQLite with a write-ahead log and full durability: what Tape's store is without Tape."""

    name = "bare SQLite"

    def fill(self, folder: Path, entries: int) -> None:
        """In a process that ends without closing the database."""
        program = (
            "import os, sqlite3, sys\n"
            "from bench.load import payload_text\n"
            "db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
            "db.execute('PRAGMA journal_mode=WAL'); db.execute('PRAGMA synchronous=FULL')\n"
            "db.execute('PRAGMA wal_autocheckpoint=8000')\n"
            "db.execute('CREATE TABLE log (number INTEGER PRIMARY KEY, payload TEXT NOT NULL)')\n"
            "for number in range(1, int(sys.argv[2]) + 1):\n"
            "    db.execute('INSERT INTO log VALUES (?, ?)', (number, payload_text(number)))\n"
            "    if number == int(sys.argv[2]) // 2: db.execute('PRAGMA wal_checkpoint(TRUNCATE)')\n"
            "os._exit(0)\n"
        )
        subprocess.run([sys.executable, "-c", program, folder / "log.db", str(entries)], cwd=ROOT, check=True)

    def read(self, folder: Path, entries: int) -> Read:
        """A SELECT in order, one more INSERT, then `PRAGMA integrity_check`."""
        answer = Read(check=True)
        db = sqlite3.connect(folder / "log.db", isolation_level=None)
        db.text_factory = lambda data: data.decode(errors="replace")
        deadline = time.monotonic() + READ_S
        db.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
        try:
            for row in db.execute("SELECT number, payload FROM log ORDER BY number"):
                answer.found.append(row)
            (answer.appended,) = db.execute("INSERT INTO log (payload) VALUES ('{}') RETURNING number").fetchone()
        except sqlite3.Error as error:
            answer.is_stuck = time.monotonic() > deadline
            answer.named = "" if answer.is_stuck else str(error)
        deadline = time.monotonic() + CHECK_S
        with contextlib.suppress(sqlite3.Error):
            answer.check = db.execute("PRAGMA integrity_check").fetchall() != [("ok",)]
        db.close()
        return answer

    def files(self, folder: Path) -> list[Path]:
        """The database and its log."""
        return [path for path in folder.iterdir() if not path.name.endswith("-shm")]


class NatsLog:
    """A NATS JetStream stream in files, synced before each acknowledgement."""

    name = "NATS JetStream"

    def __init__(self, run: Run) -> None:
        self._run = run

    def fill(self, folder: Path, entries: int) -> None:
        """Publish, each acknowledged."""
        with self._server(folder) as port:
            self._run(self._publish(port, entries))

    async def _publish(self, port: int, entries: int) -> None:
        connection = await nats.connect(f"nats://127.0.0.1:{port}")
        stream = connection.jetstream(timeout=10)
        await stream.add_stream(StreamConfig(name="orders", subjects=["order"], storage=StorageType.FILE))
        for number in range(1, entries + 1):
            assert (await stream.publish("order", payload_text(number).encode())).seq == number
        await connection.close()

    def read(self, folder: Path, entries: int) -> Read:
        """A consumer from the beginning; named is an error, `lost` in the stream's state, or a line of its log."""
        answer = Read()
        try:
            with self._server(folder) as port:
                self._run(asyncio.wait_for(self._read(port, answer), READ_S))
        except TimeoutError:  # also of the client library: a fetch that gets nothing reports no damage
            answer.is_stuck = True
        except (RuntimeError, nats.errors.Error, OSError) as error:
            answer.named = f"{type(error).__name__}: {error}"
        log = (folder / "log").read_text(errors="replace")
        lines = [line for line in log.splitlines() if "[WRN]" in line or "[ERR]" in line or "[FTL]" in line]
        answer.named = answer.named or "; ".join(lines)[:200]
        answer.is_stuck = answer.is_stuck and not answer.named
        return answer

    async def _read(self, port: int, answer: Read) -> None:
        connection = await nats.connect(f"nats://127.0.0.1:{port}", allow_reconnect=False)
        try:
            stream = connection.jetstream(timeout=5)
            state = (await stream.stream_info("orders")).state
            if getattr(state, "lost", None):
                answer.named = f"lost: {state.lost}"
            answer.appended = (await stream.publish("order", b"{}")).seq
            config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL, ack_policy=AckPolicy.NONE)
            consumer = await stream.pull_subscribe("order", config=config, stream="orders")
            while not answer.found or answer.found[-1][0] < answer.appended:
                for message in await consumer.fetch(500, timeout=2):
                    number = message.metadata.sequence.stream
                    answer.found.append((number, message.data.decode(errors="replace")))
        finally:
            await connection.close()

    @contextlib.contextmanager
    def _server(self, folder: Path) -> Iterator[int]:
        binary = CLIENTS / "nats-server"
        if not binary.exists():
            raise NotInstalled("not installed: make .venv/.bench")
        port = free_port()
        (folder / "nats.conf").write_text(f'jetstream {{ store_dir: "{folder}", sync_interval: always }}\n')
        command = [binary, "-c", folder / "nats.conf", "-a", "127.0.0.1", "-p", str(port), "-l", folder / "log"]
        with _process(command, port):
            yield port

    def files(self, folder: Path) -> list[Path]:
        """Everything that JetStream keeps."""
        return [path for path in (folder / "jetstream").rglob("*") if path.is_file()]


class UmadbLog:
    """UmaDB with its documented defaults."""

    name = "UmaDB"

    def fill(self, folder: Path, entries: int) -> None:
        """Append, each acknowledged."""
        with self._server(folder) as url:
            self._client("fill", url, entries)

    def read(self, folder: Path, entries: int) -> Read:
        """Read everything, append one more."""
        try:
            with self._server(folder) as url:
                answer = json.loads(self._client("read", url, entries))
        except (TimeoutError, subprocess.TimeoutExpired):
            return Read(is_stuck=True)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            return Read(named=f"{type(error).__name__}: {error}")
        found = [(number, text) for number, text in answer["found"]]
        return Read(found, answer["error"], appended=answer["appended"])

    @contextlib.contextmanager
    def _server(self, folder: Path) -> Iterator[str]:
        if not (CLIENTS / "umadb").exists():
            raise NotInstalled("not installed: make .venv/.bench")
        port = free_port()
        command = [CLIENTS / "umadb", "--listen", f"127.0.0.1:{port}", "--db-path", folder / "uma.db"]
        with _process(command, port):
            yield f"http://127.0.0.1:{port}"

    def _client(self, command: str, url: str, entries: int) -> str:
        arguments = [CLIENTS / "python", "-m", "bench.peers.umadb_log", command, url, str(entries)]
        limit = READ_S if command == "read" else FILL_S
        done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=True)
        return done.stdout.splitlines()[-1]

    def files(self, folder: Path) -> list[Path]:
        """Its database file or files."""
        return [path for path in folder.rglob("uma.db*") if path.is_file()]


@contextlib.contextmanager
def _process(command: list[object], port: int) -> Iterator[None]:
    """A server until kill -9, from when it accepts connections."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([str(part) for part in command], stdout=quiet, stderr=quiet)
    try:
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None:
                raise RuntimeError(f"it did not start (exit {process.poll()})")
            if time.monotonic() > deadline:
                raise TimeoutError(f"it did not accept connections within {START_S:.0f} s")
            time.sleep(0.01)
        yield
    finally:
        process.kill()
        process.wait()


def open_logs(run: Run) -> list[Log]:
    """All logs; `run` runs a coroutine to its end."""
    return [TapeLog(run), SqliteLog(), NatsLog(run), UmadbLog()]
