"""Between a source and its runs: what can go is dispatched, what cannot waits, only what is safe is acknowledged."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from tape.errors import SpoolFull, SpoolUnavailable
from tape.subscriptions import events, probes
from tape.subscriptions.circuit import Circuits, Decision, Phase, Transition
from tape.subscriptions.directives import DedupKey, Plan
from tape.subscriptions.envelope import Envelope
from tape.subscriptions.events import About, Event
from tape.subscriptions.sources.source import ENDLESS, Patience
from tape.subscriptions.spec import Subscription
from tape.subscriptions.spool.backend import Area, SpoolBackend
from tape.subscriptions.spool.counting import SpoolCounts
from tape.subscriptions.spool.draining import Report, drain
from tape.subscriptions.spool.item import SpoolItem
from tape.subscriptions.spool.places import open_place
from tape.subscriptions.spool.renewing import RenewedPlace, fields_of
from tape.subscriptions.spool.replaying import InLanes, Replayed, in_turns
from tape.subscriptions.spool.spool import Arrival, Lane, Rules, Spool, Tell
from tape.subscriptions.spool.telling import Telling
from tape.telemetry.clock import now_ms, steady_ms
from tape.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

# A replay is recognized by the place it waited at for so long, even where the subscription asks for no dedup.
_REPLAY_WINDOW_S = 7 * 24 * 3600
_CIRCUITS = "circuit-state"
_LOOK_AGAIN_S = 30.0

Dispatch = Callable[[Sequence[Plan]], Awaitable[list[Replayed]]]


class Forwarded(NamedTuple):
    """What became of a message. `started`, `duplicate` and `spooled` are safe; the others stay with the source."""

    outcome: Literal["started", "duplicate", "spooled", "held", "refused"]
    execution_id: int = 0
    spool_ref: str = ""
    error: str = ""

    @property
    def is_safe(self) -> bool:
        """Whether the source may forget the message."""
        return self.outcome in ("started", "duplicate", "spooled")


class Forwarder:
    """The way of one subscription's messages to their runs, with a circuit per downstream and perhaps a spool.

    `redelivers` says whether the source brings a message again that is not acknowledged; a push source does not, so
    that `hybrid` buffers at once.
    """

    def __init__(
        self,
        subscription: Subscription,
        about: About,
        dispatch: Dispatch,
        *,
        spool: Spool | None,
        tell: Tell | Telling,
        redelivers: bool = True,
        now_ms: Callable[[], int] = now_ms,
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        self._spec = subscription.spec.spool
        self._about = about
        self._dispatch = dispatch
        self._spool = spool
        self._tell = tell
        self._redelivers = redelivers
        self._now_ms = now_ms
        self._closed = closed
        self._pending: list[Event] = []
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._probed_at = 0.0
        self._looked_at = time.monotonic()
        self._held_until_ms: int | None = None  # when the first that was left to its source is forgotten there
        self._probing: set[str] = set()  # downstreams whose probe is a message of the drain
        declared = self._spec.circuit
        self.circuits = Circuits(
            [each.name for each in declared.downstream],
            trip_after=declared.trip_after,
            probe_after_ms=declared.probe_after_ms,
            changed=self._changed,
        )

    async def start(self) -> None:
        """Find out what an earlier process left: where its circuits stood, and what waits."""
        if self._spool is None:
            return
        if isinstance(self._tell, Telling):
            await self._tell.open()
        if state := await self._spool.backend.get(Area.CONTROL, _CIRCUITS):
            try:
                self.circuits.restore(state, self._now_ms())
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                log.warning("%s: where circuits stood cannot be read, all begin closed: %s", self._about.path, error)
        if waiting := await self._spool.open():
            await self._spool.tell_again()
            await self._tell([events.spool_recovered(self._about, waiting, self._spool.high_water, self._spec.backend)])

    def may_fetch(self) -> int | None:
        """How many messages a pull source should be asked for: None for any number, 0 to let them wait there."""
        is_urgent = Patience(expires_at_ms=self._held_until_ms).is_ending(self._now_ms())
        is_draining = self._has_backlog and self.circuits.are_closed
        if is_draining and self._spec.drain.on_recovery == "ordered_then_live" and not is_urgent:
            return 0
        if self.circuits.are_closed or self._may_buffer(self._now_ms()):
            return None
        # One message, if a circuit would let it pass as its probe.
        return int(any(self._is_probe_due(name) for name, _ in self.circuits))

    async def forward(
        self, messages: Sequence[tuple[Envelope, Plan]], patience: Sequence[Patience] = ()
    ) -> list[Forwarded]:
        """Dispatch or keep messages, in their order; the answers are in the same order.

        `patience` is that of their source: what it is about to give up on does not stay there.
        """
        patience = patience or [ENDLESS] * len(messages)
        answers: list[Forwarded | None] = [None] * len(messages)
        waiting: list[int] = []
        going: list[int] = []
        for index, (_, plan) in enumerate(messages):
            downstream = self.circuits.route(plan.pool or None)
            if self._must_queue(downstream, plan):
                waiting.append(index)
                continue
            match self.circuits.decide(downstream, self._now_ms()):
                case Decision.DISPATCH:
                    going.append(index)
                case Decision.PROBE:
                    try:
                        (answer,) = await self._send([messages[index][1]])
                    except BaseException:
                        self.circuits[downstream].abandon_probe(self._now_ms())
                        raise
                    answers[index] = answer
                    if answer.outcome == "held":
                        waiting.append(index)
                case Decision.SPOOL:
                    waiting.append(index)
        for index, answer in zip(going, await self._send([messages[index][1] for index in going]), strict=True):
            answers[index] = answer
            # The failure that opened the circuit takes its message with it into the spool; so does every failure
            # of a message that comes no more.
            is_open = self._circuit_of(messages[index][1]) is not Phase.CLOSED
            if answer.outcome == "held" and (
                is_open or not self._redelivers or patience[index].is_ending(self._now_ms())
            ):
                waiting.append(index)
        waiting.sort()
        kept = await self._keep([messages[index] for index in waiting], [patience[index] for index in waiting])
        for index, answer in zip(waiting, kept, strict=True):
            answers[index] = answer
        self._note_held(answers, patience)
        await self._tell_changes()
        return [answer or Forwarded("held") for answer in answers]

    async def run(self) -> None:
        """Probe, drain, expire, until stopped."""
        while not self._is_stopping:
            try:
                await self._upkeep()
            except SpoolUnavailable as error:
                log.warning("%s", error)
            except Exception:
                # Whatever it is, what waits must not wait for ever because of it.
                log.exception("%s: the spool is looked after again in a moment", self._about.path)
            self._wake.clear()
            try:
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def close(self) -> None:
        """Let go of the spool's connections."""
        self._closed()
        if self._spool is not None:
            await self._spool.backend.close()

    @property
    def spool(self) -> Spool | None:
        """Where messages wait, if they may."""
        return self._spool

    def stop(self) -> None:
        """End `run` after the round it is in; what waits stays in the spool."""
        self._is_stopping = True
        self._wake.set()

    async def drain(self) -> Report:
        """Replay what waits, as far as the circuits let it pass."""
        if self._spool is None:
            return Report()
        if not any(circuit.phase is Phase.CLOSED or self._is_probe_due(name) for name, circuit in self.circuits):
            return Report(remaining=self._spool.items)  # nothing would pass: not worth a look
        try:
            report = await drain(self._spool, self._replay, may_pass=self._may_pass, stopping=lambda: self._is_stopping)
        finally:
            self._abandon_probes()
        await self._tell_changes()
        return report

    # -- dispatching ---------------------------------------------------------------------------

    async def _send(self, plans: Sequence[Plan]) -> list[Forwarded]:
        if not plans:
            return []
        found = []
        for answer in await self._dispatched(plans):
            if answer.outcome == "away":
                found.append(Forwarded("held", error=answer.error))
            elif answer.outcome == "skipped":
                found.append(Forwarded("held", error="one before it could not go"))
            else:
                found.append(Forwarded(answer.outcome, answer.execution_id, error=answer.error))
        return found

    async def _dispatched(self, plans: Sequence[Plan]) -> list[Replayed]:
        """Begin the runs, in the order that was asked for. One that is refused stops nobody: it has its own end."""
        if self._spool is None or self._spool.rules.ordering == "none" or len(plans) == 1:
            answers = await self._dispatch(plans)
            self._record_all(plans, answers)
            return answers
        lanes = [
            self._spool.rules.lane(self.circuits.route(plan.pool or None), plan.ordering_key or None, "")
            for plan in plans
        ]
        answers = [Replayed("skipped")] * len(plans)
        left = list(range(len(plans)))
        while left:
            sent = await self._in_lanes([plans[index] for index in left], [lanes[index] for index in left])
            for index, answer in zip(left, sent, strict=True):
                answers[index] = answer
            if lost := next((answer for answer in sent if answer.outcome == "away"), None):
                return [self._also_lost(plan, lost, each) for plan, each in zip(plans, answers, strict=True)]
            skipped = [index for index, answer in zip(left, sent, strict=True) if answer.outcome == "skipped"]
            left = skipped if len(skipped) < len(left) else []
        return answers

    def _also_lost(self, plan: Plan, lost: Replayed, answer: Replayed) -> Replayed:
        """Whoever stands behind a message that nobody took fails with it, and counts for the circuit as it does."""
        if answer.outcome != "skipped":
            return answer
        self._record(plan, lost)
        return lost

    async def _replay(self, items: list[SpoolItem], lanes: Sequence[Lane]) -> list[Replayed]:
        now_ms = self._now_ms()
        return await self._in_lanes([_again(item, now_ms) for item in items], lanes)

    async def _in_lanes(self, plans: Sequence[Plan], lanes: Sequence[Lane]) -> list[Replayed]:
        if isinstance(self._dispatch, InLanes):
            answers = await self._dispatch.in_lanes(plans, lanes)
        else:
            answers = await in_turns(self._dispatch, plans, lanes)
        self._record_all(plans, answers)
        return answers

    def _record_all(self, plans: Sequence[Plan], answers: Sequence[Replayed]) -> None:
        for plan, answer in zip(plans, answers, strict=True):
            if answer.outcome != "skipped":
                self._record(plan, answer)

    def _record(self, plan: Plan, answer: Replayed) -> None:
        # A playbook that does not exist is the message's trouble, not its downstream's: that one answered.
        downstream = self.circuits.route(plan.pool or None)
        self._probing.discard(downstream)
        self.circuits.record(downstream, succeeded=answer.outcome != "away", now_ms=self._now_ms())

    # -- waiting -------------------------------------------------------------------------------

    @property
    def _has_backlog(self) -> bool:
        return self._spool is not None and self._spool.items > 0

    def _must_queue(self, downstream: str, plan: Plan) -> bool:
        """Whether a message has to go behind those that wait already."""
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
        if Patience(expires_at_ms=self._held_until_ms).is_ending(now_ms):
            return True
        down_ms = max(circuit.down_for_ms(now_ms) for _, circuit in self.circuits)
        return not self.circuits.are_closed and down_ms >= self._spec.hybrid_escalate_after_ms

    def _note_held(self, answers: Sequence[Forwarded | None], patience: Sequence[Patience]) -> None:
        """Remember when the first of those is forgotten that stay with their source: nothing may be fetched by then."""
        held = [
            each for answer, each in zip(answers, patience, strict=True) if answer is None or answer.outcome == "held"
        ]
        if not held and self.circuits.are_closed:
            self._held_until_ms = None
        for _, expires_at_ms in held:
            if expires_at_ms is not None:
                self._held_until_ms = min(self._held_until_ms or expires_at_ms, expires_at_ms)

    async def _keep(self, messages: Sequence[tuple[Envelope, Plan]], patience: Sequence[Patience]) -> list[Forwarded]:
        if not messages:
            return []
        # Where one has to be kept all are, or it would overtake those that come again later.
        now_ms = self._now_ms()
        is_needed = self._may_buffer(now_ms) or any(each.is_ending(now_ms) for each in patience)
        if self._spool is None or not is_needed:
            return self._left(messages, patience, "the circuit is open")
        arrivals = [self._arrival(plan) for _, plan in messages]
        try:
            kept = await self._spool.take(arrivals)
        except SpoolUnavailable as error:
            log.warning("%s", error)
            return self._left(messages, patience, str(error))
        if any(self.circuits[arrival.downstream].phase is Phase.CLOSED for arrival in arrivals):
            self._wake.set()
        answers = []
        for arrival, item in zip(arrivals, kept, strict=True):
            if isinstance(item, SpoolFull):
                # Not acknowledged, so that the source still has it: told, because nobody else would know.
                self._pending.append(
                    events.dropped(self._about, arrival.message_id, arrival.downstream, "retention_full")
                )
                answers.append(Forwarded("held", error=str(item)))
            else:
                answers.append(Forwarded("spooled", spool_ref=item.ref))
        return answers

    def _left(
        self, messages: Sequence[tuple[Envelope, Plan]], patience: Sequence[Patience], why: str
    ) -> list[Forwarded]:
        """Leave messages to their source. What that brings no more is told: nobody else would know."""
        for (_, plan), each in zip(messages, patience, strict=True):
            if each.deliveries_left == 0:
                downstream = self.circuits.route(plan.pool or None)
                self._pending.append(events.dropped(self._about, plan.message_id, downstream, "source_gives_up"))
        return [Forwarded("held", error=why)] * len(messages)

    def _arrival(self, plan: Plan) -> Arrival:
        downstream = self.circuits.route(plan.pool or None)
        is_open = self.circuits[downstream].phase is not Phase.CLOSED
        # The message is the larger part of its payload; it is written once.
        message, rest = plan.payload["message"], {**plan.payload, "message": None}
        return Arrival(
            message_id=plan.message_id,
            message=message,
            plan=msgspec.to_builtins(msgspec.structs.replace(plan, payload=rest)),
            downstream=downstream,
            reason="circuit_open" if is_open else "behind_backlog" if self._has_backlog else "source_gives_up",
            idempotency_key=plan.idempotency_key or None,
            ordering_key=plan.ordering_key or None,
        )

    # -- recovering ----------------------------------------------------------------------------

    async def _upkeep(self) -> None:
        await self._probe()
        if isinstance(self._tell, Telling):
            await self._tell.catch_up()
        if self._spool is not None:
            await self._look_again(self._spool)
            await self._spool.expire()
            report = await self.drain()
            while report.replayed and report.remaining and not self._is_stopping:
                report = await self.drain()

    async def _look_again(self, spool: Spool) -> None:
        """Find what others put into an empty spool: somebody who requeues, or a process that died."""
        now = time.monotonic()
        if not spool.items and now - self._looked_at >= _LOOK_AGAIN_S:
            self._looked_at = now
            if await spool.open():
                await spool.tell_again()

    async def _probe(self) -> None:
        declared = [each for each in self._spec.circuit.downstream if each.type != "passive"]
        now = time.monotonic()
        if not declared or now - self._probed_at < self._spec.circuit.probe_interval_ms / 1000:
            return
        self._probed_at = now
        for each, is_up in zip(declared, await asyncio.gather(*map(probes.is_up, declared)), strict=True):
            self.circuits.record(each.name, succeeded=is_up, now_ms=self._now_ms())
        await self._tell_changes()

    def _may_pass(self, downstream: str) -> bool:
        decision = self.circuits.decide(downstream, self._now_ms())
        if decision is Decision.PROBE:
            self._probing.add(downstream)
        return decision is not Decision.SPOOL

    def _abandon_probes(self) -> None:
        """A probe that was let pass and never left (something else failed before) must not be waited for."""
        for downstream in self._probing:
            self.circuits[downstream].abandon_probe(self._now_ms())
        self._probing.clear()

    def _is_probe_due(self, downstream: str) -> bool:
        return self.circuits[downstream].is_probe_due(self._now_ms())

    def _circuit_of(self, plan: Plan) -> Phase:
        return self.circuits[self.circuits.route(plan.pool or None)].phase

    def _pause(self) -> float:
        """Seconds until something may be due: the next probe, or the next try of what is stalled."""
        declared = self._spec.circuit
        if self._has_backlog or not self.circuits.are_closed:
            return min(declared.probe_interval_ms, max(declared.probe_after_ms, 50)) / 1000
        return declared.probe_interval_ms / 1000

    # -- telling -------------------------------------------------------------------------------

    def _changed(self, transition: Transition) -> None:
        log.warning("The circuit of %s to %s is %s.", self._about.name, transition.downstream, transition.phase)
        if transition.phase is Phase.OPEN:
            self._pending.append(
                events.circuit_opened(
                    self._about, transition.downstream, transition.consecutive_failures, transition.trips
                )
            )
        else:
            self._pending.append(events.circuit_closed(self._about, transition.downstream))
            self._wake.set()

    async def _tell_changes(self) -> None:
        told, self._pending = self._pending, []  # at once: several of us may come here at the same time
        if not told:
            return
        try:
            if self._spool is not None:
                await self._spool.backend.put(Area.CONTROL, [(_CIRCUITS, self.circuits.snapshot())])
        finally:
            await self._tell(told)


