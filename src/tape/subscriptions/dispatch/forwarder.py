"""The forwarder: dispatches messages, or appends them to the spool while their downstream is unavailable."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Callable, Sequence

import msgspec

from tape.base.clock import now_ms
from tape.base.telemetry.metrics import Metrics
from tape.brokers.source import UNLIMITED_REDELIVERY, RedeliveryLimits
from tape.errors import ApiRefused, SpoolFull, SpoolUnavailable, TapeError
from tape.model.dispatch_result import RunDispatchResult
from tape.subscriptions import events
from tape.subscriptions.dispatch import probes
from tape.subscriptions.dispatch.circuit import CircuitDecision, CircuitPhase, Circuits, CircuitTransition
from tape.subscriptions.dispatch.holds import Hold, ReadinessCheck
from tape.subscriptions.dispatch.ordered import Dispatch, OrderedDispatch
from tape.subscriptions.dispatch.outcomes import RELEASED_AT_ONCE, Downstreams, OutcomeFeed, ResumedRun
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.events import SubscriptionEvent, SubscriptionRef
from tape.subscriptions.message import SourceMessage
from tape.subscriptions.routing import Plan
from tape.subscriptions.spool.backend import Area
from tape.subscriptions.spool.drain import DrainReport, drain
from tape.subscriptions.spool.item import SpoolItem
from tape.subscriptions.spool.pending_events import MAX_IN_MEMORY, PendingEvents, is_permanent
from tape.subscriptions.spool.spool import Arrival, EmitEvents, Lane, Spool, SpoolRules

log = logging.getLogger(__name__)

_CIRCUITS = "circuit-state"
_CHECK_S = 30.0
# How often the outcomes of runs are looked at while there are runs: for so long after the last dispatch.
_LOOK_S = 0.25
_ACTIVE_S = 60.0


class Forwarder:
    """Forwards the messages of one subscription, with a circuit per downstream and an optional spool.

    `redelivers`: whether the source redelivers a message that is not acknowledged. A push source does not, so that
    `hybrid` spools at once.
    """

    def __init__(
        self,
        subscription: Subscription,
        ref: SubscriptionRef,
        dispatch: Dispatch,
        *,
        spool: Spool | None,
        emit: EmitEvents | PendingEvents,
        redelivers: bool = True,
        now_ms: Callable[[], int] = now_ms,
        downstreams: Downstreams | None = None,
        readiness: ReadinessCheck | None = None,
        rules: SpoolRules | None = None,
        metrics: Metrics | None = None,
        closed: Callable[[], None] = lambda: None,
        state_unwritten: Callable[[], None] = lambda: None,
    ) -> None:
        self._spec = subscription.spec.spool
        self._ref = ref
        self._spool = spool
        self._emit = emit
        self._redelivers = redelivers
        self._now_ms = now_ms
        self._closed = closed
        self._state_unwritten = state_unwritten
        self._must_write_state = False
        self._writing_state = asyncio.Lock()
        self._pending: list[SubscriptionEvent] = []
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._probed_at = 0.0
        self._dispatched_at = float("-inf")
        self._checked_at = time.monotonic()
        # Why the spool cannot be used now; empty while it can.
        self.spool_problem = ""
        self._held_until_ms: int | None = None  # when the first held message expires at its source
        self._probing: set[str] = set()  # downstreams whose probe is a message of the drain
        self._probed_lanes: set[Lane] = set()  # lanes of the spool that have sent a probe in this round of probes
        self._has_probed = False
        declared = self._spec.circuit
        self.circuits = Circuits(
            [each.name for each in declared.downstream],
            trip_after=declared.trip_after,
            probe_after_ms=declared.probe_after_ms,
            changed=self._changed,
        )
        self.hold = Hold(
            subscription.path, subscription.spec.dispatch.playbook, readiness, metrics, changed=self._wake.set
        )
        # Without a server that counts outcomes, the dispatch itself knows them.
        self._feed: OutcomeFeed | None = None
        if downstreams is not None:
            self._feed = OutcomeFeed(
                downstreams,
                self.circuits,
                probe_timeout_ms=declared.probe_timeout_ms,
                now_ms=now_ms,
                resumed=self._note_resumed,
                keeps=redelivers,
            )
        self._ordered = OrderedDispatch(
            dispatch,
            self.circuits,
            spool.rules if spool else rules,
            now_ms,
            self._note_dispatched,
            outcomes=self._feed,
        )

    async def start(self) -> None:
        """Restore the circuits and the spool that an earlier process left."""
        if self._spool is None:
            return
        await self._touch_backend(self._spool)
        if isinstance(self._emit, PendingEvents):
            await self._emit.open()
        if state := await self._spool.backend.get(Area.CONTROL, _CIRCUITS):
            try:
                self.circuits.restore(state, self._now_ms())
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                log.warning("%s: circuit states cannot be read, all circuits start closed: %s", self._ref.path, error)
        if waiting := await self._spool.open():
            await self._spool.emit_last_batch()
            await self._emit([events.spool_recovered(self._ref, waiting, self._spool.high_water, self._spec.backend)])

    async def check_readiness(self) -> None:
        """Hold the subscription before its first message is fetched, if it cannot start runs."""
        await self.hold.start(ignore_outage=self._spool is not None)

    def may_fetch(self) -> int | None:
        """How many messages to poll from a pull source: None for any number, 0 to leave them at the source."""
        if self.hold.is_held:
            return None if self._may_buffer(self._now_ms()) else 0
        is_urgent = RedeliveryLimits(expires_at_ms=self._held_until_ms).is_ending(self._now_ms())
        is_draining = self._has_backlog and self.circuits.are_closed
        if is_draining and self._spec.drain.on_recovery == "ordered_then_live" and not is_urgent:
            return 0
        if self.circuits.are_closed or self._may_buffer(self._now_ms()):
            return None
        # One message, if a circuit would send it as its probe.
        return int(any(self._is_probe_due(name) for name, _ in self.circuits))

    async def forward(
        self, messages: Sequence[tuple[SourceMessage, Plan]], redelivery: Sequence[RedeliveryLimits] = ()
    ) -> list[RunDispatchResult]:
        """Dispatch messages or append them to the spool, in order; one result per message.

        `redelivery` has the limits of their source: a message that is about to expire there is not held.
        """
        redelivery = redelivery or [UNLIMITED_REDELIVERY] * len(messages)
        answers: list[RunDispatchResult | None] = [None] * len(messages)
        waiting: list[int] = []
        going: list[int] = []
        for index, (_, plan) in enumerate(messages):
            downstream = self.circuits.route(plan.pool or None)
            if self._must_wait or self._must_queue(downstream, plan):
                waiting.append(index)
                continue
            match self.circuits.decide(downstream, self._now_ms()):
                case CircuitDecision.DISPATCH:
                    going.append(index)
                case CircuitDecision.PROBE:
                    try:
                        (answer,) = await self._send([messages[index][1]])
                    except BaseException:
                        self.circuits[downstream].abandon_probe(self._now_ms())
                        raise
                    answers[index] = answer
                    if answer.outcome == "held":
                        waiting.append(index)
                case CircuitDecision.SPOOL:
                    waiting.append(index)
        for index, answer in zip(going, await self._send([messages[index][1] for index in going]), strict=True):
            answers[index] = answer
            # A message whose failure opened the circuit is spooled; so is every failed message that its source will
            # not redeliver.
            is_open = self._circuit_of(messages[index][1]) is not CircuitPhase.CLOSED
            if answer.outcome == "held" and (
                is_open or self.hold.is_held or not self._redelivers or redelivery[index].is_ending(self._now_ms())
            ):
                waiting.append(index)
        waiting.sort()
        kept = await self._append_to_spool(
            [messages[index] for index in waiting], [redelivery[index] for index in waiting]
        )
        for index, answer in zip(waiting, kept, strict=True):
            if answer.is_durable or answers[index] is None:
                answers[index] = answer
        self._note_held(answers, redelivery)
        await self._emit_changes()
        return [answer or RunDispatchResult("held") for answer in answers]

    async def run(self) -> None:
        """Probe downstreams, drain the spool and expire old messages until stopped."""
        while not self._is_stopping:
            try:
                await self._maintain()
            except SpoolUnavailable as error:
                self.spool_problem = str(error)
                log.warning("%s", error)
            except Exception:
                # An unexpected error must not end the maintenance of the spool.
                log.exception("%s: spool maintenance failed, retrying", self._ref.path)
            self._wake.clear()
            try:
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def close(self) -> None:
        """Close the spool's connections."""
        self._closed()
        await self.hold.close()
        if self._spool is not None:
            await self._spool.backend.close()

    @property
    def spool(self) -> Spool | None:
        """The spool, if the subscription has one."""
        return self._spool

    def stop(self) -> None:
        """End `run` after the current round; undelivered messages stay in the spool."""
        self._is_stopping = True
        self._wake.set()

    async def drain(self) -> DrainReport:
        """Replay the spool as far as the circuits allow."""
        if self._spool is None:
            return DrainReport()
        if self.hold.is_held:
            return DrainReport(remaining=self._spool.items)
        if not any(circuit.phase is CircuitPhase.CLOSED or self._is_probe_due(name) for name, circuit in self.circuits):
            return DrainReport(remaining=self._spool.items)  # every circuit is open
        self._has_probed = False
        try:
            report = await drain(self._spool, self._replay, may_pass=self._may_pass, stopping=lambda: self._is_stopping)
        finally:
            self._abandon_probes()
            if self.circuits.are_closed or not self._has_probed:
                self._probed_lanes.clear()  # every lane that waits was tried
        await self._emit_changes()
        return report

    # -- dispatching ---------------------------------------------------------------------------

    async def _send(self, plans: Sequence[Plan]) -> list[RunDispatchResult]:
        if not plans:
            return []
        found = []
        for plan, answer in zip(plans, await self._ordered.send(plans), strict=True):
            if answer.outcome == "misconfigured":
                self.hold.begin(answer.error, plan.playbook)
                self._abandon_probe_of(plan)
            elif answer.outcome == "unavailable" and self._redelivers and not self._may_buffer(self._now_ms()):
                self.hold.begin_outage(answer.error)
            if answer.outcome in ("unavailable", "misconfigured"):
                answer = RunDispatchResult("held", error=answer.error)
            elif answer.outcome == "skipped":
                answer = RunDispatchResult("held", error="an earlier message of its lane failed")
            found.append(answer)
        return found

    async def _replay(self, items: list[SpoolItem], lanes: Sequence[Lane]) -> list[RunDispatchResult]:
        answers = await self._ordered.replay(items, lanes)
        for item, answer in zip(items, answers, strict=True):
            if answer.outcome == "misconfigured":
                self.hold.begin(answer.error, str(item.plan.get("playbook", "")))
        return answers

    # -- spooling ------------------------------------------------------------------------------

    @property
    def _has_backlog(self) -> bool:
        return self._spool is not None and self._spool.items > 0

    def _must_queue(self, downstream: str, plan: Plan) -> bool:
        """Whether a message must be appended after the spooled ones to keep the order."""
        if self._spool is None or not self._spool.items:
            return False
        if self._spec.drain.on_recovery == "ordered_then_live":
            return True
        return self._spool.has_waiting(downstream, plan.ordering_key or None)

    def _may_buffer(self, now_ms: int) -> bool:
        if self._spool is None or self._spec.mode == "off":
            return False
        if self._spec.mode == "buffer_and_ack" or not self._redelivers or self._has_backlog:
            return True
        if RedeliveryLimits(expires_at_ms=self._held_until_ms).is_ending(now_ms):
            return True
        down_ms = max(self.hold.held_for_ms(), *(circuit.down_for_ms(now_ms) for _, circuit in self.circuits))
        return (self.hold.is_held or not self.circuits.are_closed) and down_ms >= self._spec.hybrid_escalate_after_ms

    def _note_held(self, answers: Sequence[RunDispatchResult | None], redelivery: Sequence[RedeliveryLimits]) -> None:
        """Record when the first held message expires at its source: it must be fetched before that."""
        held = [
            each for answer, each in zip(answers, redelivery, strict=True) if answer is None or answer.outcome == "held"
        ]
        if not held and self.circuits.are_closed:
            self._held_until_ms = None
        for _, expires_at_ms in held:
            if expires_at_ms is not None:
                self._held_until_ms = min(self._held_until_ms or expires_at_ms, expires_at_ms)

    async def _append_to_spool(
        self, messages: Sequence[tuple[SourceMessage, Plan]], redelivery: Sequence[RedeliveryLimits]
    ) -> list[RunDispatchResult]:
        if not messages:
            return []
        # If one is spooled, all are: it would overtake those that the source redelivers later.
        now_ms = self._now_ms()
        is_needed = self._may_buffer(now_ms) or any(each.is_ending(now_ms) for each in redelivery)
        if self._spool is None or not is_needed:
            reason = " ".join(self.hold.reasons) or "the circuit is open"
            return self._hold(messages, redelivery, reason)
        arrivals = [self._arrival(plan) for _, plan in messages]
        try:
            kept = await self._spool.append(arrivals)
        except SpoolUnavailable as error:
            self.spool_problem = str(error)
            log.warning("%s", error)
            return self._hold(messages, redelivery, str(error))
        if any(self.circuits[arrival.downstream].phase is CircuitPhase.CLOSED for arrival in arrivals):
            self._wake.set()
        answers = []
        for arrival, item in zip(arrivals, kept, strict=True):
            if isinstance(item, SpoolFull):
                # Not acknowledged, so that the source still has it. The event is the only record of it.
                self._pending.append(
                    events.dropped(self._ref, arrival.message_id, arrival.downstream, "retention_full")
                )
                answers.append(RunDispatchResult("held", error=str(item)))
            else:
                answers.append(RunDispatchResult("spooled", spool_ref=item.ref))
        return answers

    def _hold(
        self, messages: Sequence[tuple[SourceMessage, Plan]], redelivery: Sequence[RedeliveryLimits], why: str
    ) -> list[RunDispatchResult]:
        """Hold messages at their source. An event records those that it will not redeliver."""
        for (_, plan), each in zip(messages, redelivery, strict=True):
            if each.deliveries_left == 0:
                downstream = self.circuits.route(plan.pool or None)
                self._pending.append(events.dropped(self._ref, plan.message_id, downstream, "source_gives_up"))
        return [RunDispatchResult("held", error=why)] * len(messages)

    def _arrival(self, plan: Plan) -> Arrival:
        downstream = self.circuits.route(plan.pool or None)
        is_open = self.circuits[downstream].phase is not CircuitPhase.CLOSED
        # The message is the larger part of its payload; it is stored once.
        message, rest = plan.payload["message"], {**plan.payload, "message": None}
        return Arrival(
            message_id=plan.message_id,
            message=message,
            plan=msgspec.to_builtins(msgspec.structs.replace(plan, payload=rest)),
            downstream=downstream,
            reason=self._reason(is_open=is_open),
            idempotency_key=plan.idempotency_key or None,
            ordering_key=plan.ordering_key or None,
        )

    def _reason(self, *, is_open: bool) -> str:
        """Why a message is spooled."""
        if self.hold.is_held:
            return "held"
        if is_open:
            return "circuit_open"
        return "behind_backlog" if self._has_backlog else "source_gives_up"

    # -- maintenance ---------------------------------------------------------------------------

    async def _maintain(self) -> None:
        await self._probe()
        await self._look_at_outcomes()
        if isinstance(self._emit, PendingEvents):
            await self._emit.catch_up()
        if self._spool is not None:
            await self._check_backend(self._spool)
            await self._spool.expire()
            report = await self.drain()
            while report.replayed and report.remaining and not self._is_stopping:
                report = await self.drain()
        await self._emit_changes()

    async def _touch_backend(self, spool: Spool) -> None:
        """Raise SpoolUnavailable unless the backend can be used."""
        if self._spec.backend == "local_disk":  # a disk can be full or read-only although it is readable
            key = f"check-{os.getpid()}-{id(self)}"
            await spool.backend.put(Area.CONTROL, [(key, b"{}")])
            await spool.backend.delete(Area.CONTROL, [key])
        else:
            await spool.backend.get(Area.CONTROL, _CIRCUITS)

    async def _check_backend(self, spool: Spool) -> None:
        """Look every 30 s, and in each round of an outage, whether the backend can be used.

        An empty spool is read again: other processes may have written to it, a requeue or a process that died.
        """
        now = time.monotonic()
        if not self.spool_problem and now - self._checked_at < _CHECK_S:
            return
        self._checked_at = now
        await self._touch_backend(spool)
        self.spool_problem = ""
        if not spool.items and await spool.open():
            await spool.emit_last_batch()

    async def _probe(self) -> None:
        declared = [each for each in self._spec.circuit.downstream if each.type != "passive"]
        now = time.monotonic()
        if not declared or now - self._probed_at < self._spec.circuit.probe_interval_ms / 1000:
            return
        self._probed_at = now
        for each, is_up in zip(declared, await asyncio.gather(*map(probes.is_up, declared)), strict=True):
            if self._feed is not None:
                self._feed.note_probe(each.name, is_up=is_up)
            self.circuits.record(each.name, succeeded=is_up, now_ms=self._now_ms())
        await self._emit_changes()

    async def _look_at_outcomes(self) -> None:
        if self._feed is None:
            return
        rate = self._spec.drain.rate_per_sec
        self._feed.keeps |= self._has_backlog
        try:
            await self._feed.step(RELEASED_AT_ONCE if rate is None else max(int(rate * _LOOK_S), 1))
        except TapeError as error:
            if not error.retryable and not isinstance(error, ApiRefused):
                raise
            log.warning("%s: outcomes of runs cannot be read, retrying: %s", self._ref.path, error)
        await self._emit_changes()

    def _note_dispatched(self, downstream: str) -> None:
        self._probing.discard(downstream)
        if self._feed is not None:
            self._feed.keeps = True
            if time.monotonic() - self._dispatched_at > _ACTIVE_S:
                self._wake.set()
            self._dispatched_at = time.monotonic()

    def _note_resumed(self, run: ResumedRun) -> None:
        self._pending.append(events.replayed(self._ref, run.message_id, 0, "", run.execution_id))

    def _may_pass(self, downstream: str, lane: Lane) -> bool:
        if lane in self._probed_lanes and self._is_probe_due(downstream):
            return False  # another lane is tried first
        decision = self.circuits.decide(downstream, self._now_ms())
        if decision is CircuitDecision.PROBE:
            self._probing.add(downstream)
            self._probed_lanes.add(lane)
            self._has_probed = True
        return decision is not CircuitDecision.SPOOL

    def _abandon_probes(self) -> None:
        """A probe that was not dispatched, because an earlier step failed, has no outcome."""
        for downstream in self._probing:
            self.circuits[downstream].abandon_probe(self._now_ms())
        self._probing.clear()

    @property
    def _must_wait(self) -> bool:
        """Whether a message is not dispatched: the subscription is held. A sender without a spool may always try."""
        return self.hold.is_held and (self._redelivers or self._spool is not None)

    def _abandon_probe_of(self, plan: Plan) -> None:
        circuit = self.circuits[self.circuits.route(plan.pool or None)]
        if circuit.phase is CircuitPhase.HALF_OPEN:
            circuit.abandon_probe(self._now_ms())

    def _is_probe_due(self, downstream: str) -> bool:
        return self.circuits[downstream].is_probe_due(self._now_ms())

    def retry_after_s(self, plan: Plan) -> int:
        """Seconds until the circuit of a message may send it as a probe, at least 1; 0 if it is closed."""
        circuit = self.circuits[self.circuits.route(plan.pool or None)]
        if circuit.phase is CircuitPhase.CLOSED:
            return 0
        since_ms = self._now_ms() - (circuit.state.opened_at_ms or 0)
        return max(1, math.ceil((circuit.probe_after_ms - since_ms) / 1_000))

    def _circuit_of(self, plan: Plan) -> CircuitPhase:
        return self.circuits[self.circuits.route(plan.pool or None)].phase

    def _pause(self) -> float:
        """Seconds until the next probe or the next retry of a stalled lane."""
        declared = self._spec.circuit
        if self._feed is not None and (self._feed.is_busy or time.monotonic() - self._dispatched_at < _ACTIVE_S):
            return _LOOK_S
        if self._has_backlog or not self.circuits.are_closed:
            return min(declared.probe_interval_ms, max(declared.probe_after_ms, 50)) / 1000
        return declared.probe_interval_ms / 1000

    # -- events --------------------------------------------------------------------------------

    def _changed(self, transition: CircuitTransition) -> None:
        log.warning("The circuit of %s to %s is %s.", self._ref.name, transition.downstream, transition.phase)
        if transition.phase is CircuitPhase.OPEN:
            self._pending.append(
                events.circuit_opened(
                    self._ref, transition.downstream, transition.consecutive_failures, transition.trips
                )
            )
        else:
            self._pending.append(events.circuit_closed(self._ref, transition.downstream))
            self._wake.set()

    async def _emit_changes(self) -> None:
        """Store the circuits and emit what changed.

        Never fails its caller: the messages that changed the circuits are durable, whatever happens to this state. What
        could not be written is logged, counted and written in the next round.
        """
        to_emit, self._pending = self._pending, []  # before any await: several tasks can be here
        self._must_write_state |= bool(to_emit)
        if self._spool is not None and self._must_write_state:
            await self._write_state(self._spool)
        if not to_emit:
            return
        try:
            await self._emit(to_emit)
        except TapeError as error:
            if is_permanent(error):
                log.error("%s: the journal rejects events, dropped: %s: %s", self._ref.path, error, to_emit)
                return
            self._note_unwritten(f"{len(to_emit)} events", error)
            self._pending = to_emit + self._pending
            if (too_many := len(self._pending) - MAX_IN_MEMORY) > 0:
                del self._pending[:too_many]
                log.error("%s: buffer full: dropped the oldest %d events", self._ref.path, too_many)

    async def _write_state(self, spool: Spool) -> None:
        async with self._writing_state:  # an older snapshot must not replace a newer one
            self._must_write_state = False
            try:
                await spool.backend.put(Area.CONTROL, [(_CIRCUITS, self.circuits.snapshot())])
            except TapeError as error:
                self._must_write_state = True
                self._note_unwritten("circuit states", error)

    def _note_unwritten(self, what: str, error: TapeError) -> None:
        self._state_unwritten()
        log.warning("%s: %s cannot be written now, retrying: %s", self._ref.path, what, error)
