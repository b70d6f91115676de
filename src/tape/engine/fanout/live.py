"""Live subscriptions: a slow subscriber loses the oldest entries and gets the exact gap reported.

Subscribers with the same scope form one *audience*. An entry is encoded once, an audience buffers its frames once,
and the bytes for a socket are joined once: one more subscriber costs one write per wake-up. A subscriber whose
outlet is full keeps its position. When the buffer of the audience is full, its oldest frame is dropped for every
subscriber that has not received it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from tape.engine.fanout.audience import Audience, LiveScope
from tape.engine.fanout.hub import Hub
from tape.errors import ServerStopping, TooManySubscribers
from tape.model.entry import Entry
from tape.model.gap import JournalGap


class LiveLimits(msgspec.Struct, frozen=True):
    """Limits of live subscriptions: buffered frames, subscribers per session, and times in seconds."""

    buffer_size: int = 256
    per_session: int = 16
    idle_timeout_s: float = 60.0
    drop_window_s: float = 1.0


class LiveOutlet(Protocol):
    """The sink of a subscription's frames: a socket."""

    def write(self, data: bytes) -> None:
        """Write bytes without blocking. When full, call the subscription's `pause()`, and `resume()` later."""

    def end(self) -> None:
        """Close the outlet: no further frame follows."""

    def bytes_taken(self) -> int:
        """The bytes that the client has taken so far; any number that grows exactly when it takes some."""


class FrameFormat(Protocol):
    """The wire format of entries and notices."""

    def entry(self, entry: Entry) -> bytes:
        """Encode an entry."""

    def notice(self, kind: str, payload: dict[str, Any]) -> bytes:
        """Encode a notice about the stream itself."""

    def unnamed(self, frames: bytes) -> bytes:
        """The frames without the name of their type."""

    def join(self, frames: Sequence[bytes]) -> bytes:
        """Join frames into one write."""


def encode_gap(format_: FrameFormat, gap: JournalGap) -> bytes:
    """Encode the notice about a gap of the journal."""
    facts = {"FromSeq": gap.first, "ToSeq": gap.last, "Reason": gap.reason, "Detail": gap.detail}
    return format_.notice("bus.gap", facts)


