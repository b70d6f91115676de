"""Reading the journal: after a cursor by subject, one run from a seq, a moment in time."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import msgspec

from tape.errors import CursorBeyondHead, CursorExpired, StoreDamaged
from tape.journal.appender import Head, read_head
from tape.journal.entries import ROW, SELECT
from tape.journal.epochs import NO_HOLES, Holes, read_holes
from tape.journal.key_index import look_up_identities, look_up_subject, look_up_subjects_below
from tape.journal.ranges import WINDOW, Fetch, Found, join_gaps, read_indexed, read_range, read_through
from tape.journal.run_holes import RunHoles
from tape.model.entry import Entry
from tape.model.gap import JournalGap
from tape.model.grants import Grants
from tape.model.pattern import Pattern
from tape.model.principal import Principal
from tape.store import Reader
from tape.store.connection import Row

# A pattern with no more subjects in the index than this is looked up there instead of scanned for.
SPARSE = 5_000
# A run that is read for more tenants than this is scanned for, because each tenant costs a lookup.
MAX_RUN_TENANTS = 64
FIRST_LIMIT = 128
MAX_LIMIT = 1_024
TARGET_BYTES = 2 << 20


class Selection(msgspec.Struct, frozen=True):
    """A selection of entries: all conditions must hold."""

    pattern: Pattern
    run_id: str = ""
    kind: str = ""
    # Only entries of these tenants; None is every tenant.
    tenants: tuple[str, ...] | None = None
    # Only entries of these subjects; None is every subject that fits the pattern.
    grants: Grants | None = None

    def matches(self, entry: Entry) -> bool:
        """Whether the entry is wanted."""
        return (
            self.matches_beyond_pattern(entry)
            and (not self.run_id or entry.run_id == self.run_id)
            and self.pattern.matches(entry.subject)
        )

    def filter(self, entries: list[Entry]) -> list[Entry]:
        """The entries that are wanted; cheaper than `matches` for each of them."""
        if self.run_id:
            entries = [entry for entry in entries if entry.run_id == self.run_id]
        if self.kind:
            entries = [entry for entry in entries if entry.kind == self.kind]
        if (tenants := self.tenants) is not None:
            entries = [entry for entry in entries if entry.tenant in tenants]
        if not self.pattern.matches_everything:
            fits = self.pattern.matches
            entries = [entry for entry in entries if fits(entry.subject)]
        if self.grants is not None:
            is_granted = self.grants.matches
            entries = [entry for entry in entries if is_granted(entry.subject)]
        return entries

    def matches_beyond_pattern(self, entry: Entry) -> bool:
        """Whether the entry has the kind and the tenant and is granted: what is left once its subject matches."""
        return (
            (not self.kind or entry.kind == self.kind)
            and (self.tenants is None or entry.tenant in self.tenants)
            and (self.grants is None or self.grants.matches(entry.subject))
        )


EVERYTHING = Selection(Pattern(""))


def select_visible(principal: Principal, pattern: str = "", run_id: str = "", kind: str = "") -> Selection:
    """What a principal sees of a selection: entries of its tenants, of subjects that its grants include.

    Raises SubjectNotGranted if its grants include no subject of the pattern.
    """
    wanted, grants = Pattern(pattern), principal.read_grants
    if grants is not None:
        wanted, grants = grants.narrow(wanted)
    return Selection(wanted, run_id, kind, principal.visible_tenants, grants)


class Slice(msgspec.Struct, frozen=True):
    """Entries, the position up to which the journal was read for them, and the gaps up to there, in order."""

    entries: list[Entry]
    position: int
    head: int
    gaps: tuple[JournalGap, ...] = ()


def to_slice(head: Head, found: Found, selection: Selection = EVERYTHING) -> Slice:
    """What a cursor gives of what was read: the entries that match, and all gaps."""
    gaps = join_gaps(found.gaps) if found.gaps else ()
    return Slice(selection.filter(found.entries), found.position, head.global_seq, gaps)


class Cursor(Protocol):
    """Reads one selection step by step."""

    def read(self, reader: Reader, after: int) -> Slice:
        """The next entries after a global_seq; perhaps none, but the position moves on unless at head."""


def open_cursor(selection: Selection) -> Cursor:
    """The cursor that reads a selection with the index that suits it."""
    return RunCursor(selection) if selection.run_id else SubjectCursor(selection)


class BatchLimit:
    """How many entries to read at once: more while they are small, fewer when they are large."""

    def __init__(self) -> None:
        self.value = FIRST_LIMIT

    def adapt(self, entries: list[Entry]) -> None:
        """What the last read gave."""
        size = sum(len(entry.payload_json) for entry in entries)
        if size > 2 * TARGET_BYTES:
            self.value = max(self.value // 4, 8)
        elif len(entries) == self.value and size < TARGET_BYTES:
            self.value = min(self.value * 2, MAX_LIMIT)


class SubjectCursor:
    """Reads by subject: from the index where few entries can match, else straight through."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._pattern = selection.pattern
        look_up = look_up_subject if selection.pattern.is_literal else look_up_subjects_below
        self._lookup = look_up(selection.pattern.prefix)
        self._is_dense = False
        self._limit = BatchLimit()

    def read(self, reader: Reader, after: int) -> Slice:
        head = read_head(reader)
        check_cursor(after, head)
        if after >= head.global_seq:
            return Slice([], after, head.global_seq)
        limit = self._limit.value
        if self._pattern.matches_everything:
            found = read_through(reader, head, after, limit)
        elif head.global_seq - after > WINDOW and self._is_sparse(reader):
            found = read_indexed(
                reader, head, partial(self._lookup.select, reader, ROW), after, limit, self._is_in_range
            )
        else:
            found = read_range(reader, head, self._scan(reader), after, min(head.global_seq, after + WINDOW), limit)
        self._limit.adapt(found.entries)
        return to_slice(head, found, self._selection)

    def _is_sparse(self, reader: Reader) -> bool:
        if self._pattern.is_literal:
            return True
        # A pattern that many subjects fit is not counted again for each read.
        if self._is_dense or reader.damage.avoids_indexes:
            return False
        try:
            self._is_dense = self._lookup.count(reader, SPARSE + 1) > SPARSE
        except StoreDamaged:  # the index is
            return False
        return not self._is_dense

    def _scan(self, reader: Reader) -> Fetch:
        # The concatenation keeps PostgreSQL from the subject's index: the window is short already.
        condition, params = self._subject_condition("(subject || '')")
        sql = f"{SELECT} WHERE {condition} AND global_seq > ? AND global_seq <= ? ORDER BY global_seq LIMIT ?"
        return lambda after, until, limit: reader.query(sql, *params, after, until, limit)

    def _is_in_range(self, entry: Entry) -> bool:
        prefix = self._pattern.prefix
        return entry.subject == prefix if self._pattern.is_literal else prefix <= entry.subject < prefix + "0"

    def _subject_condition(self, subject: str) -> tuple[str, list[str]]:
        prefix = self._pattern.prefix
        if self._pattern.is_literal:
            return f"{subject} = ?", [prefix]
        # "0" is the character after "/": the range holds the prefix and everything below it.
        return f"{subject} >= ? AND {subject} < ?", [prefix, prefix + "0"]


