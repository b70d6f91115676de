"""What one tenant's append takes while another tenant takes as much of the server as it gets."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.flood import BATCH_ENTRIES, HOSTILE_PREDICATE, LARGE_CALLERS, LARGE_PAYLOAD_BYTES
from bench.lab import TapeServer
from bench.load import CALLERS, Bounds, Outcome, event, run_callers
from bench.options import NAMES, Options
from bench.table import NOTHING, Table, count, milliseconds, ratio
from tape.client import AsyncTapeClient
from tape.engine.security.tokens import AUDIENCE, ISSUER, jwks_path, load_key

TITLE = "Beside: one caller's append beside another tenant's load"

ROOT = Path(__file__).parents[1]
# The load, its kind in `bench.flood`, its scopes, and how many times the median alone the median beside it may be.
LOADS = (
    (f"{CALLERS} callers, one entry a call", "entries", (), 3),
    (f"{CALLERS} callers, one entry a call, in frames", "framed", (), 3),
    (f"{CALLERS} callers, {BATCH_ENTRIES:,} entries a call", "batches", (), 3),
    (f"{CALLERS} append streams", "streams", (), 3),
    (f"{LARGE_CALLERS} callers, payloads of {LARGE_PAYLOAD_BYTES // 1_000_000} MB", "payloads", (), 3),
    ("4 callers, documents of 250 kB", "documents", ("operator",), 3),
    ("1 Follow with a hostile predicate", "predicate", ("agent",), 2),
    ("20 Follows with a hostile predicate", "predicates", ("agent",), 2),
)


@dataclass(frozen=True)
class Answer:
    """The victim alone and beside a load, and the calls of the load that were answered and refused in a second."""

    alone: Outcome
    beside: Outcome
    answered: float
    refused: float


def run(options: Options) -> list[Table]:
    """Each load on a server of its own, the victim alone first."""
    rounds = options.scaled(3, 1)
    rows = []
    for kind in options.stores:
        for name, load, scopes, aim in LOADS:
            answers = []
            for number in range(1, rounds + 1):
                options.report(f"{TITLE}: {NAMES[kind]}, {name}, round {number}")
                answers.append(_measure(options, kind, load, scopes))
            rows.append(_row(f"{NAMES[kind]}: {name}", answers, aim))
    notes = [
        f"median of {rounds} rounds, each on a fresh server with tokens; the victim is one caller, one entry at a time",
        "the load has a token of another tenant; a refused call of it is repeated after 50 ms",
        f"the hostile predicate is {HOSTILE_PREDICATE} on entries with 10,000 keys, ten of them a second",
        "times in ms; calls answered and refused are those of the load; all processes share the cores of this machine",
    ]
    columns = ["", "p50 alone", "p50 beside", "ratio", "aim", "p99 alone", "p99 beside"]
    return [Table(TITLE, [*columns, "calls/s", "refused/s"], rows, notes)]


def _row(name: str, answers: list[Answer], aim: int) -> list[str]:
    alone, beside = (median(getattr(answer, side).p50_ms for answer in answers) for side in ("alone", "beside"))
    return [
        name,
        milliseconds(alone),
        milliseconds(beside),
        ratio(beside, alone),
        f"≤ {aim}×",
        milliseconds(median(answer.alone.p99_ms for answer in answers)),
        milliseconds(median(answer.beside.p99_ms for answer in answers)),
        count(median(answer.answered for answer in answers)),
        count(median(answer.refused for answer in answers)) if any(answer.refused for answer in answers) else NOTHING,
    ]


def _measure(options: Options, kind: str, load: str, scopes: tuple[str, ...]) -> Answer:
    keys = options.lab.fresh_folder() / "dev.key"
    signing, _ = load_key(keys)
    flags = ("--auth-jwks", str(jwks_path(keys)), "--auth-issuer", ISSUER, "--auth-audience", AUDIENCE)
    victim = signing.mint(tenant="victim", user="v", session="s")
    flood = signing.mint(tenant="flood", user="f", session="s", scopes=scopes)
    with TapeServer(options.lab.fresh_store(kind), *flags) as server:
        return options.lab.run(_measure_beside(options, server.url, victim, [load, server.url, flood]))


async def _measure_beside(options: Options, url: str, token: str, load: list[str]) -> Answer:
    seconds, warm_up = options.scaled(4.0, 0.3), Bounds(100_000, options.scaled(1.5, 0.2))
    bounds = Bounds(100_000, seconds)
    async with AsyncTapeClient(url, id_token=token) as client:

        async def append(number: int) -> int:
            subject, run_id, payload = event(number)
            return await client.append(subject, payload, run_id=run_id)

        await run_callers(append, 1, warm_up)
        alone = await run_callers(append, 1, bounds)
        command = [sys.executable, "-m", "bench.flood", *load]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()  # it has begun
            await run_callers(append, 1, warm_up)
            beside = await run_callers(append, 1, bounds)
            answered, refused, took = map(float, process.communicate("")[0].split())
    return Answer(alone, beside, answered / took, refused / took)
