"""A server with an archive reads what was pruned as if it had never gone."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tape.client import AsyncTapeClient
from tape.errors import ArchiveDamaged, ArchiveUnreachable, CursorExpired
from tape.journal.identity_filter import IdentityFilter
from tape.journal.pages import EntryQuery, list_history
from tape.journal.reader import Selection, select_visible
from tape.model.entry import Entry
from tape.model.pattern import Pattern
from tape.model.principal import Principal
from tape.server.server import Server
from tests.archive.conftest import archive, fill, forget, order
from tests.conftest import settings_for
from tests.web import Stream, call

ENTRIES, ARCHIVED, OLDEST = 900, 700, 601
MINE = {"x_harbor_tenant": "t0", "x_harbor_user": "u0", "x_harbor_session": "s1"}


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


@pytest.fixture
async def server(store_url: str, lake: str) -> AsyncIterator[Server]:
    """A server that began before its archive did; 1 to 700 of 900 entries are archived."""
    async with Server(settings_for(store_url, lake=lake)) as server:
        await fill(server.database, [order(number) for number in range(1, ENTRIES + 1)])
        for until in (250, 251, ARCHIVED):
            await archive(server.database, lake, until)
        yield server


async def pruned(server: Server, before: int = OLDEST) -> None:
    """Prune, and forget what the server still has in memory."""
    await forget(server.database, before)
    server.hub.ring.clear()


async def followed(client: AsyncTapeClient, **wanted: Any) -> list[Entry]:
    """What a subscriber sees up to the last order."""
    found = []
    async for entry in client.follow(reconnect=False, **wanted):
        found.append(entry)
        if entry.global_seq >= ENTRIES - 10:
            return found
    return found


async def listed(server: Server, limit: int = 3, **asked: Any) -> list[list[Any]]:
    """All pages of a list, the newest first; without the note of a pruning."""
    pages, cursor = [], 0
    while True:
        body = {"filter": asked, "cursor": cursor, "limit": limit}
        answer = await call(server.http_address, "POST", "/v1/events/list", body, **MINE)
        assert answer.status == 200, answer.body
        page = answer.json()
        pages.append(page["events"])
        cursor = page["next_cursor"]
        if not page["has_more"]:
            return pages


async def streamed(server: Server, after: int, count: int, **wanted: str) -> list[tuple[int, Any]]:
    async with Stream(server.http_address, last_event_id=str(after), **MINE, **wanted) as stream:
        frames = await stream.frames(count)
        assert "replay_unavailable" not in stream.raw.decode()
        return [(frame.id, frame.data) for frame in frames]


async def test_every_endpoint_returns_the_same_entries_before_and_after_a_prune(server: Server) -> None:
    async with AsyncTapeClient(f"tape://{server.grpc_address}") as client:
        middle = (await anext(client.follow(from_global_seq=299))).ts_ms
        late = (await anext(client.follow(from_global_seq=649))).ts_ms
        since, until = (dt.datetime.fromtimestamp(ms / 1000, dt.UTC).isoformat() for ms in (middle, late))

        async def everything() -> list[Any]:
            by_run = client.subscribe_run(run_id="run-3", from_seq=5)
            by_time = client.subscribe_events(from_ts_ms=middle, subject_pattern="/tape/refund/**")
            by_subject = client.subscribe_by_subject(
                subject_pattern="/tape/order/*/4", predicate_cel='payload.n > 50 && tenant == "t1"', from_global_seq=7
            )
            return [
                await followed(client),
                await followed(client, from_global_seq=595, kind="order"),
                await followed(client, from_global_seq=1, subject_pattern="/tape/order/paid/**"),
                await followed(client, from_global_seq=1, run_id="run-2", predicate_cel="payload.n % 3 == 1"),
                [(await anext(by_subject)).SerializeToString() for _ in range(15)],
                [(await anext(by_run)).SerializeToString() for _ in range(170)],
                [(await anext(by_time)).global_seq for _ in range(100)],
                await listed(server),
                await listed(server, 1, event_types=["refund.created"]),
                await listed(server, 50, since=since),
                await listed(server, 4, until=until),
                await listed(server, 4, since=since, until=until, run_ids=["run-0"]),
                await streamed(server, 0, 20),
                await streamed(server, 44, 3, x_harbor_event_type="refund.created"),
            ]

        before = await everything()
        assert [len(before[index]) for index in (0, 1, 7)] == [890, 237, 7]
        await pruned(server)
        after = await everything()
    for index, (one, other) in enumerate(zip(before, after, strict=True)):
        assert one == other, index


async def test_a_subscriber_that_retention_passes_goes_on_in_the_archive(server: Server) -> None:
    subscription = await server.hub.subscribe(Selection(Pattern("/tape/order/**")), 40)
    server.hub.ring.clear()
    seen = [entry.global_seq for entry in (await subscription.next()).entries]
    await pruned(server)
    while not seen or seen[-1] < ENTRIES - 1:
        seen += [entry.global_seq for entry in (await subscription.next()).entries]
    subscription.close()
    assert seen == [number for number in range(41, ENTRIES + 1) if number % 5]


async def test_grants_hold_for_archived_entries(server: Server) -> None:
    await pruned(server)
    caller = Principal(is_open=True, read=("/tape/refund/paid/*", "/tape/order/*/4"))

    def is_granted(number: int) -> bool:
        return caller.may_read(order(number).subject)

    granted = [number for number in range(1, ENTRIES + 1) if is_granted(number)]
    subscription = await server.hub.subscribe(select_visible(caller), 0)
    seen: list[int] = []
    while not seen or seen[-1] < granted[-1]:
        seen += [entry.global_seq for entry in (await subscription.next()).entries]
    subscription.close()
    assert seen == granted

    numbers: list[int] = []
    cursor = 0
    while True:
        query = EntryQuery(IdentityFilter(), before_seq=cursor, limit=7, grants=caller.read_grants)
        page = await list_history(server.hub.history, query)
        numbers = [entry.global_seq for entry in page.entries] + numbers
        if not (cursor := page.next_cursor):
            break
    assert numbers == granted


async def test_entries_neither_in_the_journal_nor_in_the_archive_are_reported(server: Server) -> None:
    await pruned(server, 801)
    async with AsyncTapeClient(f"tape://{server.grpc_address}") as client:
        with pytest.raises(CursorExpired, match="entries 751 to 800 were pruned"):
            await followed(client, from_global_seq=750)
        following = client.follow(from_global_seq=600, reconnect=False)
        assert [(await anext(following)).global_seq for _ in range(100)] == list(range(601, 701))
        with pytest.raises(CursorExpired, match="entries 701 to 800 were pruned"):
            await anext(following)
    async with Stream(server.http_address, last_event_id="660", **MINE) as stream:
        frames = await stream.frames(5)
        assert [frame.id for frame in frames] == [672, None, None, 840, 882]
        text = stream.raw.decode()
        assert text.index("id: 672") < text.index("stream.replay_unavailable") < text.index("id: 840")


async def test_an_archive_of_another_journal_is_not_read(server: Server, lake: str, tmp_path: Path) -> None:
    async with Server(settings_for(f"sqlite:{tmp_path / 'other.db'}", lake=lake)) as other:
        await fill(other.database, [order(number) for number in range(2, ENTRIES)])
        await pruned(other)
        async with AsyncTapeClient(f"tape://{other.grpc_address}") as client:
            with pytest.raises(ArchiveDamaged, match="it is another journal's archive"):
                await followed(client, from_global_seq=300)


async def test_without_an_archive_a_pruned_cursor_is_an_error_as_before(server: Server, store_url: str) -> None:
    await pruned(server)
    async with Server(settings_for(store_url)) as plain, AsyncTapeClient(f"tape://{plain.grpc_address}") as client:
        with pytest.raises(CursorExpired, match="below the oldest retained entry"):
            await followed(client, from_global_seq=300)
        assert (await anext(client.follow())).global_seq == OLDEST


async def test_readers_of_the_archive_do_not_keep_others_from_the_journal(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pruned(server)
    past = server.hub.history.archive
    assert past is not None
    is_read, may_go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    read = past.read

    def slow(*args: Any, **options: Any) -> list[Entry]:
        loop.call_soon_threadsafe(is_read.set)
        asyncio.run_coroutine_threadsafe(may_go_on.wait(), loop).result()
        return read(*args, **options)

    monkeypatch.setattr(past, "read", slow)
    async with AsyncTapeClient(f"tape://{server.grpc_address}") as client:
        waiting = [asyncio.create_task(followed(client, from_global_seq=1)) for _ in range(8)]
        await is_read.wait()
        assert len(await followed(client, from_global_seq=700)) == 190
        may_go_on.set()
        assert {len(found) for found in await asyncio.gather(*waiting)} == {889}


async def test_an_unavailable_archive_is_reported_and_other_readers_continue(server: Server, lake: str) -> None:
    await pruned(server)
    Path(lake).rename(f"{lake}-away")
    Path(lake).write_text("no folder")
    async with AsyncTapeClient(f"tape://{server.grpc_address}") as client:
        with pytest.raises((ArchiveUnreachable, ArchiveDamaged)):
            await followed(client, from_global_seq=300)
        assert len(await followed(client, from_global_seq=700)) == 190
        Path(lake).unlink()
        Path(f"{lake}-away").rename(lake)
        assert len(await followed(client, from_global_seq=300)) == 590
