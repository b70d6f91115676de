"""Gaps: what a stream could not deliver, and how its reader learns of it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable

import msgspec

from tape.proto import tape_pb2 as pb

log = logging.getLogger(__name__)


class Gap(msgspec.Struct, frozen=True):
    """Entries that a stream could not deliver. `first` to `last` are their numbers, if they are known.

    The reasons `damaged`, `missing` and `diverged` (lost by the database) are about the journal itself. Any other
    reason is about the stream: entries that it dropped because it was read too slowly are still on the journal.
    """

    reason: str
    first: int = 0
    last: int = 0
    count: int = 0
    detail: str = ""


OnGap = Callable[[Gap], Awaitable[None] | None]


def to_gap(gap: pb.JournalGap) -> Gap:
    """The gap of a message."""
    return Gap(gap.reason, gap.first, gap.last, gap.last - gap.first + 1, gap.detail)


async def report_gap(gap: Gap, on_gap: OnGap | None) -> None:
    """Call `on_gap`; without it, log a warning."""
    if on_gap is None:
        log.warning("the stream has a gap: %s", gap)
        return
    done = on_gap(gap)
    if inspect.isawaitable(done):
        await done