class ExactCursor:
    """Reads a few exact subjects, each from the index."""

    def __init__(self, subjects: Sequence[str]) -> None:
        self._subjects = subjects
        self._lookup = look_up_subject(*subjects)
        self._limit = BatchLimit()

    def read(self, reader: Reader, after: int) -> Slice:
        head = read_head(reader)
        check_cursor(after, head)
        fetch = partial(self._lookup.select, reader, ROW)
        found = read_indexed(reader, head, fetch, after, self._limit.value, self._matches)
        self._limit.adapt(found.entries)
        return to_slice(head, found)

    def _matches(self, entry: Entry) -> bool:
        return entry.subject in self._subjects


class RunCursor:
    """Reads one run, of each tenant in its own order, all in the global one.

    A run id of several tenants is one run for each of them. What a tenant that is not selected has under the id is not
    read.
    """

    def __init__(self, selection: Selection, from_seq: int = 0) -> None:
        self._selection = selection
        self._from_seq = from_seq
        self._next_seqs: dict[str, int] = {}
        self._headless: dict[str, int] | None = None
        self._holes = RunHoles(selection.run_id, from_seq)
        self._limit = BatchLimit()

    def read(self, reader: Reader, after: int) -> Slice:
        # Before the head: each of these seqs has an entry up to it.
        last_seqs = self._read_last_seqs(reader)
        head = read_head(reader)
        check_cursor(after, head)
        limit = self._limit.value
        if last_seqs is None:
            until = min(head.global_seq, after + WINDOW)
            found = read_range(reader, head, self._scan(reader), after, until, limit)
        else:
            tenants = tuple(last_seqs) if self._selection.tenants is None else self._selection.tenants
            found = read_indexed(reader, head, self._look_up(reader, tenants), after, limit, self._is_of_run)
            found = self._holes.complete(reader, head, last_seqs, tenants, after, found)
        self._next_seqs |= {entry.tenant: entry.seq + 1 for entry in found.entries}
        self._limit.adapt(found.entries)
        found = found._replace(entries=[entry for entry in found.entries if entry.seq >= self._from_seq])
        return to_slice(head, found, self._selection)

    def _read_last_seqs(self, reader: Reader) -> dict[str, int] | None:
        """The last seqs by tenant; of all tenants, the first read asks the index too: a head may be lost."""
        last_seqs = read_last_seqs(reader, self._selection.run_id, self._selection.tenants)
        if self._selection.tenants is not None or last_seqs is None:
            return last_seqs
        if self._headless is None:
            indexed = _read_indexed_seqs(reader, self._selection.run_id) or {}
            self._headless = {tenant: seq for tenant, seq in indexed.items() if tenant not in last_seqs}
        return self._headless | last_seqs

    def _is_of_run(self, entry: Entry) -> bool:
        tenants = self._selection.tenants
        return entry.run_id == self._selection.run_id and (tenants is None or entry.tenant in tenants)

    def _look_up(self, reader: Reader, tenants: Sequence[str]) -> Fetch:
        condition = "run_id = ? AND tenant = ? AND seq >= ? AND global_seq > ? AND global_seq <= ?"
        run_id, first_seqs = self._selection.run_id, dict(self._next_seqs)

        def fetch(low: int, high: int, limit: int) -> list[Row]:
            params = [(run_id, tenant, first_seqs.get(tenant, self._from_seq), low, high, limit) for tenant in tenants]
            return merge(reader, f"{condition} ORDER BY seq LIMIT ?", params, limit)

        return fetch

    def _scan(self, reader: Reader) -> Fetch:
        # The concatenation keeps planners from the index of runs, which is not in this order.
        sql = f"{SELECT} WHERE (run_id || '') = ? AND global_seq > ? AND global_seq <= ? ORDER BY global_seq LIMIT ?"
        return lambda after, until, limit: reader.query(sql, self._selection.run_id, after, until, limit)


