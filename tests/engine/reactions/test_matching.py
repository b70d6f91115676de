"""What fires: subjects, predicates, kinds, shards, traces, and a reaction's own work."""

from __future__ import annotations

import json

import pytest

from tape.base.telemetry.tracing import current_cause
from tape.client import AsyncTapeClient
from tape.engine.reactions.shards import shard_of
from tape.journal.retention import prune
from tape.model.entry import Draft
from tape.proto import tape_pb2 as pb
from tape.server.server import Server
from tests.engine.reactions.helpers import AGENT, PUBLISH, TASK, claim, matched, register, sources, tasks, until

TRACE, SPAN = "a" * 32, "b" * 16


async def test_only_entries_that_fit_pattern_and_predicate_become_tasks(client: AsyncTapeClient) -> None:
    await register(client, predicate_cel='payload.total > 10.0 && payload.by == "card"')
    await client.append(
        "/tape/order/paid/1", {"total": 20.0, "by": "card"}, run_id="order-1", trace_id=TRACE, span_id=SPAN
    )
    await client.append("/tape/order/paid/2", {"total": 5.0, "by": "card"})
    await client.append("/tape/order/paid/3", {"total": 20.0, "by": "cash"})
    await client.append("/tape/invoice/paid/4", {"total": 20.0, "by": "card"})
    await matched(client)
    (task,) = await tasks(client)
    assert (task.source_global_seq, task.source_run_id, task.subject) == (1, "order-1", "/tape/order/paid/1")
    assert json.loads(task.payload_json) == {"total": 20.0, "by": "card"}
    assert (task.trace_id, task.parent_span_id, task.attempts, task.status) == (TRACE, SPAN, 0, pb.TASK_STATUS_PENDING)


async def test_a_pattern_that_encodes_more_than_the_journal_still_matches(client: AsyncTapeClient) -> None:
    await register(client, subject_pattern="/tape/value/changed/prices/user%3A42")
    await client.write_value(namespace="prices", key="user:42", value_json="1")
    await matched(client)
    assert await sources(client) == [1]


async def test_the_seed_predicate_on_values_sees_value_and_previous_value(client: AsyncTapeClient) -> None:
    await register(
        client,
        subject_pattern="/tape/value/changed/treasury/**",
        predicate_cel="payload.value.value_json != prev_value_json && double(payload.value.value_json) > 100.0",
    )
    for value in ("50", "150", "150", "200"):
        await client.write_value(namespace="treasury", key="fx", value_json=value)
    await matched(client)
    assert await sources(client) == [2, 4]


async def test_a_match_for_an_agent_is_one_run_that_can_be_taken_up_at_once(client: AsyncTapeClient) -> None:
    await register(client, handler_kind=AGENT, agent_app="followup")
    seq = await client.append("/tape/order/paid/1", {"total": 3}, run_id="order-1", trace_id=TRACE, span_id=SPAN)

    async def begun() -> list[pb.RunState]:
        return list((await client.list_runs_to_recover()).runs)

    (run,) = await until(begun, "the run")
    assert (run.app_name, run.user_id, run.session_id) == ("followup", "", "")
    assert run.invocation_id == f"react-r-{seq}"
    assert run.labels["tape.source_global_seq"] == str(seq)
    entry = await anext(client.follow("/tape/run/running/followup/**"))
    assert (entry.trace_id, entry.parent_span_id) == (TRACE, SPAN)
    assert entry.payload["source_payload"] == {"total": 3}
    assert (entry.payload["source_run_id"], entry.payload["source_subject"]) == ("order-1", "/tape/order/paid/1")
    resumed = await client.resume_run(run_id=run.run_id, lease_owner="agent-1")
    assert resumed.run.lease_owner == "agent-1"
    assert await tasks(client) == []


async def test_an_agent_is_not_set_off_by_the_runs_it_was_set_off_for(client: AsyncTapeClient) -> None:
    await register(client, "r", subject_pattern="/tape/run/**", handler_kind=AGENT, agent_app="watcher")
    await client.begin_run(app_name="shop", user_id="u", session_id="s", invocation_id="i")
    await matched(client)
    (run,) = (await client.list_runs(app_name="watcher")).runs
    await client.end_run(run_id=run.run_id)
    await matched(client)
    assert len((await client.list_runs(app_name="watcher")).runs) == 1
    (stats,) = (await client.get_reaction_stats("r")).stats
    assert (stats.matched, stats.suppressed) == (1, 2)


async def test_an_agent_may_ask_to_be_set_off_by_its_own_runs(client: AsyncTapeClient) -> None:
    await register(
        client,
        subject_pattern="/tape/run/terminal/**",
        handler_kind=AGENT,
        agent_app="watcher",
        allow_self=True,
    )
    run = await client.begin_run(app_name="shop", user_id="u", session_id="s", invocation_id="i")
    for _ in range(2):
        await client.end_run(run_id=run.run_id)
        await matched(client)
        run = (await client.list_runs(app_name="watcher")).runs[0]
    assert len((await client.list_runs(app_name="watcher")).runs) == 2


