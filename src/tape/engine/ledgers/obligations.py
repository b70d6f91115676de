"""Obligations: compensations of a run, executed if it fails, newest first.

An obligation is *owed* once its run has failed, was cancelled, or is compensating or stuck. Obligations of a
healthy run only wait. A duplicate is owed whatever the status of the run, and is compensated in any order.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tape.base.clock import now_ms
from tape.base.telemetry.tracing import NO_TRACE, Trace
from tape.engine.ledgers import runs
from tape.engine.ledgers.due_times import due_condition, due_parameters, is_due
from tape.engine.ledgers.run_record import Run
from tape.errors import InvalidInput, LeaseHeld, NotFound
from tape.model import subject
from tape.model.entry import check_id
from tape.model.ledger_states import ObligationStatus, Owed, RunStatus, check_transition, parse
from tape.store import Reader, Transaction
from tape.store.lease import Lease, expiry_ms, latest_expiry_ms
from tape.store.records import Record, columns, insert, load, load_all, store

DEFAULT_CLAIM_MS = 60_000
DEFAULT_ATTEMPTS = 5
DEFAULT_LIMIT = 500

PENDING, COMMITTED, COMPENSATED, STUCK = ObligationStatus

# A failed attempt is retried or makes the obligation stuck; an operator may resume a stuck one.
ATTEMPTING = {
    PENDING: frozenset({PENDING, STUCK}),
    COMMITTED: frozenset({PENDING, STUCK}),
    STUCK: frozenset({PENDING, STUCK}),
    COMPENSATED: frozenset[ObligationStatus](),
}
RESOLVING = {
    PENDING: frozenset({COMPENSATED, STUCK}),
    COMMITTED: frozenset({COMPENSATED, STUCK}),
    STUCK: frozenset({COMPENSATED, STUCK}),
    COMPENSATED: frozenset({COMPENSATED}),
}


class Obligation(Record, frozen=True):
    """A row of tape_obligations."""

    run_id: str
    seq: int
    effect_key: str
    kind: str
    payload_json: str
    status: ObligationStatus
    ts_ms: int
    compensator_ref: str = ""
    attempts: int = 0
    max_attempts: int = DEFAULT_ATTEMPTS
    next_attempt_at_ms: int = 0
    last_error: str = ""
    claimed_by: str = ""
    claim_expires_at_ms: int = 0
    result_json: str = ""
    owed: Owed = Owed.IF_RUN_FAILS
    act: str = ""


_COLUMNS = columns(Obligation)
_LEFT_TO_COMPENSATE = f"owed = {Owed.BECAUSE_RUN_FAILED} AND status <> {COMPENSATED}"
_KEYS = ("run_id", "seq")


def find(reader: Reader | Transaction, run_id: str, seq: int) -> Obligation | None:
    """The obligation at that seq of a run, or None."""
    if not runs.is_visible(reader, run_id):
        return None
    row = reader.one(f"SELECT {_COLUMNS} FROM tape_obligations WHERE run_id = ? AND seq = ?", run_id, seq)
    return load(Obligation, row)


def get(reader: Reader | Transaction, run_id: str, seq: int) -> Obligation:
    """The obligation at that seq of a run; NotFound if there is none."""
    obligation = find(reader, run_id, seq)
    if obligation is None:
        raise NotFound(f"no such obligation: {seq} of run {run_id!r}.")
    return obligation


def register(
    tx: Transaction,
    run: Run,
    *,
    effect_key: str,
    kind: str,
    payload_json: str = "",
    compensator_ref: str = "",
    max_attempts: int = 0,
    act: str = "",
    trace: Trace = NO_TRACE,
) -> Obligation:
    """Register an obligation; a repeated registration returns the existing one.

    `act` distinguishes a duplicate from the effect itself, which may have an obligation of the same kind.
    """
    if not kind:
        raise InvalidInput("kind is empty; say what is to be undone, for example 'refund'.")
    check_id("effect_key", effect_key)
    check_id("kind", kind)
    row = tx.one(
        f"SELECT {_COLUMNS} FROM tape_obligations WHERE run_id = ? AND effect_key = ? AND kind = ? AND act = ?",
        run.run_id,
        effect_key,
        kind,
        act,
    )
    if (existing := load(Obligation, row)) is not None:
        return existing
    payload = {"effect_key": effect_key, "kind": kind, "status": "pending", "transition": "registered"}
    if act:
        payload["act"] = act
    entry = runs.journal(tx, run, subject.obligation("registered", kind, run.run_id), payload, trace)
    obligation = Obligation(
        run_id=run.run_id,
        seq=entry.seq,
        effect_key=effect_key,
        kind=kind,
        payload_json=payload_json,
        status=PENDING,
        ts_ms=entry.ts_ms,
        compensator_ref=compensator_ref,
        max_attempts=max_attempts if max_attempts > 0 else DEFAULT_ATTEMPTS,
        # The journal's time never goes back: after the clock was ahead, it is later than now.
        next_attempt_at_ms=min(entry.ts_ms, now_ms()),
        owed=_owed_by(run, act),
        act=act,
    )
    insert(tx, "tape_obligations", obligation)
    return obligation


def _owed_by(run: Run, act: str) -> Owed:
    if act:
        return Owed.ALWAYS
    return Owed.BECAUSE_RUN_FAILED if run.status in runs.UNDOING else Owed.IF_RUN_FAILS


def claim(
    tx: Transaction,
    run_id: str,
    seq: int,
    *,
    claimer: str,
    lease_ms: int,
    only_owed: bool = False,
    renew: bool = False,
    trace: Trace = NO_TRACE,
) -> tuple[Obligation | None, bool]:
    """Claim an obligation that is due or whose claim has expired; True if the claim succeeded.

    With `only_owed` it must be the next one of its run, and the run becomes COMPENSATING.
    """
    if not claimer:
        raise InvalidInput("claimer is empty; a claim needs a name.")
    before = find(tx, run_id, seq)
    if before is None:
        return None, False
    now = now_ms()
    expires = expiry_ms(now, lease_ms, DEFAULT_CLAIM_MS)
    if renew:
        if before.status != COMMITTED or before.claimed_by != claimer:
            return before, False
        renewed = msgspec.structs.replace(before, claim_expires_at_ms=expires)
        store(tx, "tape_obligations", _KEYS, renewed)
        return renewed, True
    is_pending = before.status == PENDING and is_due(before.next_attempt_at_ms, before.ts_ms, now)
    is_abandoned = (
        before.status == COMMITTED
        and before.claim_expires_at_ms > 0
        and Lease(before.claimed_by, before.claim_expires_at_ms).is_free(now)
    )
    if not (is_pending or is_abandoned) or (only_owed and not _is_next_to_undo(tx, before)):
        return before, False
    if only_owed and before.owed == Owed.BECAUSE_RUN_FAILED:
        _change_run_status(tx, runs.get(tx, run_id), RunStatus.COMPENSATING, trace)
    claimed = msgspec.structs.replace(before, status=COMMITTED, claimed_by=claimer, claim_expires_at_ms=expires)
    return _change(tx, claimed, "committed", {"transition": "claimed", "claimer": claimer}, trace), True


def reopen(tx: Transaction, run: Run, effect_key: str, trace: Trace) -> None:
    """Reopen the compensated obligations of an effect that was confirmed later.

    The effect may have been in progress while its run was cancelled and compensated.
    """
    rows = tx.query(
        f"SELECT {_COLUMNS} FROM tape_obligations WHERE run_id = ? AND effect_key = ? AND act = ''"
        f" AND status = {COMPENSATED}",
        run.run_id,
        effect_key,
    )
    for before in load_all(Obligation, rows):
        after = msgspec.structs.replace(
            before, status=PENDING, attempts=0, result_json="", next_attempt_at_ms=now_ms(), owed=_owed_by(run, "")
        )
        _change(tx, after, "pending", {"transition": "reopened"}, trace)


def _is_next_to_undo(tx: Transaction, obligation: Obligation) -> bool:
    """Whether it is owed and no newer obligation of its run is open."""
    if obligation.owed != Owed.BECAUSE_RUN_FAILED:
        return obligation.owed == Owed.ALWAYS
    newer = f"SELECT 1 FROM tape_obligations WHERE run_id = ? AND seq > ? AND {_LEFT_TO_COMPENSATE} LIMIT 1"
    return tx.one(newer, obligation.run_id, obligation.seq) is None


def _settle_run(tx: Transaction, obligation: Obligation, trace: Trace) -> None:
    """Update the run: STUCK with a stuck obligation, its former status when all are compensated."""
    run = runs.get(tx, obligation.run_id)
    if obligation.owed != Owed.BECAUSE_RUN_FAILED or run.status not in runs.UNDOING:
        return
    if obligation.status == STUCK:
        _change_run_status(tx, run, RunStatus.STUCK, trace)
        return
    left = f"SELECT 1 FROM tape_obligations WHERE run_id = ? AND {_LEFT_TO_COMPENSATE} LIMIT 1"
    if tx.one(left, run.run_id) is None and run.status in (RunStatus.COMPENSATING, RunStatus.STUCK):
        _change_run_status(tx, run, RunStatus(run.former_status or RunStatus.FAILED), trace)


def _change_run_status(tx: Transaction, run: Run, status: RunStatus, trace: Trace) -> None:
    if run.status == RunStatus.CANCELLED and status == RunStatus.STUCK:
        _change_run_status(tx, run, RunStatus.COMPENSATING, trace)
    runs.end(tx, run.run_id, status, detail_json=run.detail_json, trace=trace)


def _check_claim(obligation: Obligation, claimer: str) -> None:
    if claimer and obligation.claimed_by != claimer:
        holder = f"is claimed by {obligation.claimed_by!r}" if obligation.claimed_by else "is not claimed"
        raise LeaseHeld(
            f"The obligation {obligation.seq} of run {obligation.run_id!r} {holder};"
            f" the claim of {claimer!r} has expired."
        )


def record_attempt(
    tx: Transaction,
    run_id: str,
    seq: int,
    *,
    error: str,
    next_at_ms: int,
    settle_run: bool = False,
    claimer: str = "",
    uncounted: bool = False,
    trace: Trace = NO_TRACE,
) -> Obligation:
    """Record a failed attempt: retried at `next_at_ms`, or stuck after the last attempt."""
    before = get(tx, run_id, seq)
    _check_claim(before, claimer)
    attempts = before.attempts + (0 if uncounted else 1)
    is_stuck = next_at_ms <= 0 or attempts >= before.max_attempts
    after = STUCK if is_stuck else PENDING
    check_transition(f"The obligation {seq} of run {run_id!r}", ATTEMPTING, before.status, after)
    obligation = msgspec.structs.replace(
        before,
        status=after,
        attempts=attempts,
        next_attempt_at_ms=0 if is_stuck else next_at_ms,
        last_error=error,
        claimed_by="",
        claim_expires_at_ms=0,
    )
    facts = {
        "transition": "stuck" if is_stuck else "retry-scheduled",
        "attempts": attempts,
        "error": error,
        "next_attempt_at_ms": obligation.next_attempt_at_ms,
    }
    obligation = _change(tx, obligation, after.name.lower(), facts, trace)
    if settle_run and is_stuck:
        _settle_run(tx, obligation, trace)
    return obligation


def resolve(
    tx: Transaction,
    run_id: str,
    seq: int,
    status: int,
    *,
    result_json: str = "",
    settle_run: bool = False,
    claimer: str = "",
    trace: Trace = NO_TRACE,
) -> Obligation:
    """Resolve an obligation as COMPENSATED (default) or STUCK."""
    after = COMPENSATED if status == 0 else parse(ObligationStatus, "status", status)
    if after not in (COMPENSATED, STUCK):
        raise InvalidInput(f"status {after.name} resolves nothing; use COMPENSATED (3) or STUCK (4).")
    before = get(tx, run_id, seq)
    check_transition(f"The obligation {seq} of run {run_id!r}", RESOLVING, before.status, after)
    if before.status == after:
        return before
    _check_claim(before, claimer)
    obligation = msgspec.structs.replace(
        before, status=after, result_json=result_json, claimed_by="", claim_expires_at_ms=0, next_attempt_at_ms=0
    )
    obligation = _change(tx, obligation, after.name.lower(), {"transition": "resolved"}, trace)
    if settle_run:
        _settle_run(tx, obligation, trace)
    return obligation


def _change(tx: Transaction, obligation: Obligation, verb: str, facts: dict[str, Any], trace: Trace) -> Obligation:
    run = runs.get(tx, obligation.run_id)
    payload = {
        "obligation_seq": obligation.seq,
        "effect_key": obligation.effect_key,
        "kind": obligation.kind,
        "status": verb,
        **facts,
    }
    entry = runs.journal(tx, run, subject.obligation(verb, obligation.kind, run.run_id), payload, trace)
    obligation = msgspec.structs.replace(obligation, ts_ms=entry.ts_ms)
    store(tx, "tape_obligations", _KEYS, obligation)
    return obligation


def list_of_run(reader: Reader, run_id: str, *, only_unresolved: bool = False, status: int = 0) -> list[Obligation]:
    """List a run's obligations, newest first; a status overrides `only_unresolved`."""
    if not runs.is_visible(reader, run_id):
        return []
    condition, params = "", []
    if status:
        condition, params = " AND status = ?", [int(parse(ObligationStatus, "status_filter", status))]
    elif only_unresolved:
        condition = f" AND status <> {COMPENSATED}"
    return load_all(
        Obligation,
        reader.query(
            f"SELECT {_COLUMNS} FROM tape_obligations WHERE run_id = ?{condition} ORDER BY seq DESC", run_id, *params
        ),
    )


