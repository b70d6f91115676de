"""Tasks with an ordering key: those of one key are handed out one after the other, whoever takes them."""

from __future__ import annotations

import asyncio
import random

import pytest

from tape.client import AsyncTapeClient
from tape.engine.reactions.stranded_tasks import release_stranded
from tape.engine.reactions.task_order import WAITS_MS
from tape.proto import tape_pb2 as pb
from tape.server.server import Server
from tests.engine.reactions.helpers import DLQ, PENDING, claim, matched, tasks

POOL = "pool:shared"
PLAYBOOK = "kind: Playbook\nmetadata: {path: domain/order}\nworkflow:\n  - {step: one, tool: {kind: value, value: 1}}\n"


async def start(client: AsyncTapeClient, *keys: str) -> list[str]:
    """Start an execution for each ordering key; their ids."""
    await client.register_resource(PLAYBOOK, if_changed=True)
    executions = [pb.Execution(path="domain/order", ordering_key=key) for key in keys]
    answer = await client.execute_many(executions)
    await matched(client)
    return [result.execution_id for result in answer.results]


async def runs_claimed(client: AsyncTapeClient, owner: str = "w", **fields: int) -> dict[str, str]:
    """Claimed tasks by the run of their command."""
    return {task.source_run_id: task.task_id for task in await claim(client, POOL, owner, **fields)}


async def test_only_the_first_task_of_each_key_is_handed_out(client: AsyncTapeClient) -> None:
    ids = await start(client, "a", "a", "b", "", "", "a")
    assert set(await runs_claimed(client)) == {ids[0], ids[2], ids[3], ids[4]}
    assert await runs_claimed(client, "other") == {}
    waiting = [task for task in await tasks(client, POOL, PENDING) if task.next_attempt_at_ms == WAITS_MS]
    assert [task.source_run_id for task in waiting] == [ids[1], ids[5]]
    assert {task.ordering_key for task in waiting} == {"0:a"}


async def test_the_next_task_of_a_key_is_due_when_the_one_before_it_is_completed(client: AsyncTapeClient) -> None:
    ids = await start(client, "a", "a", "a")
    for run_id in ids:
        claimed = await runs_claimed(client)
        assert list(claimed) == [run_id]
        await client.complete_task(task_id=claimed[run_id], owner="w")
    assert await runs_claimed(client) == {}


async def test_a_task_that_is_tried_again_keeps_its_turn(client: AsyncTapeClient) -> None:
    ids = await start(client, "a", "a")
    claimed = await runs_claimed(client)
    await client.nack_task(task_id=claimed[ids[0]], owner="w", error="again")
    assert await runs_claimed(client) == {}
    async with asyncio.timeout(60):
        while not (claimed := await runs_claimed(client)):
            await asyncio.sleep(0.05)
    assert list(claimed) == [ids[0]]


async def test_a_dead_letter_lets_the_next_task_go_and_waits_its_turn_when_it_is_redriven(
    client: AsyncTapeClient,
) -> None:
    ids = await start(client, "a", "a", "a")
    first = await runs_claimed(client)
    await client.settle_tasks(owner="w", failed=[pb.TaskFailure(task_id=first[ids[0]], error="x", permanent=True)])
    second = await runs_claimed(client)
    assert list(second) == [ids[1]]
    assert [task.source_run_id for task in await tasks(client, POOL, DLQ)] == [ids[0]]
    await client.redrive_tasks(task_ids=[first[ids[0]]])
    assert await runs_claimed(client) == {}
    await client.complete_task(task_id=second[ids[1]], owner="w")
    assert list(await runs_claimed(client)) == [ids[0]]


async def test_a_waiting_task_says_so(client: AsyncTapeClient) -> None:
    ids = await start(client, "a", "a")
    waiting = next(task for task in await tasks(client, POOL) if task.source_run_id == ids[1])
    explanation = await client.explain_reaction(POOL, waiting.source_global_seq)
    assert explanation.outcome == "Waits for an earlier task with the ordering key '0:a' to be closed."


async def test_a_task_that_waits_for_nothing_is_found_and_released(server: Server, client: AsyncTapeClient) -> None:
    ids = await start(client, "a", "a", "a")
    await server.database.write(lambda tx: tx.execute("DELETE FROM tape_tasks WHERE source_run_id = ?", ids[0]))
    assert await runs_claimed(client) == {}
    await release_stranded(server.database)  # the server does so itself every ten minutes, and when it starts
    assert list(await runs_claimed(client)) == [ids[1]]


@pytest.mark.parametrize("seed", range(3))
async def test_each_key_keeps_its_order_whatever_becomes_of_its_tasks(client: AsyncTapeClient, seed: int) -> None:
    chance = random.Random(seed)
    keys = [chance.choice("abcd") for _ in range(60)]
    ids = await start(client, *keys)
    key_of, began, held = dict(zip(ids, keys, strict=True)), [], {}
    while True:
        claimed = await runs_claimed(client, max=3)
        assert not {key_of[each] for each in claimed} & {key_of[each] for each in held}, "one at a time for each key"
        began += list(claimed)
        held |= claimed
        if not held:
            break
        run_id = chance.choice(list(held))
        task_id = held.pop(run_id)
        if chance.random() < 0.2:
            await client.settle_tasks(owner="w", failed=[pb.TaskFailure(task_id=task_id, permanent=True)])
        else:
            await client.settle_tasks(owner="w", completed=[task_id])
    for key in "abcd":
        assert [each for each in began if key_of[each] == key] == [each for each in ids if key_of[each] == key]
