"""`H`: the parts of a session by short names."""

from __future__ import annotations

from typing import Any

from tape.session.backends.protocol import TapeBackend
from tape.session.bus import EventBus, EventDispatcher
from tape.session.forks import ForkManager
from tape.session.store import SessionPlugin, SessionStore
from tape.session.tape import SessionTape
from tape.session.tokens import CancellationToken


class H:
    """Makes tapes, buses, stores and tokens."""

    @staticmethod
    def tape(max_events: int = 0, *, backend: TapeBackend | None = None) -> SessionTape:
        """A tape."""
        return SessionTape(max_events=max_events, backend=backend)

    @staticmethod
    def event_bus(max_buffer: int = 0) -> EventBus:
        """A bus."""
        return EventBus(max_buffer=max_buffer)

    @staticmethod
    def dispatcher(bus: EventBus | None = None) -> EventDispatcher:
        """A dispatcher on a bus."""
        return EventDispatcher(bus)

    @staticmethod
    def session_store(
        max_events: int = 0, max_branches: int = 20, *, backend: TapeBackend | None = None
    ) -> SessionStore:
        """A tape with branches and cached effects."""
        return SessionStore(H.tape(max_events, backend=backend), H.forks(max_branches))

    @staticmethod
    def session_plugin(store: SessionStore | None = None, **options: Any) -> SessionPlugin:
        """A plugin that forks the state after each agent."""
        return SessionPlugin(store, **options)

    @staticmethod
    def forks(max_branches: int = 20) -> ForkManager:
        """Branches of state."""
        return ForkManager(max_branches=max_branches)

    @staticmethod
    def cancellation_token() -> CancellationToken:
        """A token."""
        return CancellationToken()
