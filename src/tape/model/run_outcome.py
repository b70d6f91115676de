"""The outcome of a run, as runtimes read it."""

from __future__ import annotations

from typing import Literal, NamedTuple

# Executions in one request for outcomes.
MAX_OUTCOMES = 1_000


class RunOutcome(NamedTuple):
    """How a run has ended; `open` if it has not."""

    status: Literal["open", "completed", "failed"] = "open"
    error: str = ""
