"""Branches of a session's state: try something, compare, merge, go back."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tape.errors import InvalidSessionValue, UnknownName

Strategy = Literal["union", "intersection", "prefer"]


@dataclass
class Branch:
    """A named copy of a session's state."""

    name: str
    state: dict[str, Any] = field(default_factory=dict)
    messages: list[Any] = field(default_factory=list)
    created_at: float = 0.0
    parent: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The branch as plain data."""
        return asdict(self)


class BranchState(dict[str, Any]):
    """The state of a branch, a copy; the attributes of the branch (`name`, `messages`, `parent`, …) are its own."""

    def __init__(self, branch: Branch) -> None:
        super().__init__(copy.deepcopy(branch.state))
        self.branch = branch

    def __getattr__(self, name: str) -> Any:
        if name == "branch":  # while it is being made or copied
            raise AttributeError(name)
        return getattr(self.branch, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return BranchState, (self.branch,), None, None, iter(self.items())


class ForkManager:
    """Keeps up to `max_branches` branches; a new one evicts the oldest that is not active."""

    def __init__(self, *, max_branches: int = 20) -> None:
        if max_branches < 1:
            raise InvalidSessionValue(f"max_branches {max_branches!r} must be at least 1.")
        self._max = max_branches
        self._branches: dict[str, Branch] = {}
        self._active: str | None = None

    @property
    def active(self) -> str | None:
        """The name of the branch in use."""
        return self._active

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self._branches)

    def fork(
        self,
        name: str,
        state: dict[str, Any],
        *,
        messages: list[Any] | None = None,
        parent: str | None = None,
        **metadata: Any,
    ) -> Branch:
        """Keep a copy of the state under a name and make it the branch in use; a name that is taken is replaced."""
        branch = Branch(
            name, copy.deepcopy(state), copy.deepcopy(messages or []), time.time(), parent or self._active, metadata
        )
        if branch.parent == name:
            branch.parent = None
        self.add(branch)
        self._active = name
        return branch

    def add(self, branch: Branch) -> None:
        """Store a branch under its name."""
        self._branches.pop(branch.name, None)
        self._branches[branch.name] = branch
        while len(self._branches) > self._max:
            oldest = next(each for each in self._branches if each not in (branch.name, self._active))
            del self._branches[oldest]

    def switch(self, name: str) -> BranchState:
        """Use another branch; its state, a copy. UnknownName, a KeyError, if there is none of that name."""
        branch = self.get(name)
        self._active = name
        return BranchState(branch)

    def get(self, name: str) -> Branch:
        """The branch of that name."""
        if name not in self._branches:
            raise UnknownName(f"There is no branch {name!r}; there are {list(self._branches)}.")
        return self._branches[name]

    def merge(self, *names: str, strategy: Strategy = "union", prefer: str | None = None) -> dict[str, Any]:
        """The states of branches in one: all keys (later branches win), only the common ones, or one branch's first."""
        if not names:
            raise InvalidSessionValue("merge() needs at least one branch.")
        branches = [self.get(name) for name in names]
        if strategy == "prefer":
            if prefer not in names:
                raise InvalidSessionValue(f"prefer {prefer!r} must be one of the branches that are merged: {names}.")
            branches.sort(key=lambda branch: branch.name == prefer)
        elif strategy not in ("union", "intersection"):
            raise InvalidSessionValue(f'strategy {strategy!r} must be "union", "intersection" or "prefer".')
        merged: dict[str, Any] = {}
        for branch in branches:
            merged.update(branch.state)
        if strategy == "intersection":
            common = set.intersection(*(set(branch.state) for branch in branches))
            merged = {key: value for key, value in merged.items() if key in common}
        return copy.deepcopy(merged)

    def diff(self, one: str, other: str) -> dict[str, Any]:
        """What differs between two branches: `only_a` has one alone, `only_b` the other; `different` has both values.

        `only_in_<one>` and `only_in_<other>` say the same as the first two, by the names of the branches.
        """
        a, b = copy.deepcopy(self.get(one).state), copy.deepcopy(self.get(other).state)
        only_a = {key: a[key] for key in a if key not in b}
        only_b = {key: b[key] for key in b if key not in a}
        return {
            f"only_in_{one}": only_a,
            f"only_in_{other}": only_b,
            "only_a": only_a,
            "only_b": only_b,
            "different": {key: (a[key], b[key]) for key in a if key in b and a[key] != b[key]},
        }

    def delete(self, name: str) -> None:
        """Remove a branch."""
        self.get(name)
        del self._branches[name]
        if self._active == name:
            self._active = None

    def list_branches(self) -> list[dict[str, Any]]:
        """Every branch: its name, parent, when it was made, how much it holds, and whether it is in use."""
        return [
            {
                "name": branch.name,
                "parent": branch.parent,
                "created_at": branch.created_at,
                "keys": len(branch.state),
                "messages": len(branch.messages),
                "active": branch.name == self._active,
            }
            for branch in self._branches.values()
        ]

    def all(self) -> dict[str, Branch]:
        """Every branch by its name."""
        return dict(self._branches)

    def clear(self) -> None:
        """Remove all."""
        self._branches.clear()
        self._active = None

    def save_callback(self, name: str) -> Callable[..., None]:
        """An after-agent callback that forks the agent's state under a name."""

        def save(callback_context: Any = None, **_: Any) -> None:
            self.fork(name, state_of(callback_context))

        return save

    def restore_callback(self, name: str) -> Callable[..., None]:
        """A before-agent callback that puts a branch's state back; nothing if there is none yet."""

        def restore(callback_context: Any = None, **_: Any) -> None:
            if name in self._branches:
                state = getattr(callback_context, "state", None)
                if state is not None:
                    state.update(copy.deepcopy(self.switch(name).state))

        return restore


def state_of(context: Any) -> dict[str, Any]:
    """The state of a callback's context as a plain dict."""
    state = getattr(context, "state", None)
    if state is None:
        return {}
    return state.to_dict() if hasattr(state, "to_dict") else dict(state)
