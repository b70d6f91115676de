"""Predicates that use as much CPU as they can: their streams end, and the CPU that they get is bounded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from tape.base.config import Settings
from tape.client import AsyncTapeClient
from tape.engine.security.tokens import jwks_path, load_key
from tape.errors import InvalidConfig, PredicateOverBudget
from tape.model.entry import Draft
from tape.proto import tape_pb2 as pb
from tape.server.server import Server
from tests.web import call

# Up to 50 ms of CPU each for an entry of 10,000 keys.
HOSTILE = [
    "payload.map(k, payload) == []",
    "payload.map(k, k + k + k).size() == 0",
    "payload.all(a, payload.all(b, payload.all(c, true)))",
    "payload == payload && payload == payload && payload == payload",
]
PAYLOAD = {f"k{number}": number for number in range(10_000)}
ENTRIES = 30
# CPU seconds that a tenant has saved, and those of evaluations that threads have begun before it was used up.
SAVED_S, STARTED_S = 0.25, 0.5


class Tenants(NamedTuple):
    """A server, and a client of each of two tenants."""

    server: Server
    honest: AsyncTapeClient
    hostile: AsyncTapeClient
    token: str


@pytest.fixture
async def tenants(sqlite_url: str, tmp_path: Path) -> AsyncIterator[Tenants]:
    key, _ = load_key(tmp_path / "dev.key")
    settings = Settings(
        store=sqlite_url,
        listen="127.0.0.1:0",
        http_listen="127.0.0.1:0",
        auth_jwks=str(jwks_path(tmp_path / "dev.key")),
        auth_issuer="tape-dev",
        auth_audience="tape",
    )
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server(settings))
        tokens = [
            key.mint(tenant=tenant, user="u", session="s", scopes=["service"]) for tenant in ("honest", "hostile")
        ]
        clients = [AsyncTapeClient(f"tape://{server.grpc_address}", id_token=token) for token in tokens]
        yield Tenants(server, *[await stack.enter_async_context(client) for client in clients], tokens[1])


async def follow_to_the_end(client: AsyncTapeClient, predicate: str) -> None:
    async for _ in client.follow("/tape/blob/**", predicate_cel=predicate):
        pass


async def predicate_seconds(server: Server, kind: str = "stream") -> float:
    metrics = (await call(server.http_address, "GET", "/metrics")).body.decode()
    line = next(one for one in metrics.splitlines() if one.startswith(f'tape_predicate_seconds_total{{kind="{kind}"'))
    return float(line.rpartition(" ")[2])


@pytest.mark.parametrize("predicate", HOSTILE)
async def test_a_hostile_follow_ends_and_twenty_get_no_more_cpu_than_one(tenants: Tenants, predicate: str) -> None:
    for _ in range(ENTRIES):
        await tenants.hostile.append("/tape/blob/made", PAYLOAD)
    began = time.monotonic()
    follows = [asyncio.create_task(follow_to_the_end(tenants.hostile, predicate)) for _ in range(20)]
    async with asyncio.timeout(120):
        await asyncio.wait(follows, return_when=asyncio.FIRST_COMPLETED)
        # The other tenant's stream and appends go on meanwhile.
        stream = tenants.honest.follow("/tape/order/**", predicate_cel="payload.total > 1.0")
        waiting = asyncio.create_task(anext(stream))
        for number in range(20):
            await tenants.honest.append("/tape/order/paid", {"total": float(number)})
        assert (await waiting).payload == {"total": 2.0}
    used, passed = await predicate_seconds(tenants.server), time.monotonic() - began
    assert used <= SAVED_S + STARTED_S + passed * 0.05  # without a budget: 3 to 50 ms for each of 20 * 30
    for follow in follows:
        if follow.done():
            assert isinstance(follow.exception(), PredicateOverBudget)
        follow.cancel()
    await asyncio.gather(*follows, return_exceptions=True)


async def test_a_hostile_follow_gets_resource_exhausted_with_a_code_and_a_remedy(tenants: Tenants) -> None:
    for _ in range(ENTRIES):
        await tenants.hostile.append("/tape/blob/made", PAYLOAD)
    metadata = (("authorization", f"Bearer {tenants.token}"),)
    async with grpc.aio.insecure_channel(tenants.server.grpc_address) as channel:
        for name, request in (
            ("Follow", pb.FollowRequest(predicate_cel=HOSTILE[1])),
            ("SubscribeBySubject", pb.SubscribeBySubjectRequest(predicate_cel=HOSTILE[1])),
        ):
            stream = channel.unary_stream(f"/tape.v1.Tape/{name}", type(request).SerializeToString)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                async for _ in stream(request, metadata=metadata, timeout=120):
                    pass
            assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "predicate_cpu_ms_per_s" in (raised.value.details() or "")
            assert dict(raised.value.trailing_metadata() or ())["tape-error-code"] == "TAPE-1402"


async def test_a_hostile_follow_that_is_opened_again_and_again_gets_no_more_cpu(tenants: Tenants) -> None:
    for _ in range(ENTRIES):
        await tenants.hostile.append("/tape/blob/made", PAYLOAD)
    began = time.monotonic()

    async def reopen() -> None:
        while True:
            with pytest.raises(PredicateOverBudget):
                await follow_to_the_end(tenants.hostile, HOSTILE[1])

    follows = [asyncio.create_task(reopen()) for _ in range(5)]
    async with asyncio.timeout(120):
        while time.monotonic() - began < 3:
            await tenants.honest.append("/tape/order/paid", {"total": 1.0})
    used, passed = await predicate_seconds(tenants.server), time.monotonic() - began
    assert used <= SAVED_S + STARTED_S + passed * 0.05
    for follow in follows:
        follow.cancel()
    await asyncio.gather(*follows, return_exceptions=True)


async def test_entries_of_a_cheap_predicate_are_delivered_while_the_same_tenant_is_within_its_budget(
    tenants: Tenants,
) -> None:
    drafts = [Draft(subject="/tape/order/paid", payload_json=f'{{"total": {number}.0}}') for number in range(5_000)]
    await tenants.honest.append_many(drafts)
    found = 0
    async with asyncio.timeout(120):
        async for _ in tenants.honest.follow("/tape/order/**", predicate_cel="payload.total >= 0.0"):
            found += 1
            if found == 5_000:
                break
    metrics = (await call(tenants.server.http_address, "GET", "/metrics")).body.decode()
    assert 'tape_predicate_over_budget_total{kind="stream"}' not in metrics


async def test_an_explanation_that_names_a_large_value_many_times_stays_small(tenants: Tenants) -> None:
    await tenants.hostile.register_reaction(
        reaction_id="large",
        subject_pattern="/tape/blob/**",
        predicate_cel=" || ".join(["payload.s == payload.t"] * 300),
        handler_kind=pb.HANDLER_KIND_TASK,
    )
    global_seq = await tenants.hostile.append("/tape/blob/made", {"s": "x" * 30_000, "t": "y" * 30_000})
    answer = await tenants.hostile.explain_reaction(reaction_id="large", global_seq=global_seq)
    assert "payload.s == payload.t" in answer.predicate_trace_json
    assert len(answer.predicate_trace_json) < 8 << 20


@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_a_negative_budget_is_refused(value: float) -> None:
    with pytest.raises(InvalidConfig, match="predicate_cpu_ms_per_s"):
        Settings(predicate_cpu_ms_per_s=value)
