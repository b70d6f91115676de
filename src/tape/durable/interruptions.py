"""Interruptions of a run: found in what a block raised, and what they mean for the end of the run."""

from __future__ import annotations

from collections.abc import Iterator

from tape.errors import RunInterrupted, RunResultRejected, TapeError


def find_interruption(error: BaseException | None) -> RunInterrupted | None:
    """The interruption that an exception is or, as a group of exceptions, contains; None if there is none."""
    return next(_interruptions(error), None)


def _interruptions(error: BaseException | None) -> Iterator[RunInterrupted]:
    if isinstance(error, RunInterrupted):
        yield error
    elif isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _interruptions(each)


def ends_run(error: BaseException) -> bool:
    """Whether an exception fails the run; False for interruptions after which the run can be resumed."""
    if find_interruption(error) is not None or not isinstance(error, Exception):
        return False
    return not (isinstance(error, RunResultRejected) or (isinstance(error, TapeError) and error.retryable))
