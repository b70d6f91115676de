"""Who is hurt, when, and for how long: drawn from a seed, so that what failed once can be tried again."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass

from tests.faults.cells import Cell

# Set to the seed that a failure printed, to draw the same faults.
SEED = "TAPE_FAULTS_SEED"


@dataclass(frozen=True)
class Fault:
    """Once so many messages were sent, all of these at once, for so long."""

    after: int
    what: tuple[str, ...]
    lasts_s: float

    def __str__(self) -> str:
        return f"{' and '.join(self.what)} for {self.lasts_s:.2f} s after {self.after} messages"


def seed_of() -> int:
    """The seed of this run."""
    return int(os.environ.get(SEED, "0")) or random.SystemRandom().randrange(1, 1 << 32)


def faults_of(cell: Cell) -> list[str]:
    """What can happen to a cell. Kafka's mock cluster keeps nothing, so it is never killed."""
    found = ["server killed", "server paused", "worker killed", "downstream slow"]
    found += ["gateway killed"] if cell.source == "webhook" else ["runtime killed"]
    if cell.source == "nats" or cell.backend == "nats_object":
        found.append("broker killed")
    if cell.backend == "s3" and cell.mode != "off":
        found.append("bucket killed")
    return found


# How long the outage of the downstream lasts that every cell has: longer than it takes to open the circuit.
OUTAGE_S = 4.0


def schedule(seed: int, cell: Cell, messages: int, faults: int) -> list[Fault]:
    """Faults in the order of their beginning; every kind comes once before one comes again.

    One more is an outage of the downstream: it is killed, or answers every request with 500.
    """
    rng = random.Random(seed)
    kinds: list[str] = []
    while len(kinds) < faults:
        kinds += rng.sample(faults_of(cell), len(faults_of(cell)))
    moments = sorted(rng.randrange(5, messages - 5) for _ in range(faults))
    drawn = []
    for moment, kind in zip(moments, kinds, strict=False):
        both = (kind, rng.choice(faults_of(cell))) if rng.random() < 0.25 else (kind,)
        drawn.append(Fault(moment, tuple(dict.fromkeys(both)), rng.uniform(0.05, 0.7)))
    # A TCP probe finds a broken service well: where one is declared, the service is killed.
    how = "killed" if cell.probed else rng.choice(["killed", "broken"])
    drawn.append(Fault(rng.randrange(5, messages - 5), (f"downstream {how}",), OUTAGE_S))
    return sorted(drawn, key=lambda fault: fault.after)
