"""Durable sleep: a run parks for a time, and no process waits meanwhile."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from tape.base.durations import Duration, parse_duration_ms
from tape.durable.effect_call import call_of
from tape.errors import RunParked


def sleep(duration: Duration, *, tool_context: Any = None) -> None:
    """Sleep for "3d", "90s", a number of seconds or a timedelta; RunParked until the time has come.

    The server makes the run runnable then, and a recovery worker resumes it. A resumed run sleeps for what is left.
    """
    call = call_of(tool_context)
    duration_ms = parse_duration_ms("duration", duration)
    run, timer_id = call.run, call.inner_key("sleep").removeprefix(f"{call.run_id}/")
    run.check()
    lease = run.lease
    if lease is not None:
        lease.stop()  # a renewal after the run has parked would resume it
    answer = run.settle(run.client.sleep_run, timer_id=timer_id, duration_ms=duration_ms)
    if not answer.done:
        wakes = datetime.fromtimestamp(answer.wake_at_ms / 1_000, UTC).isoformat(timespec="seconds")
        raise run.interrupt(
            RunParked(
                f"The run {call.run_id!r} sleeps until {wakes}. The server makes it runnable then, and a recovery"
                " worker (tape.reactors.run_reactors) or the program itself resumes it."
            )
        )
    if lease is not None:
        lease.start()


async def sleep_async(duration: Duration, *, tool_context: Any = None) -> None:
    """`sleep` for coroutines."""
    await asyncio.to_thread(sleep, duration, tool_context=tool_context)
