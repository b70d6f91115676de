"""Ends connections whose calls get no answer: proxies keep dead ones open, and a search may have no end."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
STUCK_FACTOR = 2


class WatchedConnection(Protocol):
    """A connection that says since when it waits for the database."""

    # `time.monotonic()` at the begin of the call in progress; 0 between calls, and if calls may take any time.
    waits_since: float
    backend: int
    # The time limit that the database has for its statements, 0 without one.
    statement_limit_s: float
    # Set when the database has not kept to it.
    is_stuck: bool

    def fileno(self) -> int:
        """The file descriptor of its socket."""


class Watchdog:
    """Shuts down the socket of a connection that has waited for `limit_s`, so that its call fails.

    `find_working(backends)` returns which of these backends still work on a statement, and whether they compute, that
    is wait for nothing: their connections are left alone, unless they compute for twice the time limit of a statement.
    `on_dead(count)` is called before so many connections are ended, `on_stuck(backend)` for one that computes. One
    daemon thread looks every 0.5 s while there are connections.
    """

    def __init__(
        self,
        limit_s: float,
        find_working: Callable[[Collection[int]], Mapping[int, bool]],
        on_dead: Callable[[int], None],
        on_stuck: Callable[[int], None],
    ) -> None:
        self._limit_s = limit_s
        self._find_working = find_working
        self._on_dead = on_dead
        self._on_stuck = on_stuck
        self._connections: weakref.WeakSet[WatchedConnection] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._is_looking = False

    def watch(self, connection: WatchedConnection) -> None:
        """Watch a connection until `forget`."""
        with self._lock:
            self._connections.add(connection)
            if not self._is_looking:
                self._is_looking = True
                threading.Thread(target=self._work, name="tape-watchdog", daemon=True).start()

    def forget(self, connection: WatchedConnection) -> None:
        """Watch a connection no longer: it is being closed."""
        with self._lock:
            self._connections.discard(connection)

    def _work(self) -> None:
        while True:
            time.sleep(LOOK_EVERY_S)
            with self._lock:
                if not self._connections:
                    self._is_looking = False
                    return
                overdue = {each: each.waits_since for each in self._connections if self._is_overdue(each)}
            if overdue:
                try:
                    self._end_dead(overdue)
                except Exception:
                    log.exception("the watchdog of the database connections failed, and goes on")

    def _is_overdue(self, connection: WatchedConnection) -> bool:
        since = connection.waits_since
        return since > 0 and time.monotonic() - since > self._limit_s

    def _end_dead(self, overdue: dict[WatchedConnection, float]) -> None:
        working = self._find_working([each.backend for each in overdue])
        for connection, since in overdue.items():
            limit = STUCK_FACTOR * connection.statement_limit_s
            if working.get(connection.backend) and 0 < limit < time.monotonic() - since:
                self._end_stuck(connection, since)
        dead = {each: since for each, since in overdue.items() if each.backend not in working}
        if dead:
            self._on_dead(len(dead))
        for connection, since in dead.items():
            with self._lock:  # it is not closed meanwhile, and its file descriptor is not another's
                if connection in self._connections and connection.waits_since == since:
                    log.warning(
                        "PostgreSQL has not answered for %.1f s, and does not work on the statement of backend %d:"
                        " closing the connection",
                        time.monotonic() - since,
                        connection.backend,
                    )
                    shut_down(connection.fileno())

    def _end_stuck(self, connection: WatchedConnection, since: float) -> None:
        with self._lock:
            is_waiting = connection in self._connections and connection.waits_since == since
            if is_waiting and not connection.is_stuck:
                connection.is_stuck = True
                self._on_stuck(connection.backend)
                shut_down(connection.fileno())


def shut_down(descriptor: int) -> None:
    """End the connection of a socket that another thread waits for; the descriptor stays open."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)
