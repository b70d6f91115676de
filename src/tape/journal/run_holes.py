"""Holes in runs: a run's seqs are gapless, so a reader that goes by the index of runs sees what the index lacks.

Seqs may be missing of one tenant because another tenant of a shared run has them, because retention removed the
beginning, or because `tape_run_gaps` names them. For any others the table is read: it has the entries, and the index is
damaged, or entries of that range are damaged or missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tape.errors import StoreDamaged
from tape.journal.appender import Head
from tape.journal.epochs import read_run_gaps
from tape.journal.ranges import WINDOW, Found, read_through
from tape.model.entry import Entry
from tape.model.gap import JournalGap
from tape.store import Reader

# One read searches so many entries of the table; what is beyond is reported as missing.
MAX_SEARCHED = 10 * WINDOW
STEP = 2_048


class _End(NamedTuple):
    """An entry of a run that was read, or the beginning or the end of the run."""

    seq: int
    global_seq: int


class _Hole(NamedTuple):
    """Seqs of a tenant's run between two entries."""

    tenant: str
    before: _End
    after: _End


class _Searched(NamedTuple):
    """What the table has in a range: entries of the run, all whole entries' numbers, and gaps."""

    entries: list[Entry]
    whole: set[int]
    gaps: list[JournalGap]


