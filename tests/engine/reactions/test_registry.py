"""Registering reactions: what is refused, what an id means, where a new one begins."""

from __future__ import annotations

from typing import Any

import pytest

from tape.client import AsyncTapeClient
from tape.errors import (
    CursorBeyondHead,
    InvalidInput,
    InvalidPattern,
    InvalidPredicate,
    InvalidReaction,
    TapeError,
)
from tests.engine.reactions.helpers import AGENT, PUBLISH, TASK, matched, register, sources, tasks


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"subject_pattern": "/tape/**/x"}, InvalidPattern, "may only stand at the end"),
        ({"subject_pattern": "order"}, InvalidPattern, "must begin with '/'"),
        ({"subject_pattern": ""}, InvalidReaction, "subject_pattern is empty"),
        ({"predicate_cel": "payload.total >"}, InvalidPredicate, "line 1, column 16"),
        ({"predicate_cel": "size(subject)"}, InvalidPredicate, "gives int"),
        ({"handler_kind": 0}, InvalidReaction, "handler_kind is not given"),
        ({"handler_kind": 9}, InvalidInput, "handler_kind 9 is not one of"),
        ({"handler_kind": AGENT}, InvalidReaction, "agent_app is empty"),
        ({"handler_kind": PUBLISH}, InvalidReaction, "publish_target is empty"),
        ({"handler_kind": PUBLISH, "publish_target": "topic"}, InvalidReaction, "pubsub://project/topic"),
        ({"agent_app": "a"}, InvalidReaction, "does not go with kind TASK"),
        ({"max_concurrency": -1}, InvalidReaction, "max_concurrency -1"),
        ({"rate_limit_per_s": -5}, InvalidReaction, "rate_limit_per_s -5"),
        ({"debounce_ms": 86_400_001}, InvalidReaction, "debounce_ms 86400001"),
        ({"retry_max": -1}, InvalidReaction, "retry_max -1"),
        ({"retry_backoff_ms": -1}, InvalidReaction, "retry_backoff_ms -1"),
        ({"dlq_after_n": -1}, InvalidReaction, "dlq_after_n -1"),
        ({"num_shards": 257}, InvalidReaction, "num_shards 257 must lie between 0 and 256"),
        ({"reaction_id": "x" * 401}, InvalidReaction, "more than 400 bytes"),
        ({"from_global_seq": 99}, CursorBeyondHead, "beyond the head"),
        ({"from_global_seq": -3}, InvalidReaction, "must not be negative"),
        ({"from_global_seq": 1, "backfill": True}, InvalidReaction, "both say where to begin"),
    ],
)
async def test_what_makes_no_sense_is_refused_by_name(
    client: AsyncTapeClient, fields: dict[str, Any], error: type[TapeError], text: str
) -> None:
    reaction = {"subject_pattern": "/tape/order/**", "handler_kind": TASK} | fields
    with pytest.raises(error) as raised:
        await client.register_reaction(**reaction)
    assert text in str(raised.value)
    assert not (await client.list_reactions()).reactions


async def test_zero_means_the_default(client: AsyncTapeClient) -> None:
    found = await client.register_reaction(
        subject_pattern="**",
        handler_kind=TASK,
        max_concurrency=0,
        retry_max=0,
        retry_backoff_ms=0,
        dlq_after_n=0,
        num_shards=0,
    )
    assert (found.max_concurrency, found.retry_max, found.retry_backoff_ms) == (1, 5, 1_000)
    assert (found.dlq_after_n, found.num_shards, found.rate_limit_per_s) == (5, 1, 0)


async def test_an_id_is_upserted_and_without_one_each_gets_its_own(client: AsyncTapeClient) -> None:
    first = await register(client, "same", name="one")
    again = await register(client, "same", name="two", predicate_cel="payload.total > 1")
    assert again.created_at_ms == first.created_at_ms
    unnamed = [await register(client, "") for _ in range(2)]
    found = {each.reaction_id: each.name for each in (await client.list_reactions()).reactions}
    assert found == {"same": "two", unnamed[0].reaction_id: "", unnamed[1].reaction_id: ""}
    assert len({each.reaction_id for each in unnamed}) == 2


async def test_listing_by_pattern_is_string_equality(client: AsyncTapeClient) -> None:
    await register(client, "a", subject_pattern="/tape/order/**")
    await register(client, "b", subject_pattern="/tape/order/created/*")
    answer = await client.list_reactions("/tape/order/created/*")
    assert [each.reaction_id for each in answer.reactions] == ["b"]


async def test_a_new_reaction_begins_at_the_head_unless_a_start_is_given(client: AsyncTapeClient) -> None:
    for number in range(5):
        await client.append(f"/tape/order/created/{number}")
    await register(client, "head")
    await register(client, "all", backfill=True)
    await register(client, "some", from_global_seq=3)
    await client.append("/tape/order/created/5")
    await matched(client)
    assert await sources(client, "head") == [6]
    assert await sources(client, "all") == [1, 2, 3, 4, 5, 6]
    assert await sources(client, "some") == [4, 5, 6]


async def test_deregistering_returns_whether_there_was_one_and_keeps_its_tasks(client: AsyncTapeClient) -> None:
    await register(client)
    await client.append("/tape/order/created/1")
    await matched(client)
    assert await client.deregister_reaction("r")
    assert not await client.deregister_reaction("unknown")
    await client.append("/tape/order/created/2")
    assert not (await client.list_reactions()).reactions
    assert [task.source_global_seq for task in await tasks(client)] == [1]
    claimed = (await client.claim_tasks(reaction_id="r", owner="w")).tasks
    assert len(claimed) == 1


async def test_one_that_comes_back_has_missed_what_happened_meanwhile(client: AsyncTapeClient) -> None:
    await register(client)
    await client.append("/tape/order/created/1")
    await matched(client)
    await client.deregister_reaction("r")
    await client.append("/tape/order/created/2")
    await register(client)
    await client.append("/tape/order/created/3")
    await matched(client)
    assert await sources(client) == [1, 3]


async def test_one_that_comes_back_with_backfill_repeats_nothing(client: AsyncTapeClient) -> None:
    await register(client)
    await client.append("/tape/order/created/1")
    await matched(client)
    await client.deregister_reaction("r")
    await client.append("/tape/order/created/2")
    await register(client, backfill=True)
    await client.append("/tape/order/created/3")
    await matched(client)
    assert await sources(client) == [1, 2, 3]


async def test_a_changed_predicate_applies_to_what_comes_next(client: AsyncTapeClient) -> None:
    await register(client, predicate_cel="payload.total > 10")
    await client.append("/tape/order/created/1", {"total": 5})
    await matched(client)
    await register(client, predicate_cel="payload.total > 1")
    await client.append("/tape/order/created/2", {"total": 5})
    await matched(client)
    assert await sources(client) == [2]


async def test_the_number_of_shards_can_change_without_losing_or_repeating(client: AsyncTapeClient) -> None:
    await register(client)
    for number in range(20):
        await client.append("/tape/order/created/1", run_id=f"run-{number}")
    await matched(client)
    await register(client, num_shards=4)
    for number in range(20):
        await client.append("/tape/order/created/1", run_id=f"run-{number}")
    await matched(client)
    found = await tasks(client)
    assert [task.source_global_seq for task in found] == list(range(1, 41))
    assert {task.shard for task in found[20:]} == {0, 1, 2, 3}
