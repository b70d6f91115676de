"""Dispatches one effect of the outbox: claim, send, record.

    claim ─► (did an earlier claim expire? observe first) ─► dispatch ─► record

The claim of a dispatcher that dies expires. The next dispatcher that claims the effect learns of the expired claim, and
observes a non-idempotent effect before it dispatches it again.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field, replace
from typing import Any

from tape.base.clock import now_ms
from tape.base.lease import LeaseRenewer
from tape.base.owner import claim_owner
from tape.base.retry import RetryPolicy
from tape.client.sync import TapeClient
from tape.connectors.base import DispatchResult, EffectConnector, ObservationResult, call_dispatch, call_observe
from tape.connectors.templates import content_of
from tape.durable.compensators import NOT_YET, compensation_of
from tape.durable.registry import get_tool_compensator
from tape.durable.server_retry import call_with_retry
from tape.errors import IllegalTransition, InvalidInput, InvalidJson, LeaseHeld
from tape.model.payload import to_json
from tape.proto import tape_pb2 as pb

log = logging.getLogger(__name__)

DEFAULT_LEASE_MS = 60_000
DEFAULT_ATTEMPTS = 5
LONGEST_ERROR = 20_000
DOUBT = "unknown: "  # prefix of the error of an attempt that may have succeeded
# 1 s, 2 s, 4 s, … up to 60 s, each with 20 % jitter.
BACKOFF = RetryPolicy(jitter=0.2)

RESOLUTIONS = {
    "confirmed": pb.EFFECT_RESOLUTION_CONFIRMED,
    "failed": pb.EFFECT_RESOLUTION_FAILED,
    "absent": pb.EFFECT_RESOLUTION_ABSENT,
    "duplicate": pb.EFFECT_RESOLUTION_DUPLICATE,
    "stuck": pb.EFFECT_RESOLUTION_STUCK,
}


@dataclass(frozen=True)
class EffectDispatcher:
    """Dispatches effects as `claimer`, with at most `max_attempts` attempts and backoff between them."""

    client: TapeClient
    claimer: str
    max_attempts: int = DEFAULT_ATTEMPTS
    lease_ttl_ms: int = DEFAULT_LEASE_MS
    backoff: RetryPolicy = field(default=BACKOFF)

    def send(self, effect: pb.EffectRecord, connector: EffectConnector) -> dict[str, Any]:
        """Dispatch an effect if it can be claimed; a report with `outcome` and `reason`."""
        return replace(self, claimer=claim_owner(self.claimer))._send(effect, connector)

    def _send(self, effect: pb.EffectRecord, connector: EffectConnector) -> dict[str, Any]:
        claimed_at = time.monotonic()
        claim = self._claim(effect)
        if not claim.acquired:
            return report(effect, "held", "another dispatcher has it, or it is not due")
        try:
            with LeaseRenewer(
                lambda: self._claim(effect, renew=True).acquired,
                self.lease_ttl_ms,
                name=f"claim on effect {effect.idempotency_key}",
                leased_at=claimed_at,
            ) as lease:
                return self._dispatch(claim.effect, connector, claim.previous_claimer, lease)
        except (LeaseHeld, IllegalTransition) as error:
            return report(effect, "lost", str(error))

    def _claim(self, effect: pb.EffectRecord, *, renew: bool = False) -> pb.ClaimEffectDispatchResponse:
        return self.client.claim_effect_dispatch(
            run_id=effect.run_id,
            idempotency_key=effect.idempotency_key,
            claimer=self.claimer,
            lease_ttl_ms=self.lease_ttl_ms,
            renew=renew,
        )

    def _dispatch(
        self, effect: pb.EffectRecord, connector: EffectConnector, previous: str, lease: LeaseRenewer
    ) -> dict[str, Any]:
        # An earlier attempt may have succeeded, whatever the result of this one is.
        in_doubt = bool(previous) or _may_have_been_sent(effect)
        if previous and effect.semantics == pb.EFFECT_SEMANTICS_NON_IDEMPOTENT:
            seen = call_observe(connector, effect)
            if seen.status != "absent":
                return self._record_seen(effect, seen, f"the claim of {previous} expired")
            in_doubt = False
        _register_compensation(self.client, effect)
        if not lease.is_held:
            return report(effect, "lost", "the claim expired before the effect was dispatched")
        result = call_dispatch(connector, effect)
        if result.status == "confirmed":
            observed = ObservationResult("confirmed", result.external_ref, result.response)
            record_observation(self.client, effect, observed)
            return report(effect, "confirmed", result.external_ref)
        reason = recordable(result.error, LONGEST_ERROR)
        is_last = effect.dispatch_attempts + 1 >= self.max_attempts
        if result.status == "unknown":
            if is_last or effect.semantics == pb.EFFECT_SEMANTICS_NON_IDEMPOTENT:
                return self._attempted(effect, reason, 0, in_doubt=True)
            pause_ms = int(self.backoff.delay(effect.dispatch_attempts + 1) * 1000)
            return self._attempted(effect, reason, result.retry_at_ms or now_ms() + pause_ms, in_doubt=True)
        if result.retry_at_ms and not is_last:
            return self._attempted(effect, reason, result.retry_at_ms, in_doubt=in_doubt)
        if in_doubt and (seen := call_observe(connector, effect)).status != "absent":
            return self._record_seen(effect, seen, f"this attempt failed ({reason}), an earlier one may not have")
        self._observe(effect, pb.EFFECT_RESOLUTION_FAILED, result)
        return report(effect, "failed", reason)

    def _record_seen(self, effect: pb.EffectRecord, seen: ObservationResult, why: str) -> dict[str, Any]:
        if seen.status == "stuck":
            observed = recordable(seen.response, LONGEST_ERROR)
            reason = f"{why}, and the target does not show whether it was dispatched: {observed}"
            return self._attempted(effect, reason, 0, in_doubt=True)
        record_observation(self.client, effect, seen)
        return report(effect, seen.status, f"{why}; the effect was observed")

    def _attempted(self, effect: pb.EffectRecord, reason: str, next_at_ms: int, *, in_doubt: bool) -> dict[str, Any]:
        reason = DOUBT + reason if in_doubt else reason
        call_with_retry(
            self.client.record_dispatch_attempt,
            run_id=effect.run_id,
            idempotency_key=effect.idempotency_key,
            error=reason,
            next_dispatch_at_ms=next_at_ms,
            claimer=self.claimer,
            certainty=pb.DISPATCH_CERTAINTY_UNKNOWN if in_doubt else pb.DISPATCH_CERTAINTY_FAILED,
        )
        outcome = "retry" if next_at_ms else "unknown"
        return report(effect, outcome, reason) | ({"next_dispatch_at_ms": next_at_ms} if next_at_ms else {})

    def _observe(self, effect: pb.EffectRecord, resolution: Any, result: DispatchResult) -> None:
        call_with_retry(
            self.client.record_external_observation,
            run_id=effect.run_id,
            idempotency_key=effect.idempotency_key,
            resolution=resolution,
            external_ref=result.external_ref,
            response_json=recordable(result.response, LONGEST_ERROR) if result.response else "",
            error_json=recordable(result.error, LONGEST_ERROR),
            claimer=self.claimer,
        )


def _may_have_been_sent(effect: pb.EffectRecord) -> bool:
    """Whether an earlier attempt may have succeeded; also if an older server or dispatcher did not record it."""
    return effect.dispatch_attempts > 0 and effect.dispatch_certainty != pb.DISPATCH_CERTAINTY_FAILED


def record_observation(client: TapeClient, effect: pb.EffectRecord, seen: ObservationResult) -> pb.EffectRecord:
    """Record an observation. An observation is valid without the claim."""
    declared = get_tool_compensator(effect.tool_name) if seen.status == "duplicate" else None
    is_negative = seen.status in ("failed", "absent")
    why = {"type": "Observed", "message": seen.status, **seen.response}
    fields: dict[str, Any] = {
        "run_id": effect.run_id,
        "idempotency_key": effect.idempotency_key,
        "resolution": RESOLUTIONS[seen.status],
        "external_ref": seen.external_ref,
        "response_json": "" if is_negative else recordable(seen.response),
        "error_json": recordable(why, LONGEST_ERROR) if is_negative else "",
        "compensate_on_duplicate_kind": getattr(declared["fn"], "__name__", "") if declared else "",
    }
    if seen.status in ("confirmed", "duplicate"):
        _register_compensation(client, effect)
        _register_compensation(client, effect, seen.response)
    record: pb.EffectRecord
    try:
        record = call_with_retry(client.record_external_observation, **fields)
    except InvalidInput as error:
        # The observation must be recorded even if the response of the target is invalid.
        fields |= {"response_json": recordable({"unrecorded": str(error)}), "external_ref": ""}
        record = call_with_retry(client.record_external_observation, **fields)
    return record


def _register_compensation(client: TapeClient, effect: pb.EffectRecord, result: Any = NOT_YET) -> None:
    """Register what undoes an outbox effect, if this process knows it: before the effect is sent, so that no crash can
    lose it. Tape's SDK has done so already; a client in another language begins effects only."""
    if effect.dispatch_mode != pb.EFFECT_DISPATCH_MODE_OUTBOX:
        return
    arguments = content_of(effect.request_json)
    try:
        wanted = compensation_of(effect.tool_name, effect.idempotency_key, arguments, result)
    except Exception as error:
        log.warning(
            "the compensation payload of effect %s cannot be made (%s: %s): its arguments are the payload",
            effect.idempotency_key,
            type(error).__name__,
            error,
        )
        wanted = compensation_of(effect.tool_name, effect.idempotency_key, arguments, result, use_arguments=True)
    if wanted is not None:
        call_with_retry(client.register_compensation, run_id=effect.run_id, **wanted)


def recordable(value: Any, longest: int = 0) -> str:
    """A value as JSON; one that is not JSON as its text, so that recording a response never fails."""
    try:
        text = to_json(value)
    except InvalidJson:
        text = to_json({"unrecorded": repr(value)[: longest or LONGEST_ERROR]})
    if longest and len(text) > longest:
        text = to_json({"unrecorded": text[:longest]})
    return text


def report(effect: pb.EffectRecord, outcome: str, reason: str) -> dict[str, Any]:
    """The report on an effect."""
    return {
        "run_id": effect.run_id,
        "idempotency_key": effect.idempotency_key,
        "tool_name": effect.tool_name,
        "connector": effect.connector,
        "outcome": outcome,
        "reason": reason,
    }
