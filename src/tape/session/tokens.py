"""Tokens: cancel an agent, and keep the cursor from which it can resume."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class TurnSnapshot:
    """What a turn had done when it was cancelled."""

    prompt: str = ""
    events: list[Any] = field(default_factory=list)
    tool_calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    cancelled_at: float = 0.0


class CancellationToken:
    """Cancels the turn of an agent; the agent checks it. Safe to use from several threads."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._turn = TurnSnapshot()
        self._snapshot: TurnSnapshot | None = None

    @property
    def is_cancelled(self) -> bool:
        """Whether the agent should stop."""
        return self._cancelled.is_set()

    @property
    def cancelled(self) -> bool:
        """Whether the agent should stop."""
        return self._cancelled.is_set()

    @property
    def snapshot(self) -> TurnSnapshot | None:
        """What the turn had done when it was cancelled."""
        return self._snapshot

    def cancel(self) -> None:
        """Ask the agent to stop, and keep what the turn has done so far."""
        with self._lock:
            if not self._cancelled.is_set():
                turn = self._turn
                self._snapshot = TurnSnapshot(turn.prompt, list(turn.events), list(turn.tool_calls), time.time())
            self._cancelled.set()

    def reset(self) -> None:
        """Make the token ready for the next turn."""
        with self._lock:
            self._cancelled.clear()
            self._snapshot = None
            self._turn = TurnSnapshot()

    def begin_turn(self, prompt: str) -> None:
        """Note what the turn is about."""
        with self._lock:
            self._turn = TurnSnapshot(prompt)

    def record_event(self, event: Any) -> None:
        """Note an event of the turn."""
        with self._lock:
            self._turn.events.append(event)

    def record_tool_call(self, name: str, args: dict[str, Any]) -> None:
        """Note a call of the turn."""
        with self._lock:
            self._turn.tool_calls.append((name, args))


class AgentToken(CancellationToken):
    """The token of one agent. `resume_cursor` is the seq from which it can go on: `tape.tail(token.resume_cursor)`."""

    def __init__(self, agent_name: str, *, resume_cursor: int = 0) -> None:
        super().__init__()
        self.agent_name = agent_name
        self._resume_cursor = resume_cursor

    def __repr__(self) -> str:
        state = "cancelled" if self.is_cancelled else "armed"
        return f"AgentToken({self.agent_name!r}, {state}, resume_cursor={self._resume_cursor})"

    @property
    def resume_cursor(self) -> int:
        """The seq from which the agent can resume."""
        return self._resume_cursor

    def cancel_with_cursor(self, cursor: int) -> None:
        """Ask the agent to stop; the cursor is set before the cancellation is visible."""
        self._resume_cursor = int(cursor)
        self.cancel()


class TokenRegistry:
    """The tokens of all agents, by name."""

    def __init__(self) -> None:
        self._tokens: dict[str, AgentToken] = {}
        self._lock = threading.Lock()

    def __contains__(self, name: object) -> bool:
        return name in self._tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def get_or_create(self, name: str) -> AgentToken:
        """The token of an agent."""
        with self._lock:
            return self._tokens.setdefault(name, AgentToken(name))

    def get(self, name: str) -> AgentToken | None:
        """The token of an agent, if it has one."""
        return self._tokens.get(name)

    def cancel(self, name: str, *, resume_cursor: int = 0) -> bool:
        """Ask an agent to stop; whether it is known."""
        token = self._tokens.get(name)
        if token is None:
            return False
        token.cancel_with_cursor(resume_cursor)
        return True

    def reset(self, name: str) -> bool:
        """Make an agent's token ready again; whether it is known."""
        token = self._tokens.get(name)
        if token is not None:
            token.reset()
        return token is not None

    def reset_all(self) -> None:
        """Make all ready again."""
        for token in list(self._tokens.values()):
            token.reset()

    def names(self) -> tuple[str, ...]:
        """The agents that have a token."""
        return tuple(self._tokens)


def make_cancellation_callback(token: CancellationToken) -> Callable[..., dict[str, str] | None]:
    """A before-tool callback that records each call, and returns an error for it once the token is cancelled."""

    def before_tool(
        tool: Any, args: dict[str, Any] | None = None, tool_context: Any = None, **_: Any
    ) -> dict[str, str] | None:
        if token.is_cancelled:
            return {"error": "The turn was cancelled."}
        token.record_tool_call(str(getattr(tool, "name", tool)), dict(args or {}))
        return None

    return before_tool
