"""Tasks: claims and leases, retries, limits across dispatchers, batches, and order."""

from __future__ import annotations

import time

import pytest

from tape.client import AsyncTapeClient
from tape.errors import InvalidInput, NotFound, TaskNotHeld
from tape.proto import tape_pb2 as pb
from tape.server.server import Server
from tests.engine.reactions.helpers import AGENT, CLAIMED, DLQ, DONE, PENDING, claim, matched, register, tasks, until

HOUR = 3_600_000


def now() -> int:
    return time.time_ns() // 1_000_000


async def fill(client: AsyncTapeClient, count: int, **fields: object) -> None:
    await register(client, **fields)
    for number in range(count):
        await client.append(f"/tape/order/paid/{number}", {"n": number}, run_id=f"run-{number % 7}")
    await matched(client)


async def test_tasks_are_claimed_in_the_order_of_the_journal_by_one_owner_each(client: AsyncTapeClient) -> None:
    await fill(client, 10)
    first = await claim(client, owner="a", max=4)
    second = await claim(client, owner="b", max=100)
    assert [task.source_global_seq for task in first] == [1, 2, 3, 4]
    assert [task.source_global_seq for task in second] == [5, 6, 7, 8, 9, 10]
    assert {(task.status, task.attempts, task.lease_owner) for task in first} == {(CLAIMED, 1, "a")}
    assert await claim(client, owner="a") == []


async def test_a_claim_needs_an_owner_and_a_reaction_that_exists(client: AsyncTapeClient) -> None:
    await register(client)
    with pytest.raises(InvalidInput, match="owner is empty"):
        await claim(client, owner="")
    with pytest.raises(NotFound, match="no such reaction: 'unknown'"):
        await claim(client, "unknown")
    with pytest.raises(InvalidInput, match="shard 3 does not exist"):
        await claim(client, shard=3)
    with pytest.raises(InvalidInput, match="lease_ms -1"):
        await claim(client, lease_ms=-1)
    with pytest.raises(InvalidInput, match="max -1"):
        await claim(client, max=-1)


async def test_completing_is_for_the_holder_and_twice_is_once(client: AsyncTapeClient) -> None:
    await fill(client, 1)
    (task,) = await claim(client, owner="a")
    with pytest.raises(TaskNotHeld, match="lease mismatch") as raised:
        await client.complete_task(task_id=task.task_id, owner="b")
    assert raised.value.status == "FAILED_PRECONDITION"
    for _ in range(2):
        done = (await client.complete_task(task_id=task.task_id, owner="a")).task
        assert (done.status, done.payload_json) == (DONE, '{"n":0}')
    with pytest.raises(NotFound, match="no such task"):
        await client.complete_task(task_id="unknown", owner="a")
    with pytest.raises(InvalidInput, match="owner is empty"):
        await client.complete_task(task_id=task.task_id, owner="")
    with pytest.raises(TaskNotHeld, match="is DONE"):
        await client.nack_task(task_id=task.task_id, owner="a")


async def test_a_failed_task_waits_twice_as_long_each_time_and_then_is_a_dead_letter(client: AsyncTapeClient) -> None:
    await fill(client, 1, retry_backoff_ms=1_000, dlq_after_n=4)
    for attempt in range(1, 4):
        (task,) = await claim(client, now_ms=now() + HOUR * attempt)
        before = now()
        task = (await client.nack_task(task_id=task.task_id, owner="w", error=f"no {attempt}")).task
        wait = 1_000 * 2 ** (attempt - 1)
        assert (task.status, task.attempts, task.last_error) == (PENDING, attempt, f"no {attempt}")
        assert before + wait <= task.next_attempt_at_ms <= now() + wait * 1.2 + 1
        assert (task.lease_owner, task.lease_expires_at_ms) == ("", 0)
        assert await claim(client) == []
    (task,) = await claim(client, now_ms=now() + HOUR)
    task = (await client.nack_task(task_id=task.task_id, owner="w", error="enough")).task
    assert (task.status, task.attempts, task.last_error) == (DLQ, 4, "enough")
    assert await claim(client, now_ms=now() + 48 * HOUR) == []


