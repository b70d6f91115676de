"""Joined steps: a step of the matcher in the transaction that appends the entries.

While the matcher waits at the head of the journal, it leaves a step with the writer. The next transaction that appends
entries matches them too, creates their tasks and claims them for the dispatchers that wait: one commit between an event
and its handler. The step checks in its transaction what any other step checks, and what it does not do is left to the
matcher: many entries, expensive predicates, runs, delays, tasks that no dispatcher waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from tape.engine.predicate_budget import INLINE_BYTES, PredicateBudget
from tape.engine.reactions import matcher_steps
from tape.engine.reactions.compiled import ReactionIndex
from tape.engine.reactions.matcher_steps import MatcherStep, StepResult
from tape.engine.reactions.matches import MatchResult, ShardFilter, TooLongForLoop, is_due_immediately, match_entries
from tape.engine.reactions.task_broker import ClaimRound, TaskBroker
from tape.journal.pending_entries import pending_entries
from tape.model.entry import Entry
from tape.store import Transaction

# Up to this many entries are matched on the event loop, or in the transaction that appends them.
MAX_INLINE = 16


def match_inline(
    index: ReactionIndex, entries: Sequence[Entry], is_wanted: ShardFilter, budget: PredicateBudget
) -> MatchResult | None:
    """Match a few entries where others wait for it; None if they are too many, or a predicate takes too long."""
    if len(entries) > MAX_INLINE or any(len(entry.payload_json) > INLINE_BYTES for entry in entries):
        return None
    try:
        return match_entries(index, entries, is_wanted, budget, is_inline=True)
    except TooLongForLoop:
        return None


class JoinedStep:
    """A step that is left with the writer. `run` is called on its thread, at most once."""

    def __init__(
        self,
        owner: str,
        position: int,
        partitions: Mapping[int, int],
        index: ReactionIndex,
        match: Callable[[Sequence[Entry]], MatchResult | None],
        task_broker: TaskBroker,
    ) -> None:
        self._owner = owner
        self._position = position
        self._partitions = partitions
        self._index = index
        self._match = match
        self._task_broker = task_broker
        # What was matched, up to the position; None if nothing was.
        self.step: MatcherStep | None = None
        # What was written, if anything was.
        self.done: StepResult | None = None
        self.claim_round: ClaimRound | None = None

    def run(self, tx: Transaction) -> None:
        """Match what the transaction appends, unless other entries precede it, and write what matches."""
        entries, causes = pending_entries(tx)
        if entries[0].global_seq != self._position + 1:
            return
        result = self._match(entries)
        if result is None:
            return
        self.step = step = MatcherStep(
            self._owner, self._index.version, result, entries[-1].global_seq, self._partitions, causes=causes
        )
        if result.deferred or result.predicate_errors or not all(map(is_due_immediately, result.matches)):
            return
        self.claim_round = claim_round = self._task_broker.join_round(step.immediate_reactions)
        if claim_round is None:
            return
        with tx.savepoint():
            self.done = matcher_steps.advance_partitions(tx, step, claim_round)

    def settle(self, result: asyncio.Future[None]) -> None:
        """Deliver the claimed tasks once the transaction is durable, or let the next round claim them."""
        has_failed = result.exception() is not None
        if self.claim_round is None:
            return
        if has_failed or self.done is None:
            self._task_broker.abort_round(self.claim_round)
        else:
            self._task_broker.commit_round(self.claim_round)
