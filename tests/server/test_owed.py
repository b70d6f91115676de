"""What has to be undone, whose turn it is, and who may say so; claims and leases that run out."""

from __future__ import annotations

import time

import pytest

from tape.client import AsyncTapeClient
from tape.errors import IllegalTransition, LeaseHeld, RunCancelled
from tape.proto import tape_pb2 as pb
from tape.server.server import Server
from tests.server.test_ledgers import begin, entries

SENT = {"decision_index": 0, "tool_name": "pay", "dispatch_mode": 2, "connector": "bank"}


async def register(client: AsyncTapeClient, run_id: str, *kinds: str) -> list[int]:
    return [(await client.register_compensation(run_id=run_id, effect_key="k", kind=kind)).seq for kind in kinds]


async def owed(client: AsyncTapeClient, **options: object) -> list[tuple[str, str]]:
    answer = await client.list_unresolved_obligations(only_owed=True, **options)  # type: ignore[arg-type]
    return [(each.run_id, each.kind) for each in answer.obligations]


async def undo(client: AsyncTapeClient, run_id: str, seq: int, claimer: str = "r1") -> None:
    claim = await client.claim_obligation(run_id=run_id, obligation_seq=seq, claimer=claimer, only_owed=True)
    assert claim.acquired
    await client.resolve_obligation(run_id=run_id, obligation_seq=seq, status=3, settle_run=True, claimer=claimer)


async def status_of(client: AsyncTapeClient, run_id: str) -> str:
    return pb.RunStatus.Name((await client.get_run(run_id)).status).removeprefix("RUN_STATUS_")


# ── obligations ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ending", [pb.RUN_STATUS_FAILED, pb.RUN_STATUS_CANCELLED, pb.RUN_STATUS_COMPENSATING, 7])
async def test_only_effects_of_a_failed_run_are_owed(client: AsyncTapeClient, ending: int) -> None:
    healthy, done, failed = [await begin(client, name) for name in ("healthy", "done", "failed")]
    for run_id in (healthy, done, failed):
        await register(client, run_id, "refund")
    await client.end_run(run_id=done)
    assert await owed(client) == []
    await client.end_run(run_id=failed, status=ending)
    assert await owed(client) == [(failed, "refund")]
    late = await client.register_compensation(run_id=failed, effect_key="late", kind="cancel")
    assert late.owed == 1
    assert await owed(client) == [(failed, "cancel")]  # the newest has its turn first


