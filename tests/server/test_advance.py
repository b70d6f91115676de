"""`AdvanceRun`: several calls of a run in one commit, all or none."""

from __future__ import annotations

import asyncio

import pytest

from tape.client import AsyncTapeClient, rpcs
from tape.client.channel import GrpcChannel
from tape.errors import IllegalTransition, InvalidInput, LeaseHeld, NotFound, RunCancelled
from tape.proto import tape_pb2 as pb
from tape.server.server import Server


async def begun(client: AsyncTapeClient) -> str:
    run = await client.begin_run(app_name="a", user_id="u", session_id="s", invocation_id="i", lease_owner="me")
    return run.run_id


def begin(run_id: str, key: str) -> pb.BeginEffectRequest:
    return pb.BeginEffectRequest(run_id=run_id, decision_index=-1, tool_name="t", custom_key=key)


def done(run_id: str, key: str) -> pb.CompleteEffectRequest:
    return pb.CompleteEffectRequest(run_id=run_id, idempotency_key=key, status=pb.EFFECT_STATUS_CONFIRMED)


async def statuses(client: AsyncTapeClient, run_id: str, *keys: str) -> list[int]:
    return [(await client.get_effect(run_id=run_id, idempotency_key=key)).effect.status for key in keys]


async def test_a_run_goes_from_effect_to_effect_to_its_end_with_one_call_each(client: AsyncTapeClient) -> None:
    run_id = await begun(client)
    first = await client.advance_run(run_id, lease_owner="me", lease_ttl_ms=60_000, begin=begin(run_id, "a"))
    assert (first.begun.status, first.begun.existing) == (pb.EFFECT_STATUS_PENDING, False)
    second = await client.advance_run(run_id, complete=[done(run_id, "a")], begin=begin(run_id, "b"))
    assert second.begun.idempotency_key == "b"
    again = await client.advance_run(run_id, complete=[done(run_id, "a")], begin=begin(run_id, "a"))
    assert (again.begun.status, again.begun.existing) == (pb.EFFECT_STATUS_CONFIRMED, True)
    end = pb.EndRunRequest(run_id=run_id, status=pb.RUN_STATUS_TERMINAL, detail_json='{"output": 1}')
    await client.advance_run(run_id, complete=[done(run_id, "b")], end=end)
    run = await client.get_run(run_id)
    assert (run.status, run.detail_json) == (pb.RUN_STATUS_TERMINAL, '{"output": 1}')
    assert await statuses(client, run_id, "a", "b") == [pb.EFFECT_STATUS_CONFIRMED] * 2


async def test_a_rejected_move_is_rolled_back(client: AsyncTapeClient) -> None:
    run_id = await begun(client)
    await client.advance_run(run_id, begin=begin(run_id, "a"))
    other = client.with_lease_owner("another")
    with pytest.raises(LeaseHeld):
        await other.advance_run(run_id, complete=[done(run_id, "a")])
    await client.end_run(run_id=run_id, status=pb.RUN_STATUS_CANCELLED)
    with pytest.raises(RunCancelled):
        await client.advance_run(run_id, complete=[done(run_id, "a")], begin=begin(run_id, "b"))
    assert await statuses(client, run_id, "a") == [pb.EFFECT_STATUS_PENDING]
    with pytest.raises(IllegalTransition):
        await client.advance_run(run_id, lease_owner="me", lease_ttl_ms=1, complete=[done(run_id, "a")])
    with pytest.raises(InvalidInput, match="run_id 'x' differs"):
        await client.advance_run(run_id, complete=[done("x", "a")])
    await client.advance_run(run_id, complete=[done(run_id, "a")])
    assert await statuses(client, run_id, "a") == [pb.EFFECT_STATUS_CONFIRMED]


async def test_runs_that_advance_concurrently_share_messages_and_each_has_its_own_result(
    server: Server, client: AsyncTapeClient
) -> None:
    ids = [
        (
            await client.begin_run(app_name="a", user_id="u", session_id="s", invocation_id=f"{n}", lease_owner="me")
        ).run_id
        for n in range(20)
    ]
    moves = [client.advance_run(run_id, lease_owner="me", begin=begin(run_id, "a")) for run_id in ids]
    refused = client.advance_run("missing", begin=begin("missing", "a"))
    *answers, error = await asyncio.gather(*moves, refused, return_exceptions=True)
    assert [answer.begun.run_id for answer in answers] == ids  # type: ignore[union-attr]
    assert isinstance(error, NotFound)
    counted = server.metrics.registry.get_sample_value
    assert 1 <= (counted("tape_rpcs_total", {"method": "AdvanceRuns", "status": "OK"}) or 0) <= 3


async def test_a_batch_with_too_many_moves_is_rejected_with_their_number(server: Server) -> None:
    channel = GrpcChannel(f"tape://{server.grpc_address}")
    with pytest.raises(InvalidInput, match="moves has 1001 elements; send 1000 at most"):
        await channel.call(rpcs.ADVANCE_RUNS, pb.AdvanceRunsRequest(moves=[pb.AdvanceRunRequest()] * 1_001))
    await channel.close()
