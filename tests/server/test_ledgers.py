"""Runs and what belongs to them, as a client of tape.v1.Tape sees them, on both databases."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from tape.client import AsyncTapeClient, rpcs
from tape.errors import (
    GateAnswered,
    IllegalTransition,
    InvalidInput,
    InvalidJson,
    LeaseHeld,
    NotFound,
    ScopeDenied,
    SessionExists,
    TapeError,
)
from tape.journal.verifier import verify
from tape.proto import tape_pb2 as pb
from tape.server.server import Server

NOW = time.time_ns() // 1_000_000


async def begin(client: AsyncTapeClient, invocation_id: str = "i1", **fields: object) -> str:
    ids = {"app_name": "app", "user_id": "ann", "session_id": "s1", "invocation_id": invocation_id}
    return (await client.begin_run(**(ids | fields))).run_id  # type: ignore[arg-type]


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsyncTapeClient]:
    async with AsyncTapeClient(f"tape://{server.grpc_address}", transport="grpc") as client:
        yield client


async def entries(client: AsyncTapeClient, pattern: str = "") -> list[tuple[str, dict[str, object]]]:
    """Subject and payload of everything on the journal so far."""
    head = (await client.head()).global_seq
    found: list[tuple[str, dict[str, object]]] = []
    async for batch in client.follow_batches(pattern):
        found += [(entry.subject, json.loads(entry.payload_json)) for entry in batch.entries]
        if batch.position >= head:
            return found
    raise AssertionError


def status_of(error: BaseException) -> str:
    assert isinstance(error.__cause__, grpc.aio.AioRpcError)
    return str(error.__cause__.code().name)


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────


async def test_the_same_invocation_is_the_same_run(client: AsyncTapeClient) -> None:
    ids = {"app_name": "app", "user_id": "ann", "session_id": "s1", "invocation_id": "i1"}
    first = await client.begin_run(**ids, lease_owner="w1", scopes=["pay"], labels={"a": "b"}, actor="ann@x")
    assert (first.resumed, first.next_seq, first.status) == (False, 0, pb.RUN_STATUS_RUNNING)
    again = await client.begin_run(**ids, lease_owner="w1")
    assert (again.run_id, again.resumed, again.next_seq) == (first.run_id, True, 1)
    run = await client.get_run(first.run_id)
    assert (run.app_name, run.lease_owner, run.seq_cursor, run.actor) == ("app", "w1", 1, "ann@x")
    assert (list(run.scopes), dict(run.labels)) == (["pay"], {"a": "b"})
    assert run.lease_expires_at_ms > NOW + 100_000
    assert await entries(client) == [
        (
            f"/tape/run/running/app/ann/s1/{first.run_id}",
            {
                "run_id": first.run_id,
                "app": "app",
                "user": "ann",
                "session": "s1",
                "invocation_id": "i1",
                "status": "running",
                "tenant_id": "",
                "actor": "ann@x",
                "subject": "",
                "agent_id": "",
                "aiplex_instance_id": "",
            },
        )
    ]


async def test_entries_of_a_run_carry_its_identity(client: AsyncTapeClient) -> None:
    await begin(client)
    entry = await anext(client.follow())
    assert (entry.tenant, entry.user, entry.session) == ("app", "ann", "s1")


@pytest.mark.parametrize("status", [4, 5, 6, 7, 8])
async def test_ending_a_run_is_journaled_once(client: AsyncTapeClient, status: int) -> None:
    run_id = await begin(client, lease_owner="w1")
    for _ in range(2):
        ended = (await client.end_run(run_id=run_id, status=status, detail_json='{"a":1}')).run
        assert (ended.status, ended.lease_owner, ended.seq_cursor) == (status, "", 2)
    verb = pb.RunStatus.Name(status).removeprefix("RUN_STATUS_").lower()
    found = await entries(client, f"/tape/run/{verb}/**")
    assert [payload["status"] for _, payload in found] == [verb]


@pytest.mark.parametrize("status", [0, 1, 2, 3, 99])
async def test_a_status_that_ends_nothing_is_refused_by_name(client: AsyncTapeClient, status: int) -> None:
    run_id = await begin(client)
    with pytest.raises(InvalidInput, match="status") as raised:
        await client.end_run(run_id=run_id, status=status)
    assert status_of(raised.value) == "INVALID_ARGUMENT"


async def test_a_terminal_run_cannot_be_resumed_or_end_otherwise(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    await client.end_run(run_id=run_id)
    with pytest.raises(IllegalTransition, match="TERMINAL and cannot be resumed; allowed: COMPENSATING") as raised:
        await client.resume_run(run_id=run_id, lease_owner="w2")
    assert status_of(raised.value) == "FAILED_PRECONDITION"
    with pytest.raises(IllegalTransition, match="is TERMINAL and cannot become FAILED; allowed: TERMINAL"):
        await client.end_run(run_id=run_id, status=5)


async def test_unknown_runs_are_not_found(client: AsyncTapeClient) -> None:
    for call in (
        client.get_run("missing"),
        client.resume_run(run_id="missing"),
        client.end_run(run_id="missing"),
        client.record_decision(run_id="missing", decision_index=0),
        client.begin_effect(run_id="missing", decision_index=0, tool_name="t"),
        client.register_compensation(run_id="missing", effect_key="k", kind="refund"),
        client.set_budget(run_id="missing", usd_cap=1),
        client.await_signal(run_id="missing", gate_name="g"),
        client.set_timer(run_id="missing", fire_at_ms=1, kind="k"),
        client.compact_run("missing"),
    ):
        with pytest.raises(NotFound, match="no such run") as raised:
            await call
        assert status_of(raised.value) == "NOT_FOUND"


async def test_a_lease_keeps_others_out_until_it_ends(client: AsyncTapeClient) -> None:
    run_id = await begin(client, lease_owner="w1", lease_ttl_ms=60_000)
    with pytest.raises(LeaseHeld, match="leased to 'w1'") as raised:
        await client.resume_run(run_id=run_id, lease_owner="w2")
    assert status_of(raised.value) == "FAILED_PRECONDITION"
    with pytest.raises(LeaseHeld):
        await begin(client, lease_owner="w2")
    assert (await client.resume_run(run_id=run_id, lease_owner="w1", lease_ttl_ms=1)).run.lease_owner == "w1"
    async with asyncio.timeout(120):
        while (await client.get_run(run_id)).lease_expires_at_ms > time.time() * 1000:
            await asyncio.sleep(0.001)
    assert (await client.resume_run(run_id=run_id, lease_owner="w2")).run.lease_owner == "w2"
    await client.end_run(run_id=run_id)  # a caller that does not name itself is an older client


async def test_a_caller_that_names_itself_is_held_to_the_lease_on_every_write(
    client: AsyncTapeClient, server: Server
) -> None:
    run_id = await begin(client, lease_owner="w1", lease_ttl_ms=60_000)
    async with grpc.aio.insecure_channel(server.grpc_address) as raw:
        for name, request in (
            ("RecordDecision", pb.RecordDecisionRequest(run_id=run_id)),
            ("BeginEffect", pb.BeginEffectRequest(run_id=run_id, tool_name="t")),
            ("SetTimer", pb.SetTimerRequest(run_id=run_id)),
            ("EndRun", pb.EndRunRequest(run_id=run_id, status=4)),
        ):
            call = raw.unary_unary(
                f"/tape.v1.Tape/{name}", request_serializer=lambda message: message.SerializeToString()
            )
            with pytest.raises(grpc.aio.AioRpcError, match="leased to 'w1'"):
                await call(request, metadata=[("tape-lease-owner", "w2")])
            await call(request, metadata=[("tape-lease-owner", "w1")])


async def test_abandoned_and_runnable_runs_are_listed_for_recovery(client: AsyncTapeClient) -> None:
    abandoned = await begin(client, "abandoned", lease_owner="w1", lease_ttl_ms=1)
    await begin(client, "held", lease_owner="w1")
    gated = await begin(client, "gated", lease_owner="w1")
    await client.await_signal(run_id=gated, gate_name="approval")
    later = int(time.time() * 1000) + 1_000
    assert [run.run_id for run in (await client.list_runs_to_recover(now_ms=later)).runs] == [abandoned]
    await client.send_signal(run_id=gated, gate_name="approval")
    found = [run.run_id for run in (await client.list_runs_to_recover(now_ms=later)).runs]
    assert sorted(found) == sorted([abandoned, gated])
    assert len((await client.list_runs_to_recover(now_ms=later, limit=1)).runs) == 1


# ── decisions ────────────────────────────────────────────────────────────────────────────────────


async def test_a_decision_is_recorded_once(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    assert not (await client.get_decision(run_id=run_id, decision_index=0)).found
    first = await client.record_decision(
        run_id=run_id, decision_index=0, model="m1", request_json="{}", response_json='{"x":1}', rationale="because"
    )
    again = await client.record_decision(run_id=run_id, decision_index=0, model="other")
    assert (first.seq, again) == (2, first)
    assert (await client.get_decision(run_id=run_id, decision_index=0)).decision == first
    assert await entries(client, "/tape/decision/**") == [
        (
            f"/tape/decision/recorded/{run_id}/0",
            {"run_id": run_id, "decision_index": 0, "model": "m1", "policy_version": "", "rationale": "because"},
        )
    ]


# ── effects ──────────────────────────────────────────────────────────────────────────────────────


async def test_an_effect_is_pending_before_the_act_and_settled_after_it(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    begun = await client.begin_effect(run_id=run_id, decision_index=0, tool_name="sweep", request_json='{"n":1}')
    assert (begun.idempotency_key, begun.status) == (f"{run_id}/decision-0/sweep/0", pb.EFFECT_STATUS_PENDING)
    done = await client.complete_effect(
        run_id=run_id, idempotency_key=begun.idempotency_key, status=2, response_json='{"ok":1}'
    )
    assert done.status == pb.EFFECT_STATUS_CONFIRMED
    again = await client.begin_effect(run_id=run_id, decision_index=0, tool_name="sweep")
    assert (again.status, again.response_json, again.seq) == (2, '{"ok":1}', begun.seq)
    unchanged = await client.complete_effect(run_id=run_id, idempotency_key=begun.idempotency_key, status=3)
    assert unchanged == done
    assert [subject for subject, _ in await entries(client, "/tape/effect/**")] == [
        f"/tape/effect/pending/sweep/{run_id}",
        f"/tape/effect/confirmed/sweep/{run_id}",
    ]
    assert (await client.get_effect(run_id=run_id, idempotency_key=begun.idempotency_key)).effect == done
    assert not (await client.get_effect(run_id=run_id, idempotency_key="none")).found


async def test_keys_follow_the_contract(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    call = {"run_id": run_id, "tool_name": "t"}
    assert (
        await client.begin_effect(**call, decision_index=-1, call_index=3)
    ).idempotency_key == f"{run_id}/no-decision/t/3"
    assert (await client.begin_effect(**call, decision_index=0, custom_key="mine")).idempotency_key == "mine"


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"semantics": 2}, IllegalTransition, "NON_IDEMPOTENT"),
        ({"semantics": 2, "dispatch_mode": 2, "connector": "bank"}, ScopeDenied, "scope"),
        ({"business_key": "b1"}, IllegalTransition, "business_key requires connector"),
        ({"semantics": 9}, InvalidInput, "semantics 9 is not one of"),
        ({"dispatch_mode": 9}, InvalidInput, "dispatch_mode 9 is not one of"),
        ({"tool_name": ""}, InvalidInput, "tool_name is empty"),
    ],
)
async def test_effects_that_no_run_may_begin_are_refused(
    client: AsyncTapeClient, fields: dict[str, object], error: type[TapeError], text: str
) -> None:
    run_id = await begin(client)
    with pytest.raises(error, match=text) as raised:
        await client.begin_effect(**({"run_id": run_id, "decision_index": 0, "tool_name": "t"} | fields))  # type: ignore[arg-type]
    assert status_of(raised.value) == error.status


async def test_a_scope_that_was_not_granted_is_denied_and_journaled(client: AsyncTapeClient) -> None:
    run_id = await begin(client, scopes=["read"])
    with pytest.raises(ScopeDenied, match='scope "pay" not granted') as raised:
        await client.begin_effect(run_id=run_id, decision_index=0, tool_name="wire", scope="pay")
    assert status_of(raised.value) == "PERMISSION_DENIED"
    assert await entries(client, "/tape/policy/**") == [
        (
            f"/tape/policy/denied/wire/{run_id}",
            {
                "run_id": run_id,
                "tool": "wire",
                "decision_index": 0,
                "required_scope": "pay",
                "granted_scopes": ["read"],
                "violation": "scope_not_granted",
            },
        )
    ]
    assert (await client.begin_effect(run_id=run_id, decision_index=0, tool_name="look", scope="read")).status == 1


async def test_one_business_key_is_one_effect_across_runs(client: AsyncTapeClient) -> None:
    one, two = await begin(client, "i1"), await begin(client, "i2")
    call = {
        "decision_index": 0,
        "tool_name": "wire",
        "connector": "bank",
        "business_key": "invoice-7",
        "dispatch_mode": 2,
    }
    first = await client.begin_effect(run_id=one, **call)
    second = await client.begin_effect(run_id=two, **call)
    assert second.idempotency_key == first.idempotency_key
    assert len(await entries(client, "/tape/effect/**")) == 1


async def test_completing_what_was_never_begun_is_refused(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    with pytest.raises(IllegalTransition, match="complete_effect before begin_effect"):
        await client.complete_effect(run_id=run_id, idempotency_key="none", status=2)
    for status in (0, 1, 9):
        with pytest.raises(InvalidInput, match="status"):
            await client.complete_effect(run_id=run_id, idempotency_key="none", status=status)


async def outbox(client: AsyncTapeClient, run_id: str, **fields: object) -> str:
    call = {"decision_index": 0, "tool_name": "wire", "connector": "bank", "dispatch_mode": 2}
    return (await client.begin_effect(run_id=run_id, **(call | fields))).idempotency_key  # type: ignore[arg-type]


async def test_an_outbox_effect_is_claimed_by_one_dispatcher(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    key = await outbox(client, run_id)
    assert [e.idempotency_key for e in (await client.list_effects_to_dispatch(connector="bank")).effects] == [key]
    assert not (await client.list_effects_to_dispatch(connector="other")).effects
    claims = await asyncio.gather(
        *(client.claim_effect_dispatch(run_id=run_id, idempotency_key=key, claimer=f"d{n}") for n in range(8))
    )
    assert sum(claim.acquired for claim in claims) == 1
    assert not (await client.list_effects_to_dispatch()).effects
    assert not (await client.claim_effect_dispatch(run_id=run_id, idempotency_key="none", claimer="d")).acquired
    with pytest.raises(InvalidInput, match="claimer is empty"):
        await client.claim_effect_dispatch(run_id=run_id, idempotency_key=key, claimer="")


async def test_a_dispatch_that_failed_is_tried_again_or_becomes_unknown(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    key = await outbox(client, run_id)
    await client.claim_effect_dispatch(run_id=run_id, idempotency_key=key, claimer="d1")
    attempt = {"run_id": run_id, "idempotency_key": key}
    retried = await client.record_dispatch_attempt(**attempt, error="timeout", next_dispatch_at_ms=NOW - 1)
    assert (retried.status, retried.dispatch_attempts, retried.dispatch_claimed_by) == (1, 1, "")
    given_up = await client.record_dispatch_attempt(**attempt, error="again", next_dispatch_at_ms=0)
    assert (given_up.status, given_up.dispatch_attempts, given_up.last_dispatch_error) == (4, 2, "again")
    assert [e.idempotency_key for e in (await client.list_pending_effects(include_pending=False)).effects] == [key]
    payloads = [payload for _, payload in await entries(client, "/tape/effect/**")][1:]
    assert [payload["transition"] for payload in payloads] == ["dispatch-retry-scheduled", "dispatch-unknown"]
    confirmed = await client.reconcile_effect(**attempt, resolved_status=2, response_json='{"ref":1}')
    assert (confirmed.status, confirmed.response_json) == (2, '{"ref":1}')
    assert (await client.reconcile_effect(**attempt, resolved_status=3)) == confirmed
    with pytest.raises(IllegalTransition, match="CONFIRMED and cannot become PENDING; allowed: nothing"):
        await client.record_dispatch_attempt(**attempt, error="late", next_dispatch_at_ms=NOW)
    assert (await entries(client, "/tape/effect/reconciled/**"))[0][1]["resolved_to"] == 2


@pytest.mark.parametrize(
    ("resolution", "semantics", "after"),
    [(1, 1, 2), (2, 1, 3), (3, 1, 1), (3, 2, 3), (4, 1, 2), (5, 1, 4)],
)
async def test_observations_settle_an_effect(
    client: AsyncTapeClient, resolution: int, semantics: int, after: int
) -> None:
    run_id = await begin(client, scopes=["pay"])
    key = await outbox(client, run_id, semantics=semantics, scope="pay")
    seen = await client.record_external_observation(
        run_id=run_id,
        idempotency_key=key,
        resolution=resolution,
        external_ref="ext-1",
        compensate_on_duplicate_kind="refund",
    )
    assert (seen.status, seen.external_ref) == (after, "ext-1")
    subject, payload = (await entries(client, "/tape/effect/**"))[-1]
    verb = pb.EffectStatus.Name(after).removeprefix("EFFECT_STATUS_").lower()
    assert subject == f"/tape/effect/{verb}/wire/{run_id}"
    assert payload["transition"] == f"observed-{pb.EffectResolution.Name(resolution)[18:].lower()}"
    owed = (await client.list_obligations(run_id=run_id)).obligations
    assert [obligation.kind for obligation in owed] == (["refund"] if resolution == 4 else [])


# ── obligations ──────────────────────────────────────────────────────────────────────────────────


async def test_obligations_are_undone_newest_first_and_stick_after_enough_attempts(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    owed = [
        await client.register_compensation(run_id=run_id, effect_key=f"k{n}", kind="refund", max_attempts=2)
        for n in range(3)
    ]
    again = await client.register_compensation(run_id=run_id, effect_key="k0", kind="refund")
    assert again == owed[0]
    listed = (await client.list_obligations(run_id=run_id)).obligations
    assert [obligation.effect_key for obligation in listed] == ["k2", "k1", "k0"]

    ids = {"run_id": run_id, "obligation_seq": owed[0].seq}
    assert (await client.claim_obligation(**ids, claimer="c1")).acquired
    assert not (await client.claim_obligation(**ids, claimer="c2")).acquired
    retried = await client.record_obligation_attempt(**ids, error="down", next_attempt_at_ms=NOW - 1)
    assert (retried.status, retried.attempts) == (1, 1)
    stuck = await client.record_obligation_attempt(**ids, error="down", next_attempt_at_ms=NOW - 1)
    assert (stuck.status, stuck.attempts, stuck.next_attempt_at_ms) == (4, 2, 0)

    resolved = await client.resolve_obligation(
        run_id=run_id, obligation_seq=owed[1].seq, status=3, result_json='{"ok":1}'
    )
    assert (resolved.status, resolved.result_json) == (3, '{"ok":1}')
    with pytest.raises(IllegalTransition, match="COMPENSATED and cannot become STUCK"):
        await client.resolve_obligation(run_id=run_id, obligation_seq=owed[1].seq, status=4)
    with pytest.raises(NotFound, match="no such obligation"):
        await client.resolve_obligation(run_id=run_id, obligation_seq=999, status=3)

    unresolved = await client.list_unresolved_obligations(include_stuck=True)
    assert {o.effect_key for o in unresolved.obligations} == {"k0", "k2"}
    verbs = [subject.split("/")[3] for subject, _ in await entries(client, "/tape/obligation/**")]
    assert verbs == ["registered"] * 3 + ["committed", "pending", "stuck", "compensated"]


# ── budgets, gates, timers ───────────────────────────────────────────────────────────────────────


async def test_a_budget_admits_until_its_cap(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    assert (await client.admit_budget(run_id=run_id, usd_estimate=1e9)).admitted
    await client.set_budget(run_id=run_id, usd_cap=1.0, token_cap=100)
    await client.charge_budget(run_id=run_id, usd=0.75, tokens=90)
    assert (await client.admit_budget(run_id=run_id, usd_estimate=0.25, token_estimate=10)).admitted
    refused = await client.admit_budget(run_id=run_id, usd_estimate=0.5)
    assert (refused.admitted, refused.reason) == (False, "usd cap 1 would be exceeded (spent 0.75 + estimate 0.5)")
    assert (await client.admit_budget(run_id=run_id, token_estimate=11)).reason.startswith("token cap 100 would")
    state = await client.set_budget(run_id=run_id, usd_cap=5.0)
    assert (state.usd_cap, state.usd_spent, state.tokens_spent) == (5.0, 0.75, 90)
    with pytest.raises(InvalidInput, match="usd -1"):
        await client.charge_budget(run_id=run_id, usd=-1)


async def test_a_charge_that_cannot_be_stored_is_an_invalid_argument(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    await client.charge_budget(run_id=run_id, usd=1e308, tokens=2**63 - 1)
    for charge in ({"tokens": 1}, {"usd": 1e308}):
        with pytest.raises(InvalidInput, match="larger than can be stored") as raised:
            await client.charge_budget(run_id=run_id, **charge)
        assert raised.value.status == "INVALID_ARGUMENT"
    for field in ("usd", "usd_cap"):
        for value in (math.inf, math.nan):
            call = client.charge_budget if field == "usd" else client.set_budget
            with pytest.raises(InvalidInput, match=f"{field} "):
                await call(run_id=run_id, **{field: value})
    spent = await client.charge_budget(run_id=run_id)
    assert (spent.usd_spent, spent.tokens_spent) == (1e308, 2**63 - 1)
    assert (await client.admit_budget(run_id=run_id, usd_estimate=1e308, token_estimate=2**63 - 1)).admitted


async def test_concurrent_charges_add_up(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    await asyncio.gather(*(client.charge_budget(run_id=run_id, tokens=1) for _ in range(50)))
    assert (await client.charge_budget(run_id=run_id)).tokens_spent == 50


async def test_a_gate_parks_a_run_and_a_signal_releases_it(client: AsyncTapeClient) -> None:
    run_id = await begin(client, lease_owner="w1")
    for _ in range(2):
        assert not (await client.await_signal(run_id=run_id, gate_name="approval", payload_json='{"n":1}')).delivered
    run = await client.get_run(run_id)
    assert (run.status, run.waiting_on_gate, run.lease_owner) == (pb.RUN_STATUS_WAITING, "approval", "")
    sent = await client.send_signal(
        app_name="app", user_id="ann", session_id="s1", gate_name="approval", resolution_json='{"yes":true}'
    )
    assert (sent.accepted, sent.run_id, sent.run_status) == (True, run_id, pb.RUN_STATUS_RUNNABLE)
    again = await client.send_signal(run_id=run_id, gate_name="approval", resolution_json='{ "yes": true }')
    assert (again.accepted, again.run_status, again.repeated) == (True, 0, True)
    with pytest.raises(GateAnswered, match=r'answered by anonymous at .*Z with \{"yes":true\}'):
        await client.send_signal(run_id=run_id, gate_name="approval", resolution_json='{"yes":false}')
    for _ in range(2):
        answer = await client.await_signal(run_id=run_id, gate_name="approval")
        assert (answer.delivered, answer.resolution_json) == (True, '{"yes":true}')
    assert [subject for subject, _ in await entries(client, "/tape/gate/**")] == [
        f"/tape/gate/waiting/approval/{run_id}",
        f"/tape/gate/released/approval/{run_id}",
    ]
    with pytest.raises(NotFound, match="no run for that session"):
        await client.send_signal(app_name="app", user_id="missing", session_id="s", gate_name="g")


async def test_a_signal_may_arrive_before_the_run_waits(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    assert (await client.send_signal(run_id=run_id, gate_name="early", resolution_json="1")).run_status == 0
    assert (await client.await_signal(run_id=run_id, gate_name="early")).resolution_json == "1"


async def test_a_due_timer_fires_exactly_once(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    for n in range(20):
        await client.set_timer(run_id=run_id, timer_id=f"t{n}", fire_at_ms=NOW - n, kind="wake")
    await client.set_timer(run_id=run_id, timer_id="later", fire_at_ms=NOW + 3_600_000, kind="wake")
    named = await client.set_timer(run_id=run_id, fire_at_ms=NOW + 3_600_000, kind="wake")
    assert named.timer_id
    claims = await asyncio.gather(*(client.list_due_timers(claim=True, limit=5) for _ in range(8)))
    fired = [timer.timer_id for claim in claims for timer in claim.timers]
    assert sorted(fired) == sorted(f"t{n}" for n in range(20))
    assert not (await client.list_due_timers()).timers
    await client.set_timer(run_id=run_id, timer_id="t1", fire_at_ms=NOW, kind="again")
    assert [timer.kind for timer in (await client.list_due_timers()).timers] == ["again"]
    assert (await client.cancel_timer(run_id=run_id, timer_id="t1")).cancelled
    assert not (await client.cancel_timer(run_id=run_id, timer_id="t1")).cancelled


# ── sessions ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_session_keeps_state_and_events_and_journals_them(client: AsyncTapeClient) -> None:
    ids = {"app_name": "app", "user_id": "ann", "session_id": "s1"}
    assert not (await client.get_session(**ids)).found
    await client.create_session(**ids, state_json='{"a": 1, "b": 2}')
    for n in range(4):
        event = pb.EventRecord(id=f"e{n}", author="ann", content_json=f'"{n}"')
        answer = await client.append_event(**ids, event=event, state_delta_json=json.dumps({"b": None, "c": n}))
        assert answer.event.timestamp_ms > 0
    session = (await client.get_session(**ids)).session
    assert json.loads(session.state_json) == {"a": 1, "c": 3}
    assert [event.id for event in session.events] == ["e0", "e1", "e2", "e3"]
    latest = (await client.get_session(**ids, max_events=2)).session
    assert [event.id for event in latest.events] == ["e2", "e3"]
    found = await entries(client, "/tape/event/**")
    assert [subject for subject, _ in found] == ["/tape/event/appended/app/ann/s1"] * 4
    assert found[3][1]["state_delta"] == {"b": None, "c": 3}


async def test_an_event_with_an_id_is_appended_once(client: AsyncTapeClient) -> None:
    ids = {"app_name": "app", "user_id": "ann", "session_id": "s1"}
    for n in range(3):
        event = pb.EventRecord(id="same", content_json=f'"{n}"')
        answer = await client.append_event(**ids, event=event, state_delta_json=json.dumps({"n": n}))
        assert answer.event.content_json == '"0"'
    session = (await client.get_session(**ids)).session
    assert (len(session.events), session.state_json) == (1, '{"n":0}')


async def test_sessions_are_listed_latest_first_and_can_be_deleted(client: AsyncTapeClient) -> None:
    for user, session in (("ann", "s1"), ("bob", "s2"), ("ann", "s3")):
        await client.create_session(app_name="app", user_id=user, session_id=session)
        await asyncio.sleep(0.002)
    listed = (await client.list_sessions(app_name="app")).sessions
    assert [session.session_id for session in listed] == ["s3", "s2", "s1"]
    mine = (await client.list_sessions(app_name="app", user_id="ann")).sessions
    assert [session.session_id for session in mine] == ["s3", "s1"]
    assert (await client.delete_session(app_name="app", user_id="ann", session_id="s1")).deleted
    assert not (await client.delete_session(app_name="app", user_id="ann", session_id="s1")).deleted
    assert (await client.create_session(app_name="app", user_id="ann")).session_id


async def test_state_of_the_app_and_of_the_user_is_shared_by_their_sessions(client: AsyncTapeClient) -> None:
    async def state_of(user: str, session: str) -> dict[str, Any]:
        found = await client.get_session(app_name="app", user_id=user, session_id=session)
        return json.loads(found.session.state_json)

    for user, session in (("ann", "s1"), ("ann", "s2"), ("bob", "s3")):
        await client.create_session(app_name="app", user_id=user, session_id=session, state_json='{"own": 1}')
    delta = json.dumps({"app:a": 1, "user:u": {"x": None}, "own": 2, "gone:x": 3})
    ids = {"app_name": "app", "user_id": "ann", "session_id": "s1"}
    await client.append_event(**ids, event=pb.EventRecord(id="e1"), state_delta_json=delta)
    assert await state_of("ann", "s1") == {"own": 2, "gone:x": 3, "app:a": 1, "user:u": {"x": None}}
    assert await state_of("ann", "s2") == {"own": 1, "app:a": 1, "user:u": {"x": None}}
    assert await state_of("bob", "s3") == {"own": 1, "app:a": 1}
    listed = (await client.list_sessions(app_name="app")).sessions
    assert {session.session_id: json.loads(session.state_json).get("user:u") for session in listed} == {
        "s1": {"x": None},
        "s2": {"x": None},
        "s3": None,
    }
    await client.append_event(**ids, event=pb.EventRecord(id="e2"), state_delta_json='{"app:a": null}')
    assert await state_of("bob", "s3") == {"own": 1}
    created = await client.create_session(app_name="app", user_id="ann", session_id="s4", state_json='{"app:b": 2}')
    assert json.loads(created.state_json) == {"app:b": 2, "user:u": {"x": None}}


async def test_one_of_many_concurrent_creators_creates_a_session(client: AsyncTapeClient) -> None:
    ids = {"app_name": "app", "user_id": "ann", "session_id": "s1"}
    tries = [client.create_session(**ids, state_json=f'{{"n": {n}, "app:n": {n}}}', if_absent=True) for n in range(8)]
    answers = await asyncio.gather(*tries, return_exceptions=True)
    created = [answer for answer in answers if isinstance(answer, pb.Session)]
    assert len(created) == 1
    assert [type(answer) for answer in answers if answer is not created[0]] == [SessionExists] * 7
    assert (await client.get_session(**ids)).session.state_json == created[0].state_json


async def test_state_that_is_no_object_is_refused(client: AsyncTapeClient) -> None:
    ids = {"app_name": "app", "user_id": "ann", "session_id": "s1"}
    with pytest.raises(InvalidJson, match="state_json"):
        await client.create_session(**ids, state_json="[1]")
    with pytest.raises(InvalidJson, match="state_delta_json"):
        await client.append_event(**ids, event=pb.EventRecord(id="e"), state_delta_json="{")
    assert not (await client.get_session(**ids)).found
    with pytest.raises(InvalidInput, match="missing event"):
        await client._channel.call(rpcs.APPEND_EVENT, pb.AppendEventRequest(**ids))


# ── compaction ───────────────────────────────────────────────────────────────────────────────────


async def test_only_a_settled_run_is_compacted_and_its_journal_stays(client: AsyncTapeClient, server: Server) -> None:
    run_id = await begin(client)
    await client.record_decision(run_id=run_id, decision_index=0, request_json="{}", response_json='{"long":"text"}')
    effect = await client.begin_effect(run_id=run_id, decision_index=0, tool_name="t", request_json='{"a":1}')
    ids = {"run_id": run_id, "idempotency_key": effect.idempotency_key}
    owed = await client.register_compensation(run_id=run_id, effect_key="k", kind="refund")
    with pytest.raises(IllegalTransition, match="not terminal"):
        await client.compact_run(run_id)
    await client.complete_effect(**ids, status=4)
    await client.end_run(run_id=run_id)
    with pytest.raises(IllegalTransition, match=r"open obligation\(s\); not settled"):
        await client.compact_run(run_id)
    await client.resolve_obligation(run_id=run_id, obligation_seq=owed.seq, status=3)
    with pytest.raises(IllegalTransition, match=r"UNKNOWN effect\(s\); not settled"):
        await client.compact_run(run_id)
    await client.reconcile_effect(**ids, resolved_status=2)
    later = int(time.time() * 1000) + 1_000
    assert [run.run_id for run in (await client.list_compactable_runs(before_ms=later)).runs] == [run_id]
    done = await client.compact_run(run_id)
    assert (done.decisions_zeroed, done.effects_zeroed, done.already_compacted) == (1, 1, False)
    assert done.bytes_saved == len('{}{"long":"text"}{"a":1}')
    assert (await client.compact_run(run_id)).already_compacted
    assert not (await client.list_compactable_runs(before_ms=later)).runs
    assert (await client.get_decision(run_id=run_id, decision_index=0)).decision.response_json == ""
    assert len(await entries(client, f"/tape/run/compacted/app/ann/s1/{run_id}")) == 1
    assert (await server.database.read(verify)).ok


async def test_the_tables_show_what_tools_expect(client: AsyncTapeClient, server: Server) -> None:
    run_id = await begin(client)
    await client.record_decision(run_id=run_id, decision_index=0)
    await client.append("/tape/note/made", run_id=run_id)
    row = await server.database.read(
        lambda reader: reader.one("SELECT status, seq_cursor FROM tape_runs WHERE run_id = ?", run_id)
    )
    assert row == (2, 3)
