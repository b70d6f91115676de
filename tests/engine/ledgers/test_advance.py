"""Runs that go on: many at once, and what one at a time would have come to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tape.base.telemetry.tracing import NO_TRACE, Trace
from tape.engine.ledgers import runs
from tape.engine.ledgers.advance import Begun, Completion, Ending, Move, Unusual, advance, advance_many
from tape.engine.ledgers.effects import Denied, Effect
from tape.engine.ledgers.run_batches import RunOpening, open_runs
from tape.engine.ledgers.runs import Run
from tape.errors import IllegalTransition, LeaseHeld, TapeError
from tape.journal.appender import append
from tape.model.ledger_states import DispatchMode, EffectStatus, RunStatus
from tape.store import Database, Transaction

CONFIRMED, FAILED = EffectStatus.CONFIRMED, EffectStatus.FAILED
TRACE = Trace("0" * 31 + "1", "0" * 15 + "2", "", "pool:x")


def opened(tx: Transaction, run_ids: Sequence[str]) -> None:
    wanted = [Run(run_id, "playbooks", "", "s", run_id, RunStatus.RUNNABLE) for run_id in run_ids]
    append(tx, open_runs(tx, [RunOpening(run, {}, NO_TRACE) for run in wanted]))


def effect(run_id: str, key: str, **others: Any) -> Effect:
    return Effect(run_id, 0, -1, f"step {key}", key, EffectStatus.PENDING, request_json=f'"{key}"', **others)


def done(key: str, status: EffectStatus = CONFIRMED) -> Completion:
    return Completion(key, status, response_json='"well"' if status == CONFIRMED else "", error_json="")


def story(prefix: str) -> list[list[Move]]:
    """Five runs and a lease of another owner, in every round; all kinds of moves occur."""
    a, b, c, d, held = (f"{prefix}-{name}" for name in ("a", "b", "c", "d", "held"))
    end = Ending(int(RunStatus.TERMINAL), '{"output":1}')
    me: dict[str, Any] = {"owner": "me", "trace": TRACE}
    return [
        [Move(run, lease_ms=60_000, begin=effect(run, "1"), **me) for run in (a, b, c, d)]
        + [Move(held, owner="them", lease_ms=60_000)],
        [
            Move(a, complete=(done("1"),), begin=effect(a, "2"), **me),
            Move(b, complete=(done("1", FAILED),), end=end, **me),
            Move(c, complete=(done("never"),), begin=effect(c, "2"), **me),
            Move(held, begin=effect(held, "1"), **me),
            Move(d, begin=effect(d, "2"), **me),
            Move(d, begin=effect(d, "3"), **me),
        ],
        [
            Move(a, complete=(done("1", FAILED), done("2")), begin=effect(a, "1"), **me),
            Move(b, lease_ms=60_000, owner="late"),
            Move(d, complete=(done("3"), done("3"), done("2")), **me),
            Move(d, complete=(done("1"),), end=end, **me),
            Move(f"{prefix}-unknown", begin=effect(f"{prefix}-unknown", "1"), **me),
        ],
        [Move(a, end=end, **me), Move(a, end=end, **me), Move(c, end=Ending(int(RunStatus.FAILED), "{}"), **me)],
    ]


Outcomes = list[tuple[str, ...]]


def summary(outcome: Begun | Denied | TapeError | None, prefix: str) -> tuple[str, ...]:
    if isinstance(outcome, Begun):
        found = outcome.effect
        return "begun", found.idempotency_key, found.status.name, str(found.seq), found.response_json
    return type(outcome).__name__, re.sub(r"another \d+ ms", "a while", str(outcome).replace(prefix, ""))


async def one_by_one(database: Database, moves: list[Move], prefix: str) -> Outcomes:
    outcomes: list[Begun | Denied | TapeError | None] = []
    for move in moves:
        try:
            outcomes.append(await database.write(lambda tx, move=move: advance(tx, move)))  # type: ignore[misc]
        except TapeError as error:
            outcomes.append(error)
    return [summary(outcome, prefix) for outcome in outcomes]


async def together(database: Database, moves: list[Move], prefix: str) -> Outcomes:
    """As the server does: what is not usual is asked one by one."""
    usual = [move for move in moves if move.is_usual]
    (found,) = await database.write(lambda tx: advance_many(tx, [usual]))
    results = iter(found)
    outcomes: Outcomes = []
    for move in moves:
        outcome = next(results) if move.is_usual else Unusual()
        if isinstance(outcome, Unusual):
            outcomes += await one_by_one(database, [move], prefix)
        else:
            outcomes.append(summary(outcome, prefix))
    return outcomes


async def state(database: Database, prefix: str) -> list[Any]:
    """Everything that is on record of these runs, but for times."""
    standing = "run_id, status, seq_cursor, lease_owner, detail_json, ended_at_ms > 0, lease_expires_at_ms > 0"
    what_was = "run_id, seq, tool_name, idempotency_key, status, request_json, response_json, error_json, ts_ms > 0"
    said = "run_id, seq, subject, payload_json, kind, tenant, session, trace_id, span_id"
    found = [
        await database.read(
            lambda reader, columns=columns, table=table, order=order: reader.query(  # type: ignore[misc]
                f"SELECT {columns} FROM {table} WHERE run_id LIKE ? ORDER BY {order}", f"{prefix}-%"
            )
        )
        for columns, table, order in (
            (standing, "tape_runs", "run_id"),
            (what_was, "tape_effects", "run_id, idempotency_key"),
            (said, "tape_journal", "run_id, seq"),
        )
    ]
    return [[str(row).replace(prefix, "") for row in rows] for rows in found]


async def test_many_at_once_come_to_what_each_alone_would_have_come_to(database: Database) -> None:
    answers, states = [], []
    for prefix, way in (("alone", one_by_one), ("joint", together)):
        names = [f"{prefix}-{name}" for name in ("a", "b", "c", "d", "held")]
        await database.write(lambda tx, names=names: opened(tx, names))  # type: ignore[misc]
        answers.append([await way(database, moves, prefix) for moves in story(prefix)])
        states.append(await state(database, prefix))
    assert answers[1] == answers[0]
    assert states[1] == states[0]
    assert [answer[0] for answer in answers[1][1]] == [
        "begun",
        "NoneType",
        "IllegalTransition",
        "LeaseHeld",
        "begun",
        "begun",
    ]


async def test_a_move_that_is_refused_stops_no_other_and_leaves_nothing_behind(database: Database) -> None:
    await database.write(lambda tx: opened(tx, ["r-1", "r-2"]))
    moves = [
        Move("r-1", owner="me", lease_ms=60_000, complete=(done("never"),), begin=effect("r-1", "1")),
        Move("r-2", owner="me", lease_ms=60_000, begin=effect("r-2", "1")),
        Move("r-2", owner="you", begin=effect("r-2", "2")),
    ]
    ((refused, begun, held),) = await database.write(lambda tx: advance_many(tx, [moves]))
    assert isinstance(refused, IllegalTransition)
    assert isinstance(begun, Begun)
    assert isinstance(held, LeaseHeld)
    first = await database.read(lambda reader: runs.get(reader, "r-1"))
    assert (first.status, first.lease_owner, first.seq_cursor) == (RunStatus.RUNNABLE, "", 1)


def test_what_needs_a_permission_the_outbox_or_undoing_is_not_usual() -> None:
    assert Move("r", begin=effect("r", "1"), end=Ending(int(RunStatus.TERMINAL))).is_usual
    assert not Move("r", begin=effect("r", "1", scope="pay")).is_usual
    assert not Move("r", begin=effect("r", "1", connector="c", business_key="k")).is_usual
    assert not Move("r", begin=effect("r", "1", dispatch_mode=DispatchMode.OUTBOX)).is_usual
    assert not Move("r", end=Ending(int(RunStatus.FAILED))).is_usual