async def test_whichever_limit_is_reached_first_makes_the_dead_letter(client: AsyncTapeClient) -> None:
    await fill(client, 1, retry_max=1, dlq_after_n=9)
    for status in (PENDING, DLQ):
        (task,) = await claim(client, now_ms=now() + HOUR)
        assert (await client.nack_task(task_id=task.task_id, owner="w")).task.status == status


async def test_a_permanent_failure_is_a_dead_letter_at_once(client: AsyncTapeClient) -> None:
    await fill(client, 1)
    (task,) = await claim(client)
    assert (await client.nack_task(task_id=task.task_id, owner="w", permanent=True)).task.status == DLQ


async def test_a_lease_that_ran_out_gives_the_task_to_the_next_and_the_attempt_counts(client: AsyncTapeClient) -> None:
    await fill(client, 1, dlq_after_n=3)
    for attempt, owner in enumerate(("a", "b", "c"), start=1):
        (task,) = await claim(client, owner=owner, lease_ms=1_000, now_ms=now() + HOUR * attempt)
        assert (task.attempts, task.lease_owner) == (attempt, owner)
    with pytest.raises(TaskNotHeld, match="leased to 'c'"):
        await client.complete_task(task_id=task.task_id, owner="a")
    assert await claim(client, owner="d", now_ms=now() + HOUR * 5) == []
    (dead,) = await tasks(client, status=DLQ)
    assert "the lease of 'c' expired during attempt 3" in dead.last_error


async def test_a_late_report_is_accepted_while_no_other_owner_has_the_task(
    client: AsyncTapeClient,
) -> None:
    await fill(client, 1)
    (task,) = await claim(client, lease_ms=1)

    async def has_run_out() -> bool:
        return task.lease_expires_at_ms < now()

    await until(has_run_out, "the end of the lease")
    assert (await client.complete_task(task_id=task.task_id, owner="w")).task.status == DONE


async def test_a_claim_of_tasks_by_id_lets_their_lease_begin_anew(client: AsyncTapeClient) -> None:
    await fill(client, 2)
    first, second = await claim(client, owner="a", lease_ms=1_000)
    ids = [first.task_id]
    (again,) = await claim(client, owner="a", lease_ms=60_000, task_ids=ids)
    assert again.lease_expires_at_ms > first.lease_expires_at_ms + 50_000
    assert (again.attempts, again.payload_json) == (1, first.payload_json)
    with pytest.raises(TaskNotHeld, match="leased to 'a', not leased to 'b'"):
        await claim(client, owner="b", task_ids=[second.task_id])


async def test_a_plain_claim_extends_the_leases_of_its_owner_and_hands_none_of_its_tasks_out(
    client: AsyncTapeClient,
) -> None:
    await fill(client, 3)
    began = now()
    first, second = await claim(client, owner="a", lease_ms=10_000, max=2, now_ms=began)
    (third,) = await claim(client, owner="a", lease_ms=10_000, now_ms=began + 9_000)
    assert third.task_id not in (first.task_id, second.task_id)
    assert {task.task_id: task.lease_expires_at_ms - began for task in await tasks(client)} == {
        task.task_id: 19_000 for task in (first, second, third)
    }
    assert {task.attempts for task in await tasks(client)} == {1}
    assert await claim(client, owner="b", now_ms=began + 18_000) == []
    await client.complete_task(task_id=first.task_id, owner="a")


async def test_a_lease_is_extended_by_plain_claims_at_most_ten_times(client: AsyncTapeClient) -> None:
    await fill(client, 1)
    at = now()
    (task,) = await claim(client, owner="a", lease_ms=10_000, now_ms=at)
    for _ in range(10):
        at += 9_000
        assert await claim(client, owner="a", lease_ms=10_000, now_ms=at) == []
    assert [each.lease_expires_at_ms for each in await tasks(client)] == [at + 10_000]
    at += 9_000
    assert await claim(client, owner="a", lease_ms=10_000, now_ms=at) == []
    at += 1_000
    (again,) = await claim(client, owner="a", lease_ms=10_000, now_ms=at)
    assert (again.task_id, again.attempts) == (task.task_id, 2)
    assert await claim(client, owner="a", lease_ms=10_000, now_ms=at + 9_000) == []  # it counts from 0 again
    assert [each.lease_expires_at_ms for each in await tasks(client)] == [at + 19_000]