class RunHoles:
    """Follows the seqs of one run over the reads of a cursor."""

    def __init__(self, run_id: str, from_seq: int) -> None:
        self._run_id = run_id
        self._from_seq = from_seq
        self._last: dict[str, _End] = {}
        # The consecutive seqs that were read last, of all tenants.
        self._seen = range(0)
        # Whether two tenants are known to have the same seq: a shared run gives each to one of them.
        self._is_separate = False

    def complete(
        self, reader: Reader, head: Head, last_seqs: Mapping[str, int], tenants: Sequence[str], after: int, found: Found
    ) -> Found:
        """What was read after a position, with the entries that the index lacks, and gaps for those that are gone.

        `last_seqs` are the last seqs of the run by tenant, read before the head; `tenants` are those that are read.
        """
        is_shared = len(last_seqs) > 1 and len(set(last_seqs.values())) == 1
        holes = self._find(reader, head, last_seqs, after, found, is_shared=is_shared)
        if not holes:
            return found
        entries = {entry.global_seq: entry for entry in found.entries}
        gaps = list(found.gaps)
        for hole in holes:
            if not (missing := self._missing(reader, hole, found)):
                continue
            searched = self._search(reader, head, max(hole.before.global_seq, after), hole.after.global_seq)
            for entry in searched.entries:
                if entry.tenant in tenants and entry.seq >= self._from_seq and entry.global_seq not in entries:
                    reader.damage.record_recovered("index", entry.global_seq)
                    entries[entry.global_seq] = entry
            # The index can lead to another entry, which then looks damaged and is not.
            gaps = [gap for gap in gaps if gap.reason != "damaged" or gap.first not in searched.whole]
            missing -= {entry.seq for entry in searched.entries if entry.tenant == hole.tenant}
            low, high = hole.before.global_seq, hole.after.global_seq
            named = sum(gap.reason == "damaged" and low < gap.first < high for gap in gaps)
            if len(missing) > named:
                gaps += searched.gaps
        return Found([entries[number] for number in sorted(entries)], gaps, found.position)

    def _find(
        self, reader: Reader, head: Head, last_seqs: Mapping[str, int], after: int, found: Found, *, is_shared: bool
    ) -> list[_Hole]:
        """Where the seqs of a tenant are not consecutive, at the end of what was read too if that is the head."""
        ends = [(entry.tenant, _End(entry.seq, entry.global_seq)) for entry in found.entries]
        if found.position >= head.global_seq:
            tail = [(tenant, _End(seq, head.global_seq + 1)) for tenant, seq in last_seqs.items()]
            newest = {tenant: end.seq for tenant, end in ends}
            ends += [
                (tenant, end)
                for tenant, end in tail
                if end.seq > newest.get(tenant, self._last.get(tenant, _End(0, 0)).seq) and end.seq >= self._from_seq
            ]
        holes = []
        for tenant, end in ends:
            is_tail = end.global_seq > head.global_seq
            last = self._last.get(tenant) or self._begin(reader, head, tenant, end.seq + is_tail, after)
            first = 0 if last is None else last.seq + 1
            self._is_separate |= not is_tail and end.seq in self._seen
            if is_shared and not self._is_separate and first in self._seen:
                first = self._seen.stop
            if last is not None and end.seq + is_tail > first:
                holes.append(_Hole(tenant, _End(first - 1, last.global_seq), end._replace(seq=end.seq + is_tail)))
            if not is_tail and end.seq not in self._seen:
                start = self._seen.start if end.seq == self._seen.stop else end.seq
                self._seen = range(start, end.seq + 1)
            self._last[tenant] = end
        return holes

    def _begin(self, reader: Reader, head: Head, tenant: str, first: int, after: int) -> _End | None:
        """The entry before the first one that is read; None if there need be none, or retention may have removed it."""
        if first <= max(self._from_seq, 1):
            return None
        # One after the position would have been read: the index lacks it there, or it has lost its number.
        sql = (
            "SELECT seq, global_seq FROM tape_journal WHERE run_id = ? AND tenant = ? AND seq < ? AND global_seq <= ?"
            " ORDER BY seq DESC LIMIT 1"
        )
        entry = "SELECT run_id, tenant, seq FROM tape_journal WHERE global_seq = ?"
        try:
            reader.damage.check_indexes()
            row = reader.one(sql, self._run_id, tenant, first, after)
            if row is not None and reader.one(entry, row[1]) != (self._run_id, tenant, row[0]):
                raise StoreDamaged("The index of runs leads to another entry.")
            if row is None and head.oldest > 1:
                return None
        except StoreDamaged:  # the index is: the table is searched
            row = None
        seq, global_seq = row or (0, 0)
        return _End(max(seq, self._from_seq - 1), global_seq)

    def _missing(self, reader: Reader, hole: _Hole, found: Found) -> set[int]:
        """The seqs of a hole that nothing explains."""
        low, high = hole.before, hole.after
        missing = set(range(low.seq + 1, min(high.seq, low.seq + MAX_SEARCHED)))
        for gap in read_run_gaps(reader, self._run_id, hole.tenant):
            missing.difference_update(range(gap.after_seq + 1, gap.resumes_at))
        if missing:
            sql = (
                "SELECT j.seq FROM tape_run_heads h JOIN tape_journal j ON j.run_id = h.run_id AND j.tenant = h.tenant"
                " WHERE h.run_id = ? AND h.tenant <> ? AND j.seq > ? AND j.seq <= ?"
            )
            with contextlib.suppress(StoreDamaged):  # then the table says it
                reader.damage.check_indexes()
                others = {row[0] for row in reader.query(sql, self._run_id, hole.tenant, low.seq, high.seq)}
                if high.seq not in others:  # else each tenant has seqs of its own
                    others.update(
                        entry.seq for entry in found.entries if low.global_seq < entry.global_seq < high.global_seq
                    )
                    missing -= others
        return missing

    def _search(self, reader: Reader, head: Head, low: int, high: int) -> _Searched:
        """The entries of the run in the table between two numbers, and the gaps of the journal there."""
        entries: list[Entry] = []
        gaps: list[JournalGap] = []
        whole: set[int] = set()
        position, last = low, min(high - 1, low + MAX_SEARCHED)
        while position < last:
            found = read_through(reader, head, position, STEP)
            entries += [entry for entry in found.entries if entry.run_id == self._run_id and entry.global_seq < high]
            gaps += [gap for gap in found.gaps if gap.first < high]
            whole.update(entry.global_seq for entry in found.entries)
            position = found.position
        if position < high - 1:
            gaps.append(JournalGap(position + 1, high - 1, "missing", "the run lacks an entry that was not found"))
        return _Searched(entries, whole, gaps)
