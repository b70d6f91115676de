"""Outages of downstreams, reconstructed from the journal's entries."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import msgspec

log = logging.getLogger(__name__)


class EventEntry(Protocol):
    """The fields of a journal entry that this module reads."""

    global_seq: int
    subject: str
    ts_ms: int
    payload_json: str


class Moment(msgspec.Struct, frozen=True):
    """One line of the timeline. Consecutive events of one type about messages are one line with a count."""

    ts_ms: int
    until_ms: int
    what: str
    count: int = 1
    detail: str = ""


class Outage(msgspec.Struct, kw_only=True):
    """From the first circuit that opened until the spool is empty.

    Messages are counted by spool reference, so that events that were emitted late or twice count once.
    """

    began_ms: int
    ended_ms: int | None = None
    downstreams: list[str] = msgspec.field(default_factory=list)
    spooled: int = 0
    replayed: int = 0
    dead_lettered: int = 0
    quarantined: int = 0
    dropped: int = 0
    waiting: int = 0
    moments: list[Moment] = msgspec.field(default_factory=list)


class _OutageBuilder:
    """Builds an outage from its events."""

    def __init__(self, began_ms: int) -> None:
        self.outage = Outage(began_ms=began_ms)
        self._open: set[str] = set()
        self.spooled: set[str] = set()
        self._left: dict[str, set[str]] = {verb: set() for verb in _LEAVING}
        self._waiting: set[str] = set()
        self._dropped: set[tuple[str, Any]] = set()

    @property
    def is_over(self) -> bool:
        """Whether all circuits are closed and the spool is empty."""
        return not self._open and not self._waiting

    def add(self, verb: str, ts_ms: int, context: dict[str, Any]) -> None:
        """Apply the next event of the subscription."""
        outage, detail = self.outage, _detail(verb, context)
        if verb == "circuit.opened":
            self._open.add(context["downstream"])
            if context["downstream"] not in outage.downstreams:
                outage.downstreams.append(context["downstream"])
        elif verb == "circuit.closed":
            self._open.discard(context["downstream"])
        elif verb == "message.spooled":
            ref = context["spool_ref"]
            self.spooled.add(ref)
            if context["reason"] == "requeued":
                self._forget_end(ref)
            if not any(ref in left for left in self._left.values()):
                self._waiting.add(ref)
        elif verb in _LEAVING and context["spool_ref"]:
            ref = context["spool_ref"]
            self._forget_end(ref)
            self.spooled.add(ref)  # it was spooled, even if that event is missing
            self._waiting.discard(ref)
            self._left[verb].add(ref)
        elif verb == "message.dropped":
            self._dropped.add((context["message_id"], context.get("created_at", ts_ms)))
        self._note(verb, ts_ms, detail)
        outage.ended_ms = ts_ms if self.is_over else None

    def _forget_end(self, ref: str) -> None:
        """Forget an earlier outcome of a message: only its last one counts."""
        for left in self._left.values():
            left.discard(ref)

    def build(self) -> Outage:
        """The outage with its counts."""
        outage = self.outage
        outage.spooled = len(self.spooled)
        outage.waiting = len(self._waiting)
        outage.dropped = len(self._dropped)
        outage.replayed, outage.dead_lettered, outage.quarantined = (len(self._left[verb]) for verb in _LEAVING)
        return outage

    def _note(self, verb: str, ts_ms: int, detail: str) -> None:
        moments = self.outage.moments
        last = moments[-1] if moments else None
        if last is not None and last.what == verb and last.detail == detail and verb.startswith("message."):
            moments[-1] = Moment(last.ts_ms, ts_ms, verb, last.count + 1, detail)
        else:
            moments.append(Moment(ts_ms, ts_ms, verb, 1, detail))


_LEAVING = ("message.replayed", "message.dead_lettered", "spool.quarantined")
_RELEVANT = frozenset(
    {
        "circuit.opened",
        "circuit.closed",
        "message.spooled",
        "message.replayed",
        "message.dead_lettered",
        "message.dropped",
        "spool.draining",
        "spool.recovered",
        "spool.alert",
        "spool.quarantined",
    }
)


def outages(entries: Iterable[EventEntry]) -> Iterator[Outage]:
    """The outages of one subscription, oldest first; the last one can be ongoing. Skips malformed entries."""
    current: _OutageBuilder | None = None
    # Messages that left the spool in an earlier outage: further events about them are late or duplicates.
    gone: set[str] = set()
    for entry in entries:
        verb = entry.subject.split("/")[3] if entry.subject.startswith("/tape/subscription/") else ""
        if verb not in _RELEVANT:
            continue
        try:
            current = _apply(verb, entry, current, gone)
        except (KeyError, TypeError, ValueError, AttributeError, msgspec.DecodeError) as error:
            log.warning("skipped the malformed entry %s at global_seq %d: %r", entry.subject, entry.global_seq, error)
            continue
        if current is not None and current.is_over:
            yield current.build()
            gone |= current.spooled
            current = None
    if current is not None:
        yield current.build()


def _apply(verb: str, entry: EventEntry, current: _OutageBuilder | None, gone: set[str]) -> _OutageBuilder | None:
    """Apply an event to the outage that is going on; returns that outage, or the one that the event began."""
    context = msgspec.json.decode(entry.payload_json)
    ref = context.get("spool_ref", "")
    if verb == "message.spooled" and context["reason"] == "requeued":
        gone.discard(ref)
    elif ref in gone:
        return current
    if current is None:
        if verb in _LEAVING:
            gone.add(ref)
        if verb in ("spool.draining", "circuit.closed", *_LEAVING):
            return None  # late events of a finished outage
        current = _OutageBuilder(entry.ts_ms)
    current.add(verb, entry.ts_ms, context)
    return current


def _detail(verb: str, context: dict[str, Any]) -> str:
    match verb:
        case "circuit.opened":
            return f"{context['downstream']} after {context['consecutive_failures']} failures, trip {context['trips']}"
        case "circuit.closed":
            return str(context["downstream"])
        case "message.dead_lettered" | "spool.quarantined":
            return str(context["reason"])
        case "message.spooled" | "message.dropped":
            return f"{context['downstream']}: {context['reason']}"
        case "spool.draining":
            return f"{context['pending']} waiting"
        case "spool.recovered":
            return f"{context['pending']} waiting in {context['backend']}"
        case "spool.alert":
            return f"{context['spool_bytes']:,} bytes"
        case _:
            return ""
