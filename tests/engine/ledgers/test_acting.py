"""Who may act for a run: its lease, and callers that name no lease owner."""

from __future__ import annotations

from typing import Any

import pytest

from tape.engine.ledgers import decisions, effects, gates, runs
from tape.engine.ledgers.advance import Ending, Move, advance, advance_many
from tape.engine.ledgers.decisions import Decision
from tape.engine.ledgers.effects import Effect
from tape.engine.ledgers.runs import Run
from tape.errors import LeaseHeld, RunRefused, RunWaiting, TapeError
from tape.model.ledger_states import EffectStatus, RunStatus
from tape.server.grpc.methods import host_of
from tape.store import Database, Transaction


def begin(tx: Transaction, *, owner: str = "", caller: str = "a", lease_ms: int = 60_000) -> Run:
    wanted = Run("", "app", "u", "s", "i", RunStatus.RUNNING)
    return runs.begin(tx, wanted, owner=owner, caller=caller, lease_ms=lease_ms)[0]


def decide(tx: Transaction, run_id: str, **caller: str) -> Decision:
    return decisions.record(tx, Decision(run_id, 0, 0, "", "", "", "", "", 0), **caller)


def effect(run_id: str, key: str) -> Effect:
    return Effect(run_id, 0, -1, "pay", key, EffectStatus.PENDING)


async def test_a_caller_without_an_owner_acts_under_its_own_lease_only(database: Database) -> None:
    run = await database.write(begin)

    async def write(act: Any) -> Any:
        return await database.write(act)

    for owner in ("", "worker"):  # also when the lease names an owner
        await write(lambda tx, owner=owner: runs.resume(tx, run.run_id, owner=owner, caller="a", lease_ms=60_000))
        await write(lambda tx: decide(tx, run.run_id, caller="a"))
        for act in (
            lambda tx: decide(tx, run.run_id, caller="b"),
            lambda tx: effects.begin(tx, effect(run.run_id, "k"), caller="b"),
            lambda tx: runs.end(tx, run.run_id, RunStatus.TERMINAL, caller="b"),
            lambda tx: begin(tx, caller="b"),
            lambda tx: advance(tx, Move(run.run_id, begin=effect(run.run_id, "k"), caller="b")),
        ):
            with pytest.raises(LeaseHeld, match="another caller"):
                await write(act)
    assert (await database.read(lambda reader: runs.get(reader, run.run_id))).status == RunStatus.RUNNING


async def test_any_caller_acts_for_a_run_whose_lease_has_expired(database: Database) -> None:
    run = await database.write(lambda tx: begin(tx, owner="worker", lease_ms=1))
    while runs.now_ms() <= run.lease_expires_at_ms:
        pass
    await database.write(lambda tx: decide(tx, run.run_id, caller="b"))


async def test_a_parked_run_is_advanced_by_no_batch(database: Database) -> None:
    run = await database.write(lambda tx: begin(tx, owner="me"))
    await database.write(lambda tx: effects.begin(tx, effect(run.run_id, "old"), owner="me"))
    await database.write(lambda tx: gates.wait(tx, run.run_id, "g", owner="me"))
    move = Move(run.run_id, owner="me", begin=effect(run.run_id, "new"), caller="a")
    end = Move(run.run_id, owner="me", end=Ending(int(RunStatus.TERMINAL)), caller="a")
    old = Move(run.run_id, owner="me", begin=effect(run.run_id, "old"), caller="a")
    ((refused, not_ended, existing),) = await database.write(lambda tx: advance_many(tx, [[move, end, old]]))
    for error in (refused, not_ended):
        assert isinstance(error, RunRefused)
        assert isinstance(error.interruption, RunWaiting)
        assert (error.code, error.status) == ("TAPE-2421", "FAILED_PRECONDITION")
    assert not isinstance(existing, TapeError)
    for each in (move, end):
        with pytest.raises(RunRefused):
            await database.write(lambda tx, each=each: advance(tx, each))  # type: ignore[misc]
    parked = await database.read(lambda reader: runs.get(reader, run.run_id))
    assert (parked.status, parked.lease_caller) == (RunStatus.WAITING, "")


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.7:4711", "10.0.0.7"),
        ("ipv4:127.0.0.1:4711", "localhost"),
        ("ipv6:%5B::1%5D:4711", "localhost"),
        ("ipv6:[::1]:4711", "localhost"),
        ("ipv6:[::ffff:10.0.0.7]:80", "10.0.0.7"),
        ("ipv6:[fe80::1%25eth0]:80", "fe80::1"),
        ("unix:/run/tape.sock", "localhost"),
        ("", "localhost"),
    ],
)
def test_the_host_of_a_caller_is_the_same_for_each_of_its_connections(peer: str, host: str) -> None:
    assert host_of(peer) == host
