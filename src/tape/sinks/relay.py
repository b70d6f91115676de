"""The relay: hands every entry of the journal to a sink, and moves its cursor only after the sink has it.

A relay that dies in between hands the same entries over again: at least once, in the order of each run. A receiver
that deduplicates on `(run_id, seq)` sees each entry once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tape.base.process import sleep_until_set
from tape.base.retry import UNLIMITED, Backoff, RetryPolicy
from tape.client import DEFAULT_URL, AsyncTapeClient, TapeClient
from tape.errors import InvalidInput, RefusedAddress
from tape.sinks.cursor import CursorFile, OldCursor, position_before
from tape.sinks.handover import HandOver
from tape.sinks.metrics import RelayMetrics, RelayStatus
from tape.sinks.policy import Policy, SettingAside
from tape.sinks.sink import Sink

log = logging.getLogger(__name__)

BATCH = 512
RETRY = RetryPolicy(max_attempts=UNLIMITED, max_interval_s=30.0, jitter=0.25)
IDLE_SAVE_S = 1.0
T = TypeVar("T")


def run_outbox_relay(
    url: str,
    sink: Sink,
    *,
    cursor_path: str = "",
    run_id: str = "",
    kind: str = "",
    subject_pattern: str = "",
    predicate_cel: str = "",
    interval_s: float = 1.0,
    once: bool = False,
    policy: Policy = "block",
    dead_letter: str = "",
    shard: int = 0,
    shards: int = 1,
    batch_limit: int = BATCH,
    metrics: RelayMetrics | None = None,
    on_status: Callable[[RelayStatus], object] | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Relay without end, or with `once` up to the entries that are there now.

    While the target is away it tries again after `interval_s`, then after longer pauses up to 30 s. An entry that the
    target will never take is kept in its place (`block`), left out (`skip`), or written to the file or subject
    `dead_letter`. Of several relays with the same `shards` each takes the runs of its own `shard`. `on_status` is
    called about once a second; setting `stop` ends it after what is on its way.
    """
    relay = _Relay(
        url,
        sink,
        _Selection(subject_pattern, run_id, kind, predicate_cel, shard, shards),
        SettingAside(policy, dead_letter, url, subject_pattern),
        metrics or RelayMetrics(),
        cursor_path,
        batch_limit,
        interval_s,
    )
    if not cursor_path and not once:
        log.warning("The relay has no cursor_path: after a restart it begins with the oldest entry again.")
    _run(relay.run(once=once, on_status=on_status, stop=stop))


def outbox_relay_tick(
    url: str,
    sink: Sink,
    *,
    cursor_path: str = "",
    run_id: str = "",
    kind: str = "",
    subject_pattern: str = "",
    predicate_cel: str = "",
    batch_limit: int = BATCH,
    client: TapeClient | None = None,
    idle_window_s: float = 0.5,
    policy: Policy = "block",
    dead_letter: str = "",
    shard: int = 0,
    shards: int = 1,
    metrics: RelayMetrics | None = None,
) -> int:
    """Relay up to `batch_limit` entries that are there now; how many. What the sink refuses is raised, once.

    It ends at the head of the journal, and after `idle_window_s` without a word from the server. With a `client`, its
    server is used.
    """
    url = client.url if client is not None else url
    relay = _Relay(
        url,
        sink,
        _Selection(subject_pattern, run_id, kind, predicate_cel, shard, shards),
        SettingAside(policy, dead_letter, url, subject_pattern),
        metrics or RelayMetrics(),
        cursor_path,
        batch_limit,
    )
    return _run(relay.tick(idle_window_s))


def run_event_fanout(
    url: str = DEFAULT_URL,
    *,
    sink: Callable[[Any], object] | Sink,
    from_ts_ms: int = 0,
    run_id: str = "",
    kind: str = "",
    subject_pattern: str = "",
    predicate_cel: str = "",
    stop: threading.Event | None = None,
) -> None:
    """Call a function, or publish to a sink, with every entry from a time on, live and without end. Keeps no cursor.

    It reconnects by itself and repeats nothing. What the function raises ends it.
    """
    publish: Callable[[Any], object] = sink.publish if isinstance(sink, Sink) else sink

    async def fan_out() -> None:
        async with AsyncTapeClient(url) as client:
            after = await position_before(client, from_ts_ms)
            stream = client.follow_batches(
                subject_pattern, from_global_seq=after, run_id=run_id, kind=kind, predicate_cel=predicate_cel
            )
            async with aclosing(_until(stream, stop)) as batches:
                async for batch in batches:
                    for entry in batch.entries:
                        await asyncio.to_thread(publish, entry)

    _run(fan_out())


@dataclass(frozen=True)
class _Selection:
    """Which entries are relayed."""

    subject_pattern: str
    run_id: str
    kind: str
    predicate_cel: str
    shard: int
    shards: int

    def __post_init__(self) -> None:
        if self.shards < 1 or not 0 <= self.shard < self.shards:
            raise InvalidInput(f"shard {self.shard} of {self.shards}: shards count from 0 to one less than there are.")

    def follow(self, client: AsyncTapeClient, after: int) -> Any:
        """The batches after a position; other shards are among them."""
        return client.follow_batches(
            self.subject_pattern,
            from_global_seq=after,
            run_id=self.run_id,
            kind=self.kind,
            predicate_cel=self.predicate_cel,
        )

    def mine(self, entries: Sequence[Any], old: OldCursor | None) -> list[Any]:
        """The entries of our shard that were not published by a relay that went by time."""
        if self.shards == 1 and old is None:
            return list(entries)
        return [
            entry
            for entry in entries
            if shard_of(entry.run_id, self.shards) == self.shard and not (old is not None and old.has_passed(entry))
        ]


