"""Pages of entries, newest first, by identity, type, run and time."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence

import msgspec

from tape.errors import ArchiveDamaged, CursorExpired, StoreDamaged
from tape.journal.appender import Head, read_head
from tape.journal.damage import DamagedRange, read_damage_between
from tape.journal.entries import ROW, SELECT, entries_of
from tape.journal.epochs import Holes
from tape.journal.history import Archive, ArchivedPart, EntryFilter, History
from tape.journal.holes import find_missing
from tape.journal.identity_filter import IdentityFilter
from tape.journal.key_index import look_up_identities
from tape.journal.ranges import Fetch, fetch_in_order, join_gaps, read_range
from tape.journal.reader import position_before
from tape.model.entry import Entry
from tape.model.gap import GapReason, JournalGap
from tape.model.grants import Grants
from tape.store import Reader

# Entries looked at for one page; a rare type may need several calls.
MAX_EXAMINED = 50_000
STEP = 1_000
# Of a page with a filter, missing entries are searched for in a range of up to so many numbers.
MAX_NUMBERS = 2_000
# Recorded ranges of damage that one page names.
MAX_RECORDED = 100
# Of an archive only the filtered columns are read, many rows at once.
MAX_ARCHIVED_EXAMINED = 1_000_000
ARCHIVED_STEP = 200_000


class EntryQuery(msgspec.Struct, frozen=True):
    """Which entries are asked for. Times are in milliseconds, `until_ms` is exclusive."""

    identity: IdentityFilter
    types: Collection[str] = ()
    runs: Sequence[str] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    before_seq: int = 0
    limit: int = 50
    # Only entries of these subjects; None is every subject.
    grants: Grants | None = None

    @property
    def entry_filter(self) -> EntryFilter:
        """The filter for an archive."""
        identity = self.identity
        axes = {
            "tenant": identity.tenants,
            "user": identity.users,
            "session": identity.sessions,
            "type": self.types or None,
            "run_id": self.runs or None,
        }
        return EntryFilter(
            values={name: values for name, values in axes.items() if values is not None}, grants=self.grants
        )

    @property
    def has_filter(self) -> bool:
        """Whether entries of the identity and the runs may be left out."""
        return bool(self.types) or self.grants is not None

    def matches(self, entry: Entry) -> bool:
        """Whether an entry of the identity and the runs is wanted."""
        return (not self.types or entry.type in self.types) and (
            self.grants is None or self.grants.matches(entry.subject)
        )


class EntryPage(msgspec.Struct, frozen=True):
    """Entries, the oldest first. `next_cursor` asks for those before them; 0 if there are none.

    `gaps` are damaged and missing entries of the range that was examined, which may have belonged to the page.
    """

    entries: list[Entry]
    next_cursor: int
    is_truncated: bool
    gaps: tuple[JournalGap, ...] = ()


def list_entries(reader: Reader, query: EntryQuery) -> EntryPage:
    """The newest entries that match, before a cursor."""
    head = read_head(reader)
    low = head.oldest - 1 if query.since_ms is None else position_before(reader, query.since_ms)
    high = head.global_seq if query.until_ms is None else position_before(reader, query.until_ms)
    if query.before_seq:
        high = min(high, query.before_seq - 1)
    found: list[Entry] = []
    gaps: list[JournalGap] = []
    examined, top = 0, high
    numbers: list[int] | None = None if query.runs or query.identity != IdentityFilter() else []
    step = STEP if query.has_filter else query.limit + 1
    while high > low and examined < MAX_EXAMINED:
        entries, damaged, high = _read_down(reader, head, query, low, high, step)
        examined += max(len(entries), step if damaged else 0)
        gaps += damaged
        if numbers is not None:
            numbers += [entry.global_seq for entry in entries]
        found += filter(query.matches, entries) if query.has_filter else entries
        if len(found) > query.limit:
            page = found[: query.limit]
            first = page[-1].global_seq
            within = [gap for gap in gaps if gap.last >= first]
            within = _complete(reader, numbers, within, first - 1, top)
            return EntryPage(page[::-1], first, is_truncated=False, gaps=join_gaps(within))
    gaps = _complete(reader, numbers, gaps, high if high > low else low, top)
    return EntryPage(found[::-1], high + 1 if high > low else 0, is_truncated=high > low, gaps=join_gaps(gaps))


def _complete(
    reader: Reader, numbers: list[int] | None, gaps: list[JournalGap], after: int, until: int
) -> list[JournalGap]:
    """The gaps of a range, with its missing entries.

    `numbers` has what was read if that is all there is; else the numbers of a range of up to 2,000 are read, and of a
    longer one only the recorded damage is known.
    """
    after = max(after, read_head(reader).oldest - 1)
    if until <= after:
        return gaps
    if numbers is None and until - after <= MAX_NUMBERS:
        sql = "SELECT global_seq FROM tape_journal WHERE global_seq > ? AND global_seq <= ?"
        with contextlib.suppress(StoreDamaged):
            numbers = [row[0] for row in reader.query(sql, after, until)]
    if numbers is None:
        known = {number for gap in gaps for number in (gap.first, gap.last)}
        recorded = read_damage_between(reader, after + 1, until)[:MAX_RECORDED]
        return gaps + [
            JournalGap(max(each.first, after + 1), min(each.last, until), _reason_of(each), each.detail)
            for each in recorded
            if each.first not in known
        ]
    named = [number for gap in gaps for number in range(gap.first, gap.last + 1)]
    with contextlib.suppress(CursorExpired):  # retention has just removed them
        return gaps + find_missing(reader, after, until, [*numbers, *named])
    return gaps


def _reason_of(damage: DamagedRange) -> GapReason:
    return "missing" if damage.problem == "missing" else "damaged"


def _fetch_newest(reader: Reader, query: EntryQuery, *, by_index: bool = True) -> Fetch:
    """Reads the newest entries of a range that are of the identity and the runs; they are in order."""
    if by_index and query.identity.keys and not query.runs:
        lookup = look_up_identities(query.identity.keys)
        return lambda after, until, limit: lookup.select(reader, ROW, after, until, limit, newest=True)[::-1]
    condition, params = query.identity.condition(reader, by_index=by_index)
    if query.runs:
        among, runs = reader.is_any("run_id" if by_index else "(run_id || '')", query.runs)
        condition, params = f"{condition} AND {among}", [*params, runs]
    sql = f"{SELECT} WHERE {condition} AND global_seq > ? AND global_seq <= ? ORDER BY global_seq DESC LIMIT ?"
    return lambda after, until, limit: reader.query(sql, *params, after, until, limit)[::-1]


def _read_down(
    reader: Reader, head: Head, query: EntryQuery, low: int, high: int, step: int
) -> tuple[list[Entry], list[JournalGap], int]:
    """The newest entries of a range, newest first, gaps among them, and where the range before them ends."""
    try:
        rows = fetch_in_order(_fetch_newest(reader, query), low, high, step)[::-1]
    except StoreDamaged:
        low = position = max(low, high - STEP)
        scan = _fetch_newest(reader, query, by_index=False)
        found: list[Entry] = []
        gaps: list[JournalGap] = []
        while position < high:
            part = read_range(reader, head, scan, position, high, STEP)
            found, gaps, position = found + part.entries, gaps + part.gaps, part.position
        return found[::-1], gaps, low
    entries, gaps = entries_of(reader, rows)
    return entries, gaps, rows[-1][0] - 1 if len(rows) == step else low


async def list_history(history: History, query: EntryQuery) -> EntryPage:
    """The newest entries that match, before a cursor, of the journal and then of its archive."""
    head = await history.database.read(read_head)
    page = await history.database.read(lambda reader: list_entries(reader, query))
    if history.archive is None or page.next_cursor:
        return page
    now = await history.database.read(read_head)
    if now.oldest != head.oldest:  # pruned meanwhile: what was just read may lack what was just archived
        return await list_history(history, query)
    archived = await history.archived_range(head)
    low, high = archived.start - 1, archived.stop - 1
    if query.before_seq:
        high = min(high, query.before_seq - 1)
    if query.since_ms is not None:
        low = max(low, await history.position_before(query.since_ms))
    if query.until_ms is not None:
        high = min(high, await history.position_before(query.until_ms))
    if not archived or low >= high:
        return page
    return await history.query_archive(lambda archive, holes: _list_archived(archive, holes, query, page, low, high))


def _list_archived(
    archive: Archive, holes: Holes, query: EntryQuery, newer: EntryPage, low: int, high: int
) -> EntryPage:
    """Fill a page that the journal has begun with older entries of the archive, in steps."""
    found, gaps = newer.entries, list(newer.gaps)
    examined, step = 0, STEP
    while high > low and examined < MAX_ARCHIVED_EXAMINED:
        if hole := next((hole for hole in holes if high in hole), None):
            high = hole.start - 1
            continue
        after = max([low, high - step, *(hole.stop - 1 for hole in holes if hole.stop <= high)])
        part = _read_archived(archive, query.entry_filter, after, high, query.limit + 1 - len(found))
        found, gaps = [*part.entries, *found], [*part.gaps, *gaps]
        if len(found) > query.limit:
            page = found[1:]
            within = [gap for gap in gaps if gap.last >= page[0].global_seq]
            return EntryPage(page, page[0].global_seq, is_truncated=False, gaps=join_gaps(within))
        examined += high - part.after
        high, step = part.after, min(4 * step, ARCHIVED_STEP)
    return EntryPage(found, high + 1 if high > low else 0, is_truncated=high > low, gaps=join_gaps(gaps))


def _read_archived(archive: Archive, entry_filter: EntryFilter, after: int, until: int, limit: int) -> ArchivedPart:
    """The newest entries of a range; of its end, with gaps, if files are damaged."""
    try:
        return ArchivedPart(after, until, archive.read(entry_filter, after, until, limit, newest=True))
    except ArchiveDamaged:
        return archive.salvage(entry_filter, after, until, limit, newest=True)
