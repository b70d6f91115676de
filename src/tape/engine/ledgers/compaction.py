"""Compaction: a settled run keeps what happened and forgets what was said."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tape.base.clock import now_ms
from tape.base.telemetry.tracing import NO_TRACE, Trace
from tape.engine.ledgers.run_record import COLUMNS, Run
from tape.engine.ledgers.runs import DEFAULT_LIMIT, ENDED, get, journal, subject_of, visible_condition
from tape.errors import IllegalTransition
from tape.model.ledger_states import DispatchMode, EffectStatus, ObligationStatus, Owed, RunStatus
from tape.store import Reader, Transaction
from tape.store.records import load_all


class Compaction(msgspec.Struct, frozen=True):
    """What compacting a run has blanked."""

    decisions_zeroed: int = 0
    effects_zeroed: int = 0
    bytes_saved: int = 0
    already_compacted: bool = False


def list_compactable(reader: Reader, *, before_ms: int = 0, limit: int = 0) -> list[Run]:
    """Ended runs that were never compacted, oldest first."""
    condition = ", ".join(str(int(status)) for status in sorted(ENDED))
    visible, tenant = visible_condition("tape_runs.run_id")
    rows = reader.query(
        f"SELECT {COLUMNS} FROM tape_runs WHERE status IN ({condition}) AND compacted_at_ms = 0"
        f" AND ended_at_ms > 0 AND ended_at_ms < ?{visible} ORDER BY ended_at_ms, run_id LIMIT ?",
        before_ms or now_ms(),
        *tenant,
        limit if limit > 0 else DEFAULT_LIMIT,
    )
    return load_all(Run, rows)


def compact(tx: Transaction, run_id: str, *, ignore_unowed: bool = False, trace: Trace = NO_TRACE) -> Compaction:
    """Blank what a settled run's decisions and effects said; that they happened stays, and so does the journal.

    With `ignore_unowed`, what a TERMINAL run has registered does not stand in the way: it is never undone.
    """
    run = get(tx, run_id)
    if run.compacted_at_ms:
        return Compaction(already_compacted=True)
    if run.status not in ENDED:
        raise IllegalTransition(f"The run {run_id!r} is {run.status.name}: it is not terminal, so it is not compacted.")
    is_owed_nothing = ignore_unowed and run.status == RunStatus.TERMINAL
    least_owed = Owed.BECAUSE_RUN_FAILED if is_owed_nothing else Owed.IF_RUN_FAILS
    _refuse_unsettled(tx, run_id, least_owed=least_owed)
    decisions, effects = (_blank(tx, run_id, table, texts) for table, texts in _TEXTS.items())
    now = now_ms()
    tx.execute("UPDATE tape_runs SET compacted_at_ms = ? WHERE run_id = ?", now, run_id)
    done = Compaction(decisions[0], effects[0], decisions[1] + effects[1])
    payload = {
        "compacted_at_ms": now,
        "decisions_zeroed": done.decisions_zeroed,
        "effects_zeroed": done.effects_zeroed,
        "bytes_saved": done.bytes_saved,
    }
    journal(tx, run, subject_of(run, "compacted"), payload, trace)
    return done


_TEXTS = {
    "tape_decisions": ("request_json", "response_json", "rationale", "digest"),
    "tape_effects": ("request_json", "response_json", "error_json", "digest"),
}


def _refuse_unsettled(tx: Transaction, run_id: str, least_owed: Owed) -> None:
    for what, table, condition in (
        (
            "open obligation(s)",
            "tape_obligations",
            f"status IN ({ObligationStatus.PENDING}, {ObligationStatus.COMMITTED}) AND owed >= {least_owed}",
        ),
        ("UNKNOWN effect(s)", "tape_effects", f"status = {EffectStatus.UNKNOWN}"),
        (
            "effect(s) in the outbox",
            "tape_effects",
            f"status = {EffectStatus.PENDING} AND dispatch_mode = {DispatchMode.OUTBOX}",
        ),
    ):
        row = tx.one(f"SELECT count(*) FROM {table} WHERE run_id = ? AND {condition}", run_id)
        if row and row[0]:
            raise IllegalTransition(f"The run {run_id!r} has {row[0]} {what}; not settled, so it is not compacted.")


def _blank(tx: Transaction, run_id: str, table: str, texts: Sequence[str]) -> tuple[int, int]:
    """Empty some text columns of a run's rows; how many rows, and how many bytes they held."""
    held = " + ".join(f"length({text})" for text in texts)
    row = tx.one(f"SELECT count(*), COALESCE(sum({held}), 0) FROM {table} WHERE run_id = ? AND {held} > 0", run_id)
    assert row is not None
    blanks = ", ".join(f"{text} = ''" for text in texts)
    tx.execute(f"UPDATE {table} SET {blanks} WHERE run_id = ?", run_id)
    return int(row[0]), int(row[1])