class _Relay:
    def __init__(
        self,
        url: str,
        sink: Any,
        selection: _Selection,
        aside: SettingAside,
        metrics: RelayMetrics,
        cursor_path: str,
        batch_limit: int,
        interval_s: float = 1.0,
    ) -> None:
        if batch_limit < 1:
            raise InvalidInput(f"batch_limit {batch_limit!r} must be at least 1.")
        if interval_s <= 0:
            raise InvalidInput(f"interval_s {interval_s!r} must be more than 0.")
        self._url = url
        self._selection = selection
        self._aside = aside
        self._metrics = metrics
        self._batch_limit = batch_limit
        self._interval = interval_s
        self._hands = HandOver(sink, aside, metrics)
        self._cursor = CursorFile(cursor_path)
        self._saved_at = 0.0

    async def run(
        self, *, once: bool, on_status: Callable[[RelayStatus], object] | None, stop: threading.Event | None
    ) -> None:
        reporting: asyncio.Task[None] | None = None
        try:
            if on_status is not None:
                reporting = asyncio.create_task(self._report(on_status))
            async with AsyncTapeClient(self._url) as client:
                await self._cursor.convert(client)
                head = (await client.head()).global_seq
                stream = self._selection.follow(client, self._cursor.position)
                async with aclosing(_until(stream, stop)) as batches:
                    async for batch in batches:
                        if not await self._relay(batch, stop):
                            return
                        if once and batch.position >= head:
                            self._cursor.save(max(batch.position, self._cursor.position))
                            return
        finally:
            if reporting is not None:
                reporting.cancel()
                await asyncio.gather(reporting, return_exceptions=True)
            if on_status is not None:
                on_status(self._metrics.status)
            self._aside.close()
            self._cursor.close()

    async def tick(self, idle_window_s: float) -> int:
        done = 0
        try:
            async with AsyncTapeClient(self._url) as client:
                await self._cursor.convert(client)
                head = (await client.head()).global_seq
                async with aclosing(self._selection.follow(client, self._cursor.position)) as stream:
                    is_over = False
                    while not is_over:
                        try:
                            batch = await asyncio.wait_for(anext(stream), idle_window_s)
                        except TimeoutError:
                            break
                        mine = self._selection.mine(batch.entries, self._cursor.old)
                        part = mine[: self._batch_limit - done]
                        error, left = await asyncio.to_thread(self._hands.give, part)
                        done += len(part) - len(left)
                        if left:
                            position = left[0].global_seq - 1
                        else:
                            position = batch.position if len(part) == len(mine) else part[-1].global_seq
                        self._cursor.save(max(position, self._cursor.position))
                        if error is not None:
                            raise error
                        is_over = done >= self._batch_limit or batch.position >= head
        finally:
            self._aside.close()
            self._cursor.close()
        return done

    async def _relay(self, batch: Any, stop: threading.Event | None) -> bool:
        """Hand a batch over and move the cursor behind it; False if stopped before that."""
        entries = self._selection.mine(batch.entries, self._cursor.old)
        for start in range(0, len(entries), self._batch_limit):
            part = entries[start : start + self._batch_limit]
            if not await self._insist(part, stop):
                return False
            is_last = start + self._batch_limit >= len(entries)
            self._move(batch.position if is_last else part[-1].global_seq, batch.head, has_published=True)
        if not entries:
            self._move(batch.position, batch.head, has_published=False)
        return True

    async def _insist(self, entries: list[Any], stop: threading.Event | None) -> bool:
        """Hand entries over, again and again until the sink has them; False if stopped before that."""
        backoff = Backoff(replace(RETRY, initial_interval_s=self._interval))
        while True:
            error, left = await asyncio.to_thread(self._hands.give, entries)
            if error is None:
                return True
            if isinstance(error, RefusedAddress):
                self._cursor.save(max(left[0].global_seq - 1, self._cursor.position))
                raise error
            if len(left) < len(entries):
                backoff.reset()
            entries = left
            # What is done before the first that is left is done for good, also if we die while waiting.
            self._cursor.save(max(left[0].global_seq - 1, self._cursor.position))
            self._metrics.was_retried(error)
            delay = backoff.next_delay(error)
            log.warning("retrying %d entries in %.1f s: %s", len(left), delay, error)
            if await sleep_until_set(delay, stop):
                return False

    def _move(self, position: int, head: int, *, has_published: bool) -> None:
        """Keep the cursor; where nothing was published, once a second is enough."""
        now = time.monotonic()
        if position > self._cursor.position and (has_published or now - self._saved_at >= IDLE_SAVE_S):
            self._cursor.save(position)
            self._saved_at = now
        self._metrics.has_moved(max(position, self._cursor.position), head)

    async def _report(self, on_status: Callable[[RelayStatus], object]) -> None:
        while True:
            on_status(self._metrics.status)
            await asyncio.sleep(1.0)


def shard_of(run_id: str, shards: int) -> int:
    """The shard of a run: FNV-1a over its UTF-8 bytes, as the reactions of the server have it."""
    value = 0x811C9DC5
    for byte in run_id.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value % shards


async def _until(stream: Any, stop: threading.Event | None) -> AsyncGenerator[Any, None]:
    """A stream, up to the moment when somebody sets `stop`."""
    following: asyncio.Task[Any] | None = None
    try:
        while stop is None or not stop.is_set():
            following = following or asyncio.ensure_future(anext(stream))
            done, _ = await asyncio.wait([following], timeout=None if stop is None else 0.1)
            if done:
                try:
                    batch = following.result()
                except StopAsyncIteration:
                    return
                following = None
                yield batch
    finally:
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        await stream.aclose()


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end; inside a running event loop on a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    result: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            result.append(asyncio.run(work))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="tape-relay")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return result[0]
