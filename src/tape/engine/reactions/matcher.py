"""The matcher: follows the journal and makes work of what reactions want.

It holds lanes on lease and walks along the journal for all of them at once, live from memory. A batch
that fires something is written in one transaction with the new positions; one that fires nothing only
moves the position in memory, which is written a moment later. Whatever is killed when, what was not
committed is matched again from the committed position, and what was committed is never matched again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence, Set

from tape.base.clock import now_ms
from tape.base.lease import renewal_interval_s
from tape.base.owner import new_owner
from tape.base.retry import WHILE_UNAVAILABLE, Backoff
from tape.engine.fanout.hub import Hub
from tape.engine.fanout.subscription import JournalSubscription
from tape.engine.reactions import agent_tasks, matcher_partitions, matcher_steps, registry
from tape.engine.reactions.catch_up import Sweep, plan
from tape.engine.reactions.compiled import Catalog, Shard, Watch, read_news, read_shards
from tape.engine.reactions.matcher_steps import Done, Step
from tape.engine.reactions.matches import Findings, Mishap, Scope, is_due_at_once, match
from tape.engine.reactions.shards import lane_of
from tape.engine.reactions.task_broker import Board, take_turn
from tape.errors import CursorBeyondHead, CursorExpired, TapeError
from tape.journal.reader import EVERYTHING
from tape.model.entry import Entry
from tape.store import Transaction

log = logging.getLogger(__name__)

BATCH = 2_048
# So few entries are matched on the event loop: handing them to a thread would take longer.
INLINE = 16
# How long a position that nothing was fired at may stay in memory only.
FLUSH_S = 0.25
TEND_S = renewal_interval_s(matcher_partitions.LEASE_MS)
# Somebody else may register the first reaction of all.
LOOK_S = 1.0
CLOSE_S = 5.0
# How often the rows of shards that had nothing to do are brought up to date for those who look at them.
TIDY_S = 60.0


class _Outdated(Exception):
    """The lanes or the registry are not what this server took them for."""


class Matcher:
    """One per server. `start()` it after the hub, `close()` it before."""

    def __init__(self, hub: Hub, board: Board) -> None:
        self.owner = new_owner()
        self._backoff = Backoff(WHILE_UNAVAILABLE)
        self.catalog = Catalog()
        self._hub = hub
        self._database = hub.database
        self._metrics = hub.metrics
        self._board = board
        self._stirred = asyncio.Event()
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._subscription: JournalSubscription | None = None
        self._lanes: dict[int, int] = {}
        self._position = 0
        self._mishaps: dict[tuple[str, int], Mishap] = {}
        self._sweeps: list[Sweep] = []
        self._flushed_at = self._tended_at = self._tidied_at = 0.0
        self._launch_at_ms = 0

    async def start(self) -> None:
        """Begin to follow the journal."""
        self._is_closing = False
        self._database.on_notice(registry.CHANNEL, self.stir)
        self._task = asyncio.create_task(self._run())
        self._listening = asyncio.create_task(self._listen())

    async def close(self) -> None:
        """Stop, write down how far it has come, and give the lanes back."""
        if self._task is None or self._listening is None:
            return
        self._is_closing = True
        self._listening.cancel()
        self.stir()  # what is being written is finished first
        await asyncio.wait((self._task,), timeout=CLOSE_S)
        self._task.cancel()
        await asyncio.gather(self._task, self._listening, return_exceptions=True)
        self._task = None
        try:
            if self._lanes:
                await self._flush()
                await self._database.write(lambda tx: matcher_partitions.release(tx, self.owner))
        except (TapeError, _Outdated) as error:
            log.info("the lanes were not given back, their leases will run out: %s", error)

    def stir(self) -> None:
        """The registry has changed: look at once."""
        self._stirred.set()
        if self._subscription is not None:
            self._subscription.wake()

    @property
    def position(self) -> int:
        """Everything up to here has been matched for the lanes that this server holds."""
        return self._position

    def is_settled_at(self, global_seq: int) -> bool:
        """Whether everything up to an entry has been matched and written down."""
        return bool(self._lanes) and not self._sweeps and min(self._lanes.values()) >= global_seq

    async def _listen(self) -> None:
        """Find out that another server has changed the registry: the first command of a pool should not wait."""
        async for _ in self._database.changes(registry.CHANNEL):
            try:
                version = await self._database.read(registry.read_version)
            except TapeError as error:
                log.info("looking at the registry failed, trying again: %s", error)
                continue
            if version != self.catalog.version:
                self.stir()

    # ── the loop ─────────────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        while not self._is_closing:
            try:
                await self._look()
                if self._is_closing:  # the nudge that told so is used up: nothing would end a wait for entries
                    return
                await self._follow()
            except _Outdated:
                pass
            except CursorExpired as error:
                await self._skip_pruned(error.oldest - 1)
            except CursorBeyondHead as error:
                log.warning("the lanes stand beyond the journal, was an older backup restored? %s", error)
                await asyncio.sleep(LOOK_S)
            except TapeError as error:
                if self._hub.is_closing:
                    return
                log.warning("matching reactions failed, trying again: %s", error)
                self._lanes = {}  # nobody knows what was written last: read everything anew
                await self._backoff.wait_async()
            except Exception:
                log.exception("matching reactions failed, trying again")
                self._lanes = {}
                await self._backoff.wait_async()
            self._metrics.matcher_restarts.inc()

    async def _look(self) -> None:
        """Wait until there are reactions, then take lanes and learn where everything stands."""
        self._stirred.clear()
        await self.learn()
        while not self.catalog.watches and not self._is_closing:
            self._lanes = {}
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stirred.wait(), LOOK_S)
            self._stirred.clear()
            await self.learn()
        if self._is_closing:  # perhaps just when the first reaction has come
            raise _Outdated
        before = set(self._lanes)
        holding = await self._database.write(lambda tx: matcher_partitions.tend(tx, self.owner))
        self._tended_at = time.monotonic()
        self._lanes = holding.positions
        if holding.version != self.catalog.version:
            await self.learn()
        if gained := set(self._lanes) - before:
            await self._relearn_shards(gained)
        self._mishaps = {}
        self._position = min(self._lanes.values(), default=0)
        self._sweeps = plan(self.catalog, frozenset(self._lanes))
        self._launch_at_ms = now_ms() if any(self._agents_that_wait()) else 0
        self._metrics.reactions.set(len(self.catalog))
        self._metrics.lanes.set(len(self._lanes))

    async def learn(self) -> None:
        """Take over what has changed in the registry."""
        known = self.catalog.version
        news = await self._database.read(lambda reader: read_news(reader, known))
        if len(news.reactions) <= INLINE:
            self.catalog.apply(news)
        else:  # a predicate takes about a millisecond to compile
            await asyncio.to_thread(self.catalog.apply, news)

    async def _relearn_shards(self, gained: set[int]) -> None:
        """Another server may have moved the shards of these lanes since they were read."""
        watches = [
            watch for watch in self.catalog.watches.values() if any(s.lane in gained for s in watch.shards.values())
        ]
        ids = [watch.reaction.reaction_id for watch in watches]
        found = await self._database.read(lambda reader: read_shards(reader, ids))
        for watch in watches:
            watch.shards = found.get(watch.reaction.reaction_id, {})

    async def _follow(self) -> None:
        """Walk along the journal until something about lanes or registry has changed."""
        if not self._lanes:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stirred.wait(), TEND_S)
            return
        self._subscription = subscription = await self._hub.subscribe(EVERYTHING, self._position)
        if subscription.position > self._position:  # from the very beginning, which is no longer there
            self._pass_over(subscription.position)
        try:
            while True:
                batch = await subscription.next(BATCH, self._patience())
                if self._stirred.is_set():
                    raise _Outdated
                if batch.entries:
                    await self._match(batch.entries)
                self._position = max(self._position, batch.position)
                self._metrics.reaction_lag.set(max(self._hub.head - self._position, 0))
                await self._launch()
                if self._sweeps:  # one a round, in turns: what is new does not wait for what is old
                    self._sweeps.append(sweep := self._sweeps.pop(0))
                    await self._sweep(sweep)
                await self._keep_up()
                self._backoff.reset()
        finally:
            self._subscription = None
            subscription.close()

    def _patience(self) -> float:
        """How long there is nothing to do but wait for entries."""
        if self._sweeps or self._stirred.is_set():
            return 0.0
        waits = [self._tended_at + TEND_S - time.monotonic()]
        if self._is_unflushed:
            waits.append(self._flushed_at + FLUSH_S - time.monotonic())
        if self._launch_at_ms:
            waits.append((self._launch_at_ms - now_ms()) / 1_000)
        return max(min(waits), 0.0)

    async def _keep_up(self) -> None:
        if self._is_unflushed and time.monotonic() >= self._flushed_at + FLUSH_S:
            await self._flush()
        if time.monotonic() >= self._tidied_at + TIDY_S:
            await self._tidy()
        if time.monotonic() >= self._tended_at + TEND_S:
            await self._flush()
            holding = await self._database.write(lambda tx: matcher_partitions.tend(tx, self.owner))
            self._tended_at = time.monotonic()
            if holding.positions != self._lanes or holding.version != self.catalog.version:
                raise _Outdated

    # ── steps ────────────────────────────────────────────────────────────────────────────────────

    @property
    def _is_unflushed(self) -> bool:
        return bool(self._mishaps) or any(position < self._position for position in self._lanes.values())

    async def _match(self, entries: Sequence[Entry]) -> None:
        findings = await self._find(entries, self._scope())
        self._merge_mishaps(findings)
        if findings.matches:
            await self._advance(findings, entries[-1].global_seq)

    async def _flush(self) -> None:
        if self._is_unflushed:
            await self._advance(Findings([], {}), self._position)

    async def _advance(self, findings: Findings, position: int) -> None:
        findings.mishaps = self._mishaps
        step = Step(self.owner, self.catalog.version, findings, position, lanes=self._lanes)
        done, handed_out = await self._write(step)
        self._mishaps = {}
        if done is None:
            raise _Outdated
        self._lanes = {lane: max(place, position) for lane, place in self._lanes.items()}
        self._position = max(self._position, position)
        self._flushed_at = time.monotonic()
        self._count(done, handed_out)

    async def _write(self, step: Step) -> tuple[Done | None, Set[str]]:
        """Write a step; dispatchers that wait get tasks of the reactions named in the same operation."""
        at_once = {found.watch.reaction.reaction_id for found in step.findings.matches if is_due_at_once(found)}
        turn = await self._board.join(at_once) if at_once else None
        if turn is None:
            return await self._database.write(lambda tx: matcher_steps.advance(tx, step), step.size), frozenset()

        def write(tx: Transaction) -> Done | None:
            done = matcher_steps.advance(tx, step)
            if done is not None:
                take_turn(tx, turn)
            return done

        try:
            done = await self._database.write(write, step.size)
        except BaseException:
            self._board.abandon(turn)
            raise
        if done is None:
            self._board.abandon(turn)
        else:
            self._board.conclude(turn)
        return done, at_once

    async def _find(self, entries: Sequence[Entry], scope: Scope) -> Findings:
        self._metrics.matched_entries.inc(len(entries))
        if len(entries) <= INLINE:
            findings = match(self.catalog, entries, scope)
        else:
            findings = await asyncio.to_thread(match, self.catalog, entries, scope)
        self._metrics.evaluated.inc(findings.evaluated)
        return findings

    def _scope(self) -> Scope:
        """Shards of our lanes that are not behind, and lanes that have not come further than the entry."""
        positions = self._lanes

        def wants(watch: Watch, number: int, shard: Shard, global_seq: int) -> bool:
            position = positions.get(shard.lane)
            return (
                position is not None and not shard.is_behind and global_seq > shard.position and global_seq > position
            )

        return wants

    def _merge_mishaps(self, findings: Findings) -> None:
        for key, mishap in findings.mishaps.items():
            self._metrics.reaction_errors.inc(mishap.count)
            before = self._mishaps.get(key)
            if before is not None:
                mishap.count += before.count
            self._mishaps[key] = mishap

    def _count(self, done: Done, handed_out: Set[str] = frozenset()) -> None:
        self._metrics.reaction_tasks.inc(done.tasks)
        self._metrics.reaction_runs.inc(done.runs)
        self._metrics.reaction_suppressed.inc(done.suppressed)
        if done.ready:
            self._board.stir(done.ready - handed_out)
            if any(reaction_id in done.ready for reaction_id in self._agents_that_wait()):
                self._launch_at_ms = now_ms()

    # ── shards that are behind ───────────────────────────────────────────────────────────────────

    async def _sweep(self, sweep: Sweep) -> None:
        try:
            found = await self._database.read(lambda reader: sweep.cursor.read(reader, sweep.position))
        except CursorExpired as error:
            self._metrics.reaction_missed.inc(error.oldest - 1 - sweep.position)
            log.warning("retention removed entries %d to %d before they were matched", sweep.position, error.oldest - 1)
            sweep.position = error.oldest - 1
            await self._catch_up(sweep, Findings([], {}), sweep.position)
            return
        # What joins a lane must not miss what the lane has passed in memory only.
        if found.position >= min(self._lanes.values()):
            await self._flush()
        await self._catch_up(sweep, await self._find(found.entries, sweep.wants), found.position)
        sweep.position = found.position

    async def _catch_up(self, sweep: Sweep, findings: Findings, position: int) -> None:
        step = Step(self.owner, self.catalog.version, findings, position, shards=sweep.behind(position))
        if step.shards:
            done = await self._database.write(lambda tx: matcher_steps.catch_up(tx, step), step.size)
            if done is None:
                self._lanes = {}  # the shards are not where they were thought to be: read them anew
                raise _Outdated
            for reaction_id, number in step.shards:
                shard = self.catalog.watches[reaction_id].shards[number]
                shard.position = sweep.shards[reaction_id, number] = position
                if (reaction_id, number) in done.joined:
                    shard.is_behind = False
                    del sweep.shards[reaction_id, number]
            self._count(done)
        if not sweep.shards:
            self._sweeps.remove(sweep)

    # ── the rest ─────────────────────────────────────────────────────────────────────────────────

    def _agents_that_wait(self) -> list[str]:
        return [
            reaction_id
            for reaction_id, watch in self.catalog.watches.items()
            if agent_tasks.waits(watch.reaction) and lane_of(reaction_id, 0) in self._lanes
        ]

    async def _launch(self) -> None:
        if not self._launch_at_ms or now_ms() < self._launch_at_ms:
            return
        waiting = [self.catalog.watches[reaction_id].reaction for reaction_id in self._agents_that_wait()]
        launched = await self._database.write(lambda tx: agent_tasks.launch_due(tx, waiting))
        self._metrics.reaction_runs.inc(launched.runs)
        self._launch_at_ms = launched.again_at_ms

    async def _tidy(self) -> None:
        self._tidied_at = time.monotonic()
        await self._flush()
        places = dict(self._lanes)
        await self._database.write(lambda tx: matcher_partitions.tidy(tx, places))

    async def _skip_pruned(self, position: int) -> None:
        self._pass_over(position)
        with contextlib.suppress(TapeError, _Outdated):
            await self._flush()

    def _pass_over(self, position: int) -> None:
        """Entries that are gone cannot be matched any more: say so, and go on behind them."""
        log.warning("retention removed entries %d to %d before they were matched", self._position + 1, position)
        self._metrics.reaction_missed.inc(max(position - self._position, 0))
        self._position = max(self._position, position)
