"""Reading the journal: after a cursor by subject, one run from a seq, a moment in time."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

import msgspec

from tape.errors import CursorBeyondHead, CursorExpired
from tape.journal.appender import Head, read_head
from tape.model.entry import COLUMNS, Entry
from tape.model.grants import Grants
from tape.model.pattern import Pattern
from tape.model.principal import Principal
from tape.store import Reader
from tape.store.connection import Row

# One query reads this many entries at most, so that none takes long.
WINDOW = 20_000
# A pattern with no more subjects in the index than this is looked up there instead of scanned for.
SPARSE = 5_000
# A run that is read for more tenants than this is scanned for, because each tenant costs a lookup.
MAX_RUN_TENANTS = 64
FIRST_LIMIT = 128
MAX_LIMIT = 2_048
TARGET_BYTES = 2 << 20

_SELECT = f"SELECT {','.join(COLUMNS)} FROM tape_journal"


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

    def matches_beyond_pattern(self, entry: Entry) -> bool:
        """Whether the entry has the kind and the tenant and is granted: what is left once its subject matches."""
        return (
            (not self.kind or entry.kind == self.kind)
            and (self.tenants is None or entry.tenant in self.tenants)
            and (self.grants is None or self.grants.matches(entry.subject))
        )

    @property
    def is_everything(self) -> bool:
        """Whether no entry of any run is left out."""
        return (
            self.pattern.matches_everything
            and not (self.run_id or self.kind)
            and self.tenants is None
            and self.grants is None
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
    """Entries, and the position up to which the journal was read for them."""

    entries: list[Entry]
    position: int
    head: int


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
        self._is_everything = selection.is_everything
        self._limit = BatchLimit()

    def read(self, reader: Reader, after: int) -> Slice:
        head = read_head(reader)
        check_cursor(after, head)
        limit = self._limit.value
        if after >= head.global_seq:
            return Slice([], after, head.global_seq)
        if head.global_seq - after > WINDOW and not self._is_everything and self._is_sparse(reader):
            until = head.global_seq
            rows = self._look_up(reader, after, until, limit)
        else:
            until = min(head.global_seq, after + WINDOW)
            rows = self._scan(reader, after, until, limit)
        found = [Entry(*row) for row in rows]
        position = found[-1].global_seq if len(found) == limit else until
        self._limit.adapt(found)
        if not self._is_everything:
            matches = self._selection.matches
            found = [entry for entry in found if matches(entry)]
        return Slice(found, position, head.global_seq)

    def _is_sparse(self, reader: Reader) -> bool:
        if self._pattern.is_literal:
            return True
        condition, params = self._subject_condition("subject")
        count = reader.one(
            f"SELECT count(*) FROM (SELECT 1 FROM tape_journal WHERE {condition} LIMIT ?) AS few",
            *params,
            SPARSE + 1,
        )
        return count is not None and count[0] <= SPARSE

    def _look_up(self, reader: Reader, after: int, until: int, limit: int) -> list[Row]:
        condition, params = self._subject_condition("subject")
        # Under one subject the index is in the order wanted. Over a range of subjects it is not, and the
        # sign keeps planners from scanning the journal in order instead of sorting a few numbers.
        number = "global_seq" if self._pattern.is_literal else "+global_seq"
        return reader.query(
            f"{_SELECT} WHERE global_seq IN (SELECT global_seq FROM tape_journal WHERE {condition}"
            f" AND {number} > ? AND {number} <= ? ORDER BY {number} LIMIT ?) ORDER BY global_seq",
            *params,
            after,
            until,
            limit,
        )

    def _scan(self, reader: Reader, after: int, until: int, limit: int) -> list[Row]:
        if self._pattern.matches_everything:
            condition = ""
            params: list[str] = []
        else:
            # The concatenation keeps planners from the subject's index: the window is short already.
            condition, params = self._subject_condition("(subject || '')")
            condition = f"{condition} AND "
        return reader.query(
            f"{_SELECT} WHERE {condition}global_seq > ? AND global_seq <= ? ORDER BY global_seq LIMIT ?",
            *params,
            after,
            until,
            limit,
        )

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
        self._limit = BatchLimit()

    def read(self, reader: Reader, after: int) -> Slice:
        head = read_head(reader)
        check_cursor(after, head)
        limit = self._limit.value
        condition = "subject = ? AND global_seq > ? AND global_seq <= ? ORDER BY global_seq LIMIT ?"
        params = [(subject, after, head.global_seq, limit) for subject in self._subjects]
        entries = [Entry(*row) for row in merge(reader, condition, params, limit)]
        self._limit.adapt(entries)
        position = entries[-1].global_seq if len(entries) == limit else max(after, head.global_seq)
        return Slice(entries, position, head.global_seq)


class RunCursor:
    """Reads one run, of each tenant in its own order, all in the global one.

    A run id of several tenants is one run for each of them. What a tenant that is not selected has under the id is not
    read.
    """

    def __init__(self, selection: Selection, from_seq: int = 0) -> None:
        self._selection = selection
        self._from_seq = from_seq
        self._next_seqs: dict[str, int] = {}
        self._limit = BatchLimit()

    def read(self, reader: Reader, after: int) -> Slice:
        head = read_head(reader)
        check_cursor(after, head)
        limit = self._limit.value
        tenants = self._selection.tenants
        if tenants is None:
            tenants = run_tenants(reader, self._selection.run_id)
        if tenants is None:
            until = min(head.global_seq, after + WINDOW)
            rows = self._scan(reader, after, until, limit)
        else:
            until = head.global_seq
            rows = self._look_up(reader, tenants, after, until, limit)
        entries = [Entry(*row) for row in rows]
        self._next_seqs |= {entry.tenant: entry.seq + 1 for entry in entries}
        self._limit.adapt(entries)
        position = entries[-1].global_seq if len(entries) == limit else max(after, until)
        matches = self._selection.matches
        found = [entry for entry in entries if entry.seq >= self._from_seq and matches(entry)]
        return Slice(found, position, head.global_seq)

    def _look_up(self, reader: Reader, tenants: Sequence[str], after: int, until: int, limit: int) -> list[Row]:
        condition = "run_id = ? AND tenant = ? AND seq >= ? AND global_seq > ? AND global_seq <= ?"
        bounds = (after, until, limit)
        params = [
            (self._selection.run_id, tenant, self._next_seqs.get(tenant, self._from_seq), *bounds) for tenant in tenants
        ]
        return merge(reader, f"{condition} ORDER BY seq LIMIT ?", params, limit)

    def _scan(self, reader: Reader, after: int, until: int, limit: int) -> list[Row]:
        # The concatenation keeps planners from the index of runs, which is not in this order.
        return reader.query(
            f"{_SELECT} WHERE (run_id || '') = ? AND global_seq > ? AND global_seq <= ? ORDER BY global_seq LIMIT ?",
            self._selection.run_id,
            after,
            until,
            limit,
        )


def merge(reader: Reader, condition: str, params: Sequence[tuple[object, ...]], limit: int) -> list[Row]:
    """The rows of several ranges, each read with the condition and its own parameters, in the global order."""
    if len(params) == 1:
        return reader.query(f"{_SELECT} WHERE {condition}", *params[0])
    if not params:
        return []
    one = f"SELECT * FROM ({_SELECT} WHERE {condition})"
    union = " UNION ALL ".join(f"{one} AS s{index}" for index in range(len(params)))
    return reader.query(f"{union} ORDER BY 1 LIMIT ?", *(value for each in params for value in each), limit)


def run_tenants(reader: Reader, run_id: str) -> tuple[str, ...] | None:
    """The tenants that have a run of this id; None if they are more than 64."""
    sql = "SELECT tenant FROM tape_run_heads WHERE run_id = ? LIMIT ?"
    rows = reader.query(sql, run_id, MAX_RUN_TENANTS + 1)
    return tuple(row[0] for row in rows) if len(rows) <= MAX_RUN_TENANTS else None


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
        limit = self._limit.value
        condition, is_indexed = identity_condition(self._identity)
        until = head.global_seq if is_indexed else min(head.global_seq, after + WINDOW)
        rows = merge(
            reader,
            f"{condition} AND global_seq > ? AND global_seq <= ? ORDER BY global_seq LIMIT ?",
            [(*triple, after, until, limit) for triple in self._identity.triples],
            limit,
        )
        entries = [Entry(*row) for row in rows]
        self._limit.adapt(entries)
        position = entries[-1].global_seq if len(entries) == limit else max(after, until)
        return Slice(entries, position, head.global_seq)


class _OwnRunCursor(RunCursor):
    """One run, as far as it is of one identity."""

    def __init__(self, identity: EntryIdentity, run_id: str) -> None:
        super().__init__(Selection(EVERYTHING.pattern, run_id, tenants=identity.tenants))
        self._identity = identity

    def read(self, reader: Reader, after: int) -> Slice:
        found = super().read(reader, after)
        return Slice([entry for entry in found.entries if self._identity.matches(entry)], found.position, found.head)


def open_identity_cursor(identity: EntryIdentity | None, run_id: str = "") -> Cursor:
    """The cursor for entries of one identity or of all, in one run or in all."""
    if identity is None:
        return open_cursor(Selection(EVERYTHING.pattern, run_id))
    return _OwnRunCursor(identity, run_id) if run_id else IdentityCursor(identity)


def identity_condition(identity: EntryIdentity) -> tuple[str, bool]:
    """The condition for entries of one identity (its parameters are the three), and whether an index has them."""
    condition = 'tenant = ? AND "user" = ? AND session = ?'
    # Entries without a session are not in the index: most journals without identities would pay for nothing.
    return (f"{condition} AND session <> ''", True) if identity.session else (condition, False)


def checked_cursor(after: int, head: Head) -> int:
    """The cursor where the journal begins to be read; 0 is the oldest entry, whatever was pruned."""
    after = after or head.oldest - 1
    check_cursor(after, head)
    return after


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
        row = reader.one("SELECT ts_ms FROM tape_journal WHERE global_seq = ?", global_seq)
        return int(row[0]) if row else 0

    return bisect_left(range(head.oldest, head.global_seq + 1), ts_ms, key=time_of) + head.oldest - 1


def has_run(reader: Reader, run_id: str, tenants: Sequence[str] | None = None) -> bool:
    """Whether anything was ever appended to the run, by one of these tenants or by any."""
    if tenants is not None:
        return bool(reader.lookup("tape_run_heads", "1", ("run_id", "tenant"), [(run_id, each) for each in tenants]))
    tables = ("tape_run_heads", "tape_pruned_runs")
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
