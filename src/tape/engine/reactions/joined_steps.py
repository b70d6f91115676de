"""Joined steps: a step of the matcher in the transaction that appends the entries.

While the matcher waits at the head of the journal, it leaves a step with the writer. The next transaction that appends
entries matches them too, creates their tasks and claims them for the dispatchers that wait: one commit between an event
and its handler. The step checks in its transaction what any other step checks. What it does not match or write is left
to the matcher: many entries, expensive or failing predicates, tasks that no dispatcher waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from tape.engine.reactions import matcher_steps
from tape.engine.reactions.matcher_steps import MatcherStep, StepResult
from tape.engine.reactions.matches import MatchResult
from tape.engine.reactions.task_broker import ClaimRound, TaskBroker
from tape.journal.pending_entries import has_pending_entries, pending_entries
from tape.model.entry import Entry
from tape.store import Transaction


class JoinedStep:
    """A step that is left with the writer, which calls `joins` and then, at most once, `run` on its thread."""

    def __init__(
        self,
        owner: str,
        version: int,
        position: int,
        partitions: Mapping[int, int],
        match: Callable[[Sequence[Entry]], MatchResult | None],
        task_broker: TaskBroker,
    ) -> None:
        self._owner = owner
        self._version = version
        self._position = position
        self._partitions = partitions
        self._match = match
        self._task_broker = task_broker
        # What was matched; None if nothing was.
        self.step: MatcherStep | None = None
        # Whether it was written, or rejected because the matcher's state is outdated; then `done` is None.
        self.is_written = False
        self.done: StepResult | None = None
        self.claim_round: ClaimRound | None = None

    def joins(self, tx: Transaction) -> bool:
        """Whether a transaction appends entries while a dispatcher accepts tasks."""
        return self._task_broker.has_free_slots and has_pending_entries(tx)

    def run(self, tx: Transaction) -> None:
        """Match what the transaction appends, unless other entries precede it, and write it if dispatchers wait."""
        entries, causes = pending_entries(tx)
        if entries[0].global_seq != self._position + 1:
            return
        result = self._match(entries)
        if result is None:
            return
        self.step = step = MatcherStep(
            self._owner, self._version, result, entries[-1].global_seq, self._partitions, causes=causes
        )
        if result.deferred or result.predicate_errors or not self._task_broker.awaits(step.immediate_reactions):
            return
        self.claim_round = self._task_broker.join_round(step.immediate_reactions)
        with tx.savepoint():
            self.done = matcher_steps.advance_partitions(tx, step, self.claim_round)
        self.is_written = True

    def settle(self, result: asyncio.Future[None]) -> None:
        """Deliver the claimed tasks once the transaction is durable, or let the next round claim them."""
        has_failed = result.cancelled() or result.exception() is not None
        if self.claim_round is None:
            return
        if has_failed or self.done is None:
            self._task_broker.abort_round(self.claim_round)
        else:
            self._task_broker.commit_round(self.claim_round)

    @property
    def delivered(self) -> frozenset[str]:
        """The reactions whose new tasks were claimed as far as dispatchers accept them."""
        return frozenset() if self.claim_round is None or self.step is None else self.step.immediate_reactions
