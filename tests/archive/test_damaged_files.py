"""A damaged file of the archive: readers name the numbers of its entries as a gap, and get all others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tape.archive.reader import ArchiveReader
from tape.archive.table import ArchiveTable
from tape.client import AsyncTapeClient
from tape.errors import ArchiveUnreachable, EntryDamaged
from tape.journal.damage import read_damage
from tape.journal.epochs import close_cut
from tape.journal.history import EntryFilter
from tape.journal.identity_filter import IdentityFilter
from tape.journal.pages import EntryQuery, list_history
from tape.journal.reader import EVERYTHING
from tape.model.entry import Draft
from tape.pipeline.archive_verifier import verify_archive
from tape.server.server import Server
from tests.archive.conftest import archive, fill, forget
from tests.conftest import settings_for
from tests.web import Stream

MINE = {"x_harbor_tenant": "acme", "x_harbor_user": "u", "x_harbor_session": "s"}


def draft(number: int) -> Draft:
    """Every tenth entry is of another kind, and so in another file."""
    kind = "refund" if number % 10 == 0 else "order"
    return Draft(
        subject=f"/tape/{kind}/created/{number}", run_id="r", payload_json="{}", tenant="acme", user="u", session="s"
    )


def spoil(lake: ArchiveTable, first: int) -> None:
    """Overwrite the middle of the file that begins with an entry."""
    (path,) = [Path(lake.url.removeprefix("file://")) / file.path for file in lake.files() if file.first == first]
    content = path.read_bytes()
    path.write_bytes(content[:40] + b"\0" * (len(content) - 40))


async def begin(server: Server, lake: str, damaged: int) -> ArchiveTable:
    """Entries 1 to 90; 1 to 60 are archived, 20 in a file of each kind, and pruned."""
    await fill(server.database, [draft(number) for number in range(1, 91)])
    for until in (20, 40, 60):
        table = await archive(server.database, lake, until)
    spoil(table, damaged)
    await forget(server.database, 61)
    server.hub.ring.clear()
    return table


# The file that begins with 50 has the entry at the seam, 60.
@pytest.mark.parametrize(("damaged", "expected"), [(21, [(21, 29), (31, 39)]), (50, [(50, 50), (60, 60)])])
async def test_readers_name_the_entries_of_a_damaged_file_and_get_all_others(
    sqlite_url: str, tmp_path: Path, damaged: int, expected: list[tuple[int, int]]
) -> None:
    lost = {number for first, last in expected for number in range(first, last + 1)}
    whole = [number for number in range(1, 91) if number not in lost]
    async with Server(settings_for(sqlite_url, lake=str(tmp_path / "lake"))) as server:
        await begin(server, str(tmp_path / "lake"), damaged)
        async with asyncio.timeout(60), Stream(server.http_address, last_event_id="0", **MINE) as stream:
            frames: list[Any] = []
            while not frames or frames[-1].id != 90:
                frames += await stream.frames(1)
            assert "replay_unavailable" not in stream.raw.decode()
        assert [frame.id for frame in frames if frame.id in whole] == whole
        assert all(f"{first}" in stream.raw.decode() for first, _ in expected)

        subscription = await server.hub.subscribe(EVERYTHING, 0, skip_gaps=True)
        seen, gaps = [], []
        while subscription.position < 90:
            batch = await subscription.next()
            seen += [entry.global_seq for entry in batch.entries if entry.global_seq <= 90]
            gaps += [(gap.first, gap.last) for gap in batch.gaps]
        subscription.close()
        assert (seen, gaps) == (whole, expected)

        async with AsyncTapeClient(f"tape://{server.grpc_address}") as client:
            following = client.follow(reconnect=False)
            got = [(await anext(following)).global_seq for _ in range(1, expected[0][0])]
            assert got == list(range(1, expected[0][0]))
            with pytest.raises(EntryDamaged) as caught:
                await anext(following)
            assert str(expected[0][0]) in str(caught.value)

        page = await list_history(server.hub.history, EntryQuery(IdentityFilter(), before_seq=91, limit=200))
        assert [entry.global_seq for entry in page.entries] == whole
        assert [(gap.first, gap.last) for gap in page.gaps] == expected

        async with asyncio.timeout(30):
            while [(each.first, each.last) for each in await server.database.read(read_damage)] != expected:
                await asyncio.sleep(0.05)


async def test_an_archive_that_is_gone_is_unreachable_and_not_damaged(sqlite_url: str, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    async with Server(settings_for(sqlite_url)) as server:
        await begin(server, str(lake), 21)
    reader = ArchiveReader(str(lake))
    assert reader.extent() == range(1, 61)
    lake.rename(tmp_path / "away")
    with pytest.raises(ArchiveUnreachable):
        reader.salvage(EntryFilter(), 0, 60, 100)


async def test_readers_pass_a_lost_range_of_the_archive_and_name_it(sqlite_url: str, tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    async with Server(settings_for(sqlite_url, lake=lake)) as server:
        database = server.database
        await fill(database, [draft(number) for number in range(1, 31)])
        first = await database.write(lambda tx: close_cut(tx, last_known=30, margin=1_000_000, cause="test"))
        await fill(database, [draft(number) for number in range(31, 61)])
        begins = first.global_seq
        assert begins == 1_000_031
        await archive(database, lake, 20)
        table = await archive(database, lake, begins + 20)
        assert verify_archive(table).findings == []
        assert verify_archive(table, sqlite_url).findings == []
        await forget(database, begins + 11)
        server.hub.ring.clear()
        whole = [*range(1, 31), *range(begins, begins + 31)]
        subscription = await server.hub.subscribe(EVERYTHING, 0, skip_gaps=True)
        seen, gaps = [], []
        while subscription.position < begins + 30:
            batch = await subscription.next()
            seen += [entry.global_seq for entry in batch.entries if entry.global_seq <= begins + 30]
            gaps += [(gap.reason, gap.first, gap.last) for gap in batch.gaps]
        subscription.close()
        assert (seen, gaps) == (whole, [("diverged", 31, begins - 1)])
        page = await list_history(server.hub.history, EntryQuery(IdentityFilter(), before_seq=begins + 31, limit=200))
        assert [entry.global_seq for entry in page.entries] == whole
        assert await database.read(read_damage) == []
