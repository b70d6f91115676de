"""Compensates one obligation: finds its compensator, checks whether its effect happened, records the outcome."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from tape.base.clock import now_ms
from tape.base.coroutines import run_to_end
from tape.base.lease import LeaseRenewer
from tape.base.owner import claim_owner
from tape.base.retry import RetryPolicy
from tape.client.sync import TapeClient
from tape.connectors.base import CompensationResult, EffectConnector, ObservationResult, call_compensate, described, get
from tape.connectors.effect_dispatcher import DEFAULT_LEASE_MS, LONGEST_ERROR, record_observation, recordable
from tape.connectors.templates import content_of
from tape.durable.callback_arguments import call_naming
from tape.durable.compensators import offered_to_compensator
from tape.durable.registry import get_compensator, get_tool_compensator
from tape.durable.server_retry import call_with_retry
from tape.errors import IllegalTransition, LeaseHeld
from tape.model.payload import to_json
from tape.proto import tape_pb2 as pb
from tape.reactors.connection import Report
from tape.reactors.reconciliation import observe

log = logging.getLogger(__name__)

# 1 s, 2 s, 4 s, … up to a minute between attempts, each up to a fifth shorter or longer.
PAUSES = RetryPolicy(jitter=0.2)
DUPLICATE = "duplicate:"
IN_FLIGHT_RETRY_MS = 2_000

Compensate = Callable[[pb.EffectRecord | None], Any]


def compensate_one(
    ob: Any,
    *,
    client: TapeClient,
    claimer: str = "",
    lease_ttl_ms: int = DEFAULT_LEASE_MS,
    pauses: RetryPolicy = PAUSES,
) -> Report:
    """Compensate an obligation, if it is owed and the newest of its run; returns a report.

    `outcome` is `compensated`, `skipped` (the effect did not happen), `retry`, `stuck`, `waiting` (the effect may still
    be sent), `held` (another worker has claimed it, or a newer obligation comes first), `lost` (the claim expired), or
    `unregistered`: this process has no compensator for it, which counts as no attempt.
    """
    compensate = _find_compensate(ob, _effect_of(ob, client))
    if compensate is None:
        return _report(ob, "unregistered", f"no compensator {ob.compensator_ref or ob.kind!r} in this process")
    one = _ClaimedObligation(ob, client, claim_owner(claimer), lease_ttl_ms, pauses)
    claimed_at = time.monotonic()
    try:
        is_claimed = one.claim()
    except IllegalTransition as error:
        return _report(ob, "held", str(error))
    if not is_claimed:
        return _report(ob, "held", "claimed by another worker, not due, not owed, or a newer obligation comes first")
    try:
        with LeaseRenewer(
            lambda: one.claim(renew=True),
            lease_ttl_ms,
            name=f"claim on obligation {ob.run_id}/{ob.seq}",
            leased_at=claimed_at,
        ):
            return one.compensate(_effect_of(ob, client), compensate)
    except LeaseHeld as error:
        return _report(ob, "lost", str(error))


class _CheckFailed(Exception):
    """A status check raised: it is not known yet whether the effect happened."""


class _ClaimedObligation:
    """One obligation that this process has claimed."""

    def __init__(
        self, obligation: Any, client: TapeClient, claimer: str, lease_ttl_ms: int, pauses: RetryPolicy
    ) -> None:
        self._obligation = obligation
        self._client = client
        self._claimer = claimer
        self._lease_ttl_ms = lease_ttl_ms
        self._pauses = pauses
        self._key = {"run_id": obligation.run_id, "obligation_seq": obligation.seq}

    def claim(self, *, renew: bool = False) -> bool:
        """Claim it if it is the newest of its run, or renew the claim."""
        answer = self._client.claim_obligation(
            **self._key, claimer=self._claimer, lease_ttl_ms=self._lease_ttl_ms, only_owed=True, renew=renew
        )
        if answer.acquired:
            self._obligation = answer.obligation
        return bool(answer.acquired)

    def compensate(self, effect: pb.EffectRecord | None, compensate: Compensate) -> Report:
        """Call the compensator, unless the effect did not happen."""
        if effect is not None and not self._obligation.act:
            try:
                effect, verdict = self._look(effect)
            except _CheckFailed as error:
                return self._failed(described(error.__cause__ or error))
            except IllegalTransition as error:
                return self._postpone(str(error))  # it was settled meanwhile
            if verdict == "waiting":
                return self._postpone("the effect may still be sent")
            if verdict:
                return self._resolve({"skipped": verdict}, "skipped", verdict)
        try:
            result = run_to_end(compensate(effect))
        except Exception as error:
            log.warning(
                "compensation %s of run %s failed", self._obligation.kind, self._obligation.run_id, exc_info=True
            )
            return self._failed(described(error))
        if isinstance(result, CompensationResult):
            if result.status == "failed":
                return self._failed(result.error)
            result = result.response
        return self._resolve(result, "compensated", "")

    def _look(self, effect: pb.EffectRecord) -> tuple[pb.EffectRecord, str]:
        """The effect, and why it needs no compensation; "waiting" if it may still be sent, "" if it needs one."""
        if effect.status == pb.EFFECT_STATUS_FAILED:
            return effect, "the effect failed"
        if effect.status == pb.EFFECT_STATUS_CONFIRMED:
            return effect, ""
        if effect.status == pb.EFFECT_STATUS_PENDING and effect.dispatch_mode == pb.EFFECT_DISPATCH_MODE_OUTBOX:
            effect, verdict = self._withdraw(effect)
            if verdict:
                return effect, verdict
        try:
            seen, _ = observe(effect)
        except Exception as error:
            raise _CheckFailed from error
        if seen is None or seen.status == "stuck":
            return effect, ""
        if seen.status in ("absent", "failed"):
            # Not "absent": that would let an idempotent effect of the outbox be sent again.
            seen = ObservationResult("failed", response={"observed": seen.status, **seen.response})
            return record_observation(self._client, effect, seen), "the effect did not happen"
        return record_observation(self._client, effect, seen), ""

    def _withdraw(self, effect: pb.EffectRecord) -> tuple[pb.EffectRecord, str]:
        """Take an effect out of the outbox before it is sent."""
        key: dict[str, Any] = {"run_id": effect.run_id, "idempotency_key": effect.idempotency_key}
        claim = self._client.claim_effect_dispatch(**key, claimer=self._claimer, lease_ttl_ms=self._lease_ttl_ms)
        if not claim.acquired:
            return effect, "waiting"
        if claim.previous_claimer or claim.effect.dispatch_attempts:
            # It may have been sent: it is not sent again, and the compensator must handle both cases.
            error = f"withdrawn after {claim.previous_claimer or 'a dispatcher'} may have sent it"
            record = self._client.record_dispatch_attempt(
                **key,
                error=error,
                next_dispatch_at_ms=0,
                claimer=self._claimer,
                certainty=pb.DISPATCH_CERTAINTY_UNKNOWN,
            )
            return record, ""
        withdrawn = {"type": "Withdrawn", "message": "the run failed before it was sent"}
        record = self._client.record_external_observation(
            **key,
            resolution=pb.EFFECT_RESOLUTION_FAILED,
            error_json=to_json(withdrawn),
            claimer=self._claimer,
        )
        return record, "the effect was never sent"

    def _resolve(self, result: Any, outcome: str, reason: str) -> Report:
        call_with_retry(
            self._client.resolve_obligation,
            **self._key,
            status=pb.OBLIGATION_STATUS_COMPENSATED,
            result_json=recordable(result, LONGEST_ERROR),
            settle_run=True,
            claimer=self._claimer,
        )
        return _report(self._obligation, outcome, reason)

    def _failed(self, error: dict[str, Any]) -> Report:
        pause_ms = int(self._pauses.delay(self._obligation.attempts + 1) * 1000)
        return self._attempted(recordable(error, LONGEST_ERROR), now_ms() + pause_ms)

    def _postpone(self, reason: str) -> Report:
        self._attempted(reason, now_ms() + IN_FLIGHT_RETRY_MS, uncounted=True)
        return _report(self._obligation, "waiting", reason)

    def _attempted(self, reason: str, next_at_ms: int, *, uncounted: bool = False) -> Report:
        record = call_with_retry(
            self._client.record_obligation_attempt,
            **self._key,
            error=reason,
            next_attempt_at_ms=next_at_ms,
            settle_run=True,
            claimer=self._claimer,
            uncounted=uncounted,
        )
        is_stuck = record.status == pb.OBLIGATION_STATUS_STUCK
        return _report(record, "stuck" if is_stuck else "retry", reason)


def _find_compensate(obligation: Any, effect: pb.EffectRecord | None) -> Compensate | None:
    """The compensator that the obligation names, else that of its tool, else the connector that sent the effect."""
    fn = get_compensator(obligation.compensator_ref) or get_compensator(obligation.kind)
    if fn is None and effect is not None:
        declared = get_tool_compensator(effect.tool_name)
        if declared is not None and getattr(declared["fn"], "__name__", "") == obligation.kind:
            fn = declared["fn"]
    if fn is not None:
        return lambda effect: _call(fn, obligation, effect)
    connector: EffectConnector | None = get(effect.connector) if effect is not None and effect.connector else None
    return None if connector is None else lambda _: call_compensate(connector, obligation)


def _effect_of(obligation: Any, client: TapeClient) -> pb.EffectRecord | None:
    found = client.get_effect(run_id=obligation.run_id, idempotency_key=obligation.effect_key)
    return found.effect if found.found else None


def _call(fn: Callable[..., Any], obligation: Any, effect: pb.EffectRecord | None) -> Any:
    payload = content_of(obligation.payload_json)
    arguments = content_of(effect.request_json) if effect is not None else {}
    result = content_of(effect.response_json) if effect is not None and effect.response_json else None
    is_duplicate = obligation.act.startswith(DUPLICATE)
    external_ref = obligation.act.removeprefix(DUPLICATE) if is_duplicate else effect.external_ref if effect else ""
    facts = {
        "idempotency_key": obligation.effect_key,
        "business_key": effect.business_key if effect is not None else "",
        "external_ref": external_ref,
        "run_id": obligation.run_id,
        "effect": effect,
        "obligation": obligation,
    }
    return call_naming(fn, offered_to_compensator(arguments, payload, result, facts), payload)


def _report(obligation: Any, outcome: str, reason: str) -> Report:
    return {
        "run_id": obligation.run_id,
        "obligation_seq": obligation.seq,
        "kind": obligation.kind,
        "effect_key": obligation.effect_key,
        "outcome": outcome,
        "reason": reason,
        "attempts": obligation.attempts,
        "next_attempt_at_ms": obligation.next_attempt_at_ms if outcome == "retry" else 0,
    }
