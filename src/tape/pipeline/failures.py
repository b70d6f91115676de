"""Errors of Tape that come back from Spark as text, with the trace of the process that they were raised in."""

from __future__ import annotations

import re

import tape.errors
from tape.errors import TapeError

_RAISED = re.compile(r"^\s*tape\.errors\.(\w+): (.+)$", re.MULTILINE)


def raised_in(error: BaseException) -> TapeError | None:
    """The error of Tape that a failure of Spark is about: what was raised last in its trace; None if there is none."""
    if isinstance(error, TapeError):
        return error
    for name, text in reversed(_RAISED.findall(str(error))):
        kind = getattr(tape.errors, name, None)
        if isinstance(kind, type) and issubclass(kind, TapeError):
            return kind(text)
    return None
