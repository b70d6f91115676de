"""The matcher: follows the journal and creates tasks and runs for the reactions that match.

A server leases matcher partitions and reads the journal once for all of them. A batch with matches is written
in one transaction together with the new positions. A batch without matches moves the position in memory, and
that is flushed within 0.25 s. After a crash, matching resumes from the committed position: entries behind it
are matched again, entries before it never are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence, Set
from functools import partial

from tape.base.lease import renewal_interval_s
from tape.base.owner import new_owner
from tape.base.retry import WHILE_UNAVAILABLE, Backoff
from tape.engine.fanout.hub import Hub
from tape.engine.fanout.subscription import Batch, JournalSubscription
from tape.engine.predicate_budget import INLINE_BYTES
from tape.engine.reactions import agent_tasks, matcher_partitions, matcher_steps, registry
from tape.engine.reactions.catch_up import CatchUp, Key, defer, plan_catch_ups
from tape.engine.reactions.compiled import CompiledReaction, ReactionIndex, Shard, read_registry_changes, read_shards
from tape.engine.reactions.joined_steps import JoinedStep
from tape.engine.reactions.matcher_steps import MatcherStep, StepResult
from tape.engine.reactions.matches import (
    MatchResult,
    PredicateErrors,
    ShardFilter,
    TooLongForLoop,
    match_entries,
    record_error,
)
from tape.engine.reactions.shards import partition_of
from tape.engine.reactions.task_broker import TaskBroker
from tape.errors import CursorBeyondHead, CursorExpired, TapeError
from tape.journal.reader import EVERYTHING
from tape.model.entry import Entry
from tape.model.gap import JournalGap

log = logging.getLogger(__name__)

BATCH = 2_048
# Up to this many entries are matched on the event loop, where a thread hand-off would take longer, or in the
# transaction that appends them.
MAX_INLINE = 16
# A position without matches is written at the latest after this time.
FLUSH_S = 0.25
LEASE_RENEWAL_S = renewal_interval_s(matcher_partitions.LEASE_MS)
# Another server may register the first reaction.
REGISTRY_POLL_S = 1.0
CLOSE_S = 5.0
# How often the cursor rows of idle shards are brought up to date, for operators who read the table.
IDLE_CURSOR_S = 60.0
OVER_BUDGET = "the reaction or its tenant has used its CPU budget (predicate_cpu_ms_per_s); this entry is matched later"


class _StaleState(Exception):
    """The leased partitions or the registry have changed: read them again."""


class Matcher:
    """One per server. `start()` it after the hub, `close()` it before."""

    def __init__(self, hub: Hub, task_broker: TaskBroker, owner: str = "") -> None:
        self.owner = owner or new_owner()
        self._has_taken_over = False
        self._backoff = Backoff(WHILE_UNAVAILABLE)
        self.index = ReactionIndex()
        self._hub = hub
        self._database = hub.database
        self._metrics = hub.metrics
        self._task_broker = task_broker
        self._woken = asyncio.Event()
        self._is_rolled_back = False
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._subscription: JournalSubscription | None = None
        self._partitions: dict[int, int] = {}
        self._position = 0
        self._predicate_errors: dict[tuple[str, int], PredicateErrors] = {}
        self._catch_ups: list[CatchUp] = []
        self._flushed_at = self._leased_at = self._idle_advanced_at = 0.0
        self._launch_at: float | None = None

    async def start(self) -> None:
        """Start to follow the journal."""
        self._is_closing = False
        self._database.on_notice(registry.CHANNEL, self.wake)
        self._database.on_rollback(self._roll_back)
        supervise = self._metrics.background.supervise
        self._task = asyncio.create_task(supervise("matcher", self._run))
        self._listening = asyncio.create_task(supervise("reaction notifications", self._listen))

    async def close(self) -> None:
        """Stop, write the positions and release the matcher partitions."""
        if self._task is None or self._listening is None:
            return
        self._is_closing = True
        self._listening.cancel()
        self.wake()  # a step that is being written is completed first
        await asyncio.wait((self._task,), timeout=CLOSE_S)
        self._task.cancel()
        await asyncio.gather(self._task, self._listening, return_exceptions=True)
        self._task = None
        try:
            if self._partitions:
                await self._flush()
                await self._database.write(lambda tx: matcher_partitions.release_partitions(tx, self.owner))
        except (TapeError, _StaleState) as error:
            log.info("matcher partitions not released by %s, their leases will expire: %s", self.owner, error)

    def wake(self) -> None:
        """Read the registry again at once."""
        self._woken.set()
        if self._subscription is not None:
            self._subscription.wake()

    def _roll_back(self) -> None:
        """Read the registry and the positions anew: the database is in an older state."""
        self._is_rolled_back = True
        self.wake()

    @property
    def position(self) -> int:
        """The global_seq up to which this server's matcher partitions are matched."""
        return self._position

    def is_settled_at(self, global_seq: int) -> bool:
        """Whether every entry up to this global_seq is matched and the result is committed."""
        return bool(self._partitions) and not self._catch_ups and min(self._partitions.values()) >= global_seq

    async def _listen(self) -> None:
        """Watch for registry changes by other servers, so that the first task of a new reaction does not wait."""
        async for _ in self._database.changes(registry.CHANNEL):
            try:
                version = await self._database.read(registry.read_version)
            except TapeError as error:
                log.info("reading the reaction registry failed, retrying: %s", error)
                continue
            if version != self.index.version:
                self.wake()

    # ── the loop ─────────────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        while not self._is_closing:
            try:
                await self._acquire_partitions()
                if self._is_closing:  # the wake-up is consumed already: nothing would end a wait for entries
                    return
                await self._follow()
            except _StaleState:
                pass
            except CursorExpired as error:
                await self._skip_pruned(error.oldest - 1)
            except CursorBeyondHead as error:
                log.warning("matcher partitions are beyond the journal's head; was an older backup restored? %s", error)
                await asyncio.sleep(REGISTRY_POLL_S)
            except TapeError as error:
                if self._hub.is_closing:
                    return
                log.warning("matching reactions failed, retrying: %s", error)
                self._partitions = {}  # the last write may or may not be committed: read the state again
                await self._backoff.wait_async()
            except Exception:
                log.exception("matching reactions failed, retrying")
                self._partitions = {}
                await self._backoff.wait_async()
            self._metrics.matcher_restarts.inc()

    async def _acquire_partitions(self) -> None:
        """Wait until there are reactions, then lease matcher partitions and load their positions."""
        self._woken.clear()
        if self._is_rolled_back:
            self._is_rolled_back = False
            self.index = ReactionIndex()
            self._partitions = {}
        await self.refresh_index()
        while not self.index.reactions and not self._is_closing:
            self._partitions = {}
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), REGISTRY_POLL_S)
            self._woken.clear()
            await self.refresh_index()
        if self._is_closing:  # possibly while the first reaction was registered
            raise _StaleState
        if not self._has_taken_over:
            await self._take_over()
        before = set(self._partitions)
        leased = await self._database.write(lambda tx: matcher_partitions.lease_partitions(tx, self.owner))
        self._leased_at = time.monotonic()
        self._partitions = leased.positions
        if set(self._partitions) != before:
            log.info("matcher partitions %s leased by %s", sorted(self._partitions), self.owner)
        if leased.version != self.index.version:
            await self.refresh_index()
        if gained := set(self._partitions) - before:
            await self._reload_shards(gained)
        self._predicate_errors = {}
        self._position = min(self._partitions.values(), default=0)
        self._catch_ups = plan_catch_ups(self.index, frozenset(self._partitions))
        self._launch_at = time.monotonic() if any(self._delayed_agent_reactions()) else None
        self._metrics.reactions.set(len(self.index))
        self._metrics.lanes.set(len(self._partitions))

    async def _take_over(self) -> None:
        """Release the partitions of this server's former process, which was killed. Once, before the first lease."""
        count = await self._database.write(lambda tx: matcher_partitions.release_former_partitions(tx, self.owner))
        self._has_taken_over = True
        if count:
            log.info("%d matcher partitions of the former process of this server taken over by %s", count, self.owner)

    async def refresh_index(self) -> None:
        """Apply the changes of the registry to the index."""
        known = self.index.version
        changes = await self._database.read(lambda reader: read_registry_changes(reader, known))
        if len(changes.reactions) <= MAX_INLINE:
            self.index.apply(changes)
        else:  # a predicate takes about a millisecond to compile
            await asyncio.to_thread(self.index.apply, changes)

    async def _reload_shards(self, gained: set[int]) -> None:
        """Reload the shards of newly leased partitions: another server may have moved them."""
        affected = [
            compiled
            for compiled in self.index.reactions.values()
            if any(s.partition in gained for s in compiled.shards.values())
        ]
        ids = [compiled.reaction.reaction_id for compiled in affected]
        found = await self._database.read(lambda reader: read_shards(reader, ids))
        for compiled in affected:
            compiled.shards = found.get(compiled.reaction.reaction_id, {})

    async def _follow(self) -> None:
        """Match the journal until the leased partitions or the registry change."""
        if not self._partitions:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), LEASE_RENEWAL_S)
            return
        self._subscription = subscription = await self._hub.subscribe(EVERYTHING, self._position, skip_gaps=True)
        if subscription.position > self._position:  # the oldest entries were pruned
            self._skip_to(subscription.position)
        try:
            while True:
                batch = await self._next_batch(subscription)
                if self._woken.is_set():
                    raise _StaleState
                # Some may have been matched in the transaction that appended them.
                entries = [entry for entry in batch.entries if entry.global_seq > self._position]
                if entries:
                    await self._process_batch(entries)
                self._count_unmatched(batch.gaps)
                self._position = max(self._position, batch.position)
                self._metrics.reaction_lag.set(max(self._hub.head - self._position, 0))
                await self._launch_due_runs()
                # One step per round, in rotation: new entries do not wait for old ones.
                if (catch_up := next((one for one in self._catch_ups if not one.wait_s), None)) is not None:
                    self._catch_ups.remove(catch_up)
                    self._catch_ups.append(catch_up)
                    await self._run_catch_up(catch_up)
                await self._run_periodic_work()
                self._backoff.reset()
        finally:
            self._subscription = None
            subscription.close()

    async def _next_batch(self, subscription: JournalSubscription) -> Batch:
        """The next entries. While there are none, the next transaction that appends some may match them."""
        idle_s = self._idle_s()
        if not idle_s or self._hub.head != self._position:
            return await subscription.next(BATCH, idle_s)
        match = partial(self._match_inline, scope=self._live_filter())
        joined = JoinedStep(self.owner, self.index.version, self._position, self._partitions, match, self._task_broker)
        piggyback = self._database.piggyback(joined.run, joined.joins)
        piggyback.result.add_done_callback(joined.settle)
        try:
            batch = await subscription.next(BATCH, idle_s)
        finally:
            is_taken = not self._database.withdraw(piggyback)
        if is_taken:
            await asyncio.shield(piggyback.result)
            await self._adopt(joined)
        return batch

    async def _adopt(self, joined: JoinedStep) -> None:
        """Go on after a step that the writer has made, and write what it has matched and not written."""
        step = joined.step
        if step is None:
            return
        self._count_evaluated(step.result, step.position - self._position)
        if joined.is_written:
            self._apply(step, joined.done, joined.delivered)
        else:
            await self._process_result(step.result, step.position)
            self._position = max(self._position, step.position)

    def _idle_s(self) -> float:
        """Seconds until the next flush, lease renewal, launch or step of a catch-up."""
        if self._woken.is_set():
            return 0.0
        waits = [self._leased_at + LEASE_RENEWAL_S - time.monotonic()]
        waits += [catch_up.wait_s for catch_up in self._catch_ups]
        if self._is_unflushed:
            waits.append(self._flushed_at + FLUSH_S - time.monotonic())
        if self._launch_at is not None:
            waits.append(self._launch_at - time.monotonic())
        return max(min(waits), 0.0)

    async def _run_periodic_work(self) -> None:
        if self._is_unflushed and time.monotonic() >= self._flushed_at + FLUSH_S:
            await self._flush()
        if time.monotonic() >= self._idle_advanced_at + IDLE_CURSOR_S:
            await self._advance_idle_cursors()
        if time.monotonic() >= self._leased_at + LEASE_RENEWAL_S:
            await self._flush()
            leased = await self._database.write(lambda tx: matcher_partitions.lease_partitions(tx, self.owner))
            self._leased_at = time.monotonic()
            if leased.positions != self._partitions or leased.version != self.index.version:
                raise _StaleState

    # ── steps ────────────────────────────────────────────────────────────────────────────────────

    @property
    def _is_unflushed(self) -> bool:
        return bool(self._predicate_errors) or any(position < self._position for position in self._partitions.values())

    async def _process_batch(self, entries: Sequence[Entry]) -> None:
        await self._process_result(await self._match_batch(entries, self._live_filter()), entries[-1].global_seq)

    async def _process_result(self, result: MatchResult, last: int) -> None:
        for key, position in result.deferred.items():
            record_error(result, key, position + 1, OVER_BUDGET)
        self._merge_predicate_errors(result)
        if result.matches or result.deferred:
            await self._advance(result, last)

    async def _flush(self) -> None:
        if self._is_unflushed:
            await self._advance(MatchResult([], {}), self._position)

    async def _advance(self, result: MatchResult, position: int) -> None:
        result.predicate_errors = self._predicate_errors
        step = MatcherStep(self.owner, self.index.version, result, position, partitions=self._partitions)
        done, delivered = await self._write(step)
        self._predicate_errors = {}
        self._apply(step, done, delivered)

    def _apply(self, step: MatcherStep, done: StepResult | None, delivered: Set[str]) -> None:
        """Go on after a step that was written, or rejected because the state is outdated."""
        if done is None:
            raise _StaleState
        self._partitions = {partition: max(current, step.position) for partition, current in self._partitions.items()}
        self._position = max(self._position, step.position)
        self._flushed_at = time.monotonic()
        self._record_step(done, delivered)
        self._put_behind(step.deferred)

    async def _write(self, step: MatcherStep) -> tuple[StepResult | None, Set[str]]:
        """Write a step. Dispatchers that wait for its tasks get them in the same transaction."""
        immediate = step.immediate_reactions
        claim_round = self._task_broker.begin_round(immediate)
        try:
            done = await self._database.write(
                lambda tx: matcher_steps.advance_partitions(tx, step, claim_round), step.size
            )
        except BaseException:
            if claim_round is not None:
                self._task_broker.abort_round(claim_round)
            raise
        if claim_round is None:
            return done, frozenset()
        if done is None:
            self._task_broker.abort_round(claim_round)
        else:
            self._task_broker.commit_round(claim_round)
        return done, immediate

    async def _match_batch(
        self, entries: Sequence[Entry], scope: ShardFilter, *, is_urgent: bool = True
    ) -> MatchResult:
        result = self._match_inline(entries, scope) if is_urgent else None
        if result is None:
            result = await asyncio.to_thread(match_entries, self.index, entries, scope, self._hub.predicate_budget)
        self._count_evaluated(result, len(entries))
        return result

    def _match_inline(self, entries: Sequence[Entry], scope: ShardFilter) -> MatchResult | None:
        """Match a few entries where others wait for it; None if there are more, or a predicate takes too long."""
        if len(entries) > MAX_INLINE or any(len(entry.payload_json) > INLINE_BYTES for entry in entries):
            return None
        try:
            return match_entries(self.index, entries, scope, self._hub.predicate_budget, is_inline=True)
        except TooLongForLoop:
            return None

    def _count_evaluated(self, result: MatchResult, entries: int) -> None:
        self._metrics.matched_entries.inc(entries)
        self._metrics.evaluated.inc(result.evaluated)

    def _live_filter(self) -> ShardFilter:
        """Select live shards of the leased partitions whose position is before the entry."""
        positions = self._partitions

        def wants(compiled: CompiledReaction, number: int, shard: Shard, global_seq: int) -> bool:
            position = positions.get(shard.partition)
            return (
                position is not None and not shard.is_behind and global_seq > shard.position and global_seq > position
            )

        return wants

    def _merge_predicate_errors(self, result: MatchResult) -> None:
        for key, errors_seen in result.predicate_errors.items():
            self._metrics.reaction_errors.inc(errors_seen.count)
            before = self._predicate_errors.get(key)
            if before is not None:
                errors_seen.count += before.count
            self._predicate_errors[key] = errors_seen

    def _record_step(self, done: StepResult, delivered: Set[str] = frozenset()) -> None:
        self._metrics.reaction_tasks.inc(done.tasks)
        self._metrics.reaction_runs.inc(done.runs)
        self._metrics.reaction_suppressed.inc(done.suppressed)
        if done.ready_reactions:
            self._task_broker.notify_ready(done.ready_reactions - delivered)
            if any(reaction_id in done.ready_reactions for reaction_id in self._delayed_agent_reactions()):
                self._launch_at = time.monotonic()

    # ── shards that are behind ───────────────────────────────────────────────────────────────────

    def _put_behind(self, deferred: Mapping[Key, int]) -> None:
        """Let shards whose predicates have used their CPU budget catch up later."""
        for (reaction_id, number), position in deferred.items():
            shard = self.index.reactions[reaction_id].shards[number]
            shard.position, shard.is_behind = position, True
        defer(self._catch_ups, self.index, deferred)

    async def _run_catch_up(self, catch_up: CatchUp) -> None:
        try:
            found = await self._database.read(lambda reader: catch_up.cursor.read(reader, catch_up.position))
        except CursorExpired as error:
            self._metrics.reaction_missed.inc(error.oldest - 1 - catch_up.position)
            log.warning(
                "retention removed entries %d to %d before they were matched", catch_up.position, error.oldest - 1
            )
            await self._write_catch_up(catch_up, MatchResult([], {}), error.oldest - 1)
            return
        self._hub.gaps.record(found.gaps)
        self._count_unmatched(found.gaps)
        # A shard that joins its partition must not miss entries that are matched but not flushed.
        if found.position >= min(self._partitions.values()):
            await self._flush()
        result = await self._match_batch(found.entries, catch_up.is_wanted, is_urgent=False)
        await self._write_catch_up(catch_up, result, found.position)

    async def _write_catch_up(self, catch_up: CatchUp, result: MatchResult, position: int) -> None:
        step = MatcherStep(self.owner, self.index.version, result, position, shards=catch_up.shards_before(position))
        catch_up.position = position
        if step.shards:
            done = await self._database.write(lambda tx: matcher_steps.advance_shards(tx, step), step.size)
            if done is None:
                self._partitions = {}  # another server has moved the shards: read them again
                raise _StaleState
            for reaction_id, number in step.shards:
                shard = self.index.reactions[reaction_id].shards[number]
                shard.position = catch_up.shards[reaction_id, number] = position
                if (reaction_id, number) in done.joined:
                    shard.is_behind = False
                if not shard.is_behind or (reaction_id, number) in step.deferred:
                    del catch_up.shards[reaction_id, number]
            self._record_step(done)
            self._put_behind(step.deferred)
        if not catch_up.shards:
            self._catch_ups.remove(catch_up)

    # ── the rest ─────────────────────────────────────────────────────────────────────────────────

    def _delayed_agent_reactions(self) -> list[str]:
        return [
            reaction_id
            for reaction_id, compiled in self.index.reactions.items()
            if agent_tasks.has_delayed_runs(compiled.reaction) and partition_of(reaction_id, 0) in self._partitions
        ]

    async def _launch_due_runs(self) -> None:
        if self._launch_at is None or time.monotonic() < self._launch_at:
            return
        waiting = [self.index.reactions[reaction_id].reaction for reaction_id in self._delayed_agent_reactions()]
        launched = await self._database.write(lambda tx: agent_tasks.launch_due(tx, waiting))
        self._metrics.reaction_runs.inc(launched.runs)
        self._launch_at = None if launched.wait_ms is None else time.monotonic() + launched.wait_ms / 1_000

    async def _advance_idle_cursors(self) -> None:
        self._idle_advanced_at = time.monotonic()
        await self._flush()
        positions = dict(self._partitions)
        await self._database.write(lambda tx: matcher_partitions.advance_idle_cursors(tx, positions))

    def _count_unmatched(self, gaps: Sequence[JournalGap]) -> None:
        """Report damaged entries: no reaction was matched on them. The hub has recorded them."""
        for gap in gaps:
            if gap.reason != "diverged":
                self._metrics.reaction_missed.inc(gap.last - gap.first + 1)
                log.warning("reactions were not matched on entries %d to %d: %s", gap.first, gap.last, gap.detail)

    async def _skip_pruned(self, position: int) -> None:
        self._skip_to(position)
        with contextlib.suppress(TapeError, _StaleState):
            await self._flush()

    def _skip_to(self, position: int) -> None:
        """Skip entries that retention removed, and report how many were missed."""
        log.warning("retention removed entries %d to %d before they were matched", self._position + 1, position)
        self._metrics.reaction_missed.inc(max(position - self._position, 0))
        self._position = max(self._position, position)
