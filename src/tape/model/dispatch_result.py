"""The result of dispatching one message or one request: the run that it has now, or why it has none."""

from __future__ import annotations

from typing import Literal, NamedTuple

DispatchOutcome = Literal[
    "started", "duplicate", "spooled", "rejected", "unavailable", "skipped", "held", "misconfigured"
]


class RunDispatchResult(NamedTuple):
    """The result of one dispatch.

    `started`: a new run. `duplicate`: the key was dispatched before; `execution_id` is that run. `spooled`: durable in
    the spool. `rejected`: a permanent error of this message, the same on every retry. `unavailable`: the downstream did
    not answer. `skipped`: not tried, because an earlier message of its lane failed. `held`: not acknowledged, so that
    its source redelivers it. `misconfigured`: the subscription lets no run start, whatever the message is.

    `downstream` is the one that was not available, if it is known. `answered` are the downstreams that answered, if the
    dispatch has carried the run out; None if it has not. `error` is then the error of a run that failed.
    """

    outcome: DispatchOutcome
    execution_id: int = 0
    error: str = ""
    spool_ref: str = ""
    downstream: str = ""
    answered: tuple[str, ...] | None = None

    @property
    def has_run(self) -> bool:
        """Whether there is a run for it."""
        return self.outcome in ("started", "duplicate")

    @property
    def is_durable(self) -> bool:
        """Whether its source may drop it: there is a run for it, or it is in the spool."""
        return self.has_run or self.outcome == "spooled"

    @property
    def run_id(self) -> str:
        """The run's id in the journal: the execution id as text."""
        return str(self.execution_id)
