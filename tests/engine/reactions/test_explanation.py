"""Explain: which segment or sub-expression decided, and the state of the task."""

from __future__ import annotations

import json
import time

import pytest

from tape.base.telemetry.tracing import current_cause
from tape.client import AsyncTapeClient
from tape.engine.reactions.explanation import explain_mismatch
from tape.errors import InvalidInput, NotFound
from tape.model.pattern import Pattern
from tape.server.server import Server
from tests.engine.reactions.helpers import AGENT, claim, matched, register


@pytest.mark.parametrize(
    ("pattern", "subject", "reason"),
    [
        ("/tape/order/**", "/tape/order/paid/1", ""),
        ("/tape/order/*", "/tape/order/paid", ""),
        ("/tape/order/paid", "/tape/order/sent", "segment 3 is 'sent', the pattern wants 'paid'"),
        ("/tape/order/*/1", "/tape/order/paid", "the subject ends before segment 4 of the pattern, '1'"),
        ("/tape/order/*", "/tape/order/paid/1", "the subject goes on with '1' where the pattern ends"),
    ],
)
def test_the_segment_that_decided_is_named(pattern: str, subject: str, reason: str) -> None:
    assert explain_mismatch(Pattern(pattern), subject) == reason
    assert Pattern(pattern).matches(subject) == (not reason)


async def explained(client: AsyncTapeClient, global_seq: int) -> tuple[bool, str, str]:
    explanation = await client.explain_reaction("r", global_seq)
    return explanation.matched, explanation.decided_by, explanation.outcome


async def test_the_sub_expression_that_decided_is_named_with_the_values_it_saw(client: AsyncTapeClient) -> None:
    await register(client, predicate_cel='payload.total > 10 && payload.by == "card"')
    await client.append("/tape/order/paid/1", {"total": 20, "by": "cash"})
    await client.append("/tape/order/paid/2", {"by": "card"})
    explanation = await client.explain_reaction("r", 1)
    assert (explanation.matched, explanation.decided_by) == (False, 'payload.by == "card" → false')
    assert explanation.verdict == 'No match: the predicate is not true: payload.by == "card" → false.'
    trace = json.loads(explanation.predicate_trace_json)
    assert trace["trace"]["steps"][0]["value"] is True
    assert 'payload.by  →  "cash"' in explanation.predicate_trace
    explanation = await client.explain_reaction("r", 2)
    assert "the predicate fails on this entry" in explanation.verdict


async def test_what_holds_a_task_is_named(client: AsyncTapeClient) -> None:
    await register(client, max_concurrency=1)
    for number in range(3):
        await client.append(f"/tape/order/paid/{number}")
    await matched(client)
    (task,) = await claim(client, owner="busy")
    assert "Claimed by 'busy' (attempt 1)" in (await explained(client, 1))[2]
    assert "Waits for a free slot: 1 of 1 tasks are claimed" in (await explained(client, 2))[2]
    await client.nack_task(task_id=task.task_id, owner="busy", error="disk full")
    assert "Attempt 1 failed (disk full); tried again in" in (await explained(client, 1))[2]
    (task,) = await claim(client, owner="busy")
    await client.complete_task(task_id=task.task_id, owner="busy")
    assert (await explained(client, 2))[2] == "Done by 'busy' at attempt 1."


async def test_a_debounce_and_a_rate_are_named(client: AsyncTapeClient) -> None:
    await register(client, debounce_ms=3_600_000)
    await client.append("/tape/order/paid/1")
    await client.append("/tape/order/paid/1")
    await matched(client)
    outcome = (await explained(client, 1))[2]
    assert outcome.startswith("Debounced into the task of entry 2 (1 earlier entries went in). Held by the debounce of")
    await client.deregister_reaction("r")
    await register(client, rate_limit_per_s=1)
    for number in (2, 3):
        await client.append(f"/tape/order/paid/{number}")
    await matched(client)
    assert len(await claim(client, now_ms=time.time_ns() // 1_000_000 + 9_000)) == 1
    assert "Rate limited to 1 per second" in (await explained(client, 4))[2]


async def test_a_run_is_named_and_own_work_is_recognized(client: AsyncTapeClient) -> None:
    await register(client, subject_pattern="/tape/**", handler_kind=AGENT, agent_app="a")
    await client.append("/tape/order/paid/1")
    await matched(client)
    await matched(client)  # the run's own entry came with the match
    explanation = await client.explain_reaction("r", 1)
    assert explanation.outcome == f"The run {explanation.run_id} was begun for it."
    assert "the reaction itself caused the entry" in (await explained(client, 2))[2]
    token = current_cause.set("r")
    seq = await client.append("/tape/order/paid/2")
    current_cause.reset(token)
    await matched(client)
    assert "the reaction itself caused the entry" in (await explained(client, seq))[2]


async def test_entries_from_before_the_registration_are_explained(client: AsyncTapeClient) -> None:
    await client.append("/tape/order/paid/1")
    await register(client)
    await matched(client)
    assert "registered or changed after the entry" in (await explained(client, 1))[2]
    await client.deregister_reaction("r")
    assert (await explained(client, 1))[2] == "The reaction is deregistered."


async def test_an_unknown_reaction_or_entry_is_not_found(client: AsyncTapeClient) -> None:
    await register(client)
    with pytest.raises(NotFound, match="no such reaction"):
        await client.explain_reaction("unknown", 1)
    with pytest.raises(NotFound, match="There is no entry 7"):
        await client.explain_reaction("r", 7)


async def test_a_dry_run_counts_without_writing(client: AsyncTapeClient) -> None:
    for total in range(1, 31):
        await client.append("/tape/order/paid/1" if total % 2 else "/tape/order/sent/1", {"total": total})
    result = await client.test_reaction(subject_pattern="/tape/order/paid/*", predicate_cel="payload.total > 10")
    assert (result.examined, result.matched, result.errors) == (30, 10, 0)
    assert sum(bucket.matched for bucket in result.buckets) == 10
    assert [entry.global_seq for entry in result.samples] == [21, 23, 25, 27, 29]
    result = await client.test_reaction(subject_pattern="**", from_global_seq=10, to_global_seq=12, samples=1)
    assert (result.examined, result.matched, len(result.samples)) == (2, 2, 1)
    result = await client.test_reaction(subject_pattern="**", predicate_cel="payload.nothing == 1 || payload.x > 1")
    assert (result.matched, result.errors) == (0, 30)
    assert (await client.head()).global_seq == 30
    with pytest.raises(InvalidInput, match="to_global_seq 3 lies before"):
        await client.test_reaction(subject_pattern="**", from_global_seq=10, to_global_seq=3)
    with pytest.raises(InvalidInput, match="bucket_ms -1"):
        await client.test_reaction(subject_pattern="**", bucket_ms=-1)


async def test_an_entry_that_is_not_matched_yet_names_the_position_of_its_shard(
    server: Server, client: AsyncTapeClient
) -> None:
    await register(client)
    before = await client.append("/tape/order/paid/1")
    await matched(client)
    await server.matcher.close()
    seq = await client.append("/tape/order/paid/2")
    assert (await explained(client, seq))[2] == f"Not matched yet: shard 0 of the reaction is at entry {before}."
    await server.matcher.start()
    await matched(client)
    assert (await explained(client, seq))[2] == "Due now: it waits for a dispatcher to claim it."
