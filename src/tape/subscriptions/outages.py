"""What happened while a downstream was away, told from the journal alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import msgspec


class EventEntry(Protocol):
    """What is read of an entry of the journal."""

    subject: str
    ts_ms: int
    payload_json: str


class Moment(msgspec.Struct, frozen=True):
    """One line of the timeline. A run of messages of one kind is one moment with a count."""

    ts_ms: int
    until_ms: int
    what: str
    count: int = 1
    detail: str = ""


class Outage(msgspec.Struct, kw_only=True):
    """From the first circuit that opened until nothing waits any more.

    Messages are counted by their place in the spool, so that it does not matter who told of one, how often and when:
    a process that could not tell does so later.
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
    """An outage while it is being read."""

    def __init__(self, began_ms: int) -> None:
        self.outage = Outage(began_ms=began_ms)
        self._open: set[str] = set()
        self.came: set[str] = set()
        self._left: dict[str, set[str]] = {verb: set() for verb in _LEAVING}
        self._waiting: set[str] = set()
        self._dropped: set[tuple[str, Any]] = set()

    @property
    def is_over(self) -> bool:
        """Whether all circuits are closed and everything that came has left."""
        return not self._open and not self._waiting

    def add(self, verb: str, ts_ms: int, context: dict[str, Any]) -> None:
        """Take in the next event of the subscription."""
        outage = self.outage
        if verb == "circuit.opened":
            self._open.add(context["downstream"])
            if context["downstream"] not in outage.downstreams:
                outage.downstreams.append(context["downstream"])
        elif verb == "circuit.closed":
            self._open.discard(context["downstream"])
        elif verb == "message.spooled":
            ref = context["spool_ref"]
            self.came.add(ref)
            if context["reason"] == "requeued":
                self._forget_end(ref)
            if not any(ref in left for left in self._left.values()):
                self._waiting.add(ref)
        elif verb in _LEAVING and context["spool_ref"]:
            ref = context["spool_ref"]
            self._forget_end(ref)
            self.came.add(ref)  # whatever leaves had come
            self._waiting.discard(ref)
            self._left[verb].add(ref)
        elif verb == "message.dropped":
            self._dropped.add((context["message_id"], context.get("created_at", ts_ms)))
        self._note(verb, ts_ms, _detail(verb, context))
        outage.ended_ms = ts_ms if self.is_over else None

    def _forget_end(self, ref: str) -> None:
        """A message waits again, or leaves in another way: it is counted as what became of it last."""
        for left in self._left.values():
            left.discard(ref)

    def told(self) -> Outage:
        """The outage with its counts."""
        outage = self.outage
        outage.spooled = len(self.came)
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
_TOLD = frozenset(
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
    """The outages of one subscription, oldest first; the last one may still go on."""
    current: _OutageBuilder | None = None
    gone: set[str] = (
        set()
    )  # what left in an outage before this one: whatever is told of them now was told late, or twice
    for entry in entries:
        verb = entry.subject.split("/")[3] if entry.subject.startswith("/tape/subscription/") else ""
        if verb not in _TOLD:
            continue
        context = msgspec.json.decode(entry.payload_json)
        ref = context.get("spool_ref", "")
        if verb == "message.spooled" and context["reason"] == "requeued":
            gone.discard(ref)
        elif ref in gone:
            continue
        if current is None:
            if verb in _LEAVING:
                gone.add(ref)
            if verb in ("spool.draining", "circuit.closed", *_LEAVING):
                continue  # what was still to be said of a finished outage
            current = _OutageBuilder(entry.ts_ms)
        current.add(verb, entry.ts_ms, context)
        if current.is_over:
            yield current.told()
            gone |= current.came
            current = None
    if current is not None:
        yield current.told()


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