async def test_a_worker_that_polls_often_uses_up_no_extensions(client: AsyncTapeClient) -> None:
    """Half a lease later at the earliest: a poll every 100 ms must not end a lease of 10 s after a second."""
    await fill(client, 1)
    at = now()
    await claim(client, owner="a", lease_ms=10_000, now_ms=at)
    for _ in range(400):
        at += 100
        assert await claim(client, owner="a", lease_ms=10_000, now_ms=at) == []
    assert await claim(client, owner="b", lease_ms=10_000, now_ms=at) == []


async def test_a_plain_claim_extends_no_lease_of_another_owner_reaction_or_shard(client: AsyncTapeClient) -> None:
    await fill(client, 8, num_shards=4)
    await register(client, "other")
    began = now()
    held = await claim(client, owner="a", lease_ms=10_000, now_ms=began)
    shard = held[0].shard
    await claim(client, owner="b", lease_ms=10_000, now_ms=began + 9_000)
    await claim(client, "other", owner="a", lease_ms=10_000, now_ms=began + 9_000)
    assert {task.lease_expires_at_ms for task in await tasks(client)} == {began + 10_000}
    await claim(client, owner="a", shard=shard, lease_ms=10_000, now_ms=began + 9_000)
    assert {task.shard for task in await tasks(client) if task.lease_expires_at_ms == began + 19_000} == {shard}


async def test_no_more_than_max_concurrency_tasks_are_claimed_at_once_by_all_owners(client: AsyncTapeClient) -> None:
    await fill(client, 10, max_concurrency=3)
    mine = await claim(client, owner="a", max=2)
    others = await claim(client, owner="b", max=10)
    assert (len(mine), len(others)) == (2, 1)
    assert await claim(client, owner="c") == []
    await client.complete_task(task_id=mine[0].task_id, owner="a")
    assert len(await claim(client, owner="c")) == 1


async def test_the_default_is_one_at_a_time(client: AsyncTapeClient) -> None:
    await client.register_reaction(reaction_id="r", subject_pattern="/tape/order/**", handler_kind=2)
    for _ in range(3):
        await client.append("/tape/order/paid/1")
    await matched(client)
    assert len(await claim(client)) == 1


async def test_a_rate_limit_holds_over_any_interval_for_all_owners(client: AsyncTapeClient) -> None:
    await fill(client, 60, rate_limit_per_s=20)
    start = now()
    handed: list[int] = []
    for step in range(300):  # three seconds, by the time that the caller gives
        moment = start + step * 10
        handed += [moment] * len(await claim(client, owner=f"w{step % 3}", max=10, now_ms=moment))
    assert len(handed) == 60
    for first in handed:
        assert sum(first <= moment < first + 1_000 for moment in handed) <= 20 + 2
    assert handed[-1] - handed[0] <= 3_000


async def test_many_are_settled_in_one_step_and_what_is_not_held_is_named(client: AsyncTapeClient) -> None:
    await fill(client, 6)
    mine = await claim(client, owner="a", max=4)
    theirs = await claim(client, owner="b", max=1)
    answer = await client.settle_tasks(
        owner="a",
        completed=[mine[0].task_id, mine[1].task_id, theirs[0].task_id, "unknown"],
        failed=[
            pb.TaskFailure(task_id=mine[2].task_id, error="later"),
            pb.TaskFailure(task_id=mine[3].task_id, error="never", permanent=True),
        ],
    )
    assert [task.status for task in answer.settled] == [DONE, DONE, PENDING, DLQ]
    assert {refused.task_id: refused.error_code for refused in answer.refused} == {
        theirs[0].task_id: "TAPE-1802",
        "unknown": "TAPE-1200",
    }
    assert (await client.get_task(theirs[0].task_id)).status == CLAIMED


