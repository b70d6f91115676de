"""Circuits of a subscription on Spark: the driver follows the outcomes of its runs, and pauses the stream.

The rule is that of the live runtime (`subscriptions/dispatch/outcomes.py`): while a circuit is open, the runs of its
downstream wait in their pool, one of them is let go as a probe, and no further messages are read.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence

from tape.base.clock import steady_ms
from tape.errors import TapeError
from tape.subscriptions import events
from tape.subscriptions.dispatch import probes
from tape.subscriptions.dispatch.circuit import CircuitPhase, Circuits, CircuitTransition
from tape.subscriptions.dispatch.outcomes import Downstreams, OutcomeFeed, ResumedRun
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.events import SubscriptionEvent, SubscriptionRef

log = logging.getLogger(__name__)

LOOK_S = 0.5

Emit = Callable[[Sequence[SubscriptionEvent]], None]


class DownstreamCircuits:
    """Follows the downstreams of a subscription in a thread, from `start` to `close`."""

    def __init__(self, subscription: Subscription, ref: SubscriptionRef, downstreams: Downstreams, emit: Emit) -> None:
        self._spec = spec = subscription.spec.spool.circuit
        self._ref = ref
        self._emit = emit
        self._now_ms = steady_ms()
        self._circuits = Circuits(
            [each.name for each in spec.downstream],
            trip_after=spec.trip_after,
            probe_after_ms=spec.probe_after_ms,
            changed=self._note_change,
        )
        self._feed = OutcomeFeed(
            downstreams,
            self._circuits,
            probe_timeout_ms=spec.probe_timeout_ms,
            now_ms=self._now_ms,
            resumed=self._note_resumed,
        )
        self._pending: list[SubscriptionEvent] = []
        self._probed_at = float("-inf")
        # Set by the thread, read by the stream.
        self._open: tuple[str, ...] = ()
        self._may_probe = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tape-circuits", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def close(self) -> None:
        """Follow no longer; what is held lapses, or another job releases it."""
        self._closed.set()
        self._thread.join()

    @property
    def open(self) -> tuple[str, ...]:
        """The downstreams for which no messages are read now."""
        return self._open

    def take_probe(self) -> bool:
        """Whether one micro-batch may be read although a circuit is open: no run waits that could be the probe."""
        may_probe, self._may_probe = self._may_probe, False
        return may_probe

    def _run(self) -> None:
        asyncio.run(self._follow())

    async def _follow(self) -> None:
        while not self._closed.is_set():
            try:
                await self._probe()
                await self._feed.step()
            except TapeError as error:
                log.warning("%s: outcomes of runs cannot be read, retrying: %s", self._ref.path, error)
            except Exception:
                log.exception("%s: circuits cannot be followed, retrying", self._ref.path)
            self._open = tuple(name for name, circuit in self._circuits if circuit.phase is not CircuitPhase.CLOSED)
            self._may_probe = self._is_batch_needed()
            if self._pending:
                to_emit, self._pending = self._pending, []
                await asyncio.to_thread(self._emit, to_emit)
            await asyncio.to_thread(self._closed.wait, LOOK_S)

    async def _probe(self) -> None:
        declared = [each for each in self._spec.downstream if each.type != "passive"]
        now = time.monotonic()
        if not declared or now - self._probed_at < self._spec.probe_interval_ms / 1_000:
            return
        self._probed_at = now
        for each, is_up in zip(declared, await asyncio.gather(*map(probes.is_up, declared)), strict=True):
            self._feed.note_probe(each.name, is_up=is_up)
            self._circuits.record(each.name, succeeded=is_up, now_ms=self._now_ms())

    def _is_batch_needed(self) -> bool:
        """Whether a probe is due, and no run waits that could be it."""
        now_ms = self._now_ms()
        return any(
            circuit.is_probe_due(now_ms) and not self._feed.has_waiting(name) for name, circuit in self._circuits
        )

    def _note_change(self, transition: CircuitTransition) -> None:
        log.warning("The circuit of %s to %s is %s.", self._ref.name, transition.downstream, transition.phase)
        if transition.phase is CircuitPhase.OPEN:
            failures, trips = transition.consecutive_failures, transition.trips
            self._pending.append(events.circuit_opened(self._ref, transition.downstream, failures, trips))
        else:
            self._pending.append(events.circuit_closed(self._ref, transition.downstream))

    def _note_resumed(self, run: ResumedRun) -> None:
        self._pending.append(events.replayed(self._ref, run.message_id, 0, "", run.execution_id))
