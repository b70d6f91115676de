"""Effects: calls of a run to external systems. Pending before the call, settled after it, never executed twice.

An *inline* effect is executed by the agent. An *outbox* effect waits here until a dispatcher claims it; only an
outbox effect can do something that must not be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tape.base.clock import now_ms
from tape.base.telemetry.tracing import NO_TRACE, Trace
from tape.engine.ledgers import obligations, runs, steps
from tape.engine.ledgers.due_times import due_condition, due_parameters, is_due
from tape.engine.ledgers.run_record import Run
from tape.errors import IllegalTransition, InvalidInput, LeaseHeld, NotFound, RunChanged, RunRefused, ScopeDenied
from tape.model import subject
from tape.model.entry import check_id
from tape.model.ledger_states import (
    ChangeCheck,
    DispatchCertainty,
    DispatchMode,
    EffectSemantics,
    EffectStatus,
    Resolution,
    check_transition,
    parse,
)
from tape.store import Reader, Transaction
from tape.store.lease import Lease, expiry_ms, latest_expiry_ms
from tape.store.records import Record, columns, insert, load, load_all, store

DEFAULT_CLAIM_MS = 60_000
DEFAULT_LIMIT = 200

PENDING, CONFIRMED, FAILED, UNKNOWN = EffectStatus
SETTLED = frozenset({CONFIRMED, FAILED})

# Transitions by a dispatcher or an observation. A confirmed effect stays confirmed; a failed one
# can still be observed as confirmed.
OBSERVING: Mapping[EffectStatus, frozenset[EffectStatus]] = {
    PENDING: frozenset({PENDING, CONFIRMED, FAILED, UNKNOWN}),
    UNKNOWN: frozenset({PENDING, CONFIRMED, FAILED, UNKNOWN}),
    FAILED: frozenset({FAILED, CONFIRMED}),
    CONFIRMED: frozenset({CONFIRMED}),
}
DISPATCHING: Mapping[EffectStatus, frozenset[EffectStatus]] = {
    PENDING: frozenset({PENDING, UNKNOWN}),
    UNKNOWN: frozenset({PENDING, UNKNOWN}),
    FAILED: frozenset(),
    CONFIRMED: frozenset(),
}


class Effect(Record, frozen=True):
    """A row of tape_effects."""

    run_id: str
    seq: int
    decision_index: int
    tool_name: str
    idempotency_key: str
    status: EffectStatus
    request_json: str = ""
    response_json: str = ""
    error_json: str = ""
    ts_ms: int = 0
    semantics: EffectSemantics = EffectSemantics.IDEMPOTENT
    dispatch_mode: DispatchMode = DispatchMode.INLINE
    business_key: str = ""
    connector: str = ""
    dispatch_attempts: int = 0
    next_dispatch_at_ms: int = 0
    external_ref: str = ""
    dispatch_claimed_by: str = ""
    dispatch_claim_expires_at_ms: int = 0
    last_dispatch_error: str = ""
    scope: str = ""
    dispatch_certainty: DispatchCertainty = DispatchCertainty.UNSPECIFIED
    # The run's, where a business key has to be unique in it.
    tenant: str = ""
    # What it was begun with, and where it stands in the run; "" if the client does not say.
    digest: str = ""
    position: str = ""


_COLUMNS = columns(Effect)
_KEYS = ("run_id", "idempotency_key")


def find(reader: Reader | Transaction, run_id: str, key: str) -> Effect | None:
    """The effect with that idempotency key, or None."""
    if not runs.is_visible(reader, run_id):
        return None
    row = reader.one(f"SELECT {_COLUMNS} FROM tape_effects WHERE run_id = ? AND idempotency_key = ?", run_id, key)
    return load(Effect, row)


def get(reader: Reader | Transaction, run_id: str, key: str) -> Effect:
    """The effect with that idempotency key; NotFound if there is none."""
    effect = find(reader, run_id, key)
    if effect is None:
        raise NotFound(f"no such effect: {key!r} of run {run_id!r}.")
    return effect


def key_of(run_id: str, decision_index: int, tool_name: str, call_index: int) -> str:
    """The idempotency key of a call: the same call of a replayed run has the same key."""
    decision = f"decision-{decision_index}" if decision_index >= 0 else "no-decision"
    return f"{run_id}/{decision}/{tool_name}/{call_index}"


# ── begin ────────────────────────────────────────────────────────────────────────────────────────


class Denied(msgspec.Struct, frozen=True):
    """A rejection that is written to the journal: it must be committed, so it is a result and not an exception."""

    error: ScopeDenied


class Begun(msgspec.Struct, frozen=True):
    """An effect that was begun; one that `existed` has its outcome. `displaced` is what the run recorded there."""

    effect: Effect
    existed: bool
    displaced: str = ""


def check(wanted: Effect) -> None:
    """Raise if no run could begin this effect."""
    steps.check_step(wanted.digest, wanted.position)
    if not wanted.tool_name:
        raise InvalidInput("tool_name is empty.")
    for name in ("tool_name", "idempotency_key", "business_key", "connector", "scope"):
        check_id(name, getattr(wanted, name))
    if wanted.semantics == EffectSemantics.NON_IDEMPOTENT:
        if wanted.dispatch_mode == DispatchMode.INLINE:
            raise IllegalTransition(
                "A NON_IDEMPOTENT effect cannot be dispatched INLINE: after a crash it would be unknown whether it"
                " happened. Use dispatch_mode OUTBOX with a connector."
            )
        if not wanted.scope:
            raise ScopeDenied("policy violation: a NON_IDEMPOTENT effect needs a scope, and none was named.")
    if wanted.business_key and not wanted.connector:
        raise IllegalTransition("business_key requires connector: name the connector that the key is unique for.")


def begin(
    tx: Transaction,
    wanted: Effect,
    *,
    owner: str = "",
    caller: str = "",
    trace: Trace = NO_TRACE,
    change_check: ChangeCheck = ChangeCheck.UNSPECIFIED,
    after_seq: int = 0,
) -> Begun | Denied:
    """Begin an effect before its execution. If it exists already, that effect with its outcome.

    Raises RunRefused if the run is parked, cancelled or ended, or has recorded another step there.
    """
    run = runs.get_writable(tx, wanted.run_id, owner, caller)
    if wanted.scope and wanted.scope not in run.scopes:
        return _deny(tx, run, wanted, trace)
    if wanted.business_key:
        wanted = msgspec.structs.replace(wanted, tenant=run.tenant)
    existing = find(tx, run.run_id, wanted.idempotency_key) or _same_business(tx, wanted)
    if existing is not None:
        return Begun(existing, existed=True)
    runs.check_acting(run)
    displaced = _displaced(tx, wanted, change_check, after_seq)
    if change_check == ChangeCheck.PEEK:
        wanted = msgspec.structs.replace(wanted, position="")
    entry = runs.journal(tx, run, *describe_begin(wanted), trace)
    # The journal's time never goes back: after the clock was ahead, it is later than now.
    due = min(entry.ts_ms, now_ms()) if wanted.dispatch_mode == DispatchMode.OUTBOX else 0
    effect = msgspec.structs.replace(wanted, seq=entry.seq, ts_ms=entry.ts_ms, next_dispatch_at_ms=due)
    insert(tx, "tape_effects", effect)
    return Begun(effect, existed=False, displaced=displaced)


def _displaced(tx: Transaction, wanted: Effect, change_check: ChangeCheck, after_seq: int) -> str:
    """The step that the run has recorded where a new effect is to begin; raises RunChanged if the client asks so."""
    if change_check == ChangeCheck.UNSPECIFIED:
        return ""
    if change_check == ChangeCheck.PEEK:
        return steps.describe_after(tx, wanted.run_id, after_seq)
    displaced = steps.describe_at(tx, wanted.run_id, wanted.position)
    if displaced and change_check == ChangeCheck.STOP:
        raise RunRefused(
            RunChanged(
                f"At position {wanted.position} the run {wanted.run_id!r} recorded {displaced}, and not"
                f" {wanted.tool_name!r}, which is begun there now."
            )
        )
    return displaced


def describe_begin(wanted: Effect) -> tuple[str, dict[str, Any]]:
    """Subject and payload of the entry of an effect that begins."""
    payload = {
        "tool": wanted.tool_name,
        "decision_index": wanted.decision_index,
        "idempotency_key": wanted.idempotency_key,
        "status": "pending",
        "semantics": int(wanted.semantics),
        "dispatch_mode": int(wanted.dispatch_mode),
        "business_key": wanted.business_key,
        "connector": wanted.connector,
        "scope": wanted.scope,
    }
    return subject.effect("pending", wanted.tool_name, wanted.run_id), payload


def _same_business(tx: Transaction, wanted: Effect) -> Effect | None:
    if not wanted.business_key:
        return None
    row = tx.one(
        f"SELECT {_COLUMNS} FROM tape_effects WHERE connector = ? AND business_key = ? AND tenant = ?"
        " AND connector <> '' AND business_key <> ''",
        wanted.connector,
        wanted.business_key,
        wanted.tenant,
    )
    return load(Effect, row)


def _deny(tx: Transaction, run: Run, wanted: Effect, trace: Trace) -> Denied:
    payload = {
        "tool": wanted.tool_name,
        "decision_index": wanted.decision_index,
        "required_scope": wanted.scope,
        "granted_scopes": run.scopes,
        "violation": "scope_not_granted",
    }
    runs.journal(tx, run, subject.policy_denied(wanted.tool_name, run.run_id), payload, trace)
    granted = ", ".join(run.scopes) or "none"
    return Denied(
        ScopeDenied(f'policy violation: scope "{wanted.scope}" not granted to run {run.run_id!r} (granted: {granted}).')
    )


# ── settle ───────────────────────────────────────────────────────────────────────────────────────


def complete(
    tx: Transaction,
    run_id: str,
    key: str,
    status: int,
    *,
    response_json: str = "",
    error_json: str = "",
    owner: str = "",
    trace: Trace = NO_TRACE,
) -> Effect:
    """Record the outcome of a pending effect. A settled effect is returned unchanged."""
    after = completed_status(status)
    run = runs.get_writable(tx, run_id, owner)
    before = find(tx, run_id, key)
    if before is None:
        raise effect_not_begun(run_id, key)
    if before.status != PENDING:
        return before
    effect = completed(before, after, response_json, error_json)
    if after == CONFIRMED and run.status in runs.UNDOING:
        obligations.reopen(tx, run, key, trace)
    return _settle(tx, run, effect, after.name.lower(), {}, trace)


def completed_status(number: int) -> EffectStatus:
    """The status that completes an effect, by its number on the wire."""
    after = parse(EffectStatus, "status", number)
    if after == PENDING:
        raise InvalidInput("status PENDING (1) completes nothing; use CONFIRMED (2), FAILED (3) or UNKNOWN (4).")
    return after


def completed(before: Effect, after: EffectStatus, response_json: str, error_json: str) -> Effect:
    """The effect with this outcome."""
    return msgspec.structs.replace(
        before, status=after, response_json=response_json, error_json=error_json, **_UNCLAIMED
    )


def effect_not_begun(run_id: str, key: str) -> IllegalTransition:
    """The error for completing an effect that was never begun."""
    return IllegalTransition(f"complete_effect before begin_effect: {key!r} of run {run_id!r} was never begun.")


def reconcile(
    tx: Transaction,
    run_id: str,
    key: str,
    status: int,
    *,
    response_json: str = "",
    error_json: str = "",
    trace: Trace = NO_TRACE,
) -> Effect:
    """Resolve an effect with an open outcome. A settled effect is returned unchanged."""
    after = parse(EffectStatus, "resolved_status", status)
    run = runs.get(tx, run_id)
    before = get(tx, run_id, key)
    if before.status in SETTLED:
        return before
    effect = msgspec.structs.replace(
        before, status=after, response_json=response_json, error_json=error_json, **_UNCLAIMED
    )
    if after == CONFIRMED:
        obligations.reopen(tx, run, key, trace)
    return _settle(tx, run, effect, "reconciled", {"resolved_to": int(after)}, trace)


def observe(
    tx: Transaction,
    run_id: str,
    key: str,
    resolution: int,
    *,
    external_ref: str = "",
    response_json: str = "",
    error_json: str = "",
    compensate_kind: str = "",
    claimer: str = "",
    trace: Trace = NO_TRACE,
) -> Effect:
    """Record what the external system reports about an effect."""
    seen = parse(Resolution, "resolution", resolution)
    run = runs.get(tx, run_id)
    before = get(tx, run_id, key)
    _check_claim(before, claimer)
    after = _observed(before, seen)
    is_known = before.status in SETTLED and response_json in ("", before.response_json)
    if after == before.status and is_known and external_ref in ("", before.external_ref) and not compensate_kind:
        return before
    check_transition(f"The effect {key!r}", OBSERVING, before.status, after)
    due = now_ms() if after == PENDING and before.dispatch_mode == DispatchMode.OUTBOX else before.next_dispatch_at_ms
    effect = msgspec.structs.replace(
        before,
        status=after,
        external_ref=external_ref or before.external_ref,
        response_json=response_json or before.response_json,
        error_json=error_json or before.error_json,
        next_dispatch_at_ms=due,
        **_UNCLAIMED,
    )
    if seen == Resolution.DUPLICATE and compensate_kind:
        act = f"duplicate:{external_ref}"
        obligations.register(
            tx, run, effect_key=key, kind=compensate_kind, payload_json=response_json, act=act, trace=trace
        )
    if after == CONFIRMED and before.status != CONFIRMED:
        obligations.reopen(tx, run, key, trace)
    facts = {"transition": f"observed-{seen.name.lower()}", "external_ref": effect.external_ref}
    return _settle(tx, run, effect, after.name.lower(), facts, trace)


def _observed(effect: Effect, seen: Resolution) -> EffectStatus:
    match seen:
        case Resolution.CONFIRMED | Resolution.DUPLICATE:
            return CONFIRMED
        case Resolution.FAILED:
            return FAILED
        case Resolution.ABSENT:
            # It did not happen: it may safely be done again only if repeating it is harmless.
            return PENDING if effect.semantics == EffectSemantics.IDEMPOTENT else FAILED
        case Resolution.STUCK:
            return UNKNOWN
        case Resolution.UNSPECIFIED:
            return effect.status


_UNCLAIMED: dict[str, Any] = {"dispatch_claimed_by": "", "dispatch_claim_expires_at_ms": 0}


def _settle(tx: Transaction, run: Run, effect: Effect, verb: str, facts: dict[str, Any], trace: Trace) -> Effect:
    """Store an effect's new state and journal it."""
    name, payload = describe_settlement(effect, verb)
    entry = runs.journal(tx, run, name, {**payload, **facts}, trace)
    effect = msgspec.structs.replace(effect, ts_ms=entry.ts_ms)
    store(tx, "tape_effects", _KEYS, effect)
    return effect


