"""How much to measure, and on what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from bench.lab import Lab
from bench.load import Bounds

T = TypeVar("T")

NAMES = {"sqlite": "SQLite", "postgres": "Postgres"}
STORES = tuple(NAMES)


@dataclass(frozen=True)
class Options:
    """What every question is given."""

    lab: Lab
    is_quick: bool = False
    stores: tuple[str, ...] = STORES
    report: Callable[[str], None] = lambda text: None
    minutes: float | None = None
    rate: int | None = None

    def scaled(self, full: T, quick: T) -> T:
        """The first for figures worth printing, the second to see that everything works."""
        return quick if self.is_quick else full

    @property
    def warm_up(self) -> Bounds:
        """A load that is run before one that counts."""
        return Bounds(entries=50_000, seconds=self.scaled(1.0, 0.1))
