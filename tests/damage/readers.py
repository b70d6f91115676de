"""Every way to read a journal from outside, and what each of them got."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import urllib3

from tape.client import AsyncTapeClient
from tape.client import stream as sse
from tape.client.aio import to_entry
from tape.errors import ArchiveDamaged, CursorDiverged, EntryDamaged, StoreDamaged, TapeError
from tape.model.cloudevents import format_time
from tape.model.entry import Entry
from tests.damage.truth import RUNS, SESSION, SUBJECTS

# A reader that gets nothing for so long gets nothing more: one that waits for an entry that was written, and one that
# cannot know whether there is more.
WAIT_S, IDLE_S = 12.0, 6.0
LIST_LIMIT = 200
# Kinds of entries that a server writes about its journal and its readers.
OWN_KINDS = ("journal", "audit")
NAMING = (EntryDamaged, CursorDiverged, StoreDamaged, ArchiveDamaged)
_RANGE = re.compile(r"[Ee]ntr(?:y|ies) (\d+)(?: to (\d+))?")

Numbers = tuple[int, int]
Shown = tuple[Any, ...]


@dataclass
class Endpoints:
    """A running server whose journal had `head` as its last number before the damage.

    `ends` has the entries that end each reader, with their numbers; empty if none could be written.
    """

    client: AsyncTapeClient
    http_url: str
    head: int
    ends: list[tuple[int, Entry]] = field(default_factory=list)


@dataclass
class Answer:
    """What one reader got: entries as it shows them, the ranges that were named, and how it ended."""

    reader: str
    seen: list[tuple[int, Shown]] = field(default_factory=list)
    # Numbers of entries that neither the case nor the server itself has written after the damage.
    strange: list[int] = field(default_factory=list)
    gaps: list[Numbers] = field(default_factory=list)
    error: str = ""
    # Whether the error says that something is damaged, and the range that it names.
    names_damage: bool = False
    ended_at: Numbers | None = None
    is_complete: bool = False


class Found(msgspec.Struct, frozen=True):
    """An entry that a reader got."""

    number: int
    kind: str
    shown: Shown


class Named(msgspec.Struct, frozen=True):
    """A range that a reader was told to be without."""

    first: int
    last: int


@dataclass(frozen=True)
class Path:
    """A way to read: which entries it has, what it shows of them, and how it is read.

    Numbers without a gap prove that a reader of the whole journal or of a run has everything. Other selections have no
    numbers of their own: what an index lacks, only a comparison with the table finds.
    """

    name: str
    wants: Callable[[Entry], bool]
    show: Callable[[Entry], Shown]
    read: Callable[[Endpoints], AsyncIterator[Found | Named]]
    is_provable: bool = True


def _show_all(entry: Entry) -> Shown:
    return msgspec.structs.astuple(entry)


def _show_in_run(entry: Entry) -> Shown:
    return (
        *(entry.seq, entry.kind, entry.payload_json, entry.ts_ms, entry.subject, entry.schema_version),
        *(entry.trace_id, entry.span_id, entry.parent_span_id),
    )


def _show_event(entry: Entry) -> Shown:
    identity = (entry.tenant, entry.user, entry.session, entry.run_id)
    return entry.type, format_time(entry.ts_ms), *identity, entry.payload


def _is_in_session(entry: Entry) -> bool:
    return (entry.tenant, entry.user, entry.session) == SESSION


def _follow(*, skip: bool, **selection: Any) -> Callable[[Endpoints], AsyncIterator[Found | Named]]:
    async def read(at: Endpoints) -> AsyncIterator[Found | Named]:
        options = {"skip_gaps": True} if skip else {}
        async for batch in at.client.follow_batches(reconnect=False, **selection, **options):
            items: list[Found | Named] = [Named(gap.first, gap.last) for gap in batch.gaps]
            items += [Found(one.global_seq, one.kind, _show_all(to_entry(one))) for one in batch.entries]
            for item in sorted(items, key=lambda item: item.number if isinstance(item, Found) else item.first):
                yield item

    return read


def _by_subject(subject: str) -> Callable[[Endpoints], AsyncIterator[Found | Named]]:
    async def read(at: Endpoints) -> AsyncIterator[Found | Named]:
        async for event in at.client.subscribe_by_subject(subject_pattern=subject):
            yield Found(event.global_seq, event.kind, _show_all(to_entry(event)))

    return read


def _run_entries(run_id: str) -> Callable[[Endpoints], AsyncIterator[Found | Named]]:
    async def read(at: Endpoints) -> AsyncIterator[Found | Named]:
        async for one in at.client.subscribe_run(run_id=run_id):
            shown = (one.seq, one.kind, one.payload_json, one.ts_ms, one.subject, one.schema_version)
            yield Found(one.global_seq, one.kind, (*shown, one.trace_id, one.span_id, one.parent_span_id))

    return read


def _events(**selection: Any) -> Callable[[Endpoints], AsyncIterator[Found | Named]]:
    async def read(at: Endpoints) -> AsyncIterator[Found | Named]:
        gaps: list[sse.Gap] = []
        async for event in sse.stream(at.http_url, after=0, reconnect=False, on_gap=gaps.append, **selection):
            for gap in _take(gaps):
                yield gap
            identity = (event.tenant, event.user, event.session, event.run)
            kind = event.type.partition(".")[0]
            yield Found(event.sequence, kind, (event.type, event.occurred_at, *identity, event.payload))
        for gap in _take(gaps):
            yield gap

    return read


def _take(gaps: list[sse.Gap]) -> Iterator[Named]:
    for gap in gaps:
        if not gap.first:
            raise TapeError(gap.reason)
        yield Named(gap.first, gap.last)
    gaps.clear()


async def _list(at: Endpoints) -> AsyncIterator[Found | Named]:
    """All pages, the newest first; yielded from the oldest on."""
    pool, cursor, pages = urllib3.PoolManager(), 0, []
    while True:
        body = json.dumps({"limit": LIST_LIMIT, "cursor": cursor}).encode()
        url = f"{at.http_url}/v1/events/list"
        answer = await asyncio.to_thread(pool.request, "POST", url, body=body, retries=False, timeout=10)
        page = json.loads(answer.data)
        if answer.status != 200:
            error = TapeError(f"{answer.status}: {page}")
            raise EntryDamaged(*_numbers(str(page)), "list") if "TAPE-1103" in str(page) else error
        pages.append(page)
        cursor = page["next_cursor"]
        if not cursor:
            break
    for page in reversed(pages):
        for gap in page.get("gaps", ()):
            yield Named(gap["first"], gap["last"])
        for event in page["events"]:
            identity = [event.get(name, "") for name in ("tenant", "user", "session", "run")]
            kind = event["type"].partition(".")[0]
            yield Found(event["sequence"], kind, (event["type"], event["occurred_at"], *identity, event["payload"]))


def paths(*, is_sample: bool) -> list[Path]:
    """The ways to read that every case is judged by; a sample of the cases is judged by all there are."""
    found = [Path("follow", lambda _: True, _show_all, _follow(skip=False))]
    for run in RUNS:
        found.append(
            Path(f"follow {run}", lambda e, run=run: e.run_id == run, _show_all, _follow(skip=False, run_id=run))
        )
    for subject in SUBJECTS:
        found.append(
            Path(f"subject {subject}", lambda e, s=subject: e.subject == s, _show_all, _by_subject(subject), False)
        )
    found.append(Path("follow, skip", lambda _: True, _show_all, _follow(skip=True)))
    for run in RUNS[:2]:
        read = _follow(skip=True, run_id=run)
        found.append(Path(f"follow {run}, skip", lambda e, run=run: e.run_id == run, _show_all, read))
    if is_sample:
        tenant, user, session = SESSION
        owned = {"tenant": tenant, "user": user, "session": session}
        for run in RUNS:
            found.append(Path(f"run {run}", lambda e, run=run: e.run_id == run, _show_in_run, _run_entries(run)))
        pattern = _follow(skip=False, subject_pattern="/tape/order/**")
        found += [
            Path("follow /tape/order/**", lambda e: e.subject.startswith("/tape/order/"), _show_all, pattern, False),
            Path("list", lambda _: True, _show_event, _list),
            Path("events", lambda _: True, _show_event, _events(admin=True)),
            Path("events of a session", _is_in_session, _show_event, _events(**owned), False),
        ]
    return found


async def read_path(path: Path, at: Endpoints) -> Answer:
    """Read until the last entry that was written for it arrives, the stream ends, or nothing comes any more."""
    answer = Answer(path.name)
    ends = {number for number, entry in at.ends if path.wants(entry)}
    end = max(ends, default=0)
    stream = path.read(at)
    try:
        while True:
            async with asyncio.timeout(WAIT_S if end else IDLE_S):
                item = await anext(stream)
            if isinstance(item, Named):
                answer.gaps.append((item.first, item.last))
                if end and item.last >= end:
                    answer.is_complete = True
                    break
                continue
            if item.number <= at.head:
                answer.seen.append((item.number, item.shown))
            elif item.number not in ends and item.kind not in OWN_KINDS:
                answer.strange.append(item.number)
            if end and item.number >= end:
                answer.is_complete = True
                break
    except StopAsyncIteration:
        answer.is_complete = path.name == "list"
    except TimeoutError:
        pass
    except Exception as error:
        answer.error = f"{type(error).__name__}: {error}"
        answer.names_damage = isinstance(error, NAMING)
        if isinstance(error, EntryDamaged | CursorDiverged):
            answer.ended_at = (getattr(error, "first", 0), getattr(error, "last", 0))
            if not answer.ended_at[0]:
                answer.ended_at = _numbers(str(error))
    finally:
        await stream.aclose()
    return answer


def _numbers(text: str) -> Numbers:
    found = _RANGE.search(text)
    return (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
