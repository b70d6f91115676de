"""What TLS costs: the same appends over TLS and in plain text, in turns, on connections that are open already."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median_low
from typing import NamedTuple

from bench.lab import TapeServer
from bench.load import CALLERS, Bounds, Outcome, event, run_callers
from bench.options import NAMES, Options
from bench.table import NOTHING, Table, count, milliseconds, ratio
from tape.client import AsyncTapeClient
from tape.engine.security.dev_certificates import DevAuthority

TITLE = "TLS: durable appends over TLS beside plain text"

# Less than half of max_payload_bytes; below the size from which a field becomes an artifact.
LARGE_BYTES = 24_000


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
    """Each load on each store, with and without TLS in turns; of each the round with the median rate."""
    bounds = options.scaled(Bounds(200_000, 4.0), Bounds(500, 0.3))
    folder = options.lab.fresh_folder()
    flags = _certificate(folder)
    found: dict[tuple[str, str, bool], list[Outcome]] = {}
    with _trusting(folder / "ca.crt"):
        for number in range(1, options.scaled(5, 1) + 1):
            for kind in options.stores:
                for load in LOADS:
                    options.report(f"{TITLE}: round {number}, {NAMES[kind]}, {load.name}")
                    # Which one begins changes with the round: a machine that gets slower or faster favours neither.
                    for is_secure in (True, False) if number % 2 else (False, True):
                        with TapeServer(options.lab.fresh_store(kind), *(flags if is_secure else ())) as server:
                            outcome = options.lab.run(_append(server.url, load, options.warm_up, bounds))
                        found.setdefault((kind, load.name, is_secure), []).append(outcome)
    rows = []
    for kind in options.stores:
        for load in LOADS:
            plain, secure = (_median(found[kind, load.name, is_secure]) for is_secure in (False, True))
            name = f"{NAMES[kind]}: {load.name}"
            rows.append(_row(f"{name}, plain text", plain, None))
            rows.append(_row(f"{name}, TLS 1.3", secure, plain))
    notes = ["the connection is open and warm before the clock starts: no handshake is counted"]
    return [Table(TITLE, ["", "entries/s", "p50 ms", "p99 ms", "TLS ÷ plain text"], rows, notes)]


async def _append(url: str, load: Load, warm_up: Bounds, bounds: Bounds) -> Outcome:
    async with AsyncTapeClient(url) as client:

        async def append(number: int) -> int:
            subject, run_id, payload = event(number)
            if load.padding:
                payload["padding"] = "x" * load.padding
            return await client.append(subject, payload, run_id=run_id)

        await run_callers(append, load.callers, warm_up)
        return await run_callers(append, load.callers, bounds)


def _row(name: str, outcome: Outcome, plain: Outcome | None) -> list[str]:
    share = NOTHING if plain is None else ratio(outcome.rate, plain.rate)
    return [name, count(outcome.rate), milliseconds(outcome.p50_ms), milliseconds(outcome.p99_ms), share]


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


def _median(rounds: list[Outcome]) -> Outcome:
    middle = median_low([outcome.rate for outcome in rounds])
    return next(outcome for outcome in rounds if outcome.rate == middle)
