"""What every reactor needs: a client, and a way to go through many things."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from tape.client.sync import TapeClient
from tape.errors import TapeError

log = logging.getLogger(__name__)

T = TypeVar("T")
Report = dict[str, Any]

# How far a listing is read on when what it begins with is not for this process.
LONGEST_PAGE = 20_000


@contextmanager
def connected(url: str, client: TapeClient | None) -> Iterator[TapeClient]:
    """The client that was given, or one of its own for as long as the block lasts."""
    if client is not None:
        yield client
        return
    with TapeClient(url) as own:
        yield own


def for_each(
    things: Sequence[T], act: Callable[[T], Report], *, concurrency: int = 1, stop: threading.Event | None = None
) -> list[Report]:
    """What became of each; those that come after a stop are left.

    One that nobody expected to go wrong is reported as `error` and keeps nobody from the others; a server that is
    away ends the pass.
    """

    def unless_stopped(thing: T) -> Report | None:
        if stop is not None and stop.is_set():
            return None
        try:
            return act(thing)
        except Exception as error:
            if isinstance(error, TapeError) and error.retryable:
                raise
            log.exception("this went wrong and is left for the next pass")
            reason = f"{type(error).__name__}: {error}"
            return {"run_id": getattr(thing, "run_id", ""), "outcome": "error", "reason": reason}

    if concurrency <= 1 or len(things) <= 1:
        reports = [unless_stopped(thing) for thing in things]
    else:
        with ThreadPoolExecutor(concurrency, thread_name_prefix="tape-reactor") as pool:
            reports = list(pool.map(unless_stopped, things))
    return [report for report in reports if report is not None]


def pages(fetch: Callable[[int], Sequence[T]], limit: int, *, is_enough: Callable[[], bool]) -> Iterator[Sequence[T]]:
    """A listing, again and longer as long as it is full and not enough: what cannot be done here hides nothing."""
    size = limit
    while True:
        page = fetch(size)
        yield page
        if len(page) < size or is_enough() or size >= LONGEST_PAGE:
            return
        size = min(size * 4, LONGEST_PAGE)