class Broadcast:
    """All live subscriptions of this process; a follower of the hub."""

    def __init__(self, hub: Hub, format_: FrameFormat, limits: LiveLimits) -> None:
        self.hub = hub
        self.limits = limits
        self.format = format_
        self._metrics = hub.metrics
        self._audiences: dict[LiveScope, Audience] = {}
        self._by_identity: dict[tuple[str, str, str] | None, dict[Audience, None]] = {}
        self._per_session: dict[tuple[str, str, str], int] = {}
        self._open: dict[LiveSubscription, None] = {}
        self._blocked: dict[LiveSubscription, None] = {}
        self._numbers = 0
        self._tick: asyncio.TimerHandle | None = None
        self._is_closed = False
        hub.add_follower(self)

    def open(
        self, scope: LiveScope, outlet: LiveOutlet, session: tuple[str, str, str] | None = None
    ) -> LiveSubscription:
        """Open a subscription; it gets entries after `attach()`. It counts at once against the limit of `session`."""
        if self._is_closed:
            raise ServerStopping("event bus closed: the server is shutting down; resume after the last id you have.")
        if session is not None:
            open_now = self._per_session.get(session, 0)
            if open_now >= self.limits.per_session:
                raise TooManySubscribers(
                    "event subscriber limit reached: events: per-session subscriber limit reached"
                    f" ({self.limits.per_session}, max_subscribers_per_session)"
                )
            self._per_session[session] = open_now + 1
        self._numbers += 1
        subscription = LiveSubscription(self, self._numbers, scope, outlet, session)
        self._open[subscription] = None
        self._metrics.live_subscriptions.set(len(self._open))
        return subscription

    def __len__(self) -> int:
        return len(self._open)

    # ── the hub calls ────────────────────────────────────────────────────────────────────────────

    def committed(self, entries: Sequence[Entry]) -> None:
        """Deliver new entries, in order."""
        if not self._audiences:
            return
        by_identity, encode = self._by_identity, self.format.entry
        unscoped = list(self._by_identity.get(None, ()))
        delivered = 0
        for entry in entries:
            scoped = by_identity.get((entry.tenant, entry.user, entry.session))
            if scoped is None and not unscoped:
                continue
            frame = b""
            for audience in (*scoped, *unscoped) if scoped else unscoped:
                if audience.has_no_filter or audience.scope.matches_beyond_identity(entry):
                    frame = frame or encode(entry)
                    audience.append(entry.global_seq, frame if audience.is_named else self.format.unnamed(frame))
                    delivered += len(audience.members)
        self._metrics.live_delivered.inc(delivered)

    def skipped(self, gap: JournalGap) -> None:
        """Report a gap on every stream: it is not known which of them would have had the entries."""
        frame = encode_gap(self.format, gap)
        for audience in self._audiences.values():
            audience.append(gap.last, frame if audience.is_named else self.format.unnamed(frame))

    def restarted(self, position: int) -> None:
        """End every stream: entries were pruned before delivery, and a resume reports that."""
        for subscription in list(self._open):
            subscription.end()

    def closed(self) -> None:
        """End every stream: the server is stopping."""
        self._is_closed = True
        for subscription in list(self._open):
            subscription.end()
        if self._tick is not None:
            self._tick.cancel()

    # ── subscriptions call ───────────────────────────────────────────────────────────────────────

    def join(self, subscription: LiveSubscription) -> Audience:
        """Add a subscription to the audience of its scope."""
        scope = subscription.scope
        audience = self._audiences.get(scope)
        if audience is None:
            audience = self._audiences[scope] = Audience(scope, self.limits.buffer_size, self.format.join)
            for triple in scope.triples:
                self._by_identity.setdefault(triple, {})[audience] = None
        audience.members[subscription] = None
        audience.ready[subscription] = None
        return audience

    def leave(self, subscription: LiveSubscription, audience: Audience | None) -> None:
        """Remove a subscription, and its audience if it was the last member."""
        if self._open.pop(subscription, self) is self:
            return
        self._blocked.pop(subscription, None)
        self._metrics.live_subscriptions.set(len(self._open))
        session = subscription.session
        if session is not None:
            self._per_session[session] -= 1
            if not self._per_session[session]:
                del self._per_session[session]
        if audience is not None:
            audience.members.pop(subscription, None)
            audience.ready.pop(subscription, None)
            if not audience.members:
                del self._audiences[audience.scope]
                for triple in audience.scope.triples:
                    others = self._by_identity[triple]
                    del others[audience]
                    if not others:
                        del self._by_identity[triple]

    def block(self, subscription: LiveSubscription) -> None:
        """Check a subscription with a full outlet periodically until it resumes."""
        self._blocked[subscription] = None
        if self._tick is None:
            self._tick = asyncio.get_running_loop().call_later(self._tick_s, self._check_blocked)

    def unblock(self, subscription: LiveSubscription) -> None:
        """Stop to check a subscription: its outlet has resumed."""
        self._blocked.pop(subscription, None)

    def count_dropped(self, entries: int) -> None:
        """Count entries that were dropped for a slow subscription."""
        self._metrics.live_dropped.inc(entries)

    def count_reaped(self) -> None:
        """Count a subscription that was closed because it was idle."""
        self._metrics.live_reaped.inc()

    @property
    def _tick_s(self) -> float:
        return min(self.limits.drop_window_s, self.limits.idle_timeout_s / 4)

    def _check_blocked(self) -> None:
        self._tick = None
        now = asyncio.get_running_loop().time()
        audiences: dict[Audience, None] = {}
        for subscription in list(self._blocked):
            subscription.check_idle(now)
            if subscription.audience is not None:
                audiences[subscription.audience] = None
        for audience in audiences:
            audience.clear_dropped()
        if self._blocked and self._tick is None:
            self._tick = asyncio.get_running_loop().call_later(self._tick_s, self._check_blocked)


