"""`tape serve` that dies by kill -9 at one of its commits.

`python -m tests.system.fragile_server MOMENT N serve …`. At the N-th commit the process dies `before` anything of it
is sent to the database, `between` the last statement and the COMMIT, or `after` the COMMIT and before anybody is told.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from tape.cli import main
from tape.store.postgres import PostgresConnection
from tape.store.sqlite import SqliteConnection

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


if __name__ == "__main__":
    arm(sys.argv[1], int(sys.argv[2]))
    del sys.argv[1:3]
    main()
