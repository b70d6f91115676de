"""Unavailability: which errors of a step mean that its service cannot be reached, and not that the message is wrong."""

from __future__ import annotations

import socket

from tape.errors import StepRefused, StepTimedOut, TapeError, ToolFailed

# How far the causes of an error are followed: libraries wrap the errors of the socket several times.
_MAX_CAUSES = 8


def is_unavailable(error: BaseException) -> bool:
    """Whether a service did not answer: refused, reset, timed out, unknown host, 429 or 5xx, or marked `retryable`."""
    seen: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if seen is None or isinstance(seen, StepRefused):
            return False
        if isinstance(seen, ToolFailed | StepTimedOut | ConnectionError | TimeoutError | socket.gaierror):
            return True
        if getattr(seen, "retryable", False) is True and not isinstance(seen, TapeError):
            return True
        if isinstance(seen, TapeError) and seen.retryable and seen.status == "UNAVAILABLE":
            return True
        seen = seen.__cause__ or seen.__context__
    return False