class LiveSubscription:
    """One subscriber. Call `attach()` after older entries were sent; it ends by `end()` or `close()`."""

    def __init__(
        self,
        broadcast: Broadcast,
        number: int,
        scope: LiveScope,
        outlet: LiveOutlet,
        session: tuple[str, str, str] | None,
    ) -> None:
        self.number = number
        self.scope = scope
        self.session = session
        self.outlet = outlet
        self.audience: Audience | None = None
        self.index = 0
        self.after = 0
        self._broadcast = broadcast
        self._is_paused = False
        self._paused_at = 0.0
        self._taken = 0
        self._dropped: tuple[int, int, int] | None = None
        self._reported_at = 0.0
        self._report_timer: asyncio.TimerHandle | None = None

    def attach(self, position: int) -> bool:
        """Receive every entry after a position; False if the hub is already beyond it."""
        if position < self._broadcast.hub.head:
            return False
        self.audience = self._broadcast.join(self)
        self.index = self.audience.end
        self.after = position if position > self._broadcast.hub.head else 0
        if self._is_paused:
            self._block()
        return True

    @property
    def position(self) -> int | None:
        """The position up to which no entry matched since the last one; None if there is nothing to report."""
        audience, head = self.audience, self._broadcast.hub.head
        if (
            audience is None
            or self._is_paused
            or self._dropped
            or self.index < audience.end
            or audience.last_id >= head
        ):
            return None
        return max(head, self.after)

    def close(self) -> None:
        """Remove the subscription: the subscriber has disconnected."""
        if self._report_timer is not None:
            self._report_timer.cancel()
        self._broadcast.leave(self, self.audience)
        self.audience = None

    def end(self) -> None:
        """End the subscription and close its outlet. The last notice reports what was dropped since the last report."""
        self._count_dropped()
        self._report_now()
        self.close()
        self.outlet.end()

    # ── the outlet calls ─────────────────────────────────────────────────────────────────────────

    def pause(self) -> None:
        """The outlet is full."""
        if not self._is_paused:
            self._is_paused = True
            self._paused_at = asyncio.get_running_loop().time()
            self._taken = self.outlet.bytes_taken()
            if self.audience is not None:
                self._block()

    def resume(self) -> None:
        """The outlet accepts data again: report dropped entries, then send the buffered ones."""
        if not self._is_paused:
            return
        self._is_paused = False
        audience = self.audience
        if audience is None:
            self._broadcast.unblock(self)
            return
        self._count_dropped()
        if self._dropped is not None:
            self._report_dropped()
            return
        behind, buffer_size = audience.end - self.index, self._broadcast.limits.buffer_size
        self._rejoin(audience)
        if behind >= max(buffer_size // 2, 1):
            self._notice("bus.lag", {"Behind": behind, "BufferSize": buffer_size})
        audience.send_to(self)

    # ── the broadcast calls ──────────────────────────────────────────────────────────────────────

    def check_idle(self, now: float) -> None:
        """Count dropped entries; end the subscription if its client has taken no byte for `idle_timeout_s`."""
        self._count_dropped()
        audience = self.audience
        if audience is None or not self._is_paused:
            return
        if (taken := self.outlet.bytes_taken()) != self._taken:
            self._taken, self._paused_at = taken, now
        if now - self._paused_at < self._broadcast.limits.idle_timeout_s:
            return
        if self.index < audience.end or self._dropped is not None:
            self._broadcast.count_reaped()
            self._report_now()
            audience.send_to(self)
            idle = round(now - self._paused_at, 3)
            self._notice("bus.subscription_idle_closed", {"SubscriberID": self.number, "IdleSeconds": idle})
            self.end()

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    def _block(self) -> None:
        assert self.audience is not None
        self.audience.ready.pop(self, None)
        self._broadcast.block(self)

    def _count_dropped(self) -> None:
        audience = self.audience
        if audience is None or (lost := audience.dropped_before(self.index)) is None:
            return
        first, last, count = lost
        if self._dropped is not None:
            first, count = self._dropped[0], self._dropped[2] + count
        self._dropped = (first, last, count)
        self._broadcast.count_dropped(lost[2])
        self.index = audience.start

    def _report_dropped(self) -> None:
        """Report dropped entries, at most once per `drop_window_s`. Newer frames wait for the report."""
        loop = asyncio.get_running_loop()
        due = self._reported_at + self._broadcast.limits.drop_window_s
        if not self._reported_at or loop.time() >= due:
            self._report_and_go_on()
        elif self._report_timer is None:
            self._report_timer = loop.call_at(due, self._report_when_due)

    def _report_when_due(self) -> None:
        self._report_timer = None
        if not self._is_paused:  # otherwise `resume()` sends the report
            self._count_dropped()
            self._report_and_go_on()

    def _report_and_go_on(self) -> None:
        if (audience := self.audience) is not None:
            self._rejoin(audience)
            self._report_now()
            audience.send_to(self)

    def _rejoin(self, audience: Audience) -> None:
        """Get new frames at once again. Before anything is written: a write may fill the outlet again."""
        self._broadcast.unblock(self)
        audience.ready[self] = None

    def _report_now(self) -> None:
        if self._dropped is None:
            return
        first, last, count = self._dropped
        self._dropped = None
        if self._report_timer is not None:
            self._report_timer.cancel()
            self._report_timer = None
        self._reported_at = asyncio.get_running_loop().time()
        self._notice(
            "bus.dropped", {"FromSeq": first, "ToSeq": last, "DroppedCount": count, "SubscriberID": self.number}
        )

    def _notice(self, kind: str, payload: dict[str, Any]) -> None:
        format_ = self._broadcast.format
        notice = format_.notice(kind, payload)
        self.outlet.write(format_.join([notice if self.scope.is_named else format_.unnamed(notice)]))
