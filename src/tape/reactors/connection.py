"""What all recovery workers share: a client, and iteration over many items."""

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

# The longest listing to read when its first items are not for this process.
LONGEST_PAGE = 20_000


@contextmanager
def connected(url: str, client: TapeClient | None) -> Iterator[TapeClient]:
    """The given client, or a new one that is closed at the end of the block."""
    if client is not None:
        yield client
        return
    with TapeClient(url) as own:
        yield own


def for_each(
    things: Sequence[T], act: Callable[[T], Report], *, concurrency: int = 1, stop: threading.Event | None = None
) -> list[Report]:
    """Process items and return their reports; items after a stop are skipped.

    An unexpected exception is reported as `error`, and the other items are processed. A retryable error of the server
    ends the pass.
    """

    def unless_stopped(thing: T) -> Report | None:
        if stop is not None and stop.is_set():
            return None
        try:
            return act(thing)
        except Exception as error:
            if isinstance(error, TapeError) and error.retryable:
                raise
            log.exception("unexpected error; the item is left for the next pass")
            reason = f"{type(error).__name__}: {error}"
            return {"run_id": getattr(thing, "run_id", ""), "outcome": "error", "reason": reason}

    if concurrency <= 1 or len(things) <= 1:
        reports = [unless_stopped(thing) for thing in things]
    else:
        with ThreadPoolExecutor(concurrency, thread_name_prefix="tape-reactor") as pool:
            reports = list(pool.map(unless_stopped, things))
    return [report for report in reports if report is not None]


def pages(fetch: Callable[[int], Sequence[T]], limit: int, *, is_enough: Callable[[], bool]) -> Iterator[Sequence[T]]:
    """A listing, fetched again with a larger limit while it is full and not enough.

    Items that this process cannot handle would otherwise hide those that it can.
    """
    size = limit
    while True:
        page = fetch(size)
        yield page
        if len(page) < size or is_enough() or size >= LONGEST_PAGE:
            return
        size = min(size * 4, LONGEST_PAGE)
