"""What the stores of the suite have in common: a template that is made once, and a damaged copy of it for each case."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.damage.truth import Truth


@dataclass(frozen=True)
class Damage:
    """What was damaged: a table, an index or a file; how; and where exactly."""

    target: str
    kind: str
    where: str


@dataclass(frozen=True)
class Look:
    """Whether tables and indexes hold what they held before the damage, by the database's own account."""

    is_intact: bool
    text: str = ""


@dataclass(frozen=True)
class StoreCopy:
    """A damaged copy of a journal and the truth about it."""

    url: str
    folder: Path
    truth: Truth
    damage: Damage
    look: Callable[[], Look]
    settings: dict[str, object] = field(default_factory=dict)
    # More arguments of `tape verify`.
    verify: tuple[str, ...] = ()


class Template(Protocol):
    """A journal that is made once."""

    name: str

    def build(self) -> None:
        """Write it into its folder."""

    def damaged_copy(self, seed: int, folder: Path) -> AbstractContextManager[StoreCopy]:
        """A copy in a folder, with the damage of a seed."""

    def close(self) -> None:
        """Let go of what this process has started for it."""
