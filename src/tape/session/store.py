"""A session as a whole: its tape, its branches, its cached effects; and a snapshot of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tape.errors import InvalidSnapshot
from tape.session.adk import as_adk_plugin
from tape.session.effects import EffectCache
from tape.session.entry import Recorded, own
from tape.session.forks import Branch, BranchState, ForkManager, state_of
from tape.session.lines import plain
from tape.session.tape import SessionTape

VERSION = 1


@dataclass(frozen=True)
class SessionSnapshot:
    """Everything that a session held at one moment, except cached effects."""

    events: tuple[dict[str, Any], ...] = ()
    branches: dict[str, dict[str, Any]] = field(default_factory=dict)
    active_branch: str | None = None
    version: int = VERSION

    @property
    def event_count(self) -> int:
        """How many entries it has."""
        return len(self.events)

    @property
    def branch_count(self) -> int:
        """How many branches it has."""
        return len(self.branches)

    def to_dict(self) -> dict[str, Any]:
        """The snapshot as plain data."""
        return {
            "version": self.version,
            "active_branch": self.active_branch,
            "events": [dict(event) for event in self.events],
            "branches": self.branches,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SessionSnapshot:
        """The snapshot that plain data describes."""
        version = data.get("version") if type(data) is dict else None
        if version != VERSION:
            raise InvalidSnapshot(f"The snapshot has version {version!r}; this Tape reads version {VERSION}.")
        try:
            return cls(tuple(data["events"]), dict(data["branches"]), data.get("active_branch"))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidSnapshot(f"The snapshot lacks {error}.") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, whole or not at all."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        try:
            with scratch.open("w") as file:
                json.dump(plain(self.to_dict()), file, indent=2)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(target)
        finally:
            scratch.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SessionSnapshot:
        """The snapshot in a file."""
        try:
            data = json.loads(Path(path).read_bytes())
        except ValueError as error:
            raise InvalidSnapshot(f"{path} is not JSON: {error}.") from error
        return cls.from_dict(data)


class SessionStore:
    """A tape, the branches of its state and its cached effects, kept together."""

    def __init__(
        self,
        tape: SessionTape | None = None,
        forks: ForkManager | None = None,
        effect_cache: EffectCache | None = None,
    ) -> None:
        self.tape = tape if tape is not None else SessionTape()
        self.forks = forks if forks is not None else ForkManager()
        self.effect_cache = effect_cache if effect_cache is not None else EffectCache()

    def record_event(self, event: Any) -> Recorded:
        """Record an event; the entry."""
        return self.tape.record(event)

    def fork(self, name: str, state: dict[str, Any], **options: Any) -> Branch:
        """Keep a copy of the state under a name."""
        return self.forks.fork(name, state, **options)

    def switch(self, name: str) -> BranchState:
        """Use another branch; its state, a copy."""
        return self.forks.switch(name)

    def snapshot(self) -> SessionSnapshot:
        """Everything as it is now."""
        branches = {name: branch.to_dict() for name, branch in self.forks.all().items()}
        return SessionSnapshot(tuple(map(own, self.tape.events)), branches, self.forks.active)

    @classmethod
    def from_snapshot(cls, snapshot: SessionSnapshot) -> SessionStore:
        """The session that a snapshot holds; seqs go on after its last entry."""
        store = cls()
        for event in snapshot.events:
            store.tape.record_dict(event)
        for branch in snapshot.branches.values():
            store.forks.add(Branch(**own(branch)))
        if snapshot.active_branch is not None:
            store.forks.switch(snapshot.active_branch)
        return store

    def auto_fork(self, name: str) -> Callable[..., None]:
        """An after-agent callback that forks the agent's state."""
        return self.forks.save_callback(name)

    def auto_restore(self, name: str) -> Callable[..., None]:
        """A before-agent callback that puts that state back."""
        return self.forks.restore_callback(name)

    def summary(self) -> dict[str, Any]:
        """The tape's summary, and how many branches there are."""
        return {"tape": self.tape.summary(), "branches": self.forks.size, "active_branch": self.forks.active}

    def clear(self) -> None:
        """Forget the entries in memory, the branches and the cached effects."""
        self.tape.clear()
        self.forks.clear()
        self.effect_cache.clear()


class SessionPlugin:
    """Forks the state after each agent, as `<prefix>:<agent>`; a plugin of google-adk where that is installed."""

    def __new__(cls, *arguments: Any, **options: Any) -> SessionPlugin:
        """An instance that is also a plugin of google-adk where that is installed."""
        return object.__new__(as_adk_plugin(cls))

    def __init__(
        self,
        store: SessionStore | None = None,
        *,
        auto_fork: bool = True,
        fork_prefix: str = "auto",
        name: str = "tape_session",
    ) -> None:
        self.name = name
        self.store = store if store is not None else SessionStore()
        self._auto_fork = auto_fork
        self._prefix = fork_prefix

    async def after_agent_callback(self, *, agent: Any = None, callback_context: Any = None, **_: Any) -> None:
        """Fork the state of the agent that has ended."""
        if self._auto_fork:
            name = getattr(agent, "name", None) or getattr(callback_context, "agent_name", "agent")
            self.store.fork(f"{self._prefix}:{name}", state_of(callback_context))
