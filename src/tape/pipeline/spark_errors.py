"""Translates Spark exceptions. Spark reports errors of its workers as text, without a code."""

from __future__ import annotations

import re

import tape.errors
from tape.errors import TapeError

# Spark waits 10 s for a Python worker to start, which is too short on a busy machine.
_WORKER_NOT_STARTED = "Python worker failed to connect back"
_RAISED = re.compile(r"^\s*tape\.errors\.(\w+): (.+)$", re.MULTILINE)


def find_tape_error(error: BaseException) -> TapeError | None:
    """Return the last Tape error in the traceback of a Spark exception, or None."""
    if isinstance(error, TapeError):
        return error
    for name, text in reversed(_RAISED.findall(str(error))):
        kind = getattr(tape.errors, name, None)
        if isinstance(kind, type) and issubclass(kind, TapeError):
            return kind(text)
    return None


def is_worker_start_failure(error: BaseException) -> bool:
    """Whether a Python worker of Spark did not start in time; a retry may succeed."""
    return _WORKER_NOT_STARTED in str(error)
