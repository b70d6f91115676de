"""Looking back: the newest entries that somebody may see, page by page."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from tape.journal.appender import read_head
from tape.journal.history import History, Past, Wanted
from tape.journal.identity_filter import Whose
from tape.journal.reader import position_before
from tape.model.entry import COLUMNS, Entry
from tape.store import Reader

# Entries looked at for one page; a rare type may need several calls.
MAX_LOOKED_AT = 50_000
STEP = 1_000
# Of an archive only the columns that a question is about are looked at, many at once.
MAX_ARCHIVED_LOOKED_AT = 1_000_000
ARCHIVED_STEP = 200_000


class Question(msgspec.Struct, frozen=True):
    """Which entries are asked for. Times are in milliseconds, `until_ms` is exclusive."""

    whose: Whose
    types: Collection[str] = ()
    runs: Sequence[str] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    before_seq: int = 0
    limit: int = 50

    @property
    def wanted(self) -> Wanted:
        """What to look for in an archive."""
        whose = self.whose
        axes = {
            "tenant": whose.tenants,
            "user": whose.users,
            "session": whose.sessions,
            "type": self.types or None,
            "run_id": self.runs or None,
        }
        return Wanted(values={name: values for name, values in axes.items() if values is not None})


class Page(msgspec.Struct, frozen=True):
    """Entries, the oldest first. `next_cursor` asks for those before them; 0 if there are none."""

    entries: list[Entry]
    next_cursor: int
    is_truncated: bool


def list_entries(reader: Reader, question: Question) -> Page:
    """The newest entries that match, before a cursor."""
    head = read_head(reader)
    low = head.oldest - 1 if question.since_ms is None else position_before(reader, question.since_ms)
    high = head.global_seq if question.until_ms is None else position_before(reader, question.until_ms)
    if question.before_seq:
        high = min(high, question.before_seq - 1)
    condition, params = question.whose.condition(reader)
    if question.runs:
        among, runs = reader.is_any("run_id", question.runs)
        condition, params = f"{condition} AND {among}", [*params, runs]
    found: list[Entry] = []
    looked_at = 0
    step = STEP if question.types else question.limit + 1
    while high > low and looked_at < MAX_LOOKED_AT:
        rows = reader.query(
            f"SELECT {','.join(COLUMNS)} FROM tape_journal WHERE {condition}"
            " AND global_seq > ? AND global_seq <= ? ORDER BY global_seq DESC LIMIT ?",
            *params,
            low,
            high,
            step,
        )
        looked_at += len(rows)
        entries = [Entry(*row) for row in rows]
        found += [entry for entry in entries if entry.type in question.types] if question.types else entries
        high = entries[-1].global_seq - 1 if len(entries) == step else low
        if len(found) > question.limit:
            page = found[: question.limit]
            return Page(page[::-1], page[-1].global_seq, is_truncated=False)
    return Page(found[::-1], high + 1 if high > low else 0, is_truncated=high > low)


async def list_history(history: History, question: Question) -> Page:
    """The newest entries that match, before a cursor, of the journal and then of its archive."""
    head = await history.database.read(read_head)
    page = await history.database.read(lambda reader: list_entries(reader, question))
    if history.past is None or page.next_cursor:
        return page
    now = await history.database.read(read_head)
    if now.oldest != head.oldest:  # pruned meanwhile: what was just read may lack what was just archived
        return await list_history(history, question)
    archived = await history.archived(head)
    low, high = archived.start - 1, archived.stop - 1
    if question.before_seq:
        high = min(high, question.before_seq - 1)
    if question.since_ms is not None:
        low = max(low, await history.position_before(question.since_ms))
    if question.until_ms is not None:
        high = min(high, await history.position_before(question.until_ms))
    if not archived or low >= high:
        return page
    return await history.ask(lambda past: _list_archived(past, question, page.entries, low, high))


def _list_archived(past: Past, question: Question, newer: list[Entry], low: int, high: int) -> Page:
    """What an archive adds to a page that the journal has begun, looking back step by step."""
    found, wanted = newer, question.wanted
    last, step = max(low, high - MAX_ARCHIVED_LOOKED_AT), STEP
    while high > last:
        after, limit = max(last, high - step), question.limit + 1 - len(found)
        older = past.read(wanted, after, high, limit, newest=True)
        found = [*older, *found]
        if len(found) > question.limit:
            page = found[1:]
            return Page(page, page[0].global_seq, is_truncated=False)
        high, step = after, min(4 * step, ARCHIVED_STEP)
    return Page(found, high + 1 if high > low else 0, is_truncated=high > low)
