"""`tape serve` that dies by kill -9 at one of its commits.

At the N-th commit the process dies `before` anything of it is sent to the database, `between` the last statement and
the COMMIT, or `after` the COMMIT and before callers are answered.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

from tape.cli import main
from tape.store.postgres import PostgresConnection
from tape.store.sqlite import SqliteConnection
from tests.forked import Forked
from tests.services import ServerProcess

MOMENTS = ("before", "between", "after")


def arm(moment: str, number: int) -> None:
    """Let the process die at a commit."""
    count = 0

    def die_at(reached: str) -> None:
        if count == number and moment == reached:
            os.kill(os.getpid(), signal.SIGKILL)

    for connection in (SqliteConnection, PostgresConnection):
        original = connection.commit

        def commit(self: Any, flush: Callable[[], None] = lambda: None, original: Any = original) -> None:
            nonlocal count
            count += 1

            def flush_and_die() -> None:
                flush()
                die_at("between")

            die_at("before")
            original(self, flush_and_die)
            die_at("after")

        connection.commit = commit  # type: ignore[method-assign]


def serve(moment: str, number: int) -> None:
    """The program."""
    arm(moment, number)
    main()


class FragileServer(ServerProcess):
    """A server that dies at its N-th commit."""

    def __init__(self, store: str, moment: str, number: int) -> None:
        super().__init__(store)
        self._program = partial(serve, moment, number)

    def _begin(self, arguments: list[str]) -> Forked:
        return Forked(arguments, program=self._program)