async def test_what_a_handler_writes_does_not_set_off_its_own_reaction(client: AsyncTapeClient) -> None:
    await register(client, "own", subject_pattern="/tape/**")
    await register(client, "other", subject_pattern="/tape/**")
    await register(client, "asked", subject_pattern="/tape/**", allow_self=True)
    await client.write_value(namespace="n", key="k", value_json="1")
    for reaction_id in ("own", "asked"):
        token = current_cause.set(reaction_id)
        await client.write_value(namespace="n", key="k", value_json=f'"{reaction_id}"')
        await client.append("/tape/order/paid/1", {"by": reaction_id})
        current_cause.reset(token)
    await matched(client)
    assert await sources(client, "own") == [1, 4, 5]
    assert await sources(client, "other") == [1, 2, 3, 4, 5]
    assert await sources(client, "asked") == [1, 2, 3, 4, 5]
    assert (await client.get_reaction_stats("own")).stats[0].suppressed == 2


async def test_tasks_to_publish_are_tasks_too(client: AsyncTapeClient) -> None:
    await register(client, handler_kind=PUBLISH, publish_target="pubsub://project/topic")
    await client.append("/tape/order/paid/1")
    await matched(client)
    assert len(await claim(client)) == 1


async def test_a_run_stays_in_its_shard(client: AsyncTapeClient) -> None:
    await register(client, num_shards=8)
    for number in range(40):
        await client.append("/tape/order/paid/1", run_id=f"run-{number % 10}")
    await matched(client)
    found = await tasks(client)
    assert len(found) == 40
    assert all(task.shard == shard_of(task.source_run_id, 8) for task in found)
    shard = found[0].shard
    claimed = await claim(client, shard=shard, max=100)
    assert claimed
    assert {task.shard for task in claimed} == {shard}
    assert [task.source_global_seq for task in claimed] == sorted(task.source_global_seq for task in claimed)


async def test_a_predicate_that_always_fails_is_counted_and_delays_no_other(
    client: AsyncTapeClient,
) -> None:
    await register(client, "poison", predicate_cel="double(payload.total) > 1.0")
    await register(client, "healthy", predicate_cel='payload.total == "poison"')
    for _ in range(5):
        await client.append("/tape/order/paid/1", {"total": "poison"})
    await matched(client)

    async def counted() -> list[pb.ReactionStats]:
        stats = (await client.get_reaction_stats("poison")).stats
        return [each for each in stats if each.predicate_errors == 5]

    (poison,) = await until(counted, "five errors")
    assert "'poison' is not a number" in poison.last_predicate_error
    assert (poison.last_error_global_seq, poison.matched) == (5, 0)
    assert len(await sources(client, "healthy")) == 5


async def test_a_candidate_is_found_by_the_value_its_predicate_demands(server: Server, client: AsyncTapeClient) -> None:
    for number in range(300):
        await register(client, f"r{number}", predicate_cel=f'payload.status == "s{number}" && payload.total > 0')
    before = server.metrics.evaluated._value.get()
    for number in range(20):
        await client.append("/tape/order/paid/1", {"status": f"s{number}", "total": 1})
    await matched(client)
    assert [len(await sources(client, f"r{number}")) for number in (0, 19, 20)] == [1, 1, 0]
    assert server.metrics.evaluated._value.get() - before == 20


async def test_entries_that_were_pruned_before_they_were_matched_are_counted(
    server: Server, client: AsyncTapeClient
) -> None:
    await register(client)
    await server.matcher.close()
    for _ in range(5):
        await client.append("/tape/order/paid/1")
    await prune(server.database, before_seq=4)
    await server.matcher.start()
    await matched(client)
    assert await sources(client) == [4, 5]
    assert server.metrics.reaction_missed._value.get() == 3


@pytest.mark.parametrize("kind", [TASK, AGENT])
async def test_a_debounce_makes_one_of_many(client: AsyncTapeClient, kind: int) -> None:
    fields = {"agent_app": "reprice"} if kind == AGENT else {}
    await register(client, handler_kind=kind, debounce_ms=150 if kind == AGENT else 3_600_000, **fields)
    drafts = [Draft(subject=f"/tape/order/paid/{order}") for order in (1, 1, 1, 1, 1, 2)]
    if kind == AGENT:  # which begins after a moment
        await client.append_many(drafts)
    else:
        for draft in drafts:
            await client.append_many([draft])
    await matched(client)
    found = await tasks(client)
    assert [(task.source_global_seq, task.first_global_seq, task.coalesced) for task in found] == [(5, 1, 4), (6, 6, 0)]
    if kind == AGENT:

        async def begun() -> list[pb.RunState]:
            runs = list((await client.list_runs(app_name="reprice")).runs)
            return runs if len(runs) == 2 else []

        runs = await until(begun, "two runs")
        assert {run.invocation_id for run in runs} == {"react-r-5", "react-r-6"}
        assert all(task.status == pb.TASK_STATUS_DONE for task in await tasks(client))


async def test_reactions_that_catch_up_while_others_come_and_go_miss_nothing(
    client: AsyncTapeClient,
) -> None:
    total = 3_000
    for start in range(0, total, 500):
        await client.append_many(
            [Draft(subject=f"/tape/order/paid/{n}", run_id=f"run-{n % 9}") for n in range(start, start + 500)]
        )
    for number in range(6):
        await register(client, f"r{number}", backfill=True, num_shards=1 + number % 3)
        await register(client, "passing", from_global_seq=number * 400 + 1)
        await client.append("/tape/order/paid/0")
        await client.deregister_reaction("passing")
    await matched(client)
    for number in range(6):
        assert await sources(client, f"r{number}") == list(range(1, total + 7))
