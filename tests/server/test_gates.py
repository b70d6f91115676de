"""Gates as a client of tape.v1.Tape sees them, on both databases: terms, answers, times, lists."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tape.client import AsyncTapeClient
from tape.errors import GateAnswered, InvalidInput, PayloadTooLarge
from tape.proto import tape_pb2 as pb
from tape.server.server import Server


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsyncTapeClient]:
    async with AsyncTapeClient(f"tape://{server.grpc_address}", transport="grpc") as client:
        yield client


async def begin(client: AsyncTapeClient, invocation_id: str = "i1", app: str = "app") -> str:
    run = await client.begin_run(app_name=app, user_id="ann", session_id="s1", invocation_id=invocation_id)
    return run.run_id


async def entries(client: AsyncTapeClient, pattern: str = "/tape/gate/**") -> list[tuple[str, dict[str, Any]]]:
    """Verb and payload of the entries so far."""
    head = (await client.head()).global_seq
    found: list[tuple[str, dict[str, Any]]] = []
    async for batch in client.follow_batches(pattern):
        found += [(entry.subject.split("/")[3], json.loads(entry.payload_json)) for entry in batch.entries]
        if batch.position >= head:
            return found
    raise AssertionError


async def until_status(client: AsyncTapeClient, run_id: str, status: int) -> pb.RunState:
    async with asyncio.timeout(20):
        while (run := await client.get_run(run_id)).status != status:
            await asyncio.sleep(0.01)
    return run


async def test_payload_risk_deadline_and_answer_are_on_the_journal_and_in_the_run(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    before = time.time_ns() // 1_000_000
    payload = '{"risk":"irreversible","amount":1.10}'
    asked = await client.await_signal(run_id=run_id, gate_name="pay", payload_json=payload, timeout_ms=3_600_000)
    assert not asked.delivered
    assert 3_600_000 <= asked.deadline_ms - before < 3_660_000
    [gate] = (await client.get_run(run_id)).gates
    assert (gate.state, gate.risk, gate.payload_json) == (pb.GATE_STATE_WAITING, "irreversible", payload)
    assert (gate.deadline_ms, gate.on_timeout_json) == (asked.deadline_ms, '{"approved":false,"timed_out":true}')
    await client.send_signal(run_id=run_id, gate_name="pay", resolution_json='{"approved":true}')
    [gate] = (await client.get_run(run_id)).gates
    assert (gate.state, gate.answer_json, gate.answered_by) == (
        pb.GATE_STATE_ANSWERED,
        '{"approved":true}',
        "anonymous",
    )
    assert gate.answered_at_ms >= before
    (waiting, asked_entry), (released, answer_entry) = await entries(client)
    assert (waiting, released) == ("waiting", "released")
    assert asked_entry["payload"] == {"risk": "irreversible", "amount": 1.1}
    assert asked_entry["risk"] == "irreversible"
    assert asked_entry["deadline_ms"] == asked.deadline_ms
    assert (answer_entry["answer"], answer_entry["answered_by"]) == ({"approved": True}, "anonymous")
    assert answer_entry["answered_at_ms"] == gate.answered_at_ms


async def test_an_answer_before_the_run_waits_is_on_the_journal(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    await client.send_signal(run_id=run_id, gate_name="early", resolution_json="not json")
    assert (await client.await_signal(run_id=run_id, gate_name="early")).resolution_json == "not json"
    [(verb, payload)] = await entries(client)
    assert (verb, payload["answer"]) == ("answered", "not json")


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ('{"a":1,"b":2}', '{"b": 2, "a": 1}', True),
        ('{"a":1}', '{"a":true}', False),
        ("", "{}", False),
        ("text", "text", True),
    ],
)
async def test_an_identical_answer_repeats_and_another_is_refused(
    client: AsyncTapeClient, first: str, second: str, is_same: bool
) -> None:
    run_id = await begin(client)
    await client.await_signal(run_id=run_id, gate_name="g")
    await client.send_signal(run_id=run_id, gate_name="g", resolution_json=first)
    if is_same:
        assert (await client.send_signal(run_id=run_id, gate_name="g", resolution_json=second)).repeated
    else:
        with pytest.raises(GateAnswered, match="The first answer stays"):
            await client.send_signal(run_id=run_id, gate_name="g", resolution_json=second)
    assert (await client.await_signal(run_id=run_id, gate_name="g")).resolution_json == first


async def test_of_concurrent_answers_one_wins(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    await client.await_signal(run_id=run_id, gate_name="g")
    answers = [client.send_signal(run_id=run_id, gate_name="g", resolution_json=str(number)) for number in range(8)]
    results = await asyncio.gather(*answers, return_exceptions=True)
    assert sum(isinstance(result, pb.SendSignalResponse) for result in results) == 1
    assert sum(isinstance(result, GateAnswered) for result in results) == 7
    assert [verb for verb, _ in await entries(client)] == ["waiting", "released"]


# ── times ────────────────────────────────────────────────────────────────────────────────────────


async def test_the_server_answers_a_gate_whose_deadline_passes(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    await client.await_signal(run_id=run_id, gate_name="g", timeout_ms=50, on_timeout_json='{"approved":"later"}')
    run = await until_status(client, run_id, pb.RUN_STATUS_RUNNABLE)
    assert run.gates[0].state == pb.GATE_STATE_TIMED_OUT
    assert [run.run_id for run in (await client.list_runs_to_recover()).runs] == [run_id]
    answer = await client.await_signal(run_id=run_id, gate_name="g")
    assert (answer.delivered, answer.timed_out, answer.answered_by) == (True, True, "timeout")
    assert answer.resolution_json == '{"approved":"later"}'
    verb, payload = (await entries(client))[-1]
    assert (verb, payload["timed_out"], payload["answer"]) == ("released", True, {"approved": "later"})
    with pytest.raises(GateAnswered, match="timed out at"):
        await client.send_signal(run_id=run_id, gate_name="g", resolution_json='{"approved":"later"}')


async def test_a_timer_that_a_client_claims_leaves_the_deadline_alone(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    await client.await_signal(run_id=run_id, gate_name="g", timeout_ms=50)
    await client.list_due_timers(claim=True, now_ms=1 << 50)
    await until_status(client, run_id, pb.RUN_STATUS_RUNNABLE)


async def test_a_gate_reminds_and_escalates_once(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    await client.await_signal(
        run_id=run_id,
        gate_name="g",
        payload_json='{"n":1}',
        remind_after_ms=20,
        escalate_after_ms=40,
    )
    async with asyncio.timeout(20):
        while not (await client.get_run(run_id)).gates[0].escalated_at_ms:
            await asyncio.sleep(0.01)
    found = await entries(client)
    assert [verb for verb, _ in found] == ["waiting", "reminded", "escalated"]
    assert [payload["payload"] for _, payload in found] == [{"n": 1}] * 3
    [gate] = (await client.get_run(run_id)).gates
    assert 0 < gate.reminded_at_ms <= gate.escalated_at_ms
    assert gate.state == pb.GATE_STATE_WAITING


async def test_the_first_call_sets_the_times(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    first = await client.await_signal(run_id=run_id, gate_name="g", timeout_ms=3_600_000)
    again = await client.await_signal(run_id=run_id, gate_name="g", timeout_ms=1)
    assert again.deadline_ms == first.deadline_ms


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"timeout_ms": -1}, "timeout_ms -1 must lie between"),
        ({"timeout_ms": 1 << 62}, "10 years"),
        ({"on_timeout_json": "{}"}, "needs a timeout_ms"),
        ({"timeout_ms": 5, "remind_after_ms": 5}, "remind_after_ms 5 must be less than timeout_ms 5"),
    ],
)
async def test_impossible_times_are_refused(client: AsyncTapeClient, terms: dict[str, Any], message: str) -> None:
    run_id = await begin(client)
    with pytest.raises(InvalidInput, match=message):
        await client.await_signal(run_id=run_id, gate_name="g", **terms)
    assert (await client.get_run(run_id)).status == pb.RUN_STATUS_RUNNING


async def test_a_gate_of_a_run_that_ended_is_closed(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    await client.await_signal(run_id=run_id, gate_name="g", remind_after_ms=30)
    await client.end_run(run_id=run_id, status=pb.RUN_STATUS_CANCELLED)
    assert not (await client.list_gates(state=pb.GATE_STATE_WAITING)).gates
    [gate] = (await client.list_gates(state=pb.GATE_STATE_CLOSED)).gates
    assert gate.run_id == run_id


# ── lists ────────────────────────────────────────────────────────────────────────────────────────


async def test_gates_are_listed_by_state_app_risk_name_and_deadline(client: AsyncTapeClient) -> None:
    now = time.time_ns() // 1_000_000
    for number, (app, risk, gate, timeout) in enumerate(
        [("a", "low", "x", 0), ("a", "high", "y", 60_000), ("b", "high", "x", 3_600_000)]
    ):
        run_id = await begin(client, f"i{number}", app)
        await client.await_signal(run_id=run_id, gate_name=gate, risk=risk, timeout_ms=timeout)

    async def names(**filters: Any) -> list[str]:
        return [f"{each.app_name}/{each.gate_name}" for each in (await client.list_gates(**filters)).gates]

    assert await names(state=pb.GATE_STATE_WAITING) == ["a/x", "a/y", "b/x"]
    assert await names() == ["b/x", "a/y", "a/x"]
    assert await names(app_name="a", risk="high") == ["a/y"]
    assert await names(gate_name="x", state=pb.GATE_STATE_WAITING) == ["a/x", "b/x"]
    assert await names(deadline_before_ms=now + 600_000) == ["a/y"]
    assert await names(state=pb.GATE_STATE_ANSWERED) == []
    with pytest.raises(InvalidInput, match="state 9"):
        await client.list_gates(state=9)


@pytest.mark.parametrize("state", [0, pb.GATE_STATE_WAITING])
async def test_pages_of_gates_have_each_gate_once(client: AsyncTapeClient, state: int) -> None:
    run_id = await begin(client)
    for number in range(7):
        await client.await_signal(run_id=run_id, gate_name=f"g{number}")
    seen, cursor = [], ""
    while True:
        page = await client.list_gates(state=state, limit=3, cursor=cursor)
        seen += [gate.gate_name for gate in page.gates]
        if not (cursor := page.cursor):
            break
    wanted = [f"g{number}" for number in range(7)]
    assert seen == (wanted if state else wanted[::-1])
    for broken in ("x", '[1,"a"]', '[1,"a","b\\u0000"]'):
        with pytest.raises(InvalidInput, match="cursor"):
            await client.list_gates(cursor=broken)


async def test_large_payloads_bound_a_page_and_are_left_out_of_the_run(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    large = json.dumps({f"n{number}": "x" * 3_000 for number in range(9)})  # above 32 KiB it would become artifacts
    for number in range(45):
        await client.await_signal(run_id=run_id, gate_name=f"g{number}", payload_json=large)
    page = await client.list_gates()
    assert 30 <= len(page.gates) < 45
    assert page.cursor
    run = await client.get_run(run_id)
    assert [(gate.payload_json, gate.truncated) for gate in run.gates] == [("", True)] * 45
    with pytest.raises(PayloadTooLarge):
        await client.await_signal(run_id=run_id, gate_name="more", payload_json=json.dumps("x" * 2_000_000))


async def test_secrets_are_hidden_from_readers_and_reach_the_run(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    secret = '{"password":"hunter2hunter2"}'
    await client.await_signal(run_id=run_id, gate_name="g", payload_json=secret)
    await client.send_signal(run_id=run_id, gate_name="g", resolution_json=secret)
    [gate] = (await client.get_run(run_id)).gates
    assert "hunter2" not in gate.payload_json + gate.answer_json
    assert "hunter2" not in json.dumps(await entries(client))
    assert (await client.await_signal(run_id=run_id, gate_name="g")).resolution_json == secret
    with pytest.raises(GateAnswered) as refusal:
        await client.send_signal(run_id=run_id, gate_name="g", resolution_json="{}")
    assert "hunter2" not in str(refusal.value)


async def test_hostile_payloads_are_kept_as_text(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    for number, payload in enumerate(("[" * 5_000 + "]" * 5_000, "{", "\u2028\x1b[2J", "NaN", '"\\ud800"')):
        await client.await_signal(run_id=run_id, gate_name=f"g{number}", payload_json=payload)
    found = await entries(client)
    assert len(found) == 5
    assert found[1][1]["payload"] == "{"
