"""What TLS costs: the same appends over TLS and in plain text, in turns, on connections that are open already."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.lab import TapeServer, cpu_seconds
from bench.load import CALLERS, Bounds, Outcome, event, run_callers
from bench.options import NAMES, Options
from bench.table import NOTHING, Table, count, milliseconds
from tape.client import AsyncTapeClient
from tape.engine.security.dev_certificates import DevAuthority

TITLE = "TLS: durable appends over TLS beside plain text"

# Less than half of max_payload_bytes; below the size from which a field becomes an artifact.
LARGE_BYTES = 24_000
TURNS = 30


class Load(NamedTuple):
    """So many callers, each of whose entries is this much larger than that of the other questions."""

    name: str
    callers: int
    padding: int


class Turn(NamedTuple):
    """One turn of a load, and the processor time that server and client used for it."""

    outcome: Outcome
    cpu_s: float


LOADS = (
    Load(f"{CALLERS} callers, 200 bytes", CALLERS, 0),
    Load("1 caller, 200 bytes", 1, 0),
    Load("16 callers, 24 kB", 16, LARGE_BYTES),
)


def run(options: Options) -> list[Table]:
    """Each load on each store: two servers, one with TLS and one without, loaded in turns."""
    folder = options.lab.fresh_folder()
    flags = _certificate(folder)
    rows = []
    with _trusting(folder / "ca.crt"):
        for kind in options.stores:
            for load in LOADS:
                options.report(f"{TITLE}: {NAMES[kind]}, {load.name}")
                with TapeServer(options.lab.fresh_store(kind)) as plain:
                    with TapeServer(options.lab.fresh_store(kind), *flags) as secure:
                        turns = options.lab.run(alternate(options, plain, secure, load))
                rows += compare(f"{NAMES[kind]}: {load.name}", ("plain text", "TLS 1.3"), *turns)
    notes = [
        "both connections are open and warm before the clock starts: no handshake is counted",
        "TLS ÷ plain text is the median of the ratios of neighbouring turns, each of half a second",
        "CPU is that of server and client together; other load on the machine moves it less than the rate",
    ]
    columns = ["", "entries/s", "p50 ms", "p99 ms", "TLS ÷ plain text", "CPU µs per entry", "TLS ÷ plain text"]
    return [Table(TITLE, columns, rows, notes)]


async def alternate(
    options: Options, plain: TapeServer, secure: TapeServer, load: Load
) -> tuple[list[Turn], list[Turn]]:
    """What each turn on each server measured, in order."""
    bounds = options.scaled(Bounds(1_000_000, 0.5), Bounds(200, 0.1))
    found: tuple[list[Turn], list[Turn]] = ([], [])
    async with AsyncTapeClient(plain.url) as without, AsyncTapeClient(secure.url) as over_tls:
        sides = ((plain, without, found[0]), (secure, over_tls, found[1]))
        for _, client, _ in sides:
            await run_callers(_appending(client, load), load.callers, options.warm_up)
        for number in range(options.scaled(TURNS, 2)):
            # Which one begins changes each time: a machine that gets slower or faster favours neither.
            for server, client, turns in sides[:: 1 if number % 2 else -1]:
                before = cpu_seconds(server.pid) + time.process_time()
                outcome = await run_callers(_appending(client, load), load.callers, bounds)
                turns.append(Turn(outcome, cpu_seconds(server.pid) + time.process_time() - before))
    return found


def _appending(client: AsyncTapeClient, load: Load) -> Callable[[int], Awaitable[int]]:
    async def append(number: int) -> int:
        subject, run_id, payload = event(number)
        if load.padding:
            payload["padding"] = "x" * load.padding
        return await client.append(subject, payload, run_id=run_id)

    return append


def compare(name: str, sides: tuple[str, str], plain: list[Turn], secure: list[Turn]) -> list[list[str]]:
    """A row for each side; the second one has its ratios to the first."""
    share = median(one.outcome.rate / other.outcome.rate for one, other in zip(secure, plain, strict=True))
    costs = [_cost_us(turns) for turns in (plain, secure)]
    cpu_share = f"{costs[1] / costs[0]:.2f}×" if costs[0] else NOTHING
    return [
        _row(f"{name}, {sides[0]}", plain, NOTHING, costs[0], NOTHING),
        _row(f"{name}, {sides[1]}", secure, f"{share:.2f}×", costs[1], cpu_share),
    ]


def _row(name: str, turns: list[Turn], share: str, cost_us: float, cpu_share: str) -> list[str]:
    outcomes = [turn.outcome for turn in turns]
    rate, p50, p99 = (median(getattr(outcome, part) for outcome in outcomes) for part in ("rate", "p50_ms", "p99_ms"))
    return [name, count(rate), milliseconds(p50), milliseconds(p99), share, count(cost_us), cpu_share]


def _cost_us(turns: list[Turn]) -> float:
    entries = sum(turn.outcome.entries for turn in turns)
    return sum(turn.cpu_s for turn in turns) / entries * 1e6


def _certificate(folder: Path) -> tuple[str, ...]:
    pair = DevAuthority(folder).server()
    return "--tls-cert", str(pair.cert), "--tls-key", str(pair.key)


@contextmanager
def _trusting(ca: Path) -> Iterator[None]:
    before = os.environ.get("TAPE_CA")
    os.environ["TAPE_CA"] = str(ca)
    try:
        yield
    finally:
        if before is None:
            del os.environ["TAPE_CA"]
        else:
            os.environ["TAPE_CA"] = before