def merge(reader: Reader, condition: str, params: Sequence[tuple[object, ...]], limit: int) -> list[Row]:
    """The rows of several ranges, each read with the condition and its own parameters, in the global order."""
    if len(params) == 1:
        return reader.query(f"{SELECT} WHERE {condition}", *params[0])
    if not params:
        return []
    one = f"SELECT * FROM ({SELECT} WHERE {condition})"
    union = " UNION ALL ".join(f"{one} AS s{index}" for index in range(len(params)))
    return reader.query(f"{union} ORDER BY 1 LIMIT ?", *(value for each in params for value in each), limit)


def run_tenants(reader: Reader, run_id: str) -> tuple[str, ...] | None:
    """The tenants that have a run of this id; None if they are more than 64."""
    last_seqs = read_last_seqs(reader, run_id)
    return None if last_seqs is None else tuple(last_seqs)


def read_last_seqs(reader: Reader, run_id: str, tenants: Sequence[str] | None = None) -> dict[str, int] | None:
    """The last seqs of the runs of this id, by tenant; None if they are to be read for more than 64 tenants."""
    if tenants is None:
        sql = "SELECT tenant, seq FROM tape_run_heads WHERE run_id = ? LIMIT ?"
        found: dict[str, int] = dict(reader.query(sql, run_id, MAX_RUN_TENANTS + 1))
        if not found:
            return _read_indexed_seqs(reader, run_id)
        return found if len(found) <= MAX_RUN_TENANTS else None
    return dict(reader.lookup("tape_run_heads", "tenant, seq", ("run_id", "tenant"), [(run_id, t) for t in tenants]))


