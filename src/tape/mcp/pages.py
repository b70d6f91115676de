"""Pages of entries for tools: after a cursor, or the newest ones, bounded by count, size and what is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NamedTuple, cast

from tape.client.aio import AsyncTapeClient, to_entry
from tape.mcp.bounds import MAX_ANSWER, ShownEntry, size_of, view
from tape.model.entry import Entry
from tape.proto import tape_pb2 as pb

# Entries that one call reads backwards, and the bytes of their payloads.
MAX_SCANNED = 50_000
MAX_SCANNED_BYTES = 32 << 20
FIRST_WINDOW = 500


class PageQuestion(NamedTuple):
    """Which entries are asked for."""

    pattern: str = ""
    where: str = ""
    run_id: str = ""

    @property
    def is_everything(self) -> bool:
        """Whether every entry is asked for."""
        return not any(self)


class ShownPage(NamedTuple):
    """Entries, oldest first, and the cursor that continues: `after` forwards, `before` backwards (0: no more)."""

    entries: list[ShownEntry]
    cursor: int
    gaps: list[str]


def _follow(client: AsyncTapeClient, question: PageQuestion, after: int) -> AsyncIterator[pb.EntryBatch]:
    return client.follow_batches(
        question.pattern,
        from_global_seq=after,
        run_id=question.run_id,
        predicate_cel=question.where,
        reconnect=False,
        skip_gaps=True,
    )


async def read_after(
    client: AsyncTapeClient,
    question: PageQuestion,
    after: int,
    limit: int,
    wait_s: float,
    report: Callable[[float], Awaitable[None]],
) -> ShownPage:
    """Entries after a cursor. If there are none, it waits for news up to `wait_s`, and calls `report` meanwhile."""
    head = (await client.head()).global_seq
    loop = asyncio.get_running_loop()
    began = loop.time()
    page, gaps, size, cursor = list[ShownEntry](), list[str](), 0, after
    try:
        async with asyncio.timeout(max(wait_s, 0.0) + 20.0) as deadline:
            async with aclosing(cast(Any, _follow(client, question, after))) as batches:
                async for batch in batches:
                    gaps += _named(batch)
                    for event in batch.entries:
                        shown = view(to_entry(event))
                        size += size_of(shown)
                        if len(page) == limit or (page and size > MAX_ANSWER):
                            return ShownPage(page, cursor, gaps)
                        page.append(shown)
                        cursor = event.global_seq
                    cursor = max(cursor, batch.position)
                    if batch.position >= head:
                        elapsed = loop.time() - began
                        if page or elapsed >= wait_s:
                            return ShownPage(page, cursor, gaps)
                        await report(elapsed)
                        deadline.reschedule(began + wait_s)
    except TimeoutError:
        pass
    return ShownPage(page, cursor, gaps)


async def read_newest(
    client: AsyncTapeClient,
    question: PageQuestion,
    limit: int,
    before: int = 0,
    keep: Callable[[Entry], bool] = lambda entry: True,
    since_ms: int = 0,
) -> ShownPage:
    """The newest entries before a number (0: the head), searched backwards in growing windows."""
    head = await client.head()
    end = min(before - 1, head.global_seq) if before else head.global_seq
    lowest = max(head.oldest - 1, 0)
    width = limit if question.is_everything else FIRST_WINDOW
    found, gaps, scanned, read_bytes, is_old = list[Entry](), list[str](), 0, 0, False
    while (
        end > lowest and len(found) < limit and scanned < MAX_SCANNED and read_bytes < MAX_SCANNED_BYTES and not is_old
    ):
        start = max(end - width, lowest)
        window: list[Entry] = []
        async with aclosing(cast(Any, _follow(client, question, start))) as batches:
            async for batch in batches:
                gaps += _named(batch)
                for event in batch.entries:
                    if event.global_seq <= end:
                        read_bytes += len(event.payload_json)
                        is_old = is_old or event.ts_ms < since_ms
                        entry = to_entry(event)
                        if entry.ts_ms >= since_ms and keep(entry):
                            window.append(entry)
                if batch.position >= end:
                    break
        scanned += end - start
        found = window + found
        end, width = start, min(width * 4, 20_000)
    return _fit(found[-limit:], is_more=len(found) > limit, end=0 if end <= lowest or is_old else end + 1, gaps=gaps)


def _fit(found: list[Entry], *, is_more: bool, end: int, gaps: list[str]) -> ShownPage:
    """The newest of the entries that fit into an answer, and the cursor for those before them."""
    page: list[ShownEntry] = []
    size = 0
    for entry in reversed(found):
        shown = view(entry)
        size += size_of(shown)
        if page and size > MAX_ANSWER:
            is_more = True
            break
        page.append(shown)
    page.reverse()
    if is_more and page:
        return ShownPage(page, page[0].global_seq, gaps)
    return ShownPage(page, end, gaps)


def _named(batch: pb.EntryBatch) -> list[str]:
    return [f"entries {gap.first} to {gap.last} are missing: {gap.reason}" for gap in batch.gaps]
