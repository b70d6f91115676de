"""Answers of downstreams: the steps of a run report which downstreams answered them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_record: ContextVar[Callable[[str], None] | None] = ContextVar("tape_answers", default=None)


def note_answer(downstream: str) -> None:
    """Report that a downstream answered a step of the current run; nothing for an empty name."""
    if downstream and (record := _record.get()) is not None:
        record(downstream)


@contextmanager
def recording_answers(record: Callable[[str], None]) -> Iterator[None]:
    """Call `record` with the name of each downstream that answers a step in this block."""
    token = _record.set(record)
    try:
        yield
    finally:
        _record.reset(token)
