"""Forks: a run that shares what another one has recorded before a point, and goes on from there on its own.

The shared decisions and effects are copied with negative numbers: they are steps of the fork, and not entries of its
journal, so that no reaction acts on them again. Idempotency keys that begin with the id of the run begin with that of
the fork. Obligations are not copied: one effect is compensated once, by the run that performed it.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from tape.base.ids import new_id
from tape.base.telemetry.tracing import NO_TRACE, Trace
from tape.engine.ledgers import budgets, decisions, runs, summary_runs
from tape.engine.ledgers.decisions import Decision
from tape.engine.ledgers.effects import SETTLED, Effect
from tape.engine.ledgers.gates import GateSignal
from tape.engine.ledgers.run_history import BEFORE_ALL, DECISION_SIZE, EFFECT_SIZE, Step, read_steps
from tape.engine.ledgers.run_record import PLAYBOOKS, Run
from tape.errors import ForkRefused, InvalidInput
from tape.model import subject
from tape.model.entry import check_id
from tape.model.ledger_states import RunStatus
from tape.store import Transaction
from tape.store.records import columns, insert, load_all, row_of

MAX_STEPS = 5_000
MAX_SIZE = 16 << 20
MAX_REASON = 1_000

_GATES = columns(GateSignal)


class ForkPoint(NamedTuple):
    """Where a run is forked: before a decision, or before a seq if that is not 0."""

    decision: int = 0
    seq: int = 0


class Fork(NamedTuple):
    """A fork, and how much it shares."""

    run: Run
    steps: int
    gates: int


def fork(
    tx: Transaction,
    run_id: str,
    at: ForkPoint,
    *,
    decision_json: str = "",
    invocation_id: str = "",
    reason: str = "",
    trace: Trace = NO_TRACE,
) -> Fork:
    """Begin a fork of a run. The same `invocation_id` again is the same fork.

    Raises ForkRefused across an effect whose outcome is open, and for a run whose steps are not there to be shared.
    """
    check_id("invocation_id", invocation_id)
    if len(reason) > MAX_REASON:
        raise InvalidInput(f"reason has {len(reason)} characters; use at most {MAX_REASON}.")
    if at.decision < 0 or at.seq < 0:
        raise InvalidInput(f"at_decision {at.decision} and at_seq {at.seq} must not be negative.")
    if at.seq and decision_json:
        raise InvalidInput("decision_json needs at_decision: it is the response of that decision.")
    origin = runs.get(tx, run_id)
    _check_origin(origin)
    last, changed = _last_shared(tx, origin, at)
    if decision_json and changed is None:
        raise InvalidInput(f"The run {run_id!r} has no decision {at.decision} whose response could be set.")
    point = msgspec.structs.replace(
        origin,
        invocation_id=invocation_id or new_id(),
        forked_from=run_id,
        forked_at_seq=last + 1,
        forked_at_decision=-1 if at.seq else at.decision,
    )
    _check_size(tx, run_id, last)
    shared = read_steps(tx, run_id, BEFORE_ALL, last)
    _check_settled(origin, shared)
    gates = _answered_gates(tx, origin, last)
    begun, existed = _begin(tx, point, len(shared), reason, trace)
    if existed:
        if (begun.forked_from, begun.forked_at_seq) != (run_id, last + 1):
            raise ForkRefused(
                f"invocation_id {invocation_id!r} is that of the run {begun.run_id!r}, which is not this fork;"
                " name another one."
            )
        return Fork(begun, len(shared), len(gates))
    _copy_steps(tx, shared, begun)
    _copy_gates(tx, gates, begun)
    budget = budgets.get(tx, run_id)
    if budget.usd_cap or budget.token_cap:
        budgets.set_caps(tx, begun.run_id, usd_cap=budget.usd_cap, token_cap=budget.token_cap)
    if decision_json and changed is not None:
        _record_changed(tx, begun, changed, decision_json, trace)
    return Fork(runs.with_cursor(tx, begun), len(shared), len(gates))


def _check_origin(origin: Run) -> None:
    if origin.app_name == PLAYBOOKS or summary_runs.is_summary(origin):
        raise ForkRefused(
            f"The run {origin.run_id!r} is an execution of a playbook, which its task carries out: it cannot be forked."
            " Execute the playbook again."
        )
    if origin.compacted_at_ms:
        raise ForkRefused(
            f"The run {origin.run_id!r} was compacted: what it decided and what came of its effects is no longer there."
        )


def _last_shared(tx: Transaction, origin: Run, at: ForkPoint) -> tuple[int, Decision | None]:
    """The seq of the last entry before the point, and the decision at the point if there is one."""
    if at.seq:
        return at.seq - 1, None
    found = decisions.find(tx, origin.run_id, at.decision)
    if found is not None:
        return found.seq - 1, found
    row = tx.one("SELECT coalesce(max(decision_index), -1) FROM tape_decisions WHERE run_id = ?", origin.run_id)
    newest = int(row[0]) if row else -1
    if at.decision > newest + 1:
        raise InvalidInput(
            f"at_decision {at.decision}: the run {origin.run_id!r} has decisions up to {newest} only;"
            f" {newest + 1} shares all that it has recorded."
        )
    return runs.with_cursor(tx, origin).seq_cursor, None


def _check_size(tx: Transaction, run_id: str, last: int) -> None:
    count = size = 0
    for table, expression in (("tape_decisions", DECISION_SIZE), ("tape_effects", EFFECT_SIZE)):
        row = tx.one(
            f"SELECT count(*), coalesce(sum({expression}), 0) FROM {table} WHERE run_id = ? AND seq <= ?", run_id, last
        )
        if row is not None:
            count, size = count + int(row[0]), size + int(row[1])
    if count > MAX_STEPS or size > MAX_SIZE:
        raise ForkRefused(
            f"The fork would share {count} steps with {size} characters of the run {run_id!r}; at most {MAX_STEPS}"
            f" steps and {MAX_SIZE} characters can be shared. Fork at an earlier point."
        )


def _check_settled(origin: Run, shared: list[Step]) -> None:
    for step in shared:
        if isinstance(step, Effect) and step.status not in SETTLED:
            raise ForkRefused(
                f"The effect {step.idempotency_key!r} before that point is {step.status.name}: it is not known whether"
                f" it happened, so the run {origin.run_id!r} cannot be forked across it. Fork before it, or wait"
                " until it is settled (tape effects)."
            )


def _begin(tx: Transaction, point: Run, steps: int, reason: str, trace: Trace) -> tuple[Run, bool]:
    wanted = Run(
        run_id="",
        app_name=point.app_name,
        user_id=point.user_id,
        session_id=point.session_id,
        invocation_id=point.invocation_id,
        status=RunStatus.RUNNING,
        tenant_id=point.tenant_id,
        actor=point.actor,
        subject=point.subject,
        agent_id=point.agent_id,
        aiplex_instance_id=point.aiplex_instance_id,
        gateway_route=point.gateway_route,
        scopes_json=point.scopes_json,
        labels_json=point.labels_json,
        tenant=point.tenant,
        forked_from=point.forked_from,
        forked_at_seq=point.forked_at_seq,
        forked_at_decision=point.forked_at_decision,
    )
    existing = runs.find_invocation(tx, wanted)
    if existing is not None:
        return existing, True
    about = {
        "forked_from": point.forked_from,
        "forked_at_seq": point.forked_at_seq,
        "forked_at_decision": point.forked_at_decision,
        "shared_steps": steps,
        **({"reason": reason} if reason else {}),
    }
    return runs.begin(tx, wanted, owner="", lease_ms=0, trace=trace, extra_payload=about, is_recoverable=True)


def _copy_steps(tx: Transaction, shared: list[Step], fork: Run) -> None:
    """Store the shared steps as steps of the fork: -n … -1, in their order."""
    rows: dict[type[Step], list[Step]] = {Decision: [], Effect: []}
    for number, step in enumerate(shared):
        seq = number - len(shared)
        if isinstance(step, Decision):
            copy: Step = msgspec.structs.replace(step, run_id=fork.run_id, seq=seq)
        else:
            key = step.idempotency_key
            own = key.startswith(f"{step.run_id}/")
            copy = msgspec.structs.replace(
                step,
                run_id=fork.run_id,
                seq=seq,
                idempotency_key=fork.run_id + key[len(step.run_id) :] if own else key,
                business_key="",  # it stays with the run that performed the effect
                tenant="",
                dispatch_claimed_by="",
                dispatch_claim_expires_at_ms=0,
                next_dispatch_at_ms=0,
            )
        rows[type(step)].append(copy)
    for kind, table in ((Decision, "tape_decisions"), (Effect, "tape_effects")):
        if rows[kind]:
            tx.insert(table, kind.__struct_fields__, [row_of(each) for each in rows[kind]])


def _answered_gates(tx: Transaction, origin: Run, last: int) -> list[GateSignal]:
    """The gates that the run had passed at the point."""
    later = tx.one(
        "SELECT min(ts_ms) FROM (SELECT ts_ms FROM tape_decisions WHERE run_id = ? AND seq > ?"
        " UNION ALL SELECT ts_ms FROM tape_effects WHERE run_id = ? AND seq > ?) AS later",
        origin.run_id,
        last,
        origin.run_id,
        last,
    )
    until = int(later[0]) if later and later[0] is not None else (1 << 62)
    rows = tx.query(
        f"SELECT {_GATES} FROM tape_signals WHERE run_id = ? AND delivered = 1 AND consumed = 1", origin.run_id
    )
    found = load_all(GateSignal, rows)
    return [each for each in found if max(each.created_at_ms, each.answered_at_ms) <= until]


def _copy_gates(tx: Transaction, gates: list[GateSignal], fork: Run) -> None:
    if gates:
        copies = [msgspec.structs.replace(each, run_id=fork.run_id, next_at_ms=0) for each in gates]
        tx.insert("tape_signals", GateSignal.__struct_fields__, [row_of(each) for each in copies])


def _record_changed(tx: Transaction, fork: Run, origin: Decision, response_json: str, trace: Trace) -> None:
    """Record the decision at the point with another response: a step of the fork, and an entry of its journal."""
    payload = {
        "decision_index": origin.decision_index,
        "model": origin.model,
        "policy_version": origin.policy_version,
        "rationale": "set by the fork",
    }
    entry = runs.journal(tx, fork, subject.decision_recorded(fork.run_id, origin.decision_index), payload, trace)
    changed = msgspec.structs.replace(
        origin,
        run_id=fork.run_id,
        seq=entry.seq,
        ts_ms=entry.ts_ms,
        response_json=response_json,
        rationale="set by the fork",
    )
    insert(tx, "tape_decisions", changed)