async def test_a_failed_run_that_resumes_owes_nothing(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    (seq,) = await register(client, run_id, "refund")
    await client.end_run(run_id=run_id, status=pb.RUN_STATUS_FAILED)
    assert await begin(client) == run_id
    assert await owed(client) == []
    claim = await client.claim_obligation(run_id=run_id, obligation_seq=seq, claimer="r1", only_owed=True)
    assert not claim.acquired


async def test_a_run_that_is_being_compensated_cannot_resume(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    first, second = await register(client, run_id, "refund", "cancel")
    await client.end_run(run_id=run_id, status=pb.RUN_STATUS_FAILED)
    await undo(client, run_id, second)
    with pytest.raises(IllegalTransition, match=r"COMPENSATING and what it did is being undone \(1 obligation"):
        await begin(client)
    with pytest.raises(IllegalTransition, match="being undone"):
        await client.resume_run(run_id=run_id, lease_owner="w2")
    await undo(client, run_id, first)
    with pytest.raises(IllegalTransition, match="FAILED and what it did is being undone"):
        await begin(client)


async def test_obligations_are_claimed_newest_first(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    oldest, middle, newest = await register(client, run_id, "a", "b", "c")
    await client.end_run(run_id=run_id, status=pb.RUN_STATUS_CANCELLED)
    for early in (oldest, middle):
        claim = await client.claim_obligation(run_id=run_id, obligation_seq=early, claimer="r1", only_owed=True)
        assert not claim.acquired
    for seq in (newest, middle):
        await undo(client, run_id, seq)
        run = await client.get_run(run_id)
        assert (run.status, run.former_status) == (pb.RUN_STATUS_COMPENSATING, pb.RUN_STATUS_CANCELLED)
    await undo(client, run_id, oldest)
    assert await status_of(client, run_id) == "CANCELLED"
    assert (await client.get_run(run_id)).former_status == 0
    statuses = [subject.split("/")[3] for subject, _ in await entries(client, "/tape/run/**")]
    assert statuses == ["running", "cancelled", "compensating", "cancelled"]


async def test_a_stuck_obligation_blocks_older_ones_until_it_is_settled(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    older, newer = await register(client, run_id, "a", "b")
    await client.end_run(run_id=run_id, status=pb.RUN_STATUS_CANCELLED)
    await client.claim_obligation(run_id=run_id, obligation_seq=newer, claimer="r1", only_owed=True)
    await client.record_obligation_attempt(
        run_id=run_id, obligation_seq=newer, error="no", next_attempt_at_ms=0, settle_run=True, claimer="r1"
    )
    assert await status_of(client, run_id) == "STUCK"
    assert await owed(client) == []
    assert await owed(client, include_stuck=True, include_pending=False) == [(run_id, "b")]
    await client.resolve_obligation(run_id=run_id, obligation_seq=newer, status=3, settle_run=True)
    assert await status_of(client, run_id) == "STUCK"
    assert await owed(client) == [(run_id, "a")]
    await undo(client, run_id, older)
    assert await status_of(client, run_id) == "CANCELLED"


async def test_a_duplicate_is_owed_beside_the_effects_own_obligation(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    effect = await client.begin_effect(run_id=run_id, decision_index=0, tool_name="pay")
    key = effect.idempotency_key
    await client.register_compensation(run_id=run_id, effect_key=key, kind="refund", payload_json='{"own":1}')
    for ref in ("tx-2", "tx-3", "tx-2"):
        await client.record_external_observation(
            run_id=run_id,
            idempotency_key=key,
            resolution=4,
            external_ref=ref,
            response_json=f'{{"ref":"{ref}"}}',
            compensate_on_duplicate_kind="refund",
        )
    answer = await client.list_unresolved_obligations(only_owed=True)
    seen = [(each.owed, each.act, each.payload_json) for each in answer.obligations]
    assert seen == [(2, "duplicate:tx-2", '{"ref":"tx-2"}'), (2, "duplicate:tx-3", '{"ref":"tx-3"}')]
    await undo(client, run_id, answer.obligations[0].seq)
    assert await status_of(client, run_id) == "RUNNING"
    await client.end_run(run_id=run_id, status=pb.RUN_STATUS_FAILED)
    assert await begin(client) == run_id
    assert await owed(client) == [(run_id, "refund")]  # the other duplicate is still one too many


async def test_a_claim_is_renewed_by_its_owner_only(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    (seq,) = await register(client, run_id, "refund")
    ids = {"run_id": run_id, "obligation_seq": seq}
    first = await client.claim_obligation(**ids, claimer="r1", lease_ttl_ms=1)
    again = await client.claim_obligation(**ids, claimer="r1", renew=True)
    assert again.acquired
    assert again.obligation.claim_expires_at_ms > first.obligation.claim_expires_at_ms
    assert not (await client.claim_obligation(**ids, claimer="r2", renew=True)).acquired
    with pytest.raises(LeaseHeld, match="claimed by 'r1'; the claim of 'r2' has expired"):
        await client.resolve_obligation(**ids, status=3, claimer="r2")
    with pytest.raises(LeaseHeld):
        await client.record_obligation_attempt(**ids, error="no", next_attempt_at_ms=1, claimer="r2")


async def test_a_terminal_runs_obligations_do_not_keep_it_from_being_compacted(client: AsyncTapeClient) -> None:
    healthy, failed = await begin(client, "healthy"), await begin(client, "failed")
    for run_id in (healthy, failed):
        await register(client, run_id, "refund")
    await client.end_run(run_id=healthy)
    await client.end_run(run_id=failed, status=pb.RUN_STATUS_FAILED)
    assert not (await client.compact_run(healthy, ignore_unowed=True)).already_compacted
    with pytest.raises(IllegalTransition, match=r"1 open obligation\(s\); not settled"):
        await client.compact_run(failed, ignore_unowed=True)


# ── effects ──────────────────────────────────────────────────────────────────────────────────────


async def test_an_expired_claim_names_its_previous_owner(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    effect = await client.begin_effect(run_id=run_id, **SENT)
    ids = {"run_id": run_id, "idempotency_key": effect.idempotency_key}
    first = await client.claim_effect_dispatch(**ids, claimer="d1", lease_ttl_ms=1)
    assert (first.acquired, first.previous_claimer) == (True, "")
    while not (second := await client.claim_effect_dispatch(**ids, claimer="d2")).acquired:
        pass  # until the first claim has run out, a millisecond after it was made
    assert second.previous_claimer == "d1"
    assert (await client.claim_effect_dispatch(**ids, claimer="d2", renew=True)).previous_claimer == ""
    assert not (await client.claim_effect_dispatch(**ids, claimer="d1", renew=True)).acquired
    with pytest.raises(LeaseHeld, match="is claimed by 'd2'; the claim of 'd1' has expired"):
        await client.record_dispatch_attempt(**ids, error="no", next_dispatch_at_ms=0, claimer="d1")
    with pytest.raises(LeaseHeld):
        await client.record_external_observation(**ids, resolution=2, claimer="d1")
    await client.record_dispatch_attempt(**ids, error="no", next_dispatch_at_ms=1, claimer="d2")
    third = await client.claim_effect_dispatch(**ids, claimer="d3")
    assert (third.acquired, third.previous_claimer) == (True, "")  # d2 said what became of its claim


async def test_an_existing_effect_is_returned_with_its_owner(client: AsyncTapeClient) -> None:
    one, other = await begin(client, "one"), await begin(client, "other")
    wanted = SENT | {"business_key": "invoice-7"}
    first = await client.begin_effect(run_id=one, **wanted)
    assert (first.existing, first.run_id) == (False, one)
    assert (await client.begin_effect(run_id=one, **wanted)).existing
    existing = await client.begin_effect(run_id=other, **wanted)
    assert (existing.existing, existing.run_id) == (True, one)


# ── timers ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_leased_timer_is_redelivered_unless_it_is_completed(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    for timer_id in ("kept", "lost"):
        await client.set_timer(run_id=run_id, fire_at_ms=1, kind="wake", timer_id=timer_id)
    leased = await client.list_due_timers(claim=True, claimer="r1", lease_ttl_ms=30)
    assert [(each.timer_id, each.fired, each.claimed_by) for each in leased.timers] == [
        ("kept", False, "r1"),
        ("lost", False, "r1"),
    ]
    assert (await client.complete_timer(run_id=run_id, timer_id="kept", claimer="r1")).completed
    assert not (await client.complete_timer(run_id=run_id, timer_id="kept", claimer="r1")).completed
    while not (again := await client.list_due_timers(claim=True, claimer="r2")).timers:
        pass  # until the lease of the one that vanished has run out
    assert [each.timer_id for each in again.timers] == ["lost"]
    assert not (await client.complete_timer(run_id=run_id, timer_id="lost", claimer="r1")).completed
    await client.set_timer(run_id=run_id, fire_at_ms=1, kind="wake", timer_id="lost")
    assert not (await client.complete_timer(run_id=run_id, timer_id="lost", claimer="r2")).completed
    assert len((await client.list_due_timers(claim=True)).timers) == 1  # set anew, so it is due anew


# ── a database that was there before ─────────────────────────────────────────────────────────────


async def test_what_failed_runs_did_is_found_beside_thousands_of_healthy_ones(
    client: AsyncTapeClient, server: Server
) -> None:
    run_id, failed = await begin(client, "healthy"), await begin(client, "failed")
    now = time.time_ns() // 1_000_000
    rows = [(run_id, 10 + number, f"k{number}", "refund", 1, now, 1) for number in range(5_000)]
    columns = ("run_id", "seq", "effect_key", "kind", "status", "ts_ms", "next_attempt_at_ms")
    await server.journal.database.write(lambda tx: tx.insert("tape_obligations", columns, rows))
    await register(client, failed, "refund")
    await client.end_run(run_id=failed, status=pb.RUN_STATUS_FAILED)
    assert await owed(client, limit=1) == [(failed, "refund")]


async def test_a_cancelled_run_stays_cancelled_during_compensation(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    older, newer = await register(client, run_id, "a", "b")
    await client.end_run(run_id=run_id, status=pb.RUN_STATUS_CANCELLED)
    await undo(client, run_id, newer)
    # Its process goes on for a while, and does not know.
    for ending in (pb.RUN_STATUS_TERMINAL, pb.RUN_STATUS_FAILED):
        with pytest.raises(IllegalTransition, match="because it was CANCELLED and is being undone"):
            await client.end_run(run_id=run_id, status=ending)
    with pytest.raises(RunCancelled):
        await client.begin_effect(run_id=run_id, decision_index=0, tool_name="pay")
    await undo(client, run_id, older)
    assert await status_of(client, run_id) == "CANCELLED"


async def test_a_run_that_compensated_by_itself_and_ended_terminal_owes_nothing(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    await register(client, run_id, "a")
    await client.end_run(run_id=run_id, status=pb.RUN_STATUS_COMPENSATING)
    assert await owed(client) == [(run_id, "a")]
    await client.end_run(run_id=run_id, status=pb.RUN_STATUS_TERMINAL)
    assert await owed(client) == []


# ── late news ────────────────────────────────────────────────────────────────────────────────────


async def test_an_effect_that_completes_after_its_run_was_compensated_is_compensated_too(
    client: AsyncTapeClient,
) -> None:
    run_id = await begin(client)
    effect = await client.begin_effect(run_id=run_id, decision_index=0, tool_name="pay")
    key = effect.idempotency_key
    obligation = await client.register_compensation(run_id=run_id, effect_key=key, kind="refund")
    await client.end_run(run_id=run_id, status=pb.RUN_STATUS_CANCELLED)
    await undo(client, run_id, obligation.seq)
    assert await owed(client) == []
    await client.complete_effect(run_id=run_id, idempotency_key=key, status=2)
    assert await owed(client) == [(run_id, "refund")]
    await undo(client, run_id, obligation.seq)
    assert await status_of(client, run_id) == "CANCELLED"


async def test_the_same_observation_is_journaled_once(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    effect = await client.begin_effect(run_id=run_id, decision_index=0, tool_name="pay")
    for _ in range(2):
        await client.record_external_observation(
            run_id=run_id, idempotency_key=effect.idempotency_key, resolution=1, external_ref="tx", response_json="{}"
        )
    assert len(await entries(client, "/tape/effect/confirmed/**")) == 1


async def test_an_attempt_that_could_not_be_made_does_not_count(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    (seq,) = await register(client, run_id, "refund")
    ids = {"run_id": run_id, "obligation_seq": seq, "error": "not yet", "next_attempt_at_ms": 1}
    assert (await client.record_obligation_attempt(**ids, uncounted=True)).attempts == 0
    assert (await client.record_obligation_attempt(**ids)).attempts == 1


# ── recovery ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_heartbeat_that_comes_late_does_not_wake_a_parked_run(client: AsyncTapeClient) -> None:
    run_id = await begin(client, lease_owner="w1")
    await client.resume_run(run_id=run_id, lease_owner="w1", renew=True)
    await client.await_signal(run_id=run_id, gate_name="ok")
    with pytest.raises(IllegalTransition, match="is WAITING and not leased to 'w1'"):
        await client.resume_run(run_id=run_id, lease_owner="w1", renew=True)
    assert await status_of(client, run_id) == "WAITING"


async def test_runs_to_recover_can_be_those_of_one_app(client: AsyncTapeClient) -> None:
    for app in ("one", "two"):
        await begin(client, app_name=app, lease_owner="w", lease_ttl_ms=1)
    later = time.time_ns() // 1_000_000 + 10_000
    found = await client.list_runs_to_recover(app_name="two", now_ms=later)
    assert [run.app_name for run in found.runs] == ["two"]
    assert len((await client.list_runs_to_recover(now_ms=later)).runs) == 2
