"""The push stream: tasks come by themselves, never more than the window, and reports go back on it."""

from __future__ import annotations

import asyncio

import pytest

from tape.client import AsyncTapeClient, TapeClient
from tape.errors import InvalidInput, NotFound, ServerStopping
from tape.proto import tape_pb2 as pb
from tape.server.server import Server
from tests.conftest import settings_for
from tests.engine.reactions.helpers import CLAIMED, DLQ, DONE, Dispatcher, claim, matched, register, tasks, until


async def fill(client: AsyncTapeClient, count: int) -> None:
    for number in range(count):
        await client.append(f"/tape/order/paid/{number}", {"n": number})


async def test_tasks_are_pushed_as_their_entries_come(client: AsyncTapeClient) -> None:
    await register(client)
    dispatcher = Dispatcher(client, "d", ["r"], window=10)
    for number in range(3):
        await client.append(f"/tape/order/paid/{number}", {"n": number})
        await dispatcher.until(lambda d: len(d.tasks) == number + 1, "the task")  # noqa: B023
    assert [task.source_global_seq for task in dispatcher.tasks] == [1, 2, 3]
    assert {(task.status, task.lease_owner, task.attempts) for task in dispatcher.tasks} == {(CLAIMED, "d", 1)}
    dispatcher.say(completed=[task.task_id for task in dispatcher.tasks])
    await dispatcher.until(lambda d: len(d.settled) == 3, "the answers")
    assert {task.status for task in dispatcher.settled} == {DONE}
    await dispatcher.close()


async def test_a_dispatcher_never_holds_more_than_its_window(client: AsyncTapeClient) -> None:
    await register(client)
    await fill(client, 20)
    await matched(client)
    dispatcher = Dispatcher(client, "d", ["r"], window=3)
    done = 0
    while done < 20:
        await dispatcher.until(lambda d: len(d.tasks) > done, "more tasks")  # noqa: B023
        assert len(dispatcher.tasks) - done <= 3
        dispatcher.say(completed=[dispatcher.tasks[done].task_id])
        done += 1
    await dispatcher.until(lambda d: len(d.settled) == 20, "the answers")
    assert [task.source_global_seq for task in dispatcher.tasks] == list(range(1, 21))
    await dispatcher.close()


async def test_a_window_can_be_widened_and_closed(client: AsyncTapeClient) -> None:
    await register(client)
    await fill(client, 10)
    await matched(client)
    dispatcher = Dispatcher(client, "d", ["r"], window=2)
    await dispatcher.until(lambda d: len(d.tasks) == 2, "two")
    dispatcher.say(window=5)
    await dispatcher.until(lambda d: len(d.tasks) == 5, "five")
    dispatcher.say(window=-1, completed=[task.task_id for task in dispatcher.tasks])
    await dispatcher.until(lambda d: len(d.settled) == 5, "the answers")
    await dispatcher.close()
    assert len(dispatcher.tasks) == 5


async def test_what_is_said_last_is_answered_before_the_stream_ends(client: AsyncTapeClient) -> None:
    await register(client)
    await fill(client, 5)
    dispatcher = Dispatcher(client, "d", ["r"], window=5)
    await dispatcher.until(lambda d: len(d.tasks) == 5, "five")
    dispatcher.say(completed=[task.task_id for task in dispatcher.tasks])
    await dispatcher.close()
    assert len(dispatcher.settled) == 5
    assert {task.status for task in await tasks(client)} == {DONE}


async def test_failures_come_back_when_they_are_due_and_renewals_extend(client: AsyncTapeClient) -> None:
    await register(client, retry_backoff_ms=1)
    await fill(client, 2)
    dispatcher = Dispatcher(client, "d", ["r"], window=5, lease_ms=60_000)
    await dispatcher.until(lambda d: len(d.tasks) == 2, "two")
    first, second = dispatcher.tasks
    dispatcher.say(
        failed=[pb.TaskFailure(task_id=first.task_id, error="not yet")],
        renew=[second.task_id],
    )
    await dispatcher.until(lambda d: len(d.tasks) == 3 and d.renewed, "the retry")
    assert (dispatcher.tasks[2].task_id, dispatcher.tasks[2].attempts) == (first.task_id, 2)
    assert dispatcher.renewed[0].lease_expires_at_ms >= second.lease_expires_at_ms
    dispatcher.say(failed=[pb.TaskFailure(task_id=second.task_id, error="never", permanent=True)])
    await dispatcher.until(lambda d: any(task.status == DLQ for task in d.settled), "the dead letter")
    await dispatcher.close()