def forwarder_of(
    subscription: Subscription,
    about: About,
    dispatch: Dispatch,
    tell: Tell,
    *,
    metrics: Metrics,
    credential: Any = None,
    reveal: Callable[[str], Awaitable[Any]] | None = None,
    redelivers: bool = True,
) -> Forwarder:
    """The forwarder that a subscription asks for: with a spool, at the place its block names, unless that is off.

    `credential` is what the wallet holds for that place; with `reveal` it is looked up again when the place refuses.
    """
    spec = subscription.spec.spool
    counting = SpoolCounts(metrics, subscription.spec.source, subscription.path)
    if spec.mode == "off":

        async def counted(told: Sequence[Event]) -> None:
            counting.see(told)
            await tell(told)

        clock = steady_ms()
        return Forwarder(subscription, about, dispatch, spool=None, tell=counted, redelivers=redelivers, now_ms=clock)
    fields = fields_of(spec.credential, credential) if credential is not None else None
    place: SpoolBackend
    if reveal is not None and spec.credential:
        place = RenewedPlace(spec, subscription.path, fields, reveal)
    else:
        place = open_place(spec, subscription.path, fields)
    telling = Telling(place, tell, counting.see)
    clock = steady_ms()
    spool = Spool(about, subscription.spec.source, place, rules_of(subscription), tell=telling, now_ms=clock)
    counting.watch(spool)
    return Forwarder(
        subscription,
        about,
        dispatch,
        spool=spool,
        tell=telling,
        redelivers=redelivers,
        now_ms=clock,
        closed=counting.forget,
    )


def rules_of(subscription: Subscription) -> Rules:
    """What the `spool` block says to the engine."""
    spec = subscription.spec.spool
    return Rules(
        ordering=spec.ordering,
        max_bytes=spec.retention.max_bytes,
        max_age_hours=spec.retention.max_age_hours,
        on_full=spec.retention.on_full,
        rate_per_sec=spec.drain.rate_per_sec,
        max_replay_attempts=spec.drain.max_replay_attempts,
    )


def _again(item: SpoolItem, now_ms: int) -> Plan:
    """The plan of a spooled message. It is recognized if it was dispatched before and only its removal is missing."""
    plan = msgspec.convert(item.plan, Plan)
    if plan.dedup is None:
        dedup = DedupKey(item.ref, _REPLAY_WINDOW_S)
    else:
        # Its window began when it came, not now.
        waited_s = max(0, now_ms - item.spooled_at_ms) // 1_000
        dedup = msgspec.structs.replace(plan.dedup, window_secs=plan.dedup.window_secs + waited_s)
    return msgspec.structs.replace(plan, dedup=dedup, payload={**plan.payload, "message": item.message})
