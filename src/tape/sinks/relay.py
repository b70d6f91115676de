"""The relay: publishes every entry of the journal to a sink, and moves its cursor after the sink has accepted it.

A relay that dies in between publishes the same entries again: at least once, in the order of each run. A receiver
that deduplicates on the event id processes each entry once. A relay that sees all tenants of a server with keys names
the tenant in the event id, because two tenants may have runs of the same id. Where the journal is damaged the relay
logs and counts the gap, and goes on after it.
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
from tape.client.gap import Gap
from tape.errors import InvalidInput, RefusedAddress
from tape.model.message import TenantEntry
from tape.sinks.batch_publisher import BatchPublisher
from tape.sinks.cursor import CursorFile, OldCursor, position_before
from tape.sinks.dead_letters import DeadLetterPolicy, Policy
from tape.sinks.metrics import RelayMetrics, RelayStatus
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
    """Relay until `stop` is set, or with `once` up to the head of the journal at the start.

    While the target is unavailable it retries after `interval_s` (1 s), then with exponential backoff up to 30 s. An
    entry that the target rejects for good is retried while later ones wait (`block`), skipped (`skip`), or stored in
    the file or subject `dead_letter`. Of several relays with the same `shards` each relays the runs of its own `shard`.
    `on_status` is called about once a second; after `stop` the batch in flight is finished.
    """
    relay = _Relay(
        url,
        sink,
        _Selection(subject_pattern, run_id, kind, predicate_cel, shard, shards),
        DeadLetterPolicy(policy, dead_letter, url, subject_pattern),
        metrics or RelayMetrics(),
        cursor_path,
        batch_limit,
        interval_s,
    )
    if not cursor_path and not once:
        log.warning("The relay has no cursor_path: after a restart it starts from the oldest entry.")
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
    """Relay up to `batch_limit` entries; how many were published. An error of the sink is raised without a retry.

    It ends at the head of the journal, or after `idle_window_s` without a message from the server. With a `client`, its
    server is used.
    """
    url = client.url if client is not None else url
    relay = _Relay(
        url,
        sink,
        _Selection(subject_pattern, run_id, kind, predicate_cel, shard, shards),
        DeadLetterPolicy(policy, dead_letter, url, subject_pattern),
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
    """Call a function, or publish to a sink, with every entry from a time on, until `stop` is set. Stores no cursor.

    It reconnects on its own and repeats no entry. An exception of the function ends it.
    """
    publish: Callable[[Any], object] = sink.publish if isinstance(sink, Sink) else sink

    async def fan_out() -> None:
        async with AsyncTapeClient(url) as client:
            after = await position_before(client, from_ts_ms)
            names_tenant = (await client.head()).several_tenants
            stream = client.follow_batches(
                subject_pattern,
                from_global_seq=after,
                run_id=run_id,
                kind=kind,
                predicate_cel=predicate_cel,
                skip_gaps=True,
            )
            async with aclosing(_until(stream, stop)) as batches:
                async for batch in batches:
                    for entry in batch.entries:
                        await asyncio.to_thread(publish, TenantEntry(entry) if names_tenant else entry)

    _run(fan_out())


@dataclass(frozen=True)
class _Selection:
    """The entries that are relayed."""

    subject_pattern: str
    run_id: str
    kind: str
    predicate_cel: str
    shard: int
    shards: int

    def __post_init__(self) -> None:
        if self.shards < 1 or not 0 <= self.shard < self.shards:
            raise InvalidInput(f"shard {self.shard} of {self.shards}: shard must lie between 0 and shards - 1.")

    def follow(self, client: AsyncTapeClient, after: int, on_gap: Callable[[Gap], None]) -> Any:
        """The batches after a position, with the entries of all shards."""
        return client.follow_batches(
            self.subject_pattern,
            from_global_seq=after,
            run_id=self.run_id,
            kind=self.kind,
            predicate_cel=self.predicate_cel,
            skip_gaps=True,
            on_gap=on_gap,
        )

    def mine(self, entries: Sequence[Any], old: OldCursor | None) -> list[Any]:
        """The entries of this shard that an older relay with a cursor by time has not published."""
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
        dead_letters: DeadLetterPolicy,
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
        self._dead_letters = dead_letters
        self._metrics = metrics
        self._batch_limit = batch_limit
        self._interval = interval_s
        self._publisher = BatchPublisher(sink, dead_letters, metrics)
        self._sink_name = type(sink).__name__
        self._cursor = CursorFile(cursor_path)
        self._saved_at = 0.0
        self._names_tenant = False

    async def run(
        self, *, once: bool, on_status: Callable[[RelayStatus], object] | None, stop: threading.Event | None
    ) -> None:
        reporting: asyncio.Task[None] | None = None
        try:
            if on_status is not None:
                reporting = asyncio.create_task(self._report(on_status))
            async with AsyncTapeClient(self._url) as client:
                await self._cursor.convert(client)
                head = await self._read_head(client)
                stream = self._selection.follow(client, self._cursor.position, self._count_gap)
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
            self._dead_letters.close()
            self._cursor.close()

    async def tick(self, idle_window_s: float) -> int:
        done = 0
        try:
            async with AsyncTapeClient(self._url) as client:
                await self._cursor.convert(client)
                head = await self._read_head(client)
                stream = self._selection.follow(client, self._cursor.position, self._count_gap)
                async with aclosing(stream):
                    is_over = False
                    while not is_over:
                        try:
                            batch = await asyncio.wait_for(anext(stream), idle_window_s)
                        except TimeoutError:
                            break
                        mine = self._mine(batch)
                        part = mine[: self._batch_limit - done]
                        error, left = await asyncio.to_thread(self._publisher.publish, part)
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
            self._dead_letters.close()
            self._cursor.close()
        return done

    def _count_gap(self, gap: Gap) -> None:
        self._metrics.count_gap(gap.reason)
        log.warning(
            "%s does not get entries %d to %d: %s (%s)", self._sink_name, gap.first, gap.last, gap.reason, gap.detail
        )

    async def _read_head(self, client: AsyncTapeClient) -> int:
        found = await client.head()
        self._names_tenant = found.several_tenants
        return int(found.global_seq)

    def _mine(self, batch: Any) -> list[Any]:
        entries = self._selection.mine(batch.entries, self._cursor.old)
        return [TenantEntry(entry) for entry in entries] if self._names_tenant else entries

    async def _relay(self, batch: Any, stop: threading.Event | None) -> bool:
        """Publish a batch and move the cursor after it; False if stopped before that."""
        entries = self._mine(batch)
        for start in range(0, len(entries), self._batch_limit):
            part = entries[start : start + self._batch_limit]
            if not await self._publish_with_retries(part, stop):
                return False
            is_last = start + self._batch_limit >= len(entries)
            self._move(batch.position if is_last else part[-1].global_seq, batch.head, has_published=True)
        if not entries:
            self._move(batch.position, batch.head, has_published=False)
        return True

    async def _publish_with_retries(self, entries: list[Any], stop: threading.Event | None) -> bool:
        """Publish entries, with retries until the sink has accepted them; False if stopped before that."""
        backoff = Backoff(replace(RETRY, initial_interval_s=self._interval))
        while True:
            error, left = await asyncio.to_thread(self._publisher.publish, entries)
            if error is None:
                return True
            if isinstance(error, RefusedAddress):
                self._cursor.save(max(left[0].global_seq - 1, self._cursor.position))
                raise error
            if len(left) < len(entries):
                backoff.reset()
            entries = left
            # Everything before the first entry left is published, also if the process dies during the backoff.
            self._cursor.save(max(left[0].global_seq - 1, self._cursor.position))
            self._metrics.count_retry(error)
            delay = backoff.next_delay(error)
            log.warning("retrying %d entries in %.1f s: %s", len(left), delay, error)
            if await sleep_until_set(delay, stop):
                return False

    def _move(self, position: int, head: int, *, has_published: bool) -> None:
        """Save the cursor; if nothing was published, at most once a second."""
        now = time.monotonic()
        if position > self._cursor.position and (has_published or now - self._saved_at >= IDLE_SAVE_S):
            self._cursor.save(position)
            self._saved_at = now
        self._metrics.set_position(max(position, self._cursor.position), head)

    async def _report(self, on_status: Callable[[RelayStatus], object]) -> None:
        while True:
            on_status(self._metrics.status)
            await asyncio.sleep(1.0)


def shard_of(run_id: str, shards: int) -> int:
    """The shard of a run: FNV-1a over its UTF-8 bytes, as in the reactions of the server."""
    value = 0x811C9DC5
    for byte in run_id.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value % shards


async def _until(stream: Any, stop: threading.Event | None) -> AsyncGenerator[Any, None]:
    """The batches of a stream until `stop` is set."""
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