async def test_what_is_given_back_unbegun_goes_to_the_next_without_an_attempt(client: AsyncTapeClient) -> None:
    await register(client)
    await fill(client, 3)
    dispatcher = Dispatcher(client, "leaving", ["r"], window=3)
    await dispatcher.until(lambda d: len(d.tasks) == 3, "three")
    dispatcher.say(window=-1, released=[task.task_id for task in dispatcher.tasks[1:]])
    await dispatcher.until(lambda d: len(d.settled) == 2, "the answers")
    again = await claim(client, owner="next")
    assert [(task.source_global_seq, task.attempts) for task in again] == [(2, 1), (3, 1)]
    await client.settle_tasks(owner="next", released=[again[0].task_id])
    assert [task.source_global_seq for task in await claim(client, owner="last")] == [2]
    await dispatcher.close()


async def test_a_report_on_what_is_not_held_is_refused_by_name(client: AsyncTapeClient) -> None:
    await register(client)
    await fill(client, 1)
    await matched(client)
    (theirs,) = await claim(client, owner="else")
    dispatcher = Dispatcher(client, "d", ["r"], window=5)
    dispatcher.say(completed=[theirs.task_id], renew=["unknown"])
    await dispatcher.until(lambda d: len(d.refused) == 2, "two refusals")
    assert {refused.error_code for refused in dispatcher.refused} == {"TAPE-1802", "TAPE-1200"}
    await dispatcher.close()


async def test_the_limits_hold_over_several_streams(client: AsyncTapeClient) -> None:
    await register(client, max_concurrency=3)
    await fill(client, 12)
    await matched(client)
    dispatchers = [Dispatcher(client, f"d{n}", ["r"], window=5) for n in range(2)]

    async def handed_out() -> int:
        return len(await tasks(client, status=CLAIMED))

    done = 0
    while done < 12:
        for dispatcher in dispatchers:
            assert await handed_out() <= 3
            settled = {task.task_id for task in dispatcher.settled}
            mine = [task.task_id for task in dispatcher.tasks if task.task_id not in settled]
            if mine:
                dispatcher.say(completed=mine)
                await dispatcher.until(lambda d: len(d.settled) >= len(settled) + len(mine), "answers")  # noqa: B023
                done += len(mine)
        await asyncio.sleep(0)
    for dispatcher in dispatchers:
        await dispatcher.close()
    assert sorted(t.source_global_seq for d in dispatchers for t in d.tasks) == list(range(1, 13))


async def test_a_rate_is_kept_by_the_stream_and_nothing_is_left(client: AsyncTapeClient) -> None:
    await register(client, rate_limit_per_s=50)
    await fill(client, 25)
    dispatcher = Dispatcher(client, "d", ["r"], window=100)
    await dispatcher.until(lambda d: len(d.tasks) == 25, "all of them")
    leases = sorted(task.lease_expires_at_ms for task in dispatcher.tasks)
    assert leases[-1] - leases[0] >= 300  # 25 at 50 a second, a burst of 5 at first
    await dispatcher.close()


async def test_a_debounced_task_is_pushed_when_its_time_has_come(client: AsyncTapeClient) -> None:
    await register(client, debounce_ms=100)
    dispatcher = Dispatcher(client, "d", ["r"], window=10)
    for number in range(10):
        await client.append("/tape/order/paid/1", {"n": number})
    await dispatcher.until(lambda d: d.tasks and d.tasks[-1].source_global_seq == 10, "the last of them")
    assert sum(task.coalesced + 1 for task in dispatcher.tasks) == 10
    await dispatcher.close()


async def test_a_dispatcher_serves_several_reactions(client: AsyncTapeClient) -> None:
    await register(client, "a")
    await register(client, "b", subject_pattern="/tape/invoice/**")
    dispatcher = Dispatcher(client, "d", ["a", "b"], window=2)
    await fill(client, 4)
    await client.append("/tape/invoice/sent/1")
    for count in (2, 4, 5):
        await dispatcher.until(lambda d: len(d.tasks) == count, f"{count} tasks")  # noqa: B023
        settled = {task.task_id for task in dispatcher.settled}
        dispatcher.say(completed=[task.task_id for task in dispatcher.tasks if task.task_id not in settled])
        await dispatcher.until(lambda d: len(d.settled) == count, "answers")  # noqa: B023
    assert {task.reaction_id for task in dispatcher.tasks} == {"a", "b"}
    await dispatcher.close()