def list_unresolved(
    reader: Reader,
    *,
    now: int = 0,
    pending: bool = False,
    stuck: bool = False,
    abandoned: bool = False,
    only_owed: bool = False,
    limit: int = 0,
) -> list[Obligation]:
    """List obligations of all runs that need an attempt. Default: due ones and those with an expired claim.

    With `only_owed` only the next one of each run, and duplicates.
    """
    moment = now or now_ms()
    visible, tenant = runs.visible_condition("this.run_id")
    if pending or not (stuck or abandoned):
        pending = abandoned = True
    conditions = []
    params: list[int] = []
    # Owed ones are found by their own index; PostgreSQL must not take the condition for that of all open ones.
    status = "+status" if only_owed else "status"
    if pending:
        conditions.append(f"({status} = 1 AND {due_condition('next_attempt_at_ms')})")
        params += due_parameters(moment)
    if stuck:
        conditions.append(f"{status} = 4")
    if abandoned:
        conditions.append(
            f"({status} = 2 AND claim_expires_at_ms > 0 AND (claim_expires_at_ms <= ? OR claim_expires_at_ms > ?))"
        )
        params += [moment, latest_expiry_ms(moment)]
    return load_all(
        Obligation,
        reader.query(
            f"SELECT {_COLUMNS} FROM tape_obligations AS this"
            f" WHERE {_OWED if only_owed else _OPEN} AND ({' OR '.join(conditions)}){visible}"
            " ORDER BY next_attempt_at_ms, ts_ms, seq DESC LIMIT ?",
            *params,
            *tenant,
            limit if limit > 0 else DEFAULT_LIMIT,
        ),
    )


# Each begins with the condition of its index: without that SQLite reads the whole table.
_OPEN = f"status IN ({PENDING}, {COMMITTED}, {STUCK})"
_OWED = (
    f"owed > {Owed.IF_RUN_FAILS} AND status <> {COMPENSATED} AND (owed = {Owed.ALWAYS} OR NOT EXISTS"
    " (SELECT 1 FROM tape_obligations AS newer WHERE newer.run_id = this.run_id AND newer.seq > this.seq"
    f" AND newer.owed = {Owed.BECAUSE_RUN_FAILED} AND newer.status <> {COMPENSATED}))"
)
