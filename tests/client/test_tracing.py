"""A call made inside an OpenTelemetry span carries it, and so does the entry that comes of it."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from tape import AsyncTapeClient, TapeClient
from tape.errors import LeaseHeld
from tape.server.server import Server

SPAN = SpanContext(trace_id=0xABC, span_id=0xDEF, is_remote=False, trace_flags=TraceFlags(1))
EXPECTED = (f"{0xABC:032x}", f"{0xDEF:016x}")


async def traces(client: AsyncTapeClient, count: int) -> list[tuple[str, str]]:
    found = []
    async for entry in client.follow():
        found.append((entry.trace_id, entry.span_id))
        if len(found) == count:
            break
    return found


async def test_appends_and_calls_carry_the_span_they_are_made_in(client: AsyncTapeClient) -> None:
    await client.append("/tape/a/b")
    with trace.use_span(NonRecordingSpan(SPAN)):
        await client.append("/tape/a/b")
        await client.write_value(namespace="n", key="k", value_json="1")
        run = await client.begin_run(app_name="app", user_id="u", session_id="s", invocation_id="i")
        await client.record_decision(run_id=run.run_id, decision_index=0)
    assert await traces(client, 5) == [("", ""), EXPECTED, EXPECTED, EXPECTED, EXPECTED]


async def test_the_synchronous_client_carries_the_span_of_the_thread(server: Server, client: AsyncTapeClient) -> None:
    def work() -> None:
        with TapeClient(f"tape://{server.grpc_address}") as mine, trace.use_span(NonRecordingSpan(SPAN)):
            mine.append("/tape/a/b")
            mine.write_value(namespace="n", key="k", value_json="1")

    await asyncio.to_thread(work)
    assert await traces(client, 2) == [EXPECTED, EXPECTED]


async def test_a_caller_can_name_itself(server: Server, client: AsyncTapeClient) -> None:
    run = await client.begin_run(
        app_name="app", user_id="u", session_id="s", invocation_id="i", lease_owner="w1", lease_ttl_ms=60_000
    )
    async with AsyncTapeClient(server.grpc_address, lease_owner="w1") as mine:
        await mine.record_decision(run_id=run.run_id, decision_index=0)
    async with AsyncTapeClient(server.grpc_address, lease_owner="w2") as other:
        with pytest.raises(LeaseHeld, match="leased to 'w1'"):
            await other.record_decision(run_id=run.run_id, decision_index=1)
