"""Tasks whose downstream is held wait; none waits for a runtime that has ended."""

from __future__ import annotations

import pytest

from tape.base.clock import now_ms
from tape.client import AsyncTapeClient
from tape.engine.reactions import downstreams
from tape.engine.reactions.stranded_tasks import release_stranded
from tape.proto import tape_pb2 as pb
from tape.server.server import Server
from tests.engine.reactions.helpers import matched
from tests.engine.reactions.test_task_order import PLAYBOOK, runs_claimed

SHOP = downstreams.name_of("subscriptions/orders", "shop")


async def start_orders(client: AsyncTapeClient, *keys: str) -> list[str]:
    """Start runs that depend on the shop; their ids."""
    await client.register_resource(PLAYBOOK, if_changed=True)
    executions = [
        pb.Execution(path="domain/order", subscription="subscriptions/orders", downstream="shop", ordering_key=key)
        for key in keys
    ]
    answer = await client.execute_many(executions)
    await matched(client)
    return [result.execution_id for result in answer.results]


async def hold(server: Server, *, ago_ms: int = 0) -> None:
    await server.database.write(lambda tx: downstreams.hold(tx, SHOP, now_ms() - ago_ms))


@pytest.mark.parametrize(("keys", "due"), [(("", "", ""), (0, 1, 2)), (("a", "b", "a"), (0, 1))])
async def test_a_hold_that_no_runtime_renews_lapses(
    server: Server, client: AsyncTapeClient, keys: tuple[str, ...], due: tuple[int, ...]
) -> None:
    await hold(server, ago_ms=downstreams.HOLD_MS - 60_000)
    ids = await start_orders(client, *keys)
    assert await release_stranded(server.database) == 0, "the hold is recent"
    assert await runs_claimed(client) == {}
    await hold(server, ago_ms=downstreams.HOLD_MS + 1)
    await release_stranded(server.database)  # as the server does itself when it starts, and every ten minutes
    assert set(await runs_claimed(client)) == {ids[position] for position in due}


async def test_a_hold_that_is_renewed_goes_on(server: Server, client: AsyncTapeClient) -> None:
    await hold(server, ago_ms=downstreams.HOLD_MS - 60_000)
    await start_orders(client, "")
    await hold(server)
    in_two_minutes = now_ms() + 120_000
    assert await server.database.write(lambda tx: downstreams.release_lapsed(tx, in_two_minutes)) == []
    assert await runs_claimed(client) == {}


async def test_tasks_that_a_runtime_did_not_come_to_release_are_found(server: Server, client: AsyncTapeClient) -> None:
    await hold(server)
    ids = await start_orders(client, *[""] * 5)
    released = await server.database.write(lambda tx: downstreams.release(tx, SHOP, now_ms(), limit=2))
    assert len(released) == 2
    await release_stranded(server.database)
    assert server.metrics.tasks_stranded._value.get() == 3
    assert set(await runs_claimed(client)) == set(ids)