def describe_settlement(effect: Effect, verb: str) -> tuple[str, dict[str, Any]]:
    """Subject and payload of the entry of an effect that is settled."""
    payload = {"tool": effect.tool_name, "idempotency_key": effect.idempotency_key, "status": verb}
    return subject.effect(verb, effect.tool_name, effect.run_id), payload


# ── the outbox ───────────────────────────────────────────────────────────────────────────────────


def list_dispatchable(reader: Reader, *, now: int = 0, connector: str = "", limit: int = 0) -> list[Effect]:
    """List outbox effects that are due and not claimed, longest due first."""
    moment = now or now_ms()
    narrowed, params = (" AND connector = ?", [connector]) if connector else ("", [])
    visible, tenant = runs.visible_condition("tape_effects.run_id")
    narrowed, params = narrowed + visible, [*params, *tenant]
    return load_all(
        Effect,
        reader.query(
            f"SELECT {_COLUMNS} FROM tape_effects WHERE status = {PENDING} AND dispatch_mode = {DispatchMode.OUTBOX}"
            f" AND {due_condition('next_dispatch_at_ms')}"
            f" AND (dispatch_claim_expires_at_ms <= ? OR dispatch_claim_expires_at_ms > ?){narrowed}"
            " ORDER BY next_dispatch_at_ms, ts_ms LIMIT ?",
            *due_parameters(moment),
            moment,
            latest_expiry_ms(moment),
            *params,
            limit if limit > 0 else DEFAULT_LIMIT,
        ),
    )


