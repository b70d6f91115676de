"""Times that were written while the clock was 30 hours ahead stop nothing once the clock is back."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tape.base.clock import CLOCK_TOLERANCE_MS, now_ms
from tape.engine.executions.dedup import Claims
from tape.engine.ledgers import effects, obligations, runs, timers
from tape.engine.ledgers.effects import Effect
from tape.engine.ledgers.runs import Run
from tape.engine.ledgers.timers import Timer
from tape.engine.reactions import claims, matcher_partitions, registry
from tape.engine.reactions.claims import ClaimRequest
from tape.engine.reactions.reaction import Reaction
from tape.engine.reactions.shards import PARTITIONS
from tape.errors import InvalidInput, LeaseHeld
from tape.model.ledger_states import DispatchMode, EffectStatus, RunStatus
from tape.model.reaction_states import HandlerKind
from tape.model.task_pacing import ahead_us, pace
from tape.store import Database, Transaction, open_database
from tape.store.lease import MAX_TTL_MS, Lease, expiry_ms, latest_expiry_ms
from tape.subscriptions.runtime import leases

HOUR_MS = 3_600_000
AHEAD_MS = 30 * HOUR_MS


@pytest.fixture
async def database(store_url: str) -> AsyncIterator[Database]:
    async with open_database(store_url) as database:
        yield database


def set_clock(monkeypatch: pytest.MonkeyPatch, offset_ms: int) -> None:
    """Let every module of the engine and the journal see a clock with this offset."""
    for module in (
        "tape.engine.ledgers.effects",
        "tape.engine.ledgers.obligations",
        "tape.engine.ledgers.runs",
        "tape.engine.ledgers.timers",
        "tape.engine.reactions.claims",
        "tape.engine.reactions.matcher_partitions",
        "tape.journal.appender",
    ):
        monkeypatch.setattr(f"{module}.now_ms", lambda: now_ms() + offset_ms)


@pytest.mark.parametrize("rate", [1, 3, 50, 10_000])
def test_a_rate_goes_on_after_the_clock_was_ahead(rate: int) -> None:
    now = 1_000_000_000_000
    assert pace(rate, now + AHEAD_MS * 1_000, now, 1)[0] == 1
    assert pace(rate, now + AHEAD_MS * 1_000, now, 1) == pace(rate, now, now, 1)


def test_a_rate_that_another_server_with_a_faster_clock_has_used_is_kept() -> None:
    now = 1_000_000_000_000
    assert pace(1, now + CLOCK_TOLERANCE_MS * 1_000, now, 1)[0] == 0
    assert ahead_us(1, now + CLOCK_TOLERANCE_MS * 1_000, now) == CLOCK_TOLERANCE_MS * 1_000
    assert ahead_us(1, now + CLOCK_TOLERANCE_MS * 1_000 + 1_000_001, now) == 0


def test_a_lease_further_ahead_than_the_longest_one_is_free() -> None:
    assert not Lease("a", latest_expiry_ms(0)).is_free(0)
    assert Lease("a", latest_expiry_ms(0) + 1).is_free(0)
    assert not Lease("a", 10_000 + CLOCK_TOLERANCE_MS).is_free(0, 10_000)
    assert Lease("a", 10_001 + CLOCK_TOLERANCE_MS).is_free(0, 10_000)


def test_a_lease_lasts_24_hours_at_most() -> None:
    assert expiry_ms(5, MAX_TTL_MS, 1) == 5 + 24 * HOUR_MS
    with pytest.raises(InvalidInput, match="24 hours"):
        expiry_ms(5, MAX_TTL_MS + 1, 1)


async def test_partitions_of_a_server_whose_clock_was_ahead_are_leased_by_another(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(monkeypatch, AHEAD_MS)
    await database.write(lambda tx: matcher_partitions.lease_partitions(tx, "before"))
    set_clock(monkeypatch, 0)
    leased = await database.write(lambda tx: matcher_partitions.lease_partitions(tx, "after"))
    assert len(leased.positions) == PARTITIONS


async def test_a_subscription_of_a_server_whose_clock_was_ahead_is_leased_by_another(database: Database) -> None:
    now = now_ms()
    ahead = now + AHEAD_MS
    assert await database.write(lambda tx: leases.claim(tx, "a", "before", ahead, ahead + leases.LEASE_MS))
    assert await database.write(lambda tx: leases.claim(tx, "a", "after", now, now + leases.LEASE_MS))


async def test_a_schedule_that_was_set_while_the_clock_was_ahead_is_set_anew(database: Database) -> None:
    def claim_due(now: int) -> object:
        next_ms = (now // HOUR_MS + 1) * HOUR_MS
        return database.write(lambda tx: leases.claim_due(tx, "a", "me", now, now + 1, next_ms, next_ms))

    assert not await claim_due(AHEAD_MS)  # type: ignore[misc]
    assert not await claim_due(1)  # type: ignore[misc]
    assert await claim_due(HOUR_MS)  # type: ignore[misc]


def insert_task(tx: Transaction, number: int, **fields: object) -> None:
    row = {
        "task_id": f"t{number}",
        "reaction_id": "r",
        "shard": 0,
        "source_run_id": "run",
        "source_global_seq": number,
        "subject": "/tape/a",
        "payload_json": "{}",
        "status": 1,
        "next_attempt_at_ms": 1,
        "created_at_ms": 1,
        "strict_order": 0,
    } | fields
    tx.insert("tape_tasks", tuple(row), [tuple(row.values())])


def register(tx: Transaction, **fields: object) -> None:
    registry.register(tx, Reaction("r", "", "/tape/**", "", HandlerKind.TASK, **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("strict_order", [False, True])
async def test_tasks_leased_or_delayed_while_the_clock_was_ahead_are_claimed(
    database: Database, strict_order: bool
) -> None:
    now = now_ms()

    def claim(tx: Transaction) -> list[str]:
        register(tx, strict_order=strict_order, num_shards=2, max_concurrency=2)
        order = int(strict_order)
        insert_task(tx, 1, status=2, lease_owner="x", lease_expires_at_ms=now + AHEAD_MS, strict_order=order)
        insert_task(tx, 2, next_attempt_at_ms=now + AHEAD_MS, shard=1, strict_order=order)
        assert claims.find_ready(tx, ["r"], now) == ["r"]  # type: ignore[arg-type]
        return sorted(task.task_id for task in claims.claim_tasks(tx, ClaimRequest("r", "w"), now).tasks)

    assert await database.write(claim) == ["t1", "t2"]


async def test_leases_and_delays_within_their_maximum_are_kept(database: Database) -> None:
    now = now_ms()

    def claim(tx: Transaction) -> claims.ClaimResult:
        register(tx, debounce_ms=2 * HOUR_MS, max_concurrency=10)
        insert_task(tx, 1, status=2, lease_owner="x", lease_expires_at_ms=now + MAX_TTL_MS)
        insert_task(tx, 2, next_attempt_at_ms=now + 2 * HOUR_MS)
        return claims.claim_tasks(tx, ClaimRequest("r", "w"), now)

    result = await database.write(claim)
    assert result.tasks == []
    assert result.next_check_at_ms == now + 2 * HOUR_MS


async def test_a_task_whose_last_attempt_has_a_void_lease_becomes_a_dead_letter(database: Database) -> None:
    now = now_ms()

    def claim(tx: Transaction) -> int:
        register(tx, dlq_after_n=3)
        insert_task(tx, 1, status=2, attempts=3, lease_owner="x", lease_expires_at_ms=now + AHEAD_MS)
        return claims.claim_tasks(tx, ClaimRequest("r", "w"), now).dead_lettered

    assert await database.write(claim) == 1


async def test_the_ledgers_go_on_after_the_clock_was_ahead(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(tx: Transaction, name: str) -> Run:
        return runs.begin(tx, Run("", "app", "u", "s", name, RunStatus.RUNNING), owner="before", lease_ms=0)[0]

    set_clock(monkeypatch, AHEAD_MS)
    run = await database.write(lambda tx: begin(tx, "1"))
    set_clock(monkeypatch, 0)
    assert [found.run_id for found in await database.read(runs.list_recoverable)] == [run.run_id]
    await database.write(lambda tx: runs.resume(tx, run.run_id, owner="after", lease_ms=0))
    assert await database.read(runs.list_recoverable) == []
    with pytest.raises(LeaseHeld):
        await database.write(lambda tx: runs.resume(tx, run.run_id, owner="third", lease_ms=0))


async def test_a_timer_leased_while_the_clock_was_ahead_is_due(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(tx: Transaction) -> list[Timer]:
        run, _ = runs.begin(tx, Run("", "app", "u", "s", "1", RunStatus.RUNNING), owner="", lease_ms=0)
        timers.set_timer(tx, Timer(run.run_id, "t", 1, "k", "", False, 0))
        return timers.lease_due(tx, claimer="before")

    set_clock(monkeypatch, AHEAD_MS)
    assert len(await database.write(prepare)) == 1
    assert await database.read(timers.list_due) == []
    set_clock(monkeypatch, 0)
    assert len(await database.read(timers.list_due)) == 1


@pytest.mark.parametrize("registered_at", [AHEAD_MS, 0])
async def test_obligations_and_effects_are_due_after_the_clock_was_ahead(
    database: Database, monkeypatch: pytest.MonkeyPatch, registered_at: int
) -> None:
    def prepare(tx: Transaction) -> tuple[str, int]:
        run, _ = runs.begin(tx, Run("", "app", "u", "s", "1", RunStatus.RUNNING), owner="", lease_ms=0)
        set_clock(monkeypatch, registered_at)  # the journal's time stays ahead
        wanted = Effect(run.run_id, 0, 0, "tool", "e", EffectStatus.PENDING, dispatch_mode=DispatchMode.OUTBOX)
        effects.begin(tx, wanted)
        owed = obligations.register(tx, run, effect_key="e", kind="k")
        return run.run_id, owed.seq

    set_clock(monkeypatch, AHEAD_MS)
    run_id, seq = await database.write(prepare)
    set_clock(monkeypatch, 0)
    assert len(await database.read(effects.list_dispatchable)) == 1
    assert len(await database.read(obligations.list_unresolved)) == 1
    claim = await database.write(lambda tx: effects.claim(tx, run_id, "e", claimer="w", lease_ms=0))
    assert claim.acquired
    _, is_claimed = await database.write(lambda tx: obligations.claim(tx, run_id, seq, claimer="w", lease_ms=0))
    assert is_claimed
    assert await database.read(effects.list_dispatchable) == []
    assert await database.read(obligations.list_unresolved) == []


async def test_a_key_claimed_while_the_clock_was_ahead_is_free_one_window_after_it_is_seen_again(
    database: Database,
) -> None:
    now = now_ms()

    def claim(tx: Transaction, at: int) -> str:
        found = Claims(tx, [("s", "k")])
        holder = found.holder("s", "k", HOUR_MS, at)
        if not holder:
            found.claim("s", "k", f"made at {at}", HOUR_MS, at)
        found.write()
        return holder

    assert await database.write(lambda tx: claim(tx, now + AHEAD_MS)) == ""
    assert await database.write(lambda tx: claim(tx, now)) == f"made at {now + AHEAD_MS}"
    assert await database.write(lambda tx: claim(tx, now + HOUR_MS - 1)) == f"made at {now + AHEAD_MS}"
    assert await database.write(lambda tx: claim(tx, now + HOUR_MS)) == ""
