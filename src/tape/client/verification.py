"""Verifies the chain on the client: entries that do not follow from their predecessors are found without the server."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import msgspec

from tape.errors import InvalidInput
from tape.model.chain import GENESIS, canonical, link
from tape.model.pattern import Pattern
from tape.proto import tape_pb2 as pb

# Where a chain begins to be verified: a global_seq and the chain value of that entry, as bytes or in hex.
Anchor = tuple[int, bytes | str]

CHAIN_BYTES = 32


def check_contiguous(request: pb.FollowRequest) -> None:
    """Raise InvalidInput unless the request asks for every entry: the chain of a part cannot be proven."""
    chosen = [name for name in ("run_id", "kind", "predicate_cel") if getattr(request, name)]
    if not Pattern(request.subject_pattern).matches_everything:
        chosen.insert(0, "subject_pattern")
    if chosen:
        raise InvalidInput(
            f"verify needs every entry, and {' and '.join(chosen)} leaves some out: a chain with links left out cannot"
            " be proven. Follow without it, and select in your own code."
        )


class ChainVerifier:
    """The chain of one follow after a position; 0 and -1 say nothing about the first entry.

    The first entry is trusted, unless it is entry 1 or there is an anchor before it.
    """

    def __init__(self, after: int = 0, anchor: Anchor | None = None) -> None:
        self._last = 0
        # What the chain value before the next entry can be; empty if it is not known.
        self._before: tuple[bytes, ...] = (GENESIS,)
        self._is_anchored = anchor is not None
        if anchor is not None:
            self._last, self._before = anchor[0], (_chain_value(anchor),)
        else:
            self._trust_after(after)

    def verify(self, batch: pb.EntryBatch, *, skip_gaps: bool) -> pb.JournalGap | None:
        """Verify a batch. What is wrong is added to its gaps; without `skip_gaps` it is returned, and the batch cut."""
        named = list(batch.gaps)
        kept: list[pb.EventEntry] = []
        found: list[pb.JournalGap] = []
        for event in batch.entries:
            while named and named[0].first < event.global_seq:
                self._pass(named.pop(0))
            while (wrong := self._check(event)) is not None:
                if not skip_gaps:
                    batch.position = kept[-1].global_seq if kept else wrong.first - 1
                    _replace(batch, kept, batch.gaps)
                    return wrong
                found.append(wrong)
                if wrong.last >= event.global_seq:
                    break
            else:
                kept.append(event)
        for gap in named:
            self._pass(gap)
        if found:
            _replace(batch, kept, sorted([*batch.gaps, *found], key=lambda gap: gap.first))
        return None

    def _pass(self, gap: pb.JournalGap) -> None:
        """The server has named a gap: what follows it is trusted, except after a lost range, which the chain spans."""
        if gap.reason != "diverged" or gap.first <= self._last:
            self._trust_after(gap.last)

    def _trust_after(self, last: int) -> None:
        if last > self._last:
            self._last, self._before, self._is_anchored = last, (), True

    def _check(self, event: pb.EventEntry) -> pb.JournalGap | None:
        """None if an entry follows from the ones before it, else what is wrong."""
        last, number = self._last, event.global_seq
        if not self._is_anchored:
            self._is_anchored = True
            if number != 1:
                self._before = ()
        elif number <= last:
            return pb.JournalGap(first=number, last=number, reason="damaged", detail="it came after a later entry")
        elif number > last + 1 and not _continues(event, last):
            self._trust_after(number - 1)
            return pb.JournalGap(first=last + 1, last=number - 1, reason="missing", detail=_NOT_SENT)
        computed = [value for before in self._before if (value := _chain_after(event, before))]
        is_proven = not self._before or event.chain in computed
        self._last = number
        # One of the two may be wrong: the next entry shows which.
        self._before = (event.chain,) if is_proven else (event.chain, *computed[:1])
        return None if is_proven else pb.JournalGap(first=number, last=number, reason="damaged", detail=_UNPROVEN)


_UNPROVEN = "its chain value does not follow from its content and the entry before it"
_NOT_SENT = "the server has not sent them; verify needs a caller that sees the entries of every tenant and subject"


def _replace(batch: pb.EntryBatch, entries: Sequence[pb.EventEntry], gaps: Iterable[pb.JournalGap]) -> None:
    """Replace what a batch has."""
    gaps = list(gaps)
    del batch.entries[:]
    del batch.gaps[:]
    batch.entries.extend(entries)
    batch.gaps.extend(gaps)


def _continues(event: pb.EventEntry, last: int) -> bool:
    """Whether an entry begins an epoch after the last entry: numbers between them were lost, and it says so."""
    if event.subject != "/tape/journal/diverged":
        return False
    try:
        facts = msgspec.json.decode(event.payload_json)
        return bool(facts["cut_after"] == last and facts["resumes_at"] == event.global_seq)
    except (msgspec.DecodeError, KeyError, TypeError):
        return False


def _chain_after(event: pb.EventEntry, before: bytes) -> bytes | None:
    texts = (
        event.run_id,
        event.kind,
        event.subject,
        event.payload_json,
        event.trace_id,
        event.span_id,
        event.parent_span_id,
        event.tenant,
        event.user,
        event.session,
    )
    try:
        return link(before, canonical(event.global_seq, event.seq, event.ts_ms, event.schema_version, texts))
    except struct.error:  # a schema_version that no entry can have
        return None


def _chain_value(anchor: Anchor) -> bytes:
    number, chain = anchor
    try:
        value = bytes.fromhex(chain) if isinstance(chain, str) else bytes(chain)
    except ValueError:
        value = b""
    if number < 0 or len(value) != CHAIN_BYTES:
        raise InvalidInput(
            f"verify_from {anchor!r} must be the number of an entry and its chain value: 32 bytes, or 64 hex digits."
        )
    return value
