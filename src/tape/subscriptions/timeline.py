"""What happened while a downstream was away, told from the journal alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import msgspec


class Entry(Protocol):
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
    """From the first circuit that opened until nothing waits any more."""

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
    _open: set[str] = msgspec.field(default_factory=set, name="open_circuits")

    @property
    def is_over(self) -> bool:
        """Whether all circuits are closed and nothing waits."""
        return not self._open and self.waiting == 0

    def add(self, verb: str, ts_ms: int, context: dict[str, Any]) -> None:
        """Take in the next event of the subscription."""
        match verb:
            case "circuit.opened":
                self._open.add(context["downstream"])
                if context["downstream"] not in self.downstreams:
                    self.downstreams.append(context["downstream"])
            case "circuit.closed":
                self._open.discard(context["downstream"])
            case "message.spooled":
                self.spooled += 1
                self.waiting += 1
            case "message.replayed":
                self.replayed += 1
                self.waiting -= 1
            case "message.dead_lettered":
                self.dead_lettered += 1
                self.waiting -= 1
            case "spool.quarantined":
                self.quarantined += 1
                self.waiting -= 1
            case "message.dropped":
                self.dropped += 1
        self._note(verb, ts_ms, _detail(verb, context))
        self.ended_ms = ts_ms if self.is_over else None

    def _note(self, verb: str, ts_ms: int, detail: str) -> None:
        last = self.moments[-1] if self.moments else None
        if last is not None and last.what == verb and last.detail == detail and verb.startswith("message."):
            self.moments[-1] = Moment(last.ts_ms, ts_ms, verb, last.count + 1, detail)
        else:
            self.moments.append(Moment(ts_ms, ts_ms, verb, 1, detail))


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


def outages(entries: Iterable[Entry]) -> Iterator[Outage]:
    """The outages of one subscription, oldest first; the last one may still go on."""
    current: Outage | None = None
    for entry in entries:
        verb = entry.subject.split("/")[3] if entry.subject.startswith("/tape/subscription/") else ""
        if verb not in _TOLD:
            continue
        if current is None:
            if verb == "spool.draining":
                continue  # what a finished outage still had to say
            current = Outage(began_ms=entry.ts_ms)
        current.add(verb, entry.ts_ms, msgspec.json.decode(entry.payload_json))
        if current.is_over:
            yield current
            current = None
    if current is not None:
        yield current


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
