"""Following a tape: every entry, in order, from any thread or loop, at the cost of the new entries alone."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import anyio
import pytest

from tape import SessionTape, TextChunk, stream_from_cursor
from tape.errors import CursorExpired


async def take(entries: Any, count: int) -> list[int]:
    found = []
    async for entry in entries:
        found.append(entry["seq"])
        if len(found) == count:
            break
    return found


async def until_waiting(tape: SessionTape, count: int = 1) -> None:
    while len(tape._waiters) < count:
        await asyncio.sleep(0)


async def test_a_tail_drains_history_and_then_waits_for_what_comes() -> None:
    tape = SessionTape()
    tape.record({"kind": "a"})
    reading = asyncio.create_task(take(tape.tail(), 3))
    await until_waiting(tape)
    tape.record({"kind": "b"})
    tape.record({"kind": "c"})
    assert await reading == [0, 1, 2]


async def test_a_tail_from_the_future_waits_for_that_seq() -> None:
    tape = SessionTape()
    reading = asyncio.create_task(take(tape.tail(2), 1))
    await until_waiting(tape)
    for _ in range(3):
        tape.record({"kind": "a"})
    assert await reading == [2]


async def test_a_write_from_another_thread_wakes_every_reader() -> None:
    tape = SessionTape()
    readers = [asyncio.create_task(take(tape.tail(), 500)) for _ in range(3)]
    await until_waiting(tape, 3)
    writer = threading.Thread(target=lambda: [tape.record({"kind": "a"}) for _ in range(500)])
    writer.start()
    for reader in readers:
        assert await asyncio.wait_for(reader, 120) == list(range(500))
    writer.join()


def test_readers_in_loops_of_different_threads_see_the_same() -> None:
    tape = SessionTape()
    found: dict[int, list[int]] = {}

    def read(number: int) -> None:
        found[number] = asyncio.run(take(tape.tail(), 200))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        tape.record({"kind": "a"})
    for thread in threads:
        thread.join(120)
    assert found == {number: list(range(200)) for number in range(3)}


async def test_a_tail_that_is_cancelled_while_waiting_leaves_nothing_behind() -> None:
    tape = SessionTape()
    reading = asyncio.create_task(take(tape.tail(), 1))
    await until_waiting(tape)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert tape._waiters == {}
    tape.record({"kind": "a"})
    assert await take(tape.tail(), 1) == [0]


async def test_a_cancel_scope_ends_a_tail() -> None:
    tape = SessionTape()
    with anyio.move_on_after(0) as scope:
        async for _ in tape.tail():
            pass
    assert scope.cancelled_caught
    assert tape._waiters == {}


def test_a_reader_whose_loop_has_ended_does_not_disturb_the_writer() -> None:
    tape = SessionTape()
    loop = asyncio.new_event_loop()
    reading = loop.create_task(take(tape.tail(), 1))
    loop.run_until_complete(until_waiting(tape))
    reading.cancel()
    loop.run_until_complete(asyncio.gather(reading, return_exceptions=True))
    future = loop.create_future()
    tape._waiters[future] = loop  # as a loop that was closed in the middle would leave it
    loop.close()
    assert tape.record({"kind": "a"}) == 0


async def test_a_wake_up_costs_the_new_entries_however_long_the_history_is() -> None:
    tape = SessionTape()
    for _ in range(10_000):
        tape.record({"kind": "a"})
    copied: list[int] = []
    original = tape._from

    def counting(seq: int, skip_expired: bool) -> list[dict[str, Any]]:
        entries = original(seq, skip_expired)
        copied.append(len(entries))
        return entries

    tape._from = counting  # type: ignore[method-assign]
    reading = asyncio.create_task(take(tape.tail(9_999), 101))
    for _ in range(100):
        await until_waiting(tape)
        tape.record({"kind": "b"})
    await reading
    assert sum(copied) == 101


async def test_a_reader_that_falls_behind_the_watermark_gets_the_oldest_seq_left() -> None:
    tape = SessionTape(max_events=2)
    tape.record({"kind": "a"})
    entries = tape.tail()
    assert (await anext(entries))["seq"] == 0
    for _ in range(5):
        tape.record({"kind": "b"})
    with pytest.raises(CursorExpired, match="seq 1 is below"):
        await anext(entries)
    assert await take(tape.tail(1, skip_expired=True), 2) == [4, 5]


async def test_after_a_clear_readers_begin_at_0() -> None:
    tape = SessionTape()
    for _ in range(3):
        tape.record({"kind": "a"})
    reading = asyncio.create_task(take(tape.tail(3), 2))
    await until_waiting(tape)
    tape.clear()
    tape.record({"kind": "b"})
    tape.record({"kind": "c"})
    assert await reading == [0, 1]


async def test_streaming_from_a_cursor_gives_text_entries_first_old_then_new() -> None:
    tape = SessionTape()
    tape.record(TextChunk(text="a"))
    tape.record({"kind": "tool"})

    async def texts(count: int, **options: Any) -> list[str]:
        found: list[str] = []
        async for entry in stream_from_cursor(tape, 0, **options):
            found.append(entry.get("text", entry["kind"]))
            if len(found) == count:
                break
        return found

    reading = asyncio.create_task(texts(2))
    await until_waiting(tape)
    tape.record(TextChunk(text="b"))
    assert await reading == ["a", "b"]
    assert await texts(3, kind=None) == ["a", "tool", "b"]
    assert await texts(1, kind="tool") == ["tool"]


async def test_writing_while_history_is_being_streamed_is_safe() -> None:
    tape = SessionTape()
    tape.record(TextChunk(text="0"))
    count = 0
    async for _ in stream_from_cursor(tape, 0):
        count += 1
        if count == 50:
            break
        tape.record(TextChunk(text=str(count)))
    assert count == 50