async def test_a_stream_must_say_who_it_is_and_name_reactions_that_exist(client: AsyncTapeClient) -> None:
    await register(client)
    for fields, error in (
        ({"owner": "", "reactions": ["r"]}, InvalidInput),
        ({"owner": "d", "reactions": []}, InvalidInput),
        ({"owner": "d", "reactions": ["unknown"]}, NotFound),
    ):
        dispatcher = Dispatcher(client, window=1, **fields)  # type: ignore[arg-type]
        await dispatcher.until(lambda d: d.is_over, "the refusal")
        assert isinstance(dispatcher.error, error)


async def test_a_stopping_server_ends_the_streams_of_its_dispatchers(store_url: str) -> None:
    server = Server(settings_for(store_url))
    await server.start()
    async with AsyncTapeClient(f"tape://{server.grpc_address}") as client:
        await register(client)
        dispatcher = Dispatcher(client, "d", ["r"], window=1)
        await fill(client, 1)
        await dispatcher.until(lambda d: len(d.tasks) == 1, "the task")
        await server.stop()
        await dispatcher.until(lambda d: d.is_over, "the end")
        assert isinstance(dispatcher.error, ServerStopping)


async def test_tasks_of_another_server_are_pushed_too(store_url: str) -> None:
    async with (
        Server(settings_for(store_url)) as one,
        Server(settings_for(store_url, match_reactions=False)) as other,
        AsyncTapeClient(f"tape://{one.grpc_address}") as writer,
        AsyncTapeClient(f"tape://{other.grpc_address}") as reader,
    ):
        await register(writer)
        dispatcher = Dispatcher(reader, "d", ["r"], window=10)
        await fill(writer, 3)
        await dispatcher.until(lambda d: len(d.tasks) == 3, "three tasks")
        await dispatcher.close()


async def test_a_server_that_does_not_match_leaves_it_to_others(store_url: str) -> None:
    async with (
        Server(settings_for(store_url, match_reactions=False)) as server,
        AsyncTapeClient(f"tape://{server.grpc_address}") as client,
    ):
        await register(client)
        await fill(client, 2)
        assert (await client.get_reaction_stats("r")).stats[0].lag == 2
        async with Server(settings_for(store_url)):
            await matched(client)
        assert len(await tasks(client)) == 2


def test_the_calls_exist_for_ordinary_code_too(sqlite_url: str) -> None:
    from tests.services import ServerProcess, wait_for

    with ServerProcess(sqlite_url) as server, TapeClient(server.url) as client:
        client.register_reaction(reaction_id="r", subject_pattern="/tape/order/**", handler_kind=2)
        client.append("/tape/order/paid/1", {"n": 1})
        wait_for(lambda: client.list_tasks(reaction_id="r").tasks, "the task")
        (task,) = client.claim_tasks(reaction_id="r", owner="w").tasks
        assert client.complete_task(task_id=task.task_id, owner="w").task.status == DONE
        assert client.deregister_reaction("r") is True


@pytest.mark.parametrize("count", [100])
async def test_a_dispatcher_that_vanishes_with_its_tasks_loses_none(client: AsyncTapeClient, count: int) -> None:
    await register(client)
    await fill(client, count)
    await matched(client)
    vanishing = Dispatcher(client, "gone", ["r"], window=count, lease_ms=3_000)
    await vanishing.until(lambda d: len(d.tasks) == count, "all tasks")
    heir = Dispatcher(client, "heir", ["r"], window=count)
    await heir.until(lambda d: len(d.tasks) == count, "all tasks again")
    assert {task.attempts for task in heir.tasks} == {2}
    heir.say(completed=[task.task_id for task in heir.tasks])

    async def all_done() -> bool:
        return len(await tasks(client, status=DONE)) == count

    await until(all_done, "all done")
    vanishing.say(completed=[vanishing.tasks[0].task_id])
    await vanishing.until(lambda d: d.refused, "the refusal")
    await vanishing.close()
    await heir.close()