class EffectClaim(msgspec.Struct, frozen=True):
    """The result of a claim: the effect, whether it was acquired, and the owner of an expired claim before it."""

    effect: Effect | None
    acquired: bool
    previous_claimer: str = ""


def claim(tx: Transaction, run_id: str, key: str, *, claimer: str, lease_ms: int, renew: bool = False) -> EffectClaim:
    """Claim an outbox effect for dispatching, or renew a claim.

    `previous_claimer` is the owner of an expired claim: it may have sent the effect without reporting it.
    """
    if not claimer:
        raise InvalidInput("claimer is empty; a claim needs a name.")
    effect = find(tx, run_id, key)
    now = now_ms()
    if effect is None or effect.status != PENDING or effect.dispatch_mode != DispatchMode.OUTBOX:
        return EffectClaim(effect, acquired=False)
    is_mine = effect.dispatch_claimed_by == claimer
    lease = Lease(effect.dispatch_claimed_by, effect.dispatch_claim_expires_at_ms)
    is_free = is_due(effect.next_dispatch_at_ms, effect.ts_ms, now) and lease.is_free(now)
    if not (is_mine if renew else is_free):
        return EffectClaim(effect, acquired=False)
    claimed = msgspec.structs.replace(
        effect,
        dispatch_claimed_by=claimer,
        dispatch_claim_expires_at_ms=expiry_ms(now, lease_ms, DEFAULT_CLAIM_MS),
    )
    store(tx, "tape_effects", _KEYS, claimed)
    return EffectClaim(claimed, acquired=True, previous_claimer="" if renew else effect.dispatch_claimed_by)


