"""Tenants never see or answer each other's gates, and an answer names the user or key that gave it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tape.client import AsyncTapeClient
from tape.engine.security.tokens import jwks_path, load_key
from tape.errors import GateAnswered, NotFound, ScopeRequired
from tape.proto import tape_pb2 as pb
from tape.server.server import Server
from tests.conftest import settings_for

Connect = Callable[..., Awaitable[AsyncTapeClient]]


@pytest.fixture
async def connect(store_url: str, tmp_path: Path) -> AsyncIterator[Connect]:
    """Clients of a server with keys, by tenant, user and scopes."""
    key, _ = load_key(tmp_path / "dev.key")
    settings = settings_for(
        store_url, auth_jwks=str(jwks_path(tmp_path / "dev.key")), auth_issuer="tape-dev", auth_audience="tape"
    )
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server(settings))

        async def connect(tenant: str, user: str, *scopes: str) -> AsyncTapeClient:
            token = key.mint(tenant=tenant, user=user, session="s", scopes=list(scopes))
            client = AsyncTapeClient(f"tape://{server.grpc_address}", id_token=token)
            return await stack.enter_async_context(client)

        yield connect


async def ask(client: AsyncTapeClient, **terms: Any) -> str:
    run = await client.begin_run(app_name="app", user_id="u", session_id="s", invocation_id="i")
    await client.await_signal(run_id=run.run_id, gate_name="pay", payload_json='{"amount":7}', **terms)
    return run.run_id


async def test_gates_of_another_tenant_do_not_exist(connect: Connect) -> None:
    ours, theirs = (
        await connect("ours", "ann", "agent"),
        await connect("theirs", "bob", "agent", "approver", "operator"),
    )
    run_id = await ask(ours)
    assert [gate.run_id for gate in (await ours.list_gates()).gates] == [run_id]
    assert not (await theirs.list_gates()).gates
    assert not (await theirs.list_gates(run_id=run_id, state=pb.GATE_STATE_WAITING)).gates
    for call in (
        theirs.get_run(run_id),
        theirs.send_signal(run_id=run_id, gate_name="pay", resolution_json="1"),
        theirs.send_signal(app_name="app", user_id="u", session_id="s", gate_name="pay"),
        theirs.await_signal(run_id=run_id, gate_name="pay"),
    ):
        with pytest.raises(NotFound):
            await call
    [gate] = (await ours.list_gates(state=pb.GATE_STATE_WAITING)).gates
    assert not gate.answer_json


async def test_an_approver_lists_and_answers_and_the_answer_has_its_name(connect: Connect) -> None:
    agent, approver = await connect("ours", "ann", "agent"), await connect("ours", "bob", "approver")
    run_id = await ask(agent)
    [gate] = (await approver.list_gates(state=pb.GATE_STATE_WAITING)).gates
    assert gate.payload_json == '{"amount":7}'
    with pytest.raises(ScopeRequired):
        await approver.await_signal(run_id=run_id, gate_name="pay")
    await approver.send_signal(run_id=run_id, gate_name="pay", resolution_json='{"approved":true}')
    assert (await agent.await_signal(run_id=run_id, gate_name="pay")).answered_by == "bob"
    with pytest.raises(GateAnswered, match="answered by bob at"):
        await agent.send_signal(run_id=run_id, gate_name="pay", resolution_json='{"approved":false}')


async def test_a_caller_without_a_scope_neither_lists_nor_answers(connect: Connect) -> None:
    run_id = await ask(await connect("ours", "ann", "agent"))
    nothing = await connect("ours", "eve")
    for call in (nothing.list_gates(), nothing.send_signal(run_id=run_id, gate_name="pay")):
        with pytest.raises(ScopeRequired):
            await call


async def test_the_server_answers_the_gates_of_every_tenant(connect: Connect) -> None:
    agent = await connect("ours", "ann", "agent")
    run_id = await ask(agent, timeout_ms=1)
    async with asyncio.timeout(20):
        while not (gate := (await agent.get_run(run_id)).gates[0]).answered_at_ms:
            await asyncio.sleep(0.01)
    assert (gate.state, gate.answered_by) == (pb.GATE_STATE_TIMED_OUT, "timeout")
