"""Results of tool calls that need not be made twice in a session."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from tape.errors import InvalidSessionValue

_ambient: ContextVar[EffectCache | None] = ContextVar("tape_effect_cache", default=None)


@dataclass(frozen=True, slots=True)
class EffectEntry:
    """A result, and until when (monotonic seconds) it counts; 0 is for ever."""

    tool_name: str
    key: str
    value: Any
    scope: str = "session"
    expires_at: float = 0.0

    @property
    def is_expired(self) -> bool:
        """Whether its time is over."""
        return bool(self.expires_at) and time.monotonic() >= self.expires_at


class EffectCache:
    """Results by tool, key and scope, in memory. Safe to use from several threads."""

    def __init__(self) -> None:
        # By tool and key, then by scope, the newest last.
        self._entries: dict[tuple[str, str], dict[str, EffectEntry]] = {}
        self._lock = threading.Lock()
        self._hits = 0
        self._misses = 0

    def get(self, tool_name: str, key: str, *, scope: str | None = None) -> EffectEntry | None:
        """The result of a call in a scope, if it is still good; without a scope, the newest of any."""
        with self._lock:
            scopes = self._entries.get((tool_name, key), {})
            for each in [each for each in scopes.values() if each.is_expired]:
                del scopes[each.scope]
            wanted = scopes.values() if scope is None else [scopes[scope]] if scope in scopes else []
            entry = next(reversed(list(wanted)), None)
            if not scopes:
                self._entries.pop((tool_name, key), None)
            if entry is None:
                self._misses += 1
            else:
                self._hits += 1
            return entry

    def put(
        self, tool_name: str, key: str, value: Any, *, scope: str = "session", ttl_seconds: float | None = None
    ) -> EffectEntry:
        """Keep a result, for `ttl_seconds` or as long as the session."""
        if ttl_seconds is not None and ttl_seconds <= 0:
            raise InvalidSessionValue(
                f"ttl_seconds {ttl_seconds!r} must be more than 0; leave it out to keep the result."
            )
        expires = time.monotonic() + ttl_seconds if ttl_seconds is not None else 0.0
        entry = EffectEntry(tool_name, key, value, scope, expires)
        with self._lock:
            scopes = self._entries.setdefault((tool_name, key), {})
            scopes.pop(scope, None)  # so that the newest is the last
            scopes[scope] = entry
        return entry

    def invalidate(self, tool_name: str, key: str | None = None, *, scope: str | None = None) -> int:
        """Forget one result of a tool, or all of them, in a scope or in all; how many there were."""
        return self._remove(
            lambda each: each.tool_name == tool_name and key in (None, each.key) and scope in (None, each.scope)
        )

    def clear_scope(self, scope: str) -> int:
        """Forget the results of a scope; how many there were."""
        return self._remove(lambda each: each.scope == scope)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self._hits = self._misses = 0

    @property
    def size(self) -> int:
        """How many results are kept."""
        with self._lock:
            return sum(map(len, self._entries.values()))

    def summary(self) -> dict[str, int]:
        """How many results are kept, and how often one was asked for and there."""
        return {"size": self.size, "hits": self._hits, "misses": self._misses}

    def _remove(self, is_wanted: Any) -> int:
        with self._lock:
            gone = [each for scopes in self._entries.values() for each in scopes.values() if is_wanted(each)]
            for each in gone:
                del self._entries[each.tool_name, each.key][each.scope]
            self._entries = {key: scopes for key, scopes in self._entries.items() if scopes}
            return len(gone)


def active_cache() -> EffectCache | None:
    """The cache of the code that is running, if there is one."""
    return _ambient.get()


@contextmanager
def use_cache(cache: EffectCache | None) -> Iterator[EffectCache | None]:
    """Make a cache the active one inside a `with` block."""
    token = _ambient.set(cache)
    try:
        yield cache
    finally:
        _ambient.reset(token)
