"""How fast the tape in your process is: recording, following, loading; beside plain Python and the raw file."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.lab import TapeServer
from bench.options import Options
from bench.session_plain import PlainTape
from bench.table import NOTHING, Table, count, ratio
from tape import InMemoryBackend, JsonlBackend, ServerBackend, SessionTape, ToolCallEnd

TITLE = "Session: the tape in your process"

EVENT = ToolCallEnd(tool_name="bash", result="a line of output that a tool gave back", duration_ms=12.5)
ROUNDS = 5
LOADING_ROUNDS = 3
HISTORIES = (0, 10_000, 100_000)
# How many times as fast as what it is measured beside, by CPU time.
AIMS = {"the tape, no backend": 1.0, "the tape, JsonlBackend": 8.0, "SessionTape.load": 3.0}
Record = Callable[[Any], object]


@dataclass(frozen=True)
class Cost:
    """What an amount of work took: seconds of the clock and of CPU time, of all threads."""

    amount: int
    seconds: float
    cpu_seconds: float

    @property
    def rate(self) -> float:
        return self.amount / self.seconds

    @property
    def cpu_rate(self) -> float:
        return self.amount / self.cpu_seconds

    @classmethod
    def of(cls, amount: int, work: Callable[[], object]) -> Cost:
        began, cpu_began = time.perf_counter(), time.process_time()
        work()
        return cls(amount, time.perf_counter() - began, time.process_time() - cpu_began)

    @classmethod
    def median(cls, rounds: list[Cost]) -> Cost:
        return cls(
            rounds[0].amount,
            statistics.median(each.seconds for each in rounds),
            statistics.median(each.cpu_seconds for each in rounds),
        )


def run(options: Options) -> list[Table]:
    """Three tables."""
    return [_recording(options), _following(options), _loading(options)]


# ── recording ────────────────────────────────────────────────────────────────────────────────────


def _recording(options: Options) -> Table:
    entries = options.scaled(200_000, 2_000)
    folder = options.lab.fresh_folder()
    names = (f"{folder}/{number}.jsonl" for number in itertools.count())

    def jsonl(**settings: Any) -> SessionTape:
        return SessionTape(backend=JsonlBackend(next(names), **settings))

    subjects: dict[str, tuple[Callable[[], Any], float]] = {
        "a list of dicts": (_List, 1.0),
        "the obvious way, in memory": (PlainTape, 1.0),
        "the tape, no backend": (SessionTape, 1.0),
        "the tape, InMemoryBackend": (lambda: SessionTape(backend=InMemoryBackend()), 1.0),
        "json.dumps and write()": (lambda: _File(Path(next(names))), 0.5),
        "the obvious way, to a file": (lambda: PlainTape(Path(next(names))), 0.1),
        "the tape, JsonlBackend": (jsonl, 0.5),
        "the tape, JsonlBackend, fsync interval": (lambda: jsonl(fsync="interval"), 0.5),
        "the tape, JsonlBackend, fsync always": (lambda: jsonl(fsync="always"), 0.005),
        "json.dumps, write() and fdatasync()": (lambda: _File(Path(next(names)), sync=True), 0.005),
    }
    found: dict[str, list[Cost]] = {name: [] for name in subjects}
    for _ in range(ROUNDS):  # in turns, so that all meet the same noise
        for name, (make, share) in subjects.items():
            options.report(f"{TITLE}: {name}")
            tape = make()
            found[name].append(_cost(tape.record, int(entries * share)))
            getattr(tape, "close", lambda: None)()
    costs = {name: Cost.median(each) for name, each in found.items()}
    with TapeServer(options.lab.fresh_store("sqlite")) as server:
        name = "the tape, ServerBackend, until all is durable"
        options.report(f"{TITLE}: {name}")
        costs[name] = _mirrored_cost(server.url, options.scaled(20_000, 500))
    beside = {
        "the tape, no backend": "the obvious way, in memory",
        "the tape, InMemoryBackend": "the obvious way, in memory",
        "the tape, JsonlBackend": "the obvious way, to a file",
        "the tape, JsonlBackend, fsync interval": "the obvious way, to a file",
        "the tape, JsonlBackend, fsync always": "json.dumps, write() and fdatasync()",
    }
    rows = []
    for name, cost in costs.items():
        other = beside.get(name, NOTHING)
        theirs = costs.get(other)
        rows.append(
            [
                name,
                count(cost.rate),
                f"{1e6 / cost.cpu_rate:.2f}",
                other,
                ratio(cost.rate, theirs and theirs.rate),
                ratio(cost.cpu_rate, theirs and theirs.cpu_rate),
                _aim(name),
            ]
        )
    return Table(
        "Session: records per second, one caller",
        ["", "records/s", "CPU µs each", "beside", "× as fast", "× by CPU time", "aim, by CPU time"],
        rows,
        [
            f"median of {ROUNDS} rounds; an event of three fields",
            "the tape locks, and hands every entry to the system before record() returns: write() and JSON cost most",
        ],
    )


def _aim(name: str) -> str:
    return f"≥ {AIMS[name]:g}×" if name in AIMS else NOTHING


class _List:
    """The least that a record can be."""

    def __init__(self) -> None:
        self._entries: list[dict[str, Any]] = []

    def record(self, event: ToolCallEnd) -> None:
        self._entries.append(
            {
                "seq": len(self._entries),
                "t": time.monotonic(),
                "kind": event.kind,
                "type": "ToolCallEnd",
                "tool_name": event.tool_name,
                "result": event.result,
                "duration_ms": event.duration_ms,
            }
        )


class _File:
    """The least that a record in a file can be, when it must survive a killed process."""

    def __init__(self, path: Path, *, sync: bool = False) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._sync = sync
        self._seq = 0

    def record(self, event: ToolCallEnd) -> None:
        entry = {
            "seq": self._seq,
            "t": time.monotonic(),
            "kind": event.kind,
            "type": "ToolCallEnd",
            "tool_name": event.tool_name,
            "result": event.result,
            "duration_ms": event.duration_ms,
        }
        self._seq += 1
        os.write(self._fd, json.dumps(entry).encode() + b"\n")
        if self._sync:
            os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


def _cost(record: Record, entries: int) -> Cost:
    def work() -> None:
        for _ in range(entries):
            record(EVENT)

    return Cost.of(entries, work)


def _mirrored_cost(url: str, entries: int) -> Cost:
    with SessionTape(backend=ServerBackend(url, close_timeout_s=60)) as tape:

        def work() -> None:
            for _ in range(entries):
                tape.record(EVENT)
            assert tape.flush() == 0

        tape.record(EVENT)
        tape.flush()
        return Cost.of(entries, work)


# ── following ────────────────────────────────────────────────────────────────────────────────────


def _following(options: Options) -> Table:
    entries = options.scaled(5_000, 100)
    rows = []
    for history in HISTORIES:
        history = options.scaled(history, history // 100)
        options.report(f"{TITLE}: following with {history:,} entries of history")
        few = max(entries // (1 + history // 500), 20)
        rates = [
            (
                options.lab.run(_tail_rate(SessionTape(), history, entries)),
                options.lab.run(_tail_rate(PlainTape(), history, few)),
            )
            for _ in range(ROUNDS)
        ]
        ours, plain = (statistics.median(each) for each in zip(*rates, strict=True))
        aim = "≥ 1000×" if history == HISTORIES[-1] else NOTHING
        rows.append([count(history), count(ours), count(plain), ratio(ours, plain), aim])
    return Table(
        "Session: live entries per second through tail(), one wake-up each",
        ["entries before", "the tape", "the obvious way", "÷ it", "aim"],
        rows,
        ["the writer records the next entry when the reader has the last: each one is a wake-up of its own"],
    )


async def _tail_rate(tape: Any, history: int, entries: int) -> float:
    for _ in range(history):
        tape.record(EVENT)
    got = asyncio.Event()

    async def read() -> None:
        async with aclosing(tape.tail(history)) as stream:
            async for _ in stream:
                got.set()

    reading = asyncio.create_task(read())
    await asyncio.sleep(0.01)
    began = time.perf_counter()
    for _ in range(entries):
        tape.record(EVENT)
        await got.wait()
        got.clear()
    seconds = time.perf_counter() - began
    reading.cancel()
    return entries / seconds


# ── loading ──────────────────────────────────────────────────────────────────────────────────────


def _loading(options: Options) -> Table:
    lines = options.scaled(1_000_000, 5_000)
    path = options.lab.fresh_folder() / "long.jsonl"
    with SessionTape(max_events=1, backend=JsonlBackend(path)) as tape:
        for _ in range(lines):
            tape.record(EVENT)

    def load_all() -> object:
        return SessionTape.load(path).head

    def open_end() -> object:
        with SessionTape(max_events=1_000, backend=JsonlBackend(path)) as tape:
            return tape.head

    def plain() -> object:
        with path.open() as file:
            return len([json.loads(line) for line in file])

    def raw() -> object:
        with path.open("rb") as file:
            return sum(1 for _ in file)

    works: dict[str, Callable[[], object]] = {
        "json.loads of every line into a list": plain,
        "SessionTape.load": load_all,
        "SessionTape(max_events=1000, backend=JsonlBackend(…))": open_end,
        "the lines of the raw file, counted": raw,
    }
    found: dict[str, list[Cost]] = {name: [] for name in works}
    for _ in range(LOADING_ROUNDS):
        for name, work in works.items():
            options.report(f"{TITLE}: {name}")

            def check(work: Callable[[], object] = work) -> None:
                assert work() == lines

            found[name].append(Cost.of(lines, check))
    costs = {name: Cost.median(each) for name, each in found.items()}
    base = costs["json.loads of every line into a list"]
    return Table(
        f"Session: opening a file of {lines:,} lines",
        ["", "seconds", "CPU seconds", "lines/s", "÷ json.loads, by CPU time", "aim"],
        [
            [
                name,
                f"{cost.seconds:.2f}",
                f"{cost.cpu_seconds:.2f}",
                count(cost.rate),
                ratio(cost.cpu_rate, base.cpu_rate),
                _aim(name),
            ]
            for name, cost in costs.items()
        ],
        [f"median of {LOADING_ROUNDS} rounds, in turns"],
    )
