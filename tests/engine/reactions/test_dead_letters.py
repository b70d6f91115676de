"""Dead letters: list, show, redrive and drop."""

from __future__ import annotations

import pytest

from tape.client import AsyncTapeClient
from tape.errors import IllegalTransition, InvalidInput, NotFound
from tape.proto import tape_pb2 as pb
from tests.engine.reactions.helpers import DLQ, FAILED, PENDING, claim, matched, register, tasks


async def dead(client: AsyncTapeClient, count: int = 4, **fields: object) -> list[pb.Task]:
    """So many dead letters; every second one says that the disk was full."""
    await register(client, **fields)
    for number in range(count):
        await client.append(f"/tape/order/paid/{number}", {"n": number})
    await matched(client)
    claimed = await claim(client, max=count)
    failed = [
        pb.TaskFailure(task_id=task.task_id, error="disk full" if n % 2 else "timeout", permanent=True)
        for n, task in enumerate(claimed)
    ]
    await client.settle_tasks(owner="w", failed=failed)
    return await tasks(client, status=DLQ)


async def test_one_can_be_tried_again_from_the_first_attempt(client: AsyncTapeClient) -> None:
    first, *_ = await dead(client)
    assert (await client.redrive_tasks(task_ids=[first.task_id])).redriven == 1
    task = await client.get_task(first.task_id)
    assert (task.status, task.attempts, task.redriven, task.last_error) == (PENDING, 0, 1, "timeout")
    assert [task.task_id for task in await claim(client)] == [first.task_id]


async def test_those_that_fit_a_filter_can_be_tried_again(client: AsyncTapeClient) -> None:
    found = await dead(client)
    answer = await client.redrive_tasks(filter=pb.TaskFilter(reaction_id="r", error_contains="disk"))
    assert (answer.redriven, answer.more) == (2, False)
    answer = await client.redrive_tasks(filter=pb.TaskFilter(subject_pattern="/tape/order/paid/0"))
    assert answer.redriven == 1
    answer = await client.redrive_tasks(filter=pb.TaskFilter(created_before_ms=found[0].created_at_ms))
    assert answer.redriven == 0
    assert [task.subject for task in await tasks(client, status=DLQ)] == ["/tape/order/paid/2"]


async def test_all_can_be_tried_again_in_portions(client: AsyncTapeClient) -> None:
    await dead(client, 5)
    first = await client.redrive_tasks(everything=True, limit=3)
    assert (first.redriven, first.more) == (3, True)
    rest = await client.redrive_tasks(everything=True, limit=3)
    assert (rest.redriven, rest.more) == (2, False)


async def test_dropping_keeps_the_reason_and_can_be_taken_back(client: AsyncTapeClient) -> None:
    first, *_ = await dead(client)
    answer = await client.drop_tasks(task_ids=[first.task_id], reason="customer is gone")
    assert answer.dropped == 1
    task = await client.get_task(first.task_id)
    assert (task.status, task.last_error) == (FAILED, "dropped: customer is gone; before that: timeout")
    assert (await client.redrive_tasks(everything=True)).redriven == 3
    assert (await client.get_task(first.task_id)).status == FAILED
    assert (await client.redrive_tasks(task_ids=[first.task_id])).redriven == 1


async def test_dropping_all_of_a_reaction_leaves_those_of_others(client: AsyncTapeClient) -> None:
    await register(client, "other")
    await dead(client)
    for task in await claim(client, "other", max=10):
        await client.nack_task(task_id=task.task_id, owner="w", permanent=True)
    assert (await client.drop_tasks(filter=pb.TaskFilter(reaction_id="r"))).dropped == 4
    assert len((await client.list_tasks(reaction_id="", status=DLQ)).tasks) == 4


async def test_an_ambiguous_request_is_rejected_and_changes_nothing(client: AsyncTapeClient) -> None:
    first, *_ = await dead(client)
    for call in (client.redrive_tasks, client.drop_tasks):
        with pytest.raises(InvalidInput, match="Say which dead letters"):
            await call()
        with pytest.raises(InvalidInput, match="Say which dead letters"):
            await call(task_ids=[first.task_id], everything=True)
        with pytest.raises(NotFound, match="no such task"):
            await call(task_ids=[first.task_id, "unknown"])
    assert len(await tasks(client, status=DLQ)) == 4
    await client.redrive_tasks(task_ids=[first.task_id])
    with pytest.raises(IllegalTransition, match="is PENDING, not a dead letter"):
        await client.redrive_tasks(task_ids=[first.task_id])


async def test_in_strict_order_a_redriven_task_returns_to_its_old_position(client: AsyncTapeClient) -> None:
    await register(client, strict_order=True)
    for number in range(3):
        await client.append(f"/tape/order/paid/{number}")
    await matched(client)
    (first,) = await claim(client)
    await client.nack_task(task_id=first.task_id, owner="w", permanent=True)
    (second,) = await claim(client)
    assert second.source_global_seq == 2
    await client.redrive_tasks(task_ids=[first.task_id])
    assert await claim(client) == []  # one of the shard at a time
    await client.complete_task(task_id=second.task_id, owner="w")
    assert [task.source_global_seq for task in await claim(client)] == [1]
