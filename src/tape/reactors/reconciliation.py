"""Reconciliation: finds out whether effects with unknown outcome happened."""

from __future__ import annotations

import threading
import time

from tape.base.clock import now_ms
from tape.base.retry import RetryPolicy
from tape.client.channel import DEFAULT_URL
from tape.client.sync import TapeClient
from tape.connectors.base import ObservationResult, call_observe, get, observation_of
from tape.connectors.effect_dispatcher import record_observation, report
from tape.durable.observation import check_status
from tape.durable.registry import get_status_check
from tape.errors import IllegalTransition
from tape.proto import tape_pb2 as pb
from tape.reactors.connection import Report, connected, for_each, pages

LIMIT = 200
# An effect that stays unknown is checked again after 2 s, 4 s, … up to every 5 minutes.
RECHECK = RetryPolicy(initial_interval_s=2.0, max_interval_s=300.0, jitter=0.2)


class Reconciler:
    """Checks effects with unknown outcome, each with a growing backoff while it stays unknown."""

    def __init__(self, client: TapeClient, *, pending_after_ms: int = 0) -> None:
        self._client = client
        self._pending_after_ms = pending_after_ms
        self._asked: dict[str, tuple[int, float]] = {}

    def once(self, *, stop: threading.Event | None = None) -> list[Report]:
        """Check each effect that is due; a report on each."""
        reports: list[Report] = []
        seen: set[tuple[str, str]] = set()

        def is_enough() -> bool:
            return any(report["outcome"] not in ("unknown", "pending") for report in reports)

        for page in pages(self._fetch, LIMIT, is_enough=is_enough):
            fresh = [each for each in page if (each.run_id, each.idempotency_key) not in seen]
            seen |= {(each.run_id, each.idempotency_key) for each in fresh}
            reports.extend(for_each([each for each in fresh if self._is_due(each)], self._reconcile, stop=stop))
        self._asked = {key: asked for key, asked in self._asked.items() if key in {each[1] for each in seen}}
        return reports

    def _fetch(self, size: int) -> list[pb.EffectRecord]:
        older_than = now_ms() - self._pending_after_ms if self._pending_after_ms else 0
        found = self._client.list_pending_effects(
            older_than_ms=older_than, include_pending=bool(older_than), include_unknown=True, limit=size
        )
        return list(found.effects)

    def _is_due(self, effect: pb.EffectRecord) -> bool:
        if effect.status == pb.EFFECT_STATUS_PENDING and effect.dispatch_mode == pb.EFFECT_DISPATCH_MODE_OUTBOX:
            return False  # it waits for a dispatcher
        return self._asked.get(effect.idempotency_key, (0, 0.0))[1] <= time.monotonic()

    def _reconcile(self, effect: pb.EffectRecord) -> Report:
        try:
            seen, reason = observe(effect)
        except Exception as error:
            seen, reason = None, f"the status check raised {type(error).__name__}: {error}"
        is_pending = effect.status == pb.EFFECT_STATUS_PENDING
        if seen is None or seen.status == "stuck" or (is_pending and seen.status == "absent"):
            times = self._asked.get(effect.idempotency_key, (0, 0.0))[0] + 1
            self._asked[effect.idempotency_key] = times, time.monotonic() + RECHECK.delay(times)
            return report(effect, "pending" if is_pending else "unknown", reason or f"observed: {seen and seen.status}")
        try:
            record = record_observation(self._client, effect, seen)
        except IllegalTransition as error:
            return report(effect, "settled", str(error))  # by another process, meanwhile
        outcome = pb.EffectStatus.Name(record.status).removeprefix("EFFECT_STATUS_").lower()
        return report(effect, outcome, f"observed: {seen.status}")


def observe(effect: pb.EffectRecord) -> tuple[ObservationResult | None, str]:
    """The observation of the tool's status check, else of the connector; None and the reason if there is none."""
    check = get_status_check(effect.tool_name)
    if check is not None:
        answer = check_status(check, effect)
        if answer is None:
            return None, "the status check does not know yet"
        return observation_of(*answer), ""
    connector = get(effect.connector) if effect.connector else None
    if connector is not None:
        seen = call_observe(connector, effect)
        return seen, f"the connector does not know: {seen.response}" if seen.status == "stuck" else ""
    return None, f"{effect.tool_name!r} has neither a status check nor a connector in this process"


def reconcile_once(
    url: str = DEFAULT_URL,
    *,
    reconcile_pending_after_ms: int = 0,
    client: TapeClient | None = None,
    stop: threading.Event | None = None,
) -> list[Report]:
    """Check UNKNOWN effects, and with `reconcile_pending_after_ms` inline effects that are PENDING for longer.

    The tool's status check, else the connector, observes whether it happened, and the result is recorded: an absent
    idempotent effect may be performed again, any other has failed. One that stays unknown is reported with the reason.
    """
    with connected(url, client) as connection:
        return Reconciler(connection, pending_after_ms=reconcile_pending_after_ms).once(stop=stop)