async def test_strict_order_lets_nothing_overtake_in_a_shard(client: AsyncTapeClient) -> None:
    await register(client, num_shards=4, strict_order=True)
    for number in range(12):
        await client.append(f"/tape/order/paid/{number}", run_id=f"run-{number % 4}")
    await matched(client)
    open_tasks = await tasks(client)
    shards = {task.shard for task in open_tasks}
    first = await claim(client, max=100)
    assert len(first) == len(shards)
    for task in first:
        assert task.source_global_seq == min(t.source_global_seq for t in open_tasks if t.shard == task.shard)
    failed, *rest = first
    await client.nack_task(task_id=failed.task_id, owner="w")
    for task in rest:
        await client.complete_task(task_id=task.task_id, owner="w")
    # The one that is tried again holds up its shard; the others go on.
    following = await claim(client, max=100)
    assert failed.shard not in {task.shard for task in following}
    (again,) = [task for task in await claim(client, max=100, now_ms=now() + HOUR) if task.shard == failed.shard]
    assert again.task_id == failed.task_id


async def test_without_strict_order_a_retry_is_overtaken(client: AsyncTapeClient) -> None:
    await fill(client, 3)
    first, *_ = await claim(client, max=1)
    await client.nack_task(task_id=first.task_id, owner="w")
    assert [task.source_global_seq for task in await claim(client)] == [2, 3]


async def test_tasks_that_wait_for_an_agent_are_not_handed_out(client: AsyncTapeClient) -> None:
    await fill(client, 1, handler_kind=AGENT, agent_app="a", debounce_ms=HOUR)
    assert len(await tasks(client)) == 1
    assert await claim(client, now_ms=now() + 2 * HOUR) == []


async def test_listing_is_newest_first_by_status_and_in_pages(client: AsyncTapeClient) -> None:
    await fill(client, 5)
    await claim(client, max=2)
    answer = await client.list_tasks(reaction_id="r")
    assert [task.source_global_seq for task in answer.tasks] == [5, 4, 3, 2, 1]
    answer = await client.list_tasks(reaction_id="r", status=PENDING, limit=2)
    assert [task.source_global_seq for task in answer.tasks] == [5, 4]
    answer = await client.list_tasks(reaction_id="r", status=PENDING, limit=2, before_global_seq=4)
    assert [task.source_global_seq for task in answer.tasks] == [3]
    assert len((await client.list_tasks(reaction_id="", status=CLAIMED)).tasks) == 2
    with pytest.raises(InvalidInput, match="reaction_id is empty"):
        await client.list_tasks(reaction_id="", status=PENDING)


async def test_done_tasks_are_removed_after_their_time(server: Server, client: AsyncTapeClient) -> None:
    from tape.engine.reactions import dead_letters

    await fill(client, 3)
    done, *_ = await claim(client, max=1)
    await client.complete_task(task_id=done.task_id, owner="w")
    assert await server.database.write(lambda tx: dead_letters.purge_settled(tx, now() - 10_000)) == 0
    assert await server.database.write(lambda tx: dead_letters.purge_settled(tx, now() + 10_000)) == 1
    assert [task.source_global_seq for task in await tasks(client)] == [2, 3]


async def test_a_rate_also_paces_the_runs_of_an_agent(client: AsyncTapeClient) -> None:
    await register(client, handler_kind=AGENT, agent_app="slow", rate_limit_per_s=100)
    for number in range(30):
        await client.append(f"/tape/order/paid/{number}")
    await matched(client)

    async def all_begun() -> bool:
        return len((await client.list_runs(app_name="slow")).runs) == 30

    await until(all_begun, "thirty runs")
    runs = (await client.list_runs(app_name="slow")).runs
    began = sorted(run.started_at_ms for run in runs)
    assert began[-1] - began[0] >= 100  # a burst of a tenth of a second, the rest evenly
