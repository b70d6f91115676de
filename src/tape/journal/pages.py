"""Pages of entries, newest first, by identity, type, run and time."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from tape.journal.appender import read_head
from tape.journal.history import Archive, EntryFilter, History
from tape.journal.identity_filter import IdentityFilter
from tape.journal.reader import position_before
from tape.model.entry import COLUMNS, Entry
from tape.model.grants import Grants
from tape.store import Reader

# Entries looked at for one page; a rare type may need several calls.
MAX_EXAMINED = 50_000
STEP = 1_000
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
    """Entries, the oldest first. `next_cursor` asks for those before them; 0 if there are none."""

    entries: list[Entry]
    next_cursor: int
    is_truncated: bool


def list_entries(reader: Reader, query: EntryQuery) -> EntryPage:
    """The newest entries that match, before a cursor."""
    head = read_head(reader)
    low = head.oldest - 1 if query.since_ms is None else position_before(reader, query.since_ms)
    high = head.global_seq if query.until_ms is None else position_before(reader, query.until_ms)
    if query.before_seq:
        high = min(high, query.before_seq - 1)
    condition, params = query.identity.condition(reader)
    if query.runs:
        among, runs = reader.is_any("run_id", query.runs)
        condition, params = f"{condition} AND {among}", [*params, runs]
    found: list[Entry] = []
    examined = 0
    step = STEP if query.has_filter else query.limit + 1
    while high > low and examined < MAX_EXAMINED:
        rows = reader.query(
            f"SELECT {','.join(COLUMNS)} FROM tape_journal WHERE {condition}"
            " AND global_seq > ? AND global_seq <= ? ORDER BY global_seq DESC LIMIT ?",
            *params,
            low,
            high,
            step,
        )
        examined += len(rows)
        entries = [Entry(*row) for row in rows]
        found += filter(query.matches, entries) if query.has_filter else entries
        high = entries[-1].global_seq - 1 if len(entries) == step else low
        if len(found) > query.limit:
            page = found[: query.limit]
            return EntryPage(page[::-1], page[-1].global_seq, is_truncated=False)
    return EntryPage(found[::-1], high + 1 if high > low else 0, is_truncated=high > low)


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
    return await history.query_archive(lambda archive: _list_archived(archive, query, page.entries, low, high))


def _list_archived(archive: Archive, query: EntryQuery, newer: list[Entry], low: int, high: int) -> EntryPage:
    """Fill a page that the journal has begun with older entries of the archive, in steps."""
    found, entry_filter = newer, query.entry_filter
    last, step = max(low, high - MAX_ARCHIVED_EXAMINED), STEP
    while high > last:
        after, limit = max(last, high - step), query.limit + 1 - len(found)
        older = archive.read(entry_filter, after, high, limit, newest=True)
        found = [*older, *found]
        if len(found) > query.limit:
            page = found[1:]
            return EntryPage(page, page[0].global_seq, is_truncated=False)
        high, step = after, min(4 * step, ARCHIVED_STEP)
    return EntryPage(found, high + 1 if high > low else 0, is_truncated=high > low)