def _read_indexed_seqs(reader: Reader, run_id: str) -> dict[str, int] | None:
    """The last seqs of a run that has no heads, by the index of runs; None if that is damaged or has too many."""
    found: dict[str, int] = {}
    condition, params = "run_id = ?", [run_id]
    try:
        reader.damage.check_indexes()
        while len(found) <= MAX_RUN_TENANTS:
            sql = f"SELECT tenant FROM tape_journal WHERE {condition} ORDER BY tenant LIMIT 1"
            row = reader.one(sql, *params)
            if row is None:
                return found
            last = reader.one("SELECT max(seq) FROM tape_journal WHERE run_id = ? AND tenant = ?", run_id, row[0])
            found[row[0]] = last[0] if last is not None and last[0] is not None else 0
            condition, params = "run_id = ? AND tenant > ?", [run_id, row[0]]
    except StoreDamaged as error:
        reader.damage.record_error(error, 0)
    return None


class EntryIdentity(msgspec.Struct, frozen=True):
    """One user and session of a tenant, which may have entries under former names too."""

    tenants: tuple[str, ...]
    user: str
    session: str

    @property
    def triples(self) -> list[tuple[str, str, str]]:
        """Tenant, user and session of its entries, for each name of the tenant."""
        return [(tenant, self.user, self.session) for tenant in self.tenants]

    def matches(self, entry: Entry) -> bool:
        """Whether the entry is of this identity."""
        return entry.tenant in self.tenants and entry.user == self.user and entry.session == self.session


class IdentityCursor:
    """Reads the entries of one tenant, user and session, however many others there are in between."""

    def __init__(self, identity: EntryIdentity) -> None:
        self._identity = identity
        self._limit = BatchLimit()

    def read(self, reader: Reader, after: int) -> Slice:
        head = read_head(reader)
        check_cursor(after, head)
        limit, identity = self._limit.value, self._identity
        if identity.session:
            fetch = partial(look_up_identities(identity.triples).select, reader, ROW)
            found = read_indexed(reader, head, fetch, after, limit, identity.matches)
        else:  # most journals without identities would pay for an index of entries without a session
            until = min(head.global_seq, after + WINDOW)
            found = read_range(reader, head, partial(_scan_sessionless, reader, identity), after, until, limit)
        self._limit.adapt(found.entries)
        return to_slice(head, found)


def _scan_sessionless(reader: Reader, identity: EntryIdentity, after: int, until: int, limit: int) -> list[Row]:
    return merge(
        reader,
        'tenant = ? AND "user" = ? AND session = ? AND global_seq > ? AND global_seq <= ? ORDER BY global_seq LIMIT ?',
        [(*triple, after, until, limit) for triple in identity.triples],
        limit,
    )


class _OwnRunCursor(RunCursor):
    """One run, as far as it is of one identity."""

    def __init__(self, identity: EntryIdentity, run_id: str) -> None:
        super().__init__(Selection(EVERYTHING.pattern, run_id, tenants=identity.tenants))
        self._identity = identity

    def read(self, reader: Reader, after: int) -> Slice:
        found = super().read(reader, after)
        entries = [entry for entry in found.entries if self._identity.matches(entry)]
        return Slice(entries, found.position, found.head, found.gaps)


def open_identity_cursor(identity: EntryIdentity | None, run_id: str = "") -> Cursor:
    """The cursor for entries of one identity or of all, in one run or in all."""
    if identity is None:
        return open_cursor(Selection(EVERYTHING.pattern, run_id))
    return _OwnRunCursor(identity, run_id) if run_id else IdentityCursor(identity)


