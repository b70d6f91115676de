"""The conformance suite of spool backends."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from tape.errors import SpoolUnavailable
from tape.subscriptions.spool import disk
from tape.subscriptions.spool.backend import Area, SpoolBackend, StoredObject
from tape.subscriptions.spool.disk import DiskBackend


def keys(count: int) -> list[str]:
    return [f"{number:020}-m{number}" for number in range(count)]


async def test_what_was_put_is_read(backend: SpoolBackend) -> None:
    await backend.put(Area.LIVE, [("a", b"one"), ("b", b"\x00\xff" * 100_000)])
    assert await backend.get(Area.LIVE, "a") == b"one"
    assert await backend.get(Area.LIVE, "b") == b"\x00\xff" * 100_000


async def test_what_is_not_there_is_none(backend: SpoolBackend) -> None:
    assert await backend.get(Area.LIVE, "nothing") is None
    assert await backend.page(Area.LIVE, "", 10) == []


async def test_areas_do_not_see_each_other(backend: SpoolBackend) -> None:
    for area in Area:
        await backend.put(area, [("same", area.encode())])
    for area in Area:
        assert await backend.get(area, "same") == area.encode()
        assert await backend.page(area, "", 10) == [StoredObject("same", len(area))]


async def test_a_second_put_replaces_the_first(backend: SpoolBackend) -> None:
    await backend.put(Area.LIVE, [("a", b"first")])
    await backend.put(Area.LIVE, [("a", b"second")])
    assert await backend.get(Area.LIVE, "a") == b"second"
    assert await backend.page(Area.LIVE, "", 10) == [StoredObject("a", 6)]


async def test_pages_follow_the_order_of_keys_however_they_were_written(backend: SpoolBackend) -> None:
    every = keys(25)
    await backend.put(Area.LIVE, [(key, b"x") for key in reversed(every)])
    found: list[str] = []
    while page := await backend.page(Area.LIVE, found[-1] if found else "", 10):
        found += [stored.key for stored in page]
        assert len(page) <= 10
    assert found == every


async def test_deleting_twice_is_no_error(backend: SpoolBackend) -> None:
    await backend.put(Area.LIVE, [("a", b"1"), ("b", b"2")])
    await backend.delete(Area.LIVE, ["a"])
    await backend.delete(Area.LIVE, ["a"])
    await backend.delete(Area.LIVE, [])
    assert [stored.key for stored in await backend.page(Area.LIVE, "", 10)] == ["b"]


async def test_a_folder_shows_nothing_of_a_write_that_did_not_finish(tmp_path: Path) -> None:
    backend = DiskBackend(tmp_path)
    (tmp_path / f".{keys(1)[0]}.tmp").write_bytes(b"half")
    assert await backend.page(Area.LIVE, "", 10) == []


async def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(SpoolUnavailable, match="cannot be used"):
        await DiskBackend(tmp_path / "file" / "spool").put(Area.LIVE, [("a", b"1")])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
async def test_a_full_disk_leaves_nothing_half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = DiskBackend(tmp_path)
    monkeypatch.setattr(disk, "new_suffix", lambda: "0")
    (tmp_path / ".b.0.tmp").symlink_to("/dev/full")
    with pytest.raises(SpoolUnavailable, match="No space left"):
        await backend.put(Area.LIVE, [("a", b"1"), ("b", b"2")])
    assert await backend.page(Area.LIVE, "", 10) == []
    assert list(tmp_path.iterdir()) == []


async def test_concurrent_writers_of_one_key_all_succeed(tmp_path: Path) -> None:
    writers = [DiskBackend(tmp_path), DiskBackend(tmp_path)]
    texts = [b"%d" % n for n in range(60)]
    await asyncio.gather(*(writers[n % 2].put(Area.CONTROL, [("circuit-state", text)]) for n, text in enumerate(texts)))
    assert await writers[0].get(Area.CONTROL, "circuit-state") in texts
    assert [path.name for path in (tmp_path / "control").iterdir()] == ["circuit-state.json"]
    for writer in writers:
        await writer.close()


async def test_temporary_files_of_a_process_that_died_are_removed_after_an_hour(tmp_path: Path) -> None:
    backend = DiskBackend(tmp_path)
    old, young = tmp_path / ".a.0.tmp", tmp_path / ".b.0.tmp"
    for file in (old, young):
        file.write_bytes(b"half")
    os.utime(old, (time.time() - 7_200,) * 2)
    assert await backend.claim()
    assert (old.exists(), young.exists()) == (False, True)
    await backend.close()
