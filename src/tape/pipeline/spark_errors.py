"""Finds Tape errors in Spark exceptions, which carry the traceback of the executor as text."""

from __future__ import annotations

import re

import tape.errors
from tape.errors import TapeError

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