def checked_cursor(after: int, head: Head, holes: Holes = NO_HOLES) -> int:
    """The cursor where the journal begins to be read; 0 is the oldest entry, whatever was pruned."""
    after = after or head.oldest - 1
    check_cursor(after, head)
    holes.check_cursor(after)
    return after


def read_start(reader: Reader, after: int) -> tuple[Head, int]:
    """The head, and the cursor where the journal begins to be read; 0 is the oldest entry, whatever was pruned."""
    head = read_head(reader)
    return head, checked_cursor(after, head, read_holes(reader, head))


def check_cursor(after: int, head: Head) -> None:
    """Raise CursorBeyondHead or CursorExpired unless the journal has what follows a position."""
    if after > head.global_seq:
        raise CursorBeyondHead(after, head.global_seq)
    if after < head.oldest - 1:
        raise CursorExpired(after, head.oldest)


def position_before(reader: Reader, ts_ms: int) -> int:
    """The global_seq just before the first entry at or after a time. Entries never go back in time."""
    head = read_head(reader)

    def time_of(global_seq: int) -> int:
        """The time of an entry; of the next whole one if it is missing or damaged."""
        sql = f"{SELECT} WHERE global_seq > ? AND global_seq <= ? ORDER BY global_seq LIMIT ?"
        for limit in (1, FIRST_LIMIT):
            fetch = partial(reader.query, sql)
            if entries := read_range(reader, head, fetch, global_seq - 1, head.global_seq, limit).entries:
                return entries[0].ts_ms
        return head.ts_ms

    return bisect_left(range(head.oldest, head.global_seq + 1), ts_ms, key=time_of) + head.oldest - 1


def has_run(reader: Reader, run_id: str, tenants: Sequence[str] | None = None) -> bool:
    """Whether anything was ever appended to the run, by one of these tenants or by any."""
    # The journal has runs whose heads are damaged.
    if tenants is not None:
        runs = [(run_id, each) for each in tenants]
        if reader.lookup("tape_run_heads", "1", ("run_id", "tenant"), runs):
            return True
        sql = "SELECT 1 FROM tape_journal WHERE run_id = ? AND tenant = ? LIMIT 1"
        return any(reader.one(sql, *run) for run in runs[:MAX_RUN_TENANTS])
    tables = ("tape_run_heads", "tape_pruned_runs", "tape_journal")
    return any(reader.one(f"SELECT 1 FROM {table} WHERE run_id = ? LIMIT 1", run_id) for table in tables)


def has_entry(reader: Reader, selection: Selection) -> bool:
    """Whether a selection of one run has an entry; without a condition on subjects, whether it ever had one."""
    if selection.pattern.matches_everything and selection.grants is None and not selection.kind:
        return has_run(reader, selection.run_id, selection.tenants)
    cursor, position = RunCursor(selection), read_head(reader).oldest - 1
    while True:
        found = cursor.read(reader, position)
        if found.entries or found.position >= found.head:
            return bool(found.entries)
        position = found.position


def has_run_from(reader: Reader, run_id: str, tenants: Sequence[str] | None = None, first_seq: int = 1) -> bool:
    """Whether the journal still has a run from a seq on, of every one of these tenants, or of all, that have it."""
    if tenants is None:
        tenants = run_tenants(reader, run_id)
        is_pruned = reader.one("SELECT 1 FROM tape_pruned_runs WHERE run_id = ?", run_id) is not None
        if tenants is None or is_pruned:
            return False
    having = [each for each in tenants if has_run(reader, run_id, [each])]
    return bool(having) and all(_first_seq(reader, run_id, each) <= max(first_seq, 1) for each in having)


def _first_seq(reader: Reader, run_id: str, tenant: str) -> float:
    row = reader.one("SELECT min(seq) FROM tape_journal WHERE run_id = ? AND tenant = ?", run_id, tenant)
    return row[0] if row is not None and row[0] is not None else math.inf