def _check_claim(effect: Effect, claimer: str) -> None:
    if claimer and effect.dispatch_claimed_by != claimer:
        holder = f"is claimed by {effect.dispatch_claimed_by!r}" if effect.dispatch_claimed_by else "is not claimed"
        raise LeaseHeld(f"The effect {effect.idempotency_key!r} {holder}; the claim of {claimer!r} has expired.")


def record_attempt(
    tx: Transaction,
    run_id: str,
    key: str,
    *,
    error: str,
    next_at_ms: int,
    certainty: DispatchCertainty = DispatchCertainty.UNSPECIFIED,
    claimer: str = "",
    trace: Trace = NO_TRACE,
) -> Effect:
    """Record a dispatch that did not succeed: tried again at `next_at_ms`, or unknown if there is none."""
    run = runs.get(tx, run_id)
    before = get(tx, run_id, key)
    _check_claim(before, claimer)
    after = PENDING if next_at_ms > 0 else UNKNOWN
    check_transition(f"The effect {key!r}", DISPATCHING, before.status, after)
    effect = msgspec.structs.replace(
        before,
        status=after,
        dispatch_attempts=before.dispatch_attempts + 1,
        next_dispatch_at_ms=max(next_at_ms, 0),
        last_dispatch_error=error,
        dispatch_certainty=certainty,
        **_UNCLAIMED,
    )
    facts = {
        "transition": "dispatch-retry-scheduled" if after == PENDING else "dispatch-unknown",
        "dispatch_attempts": effect.dispatch_attempts,
        "error": error,
        "next_dispatch_at_ms": effect.next_dispatch_at_ms,
    }
    return _settle(tx, run, effect, after.name.lower(), facts, trace)


def list_open(
    reader: Reader, *, older_than_ms: int = 0, pending: bool = True, unknown: bool = True, limit: int = 0
) -> list[Effect]:
    """List effects with an open outcome: all unknown ones, and pending ones that are old."""
    if not pending and not unknown:
        pending = unknown = True
    conditions = []
    params: list[int] = []
    visible, tenant = runs.visible_condition("tape_effects.run_id")
    if unknown:
        conditions.append(f"status = {UNKNOWN}")
    if pending:
        conditions.append(f"(status = {PENDING} AND ts_ms < ?)")
        params.append(older_than_ms or 1 << 62)
    return load_all(
        Effect,
        reader.query(
            # The first condition is that of the index: without it SQLite reads the whole table.
            f"SELECT {_COLUMNS} FROM tape_effects WHERE status IN ({PENDING}, {UNKNOWN})"
            f" AND ({' OR '.join(conditions)}){visible}"
            " ORDER BY ts_ms, seq LIMIT ?",
            *params,
            *tenant,
            limit if limit > 0 else DEFAULT_LIMIT,
        ),
    )
