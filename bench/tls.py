"""What TLS costs: the same appends over TLS and in plain text, in turns, on connections that are open already."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.lab import TapeServer
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
                        outcomes = options.lab.run(_alternate(options, (plain.url, secure.url), load))
                rows += _rows(f"{NAMES[kind]}: {load.name}", *outcomes)
    notes = [
        "both connections are open and warm before the clock starts: no handshake is counted",
        "TLS ÷ plain text is the median of the ratios of neighbouring turns, each of half a second",
    ]
    return [Table(TITLE, ["", "entries/s", "p50 ms", "p99 ms", "TLS ÷ plain text"], rows, notes)]


async def _alternate(options: Options, urls: tuple[str, str], load: Load) -> tuple[list[Outcome], list[Outcome]]:
    """What each turn on each server measured, in order."""
    turn = options.scaled(Bounds(1_000_000, 0.5), Bounds(200, 0.1))
    found: tuple[list[Outcome], list[Outcome]] = ([], [])
    async with AsyncTapeClient(urls[0]) as plain, AsyncTapeClient(urls[1]) as secure:
        for client in (plain, secure):
            await run_callers(_appending(client, load), load.callers, options.warm_up)
        for number in range(options.scaled(TURNS, 2)):
            # Which one begins changes each time: a machine that gets slower or faster favours neither.
            for client, outcomes in ((plain, found[0]), (secure, found[1]))[:: 1 if number % 2 else -1]:
                outcomes.append(await run_callers(_appending(client, load), load.callers, turn))
    return found


def _appending(client: AsyncTapeClient, load: Load) -> Callable[[int], Awaitable[int]]:
    async def append(number: int) -> int:
        subject, run_id, payload = event(number)
        if load.padding:
            payload["padding"] = "x" * load.padding
        return await client.append(subject, payload, run_id=run_id)

    return append


def _rows(name: str, plain: list[Outcome], secure: list[Outcome]) -> list[list[str]]:
    share = median(one.rate / other.rate for one, other in zip(secure, plain, strict=True))
    return [_row(f"{name}, plain text", plain, NOTHING), _row(f"{name}, TLS 1.3", secure, f"{share:.2f}×")]


def _row(name: str, outcomes: list[Outcome], share: str) -> list[str]:
    rate, p50, p99 = (median(getattr(outcome, part) for outcome in outcomes) for part in ("rate", "p50_ms", "p99_ms"))
    return [name, count(rate), milliseconds(p50), milliseconds(p99), share]


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
