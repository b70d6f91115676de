"""kill -9 during a backup and during a restore, and backups while entries are appended."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tape import TapeClient
from tape.backup import journal_copy, parts
from tape.backup.location import FolderLocation
from tape.backup.manifest import read_manifest
from tape.cli.main import main
from tape.journal.verifier import verify
from tape.store import open_database
from tests.backup.stores import append_entries, files_below, read_tables
from tests.forked import Forked, tape
from tests.services import Postgres, ServerProcess

ENTRIES = 400


def stop_in_the_middle() -> None:
    """`tape …` with small parts, which stops for ever at a call of its location: the n-th of TAPE_TEST_STOP."""
    parts.PART_BYTES, parts.FRAME_BYTES, journal_copy._MAX_CHUNK = 10_000, 5_000, 50
    method, number, file = os.environ["TAPE_TEST_STOP"].split(",")
    calls = iter(range(1, 1 << 30))
    original = getattr(FolderLocation, method)

    def stopping(self: Any, path: str, *arguments: Any) -> Any:
        if next(calls) == int(number):
            Path(file).touch()
            while True:
                time.sleep(60)
        return original(self, path, *arguments)

    setattr(FolderLocation, method, stopping)
    main()


def kill_in_the_middle(method: str, number: int, folder: Path, *arguments: str) -> bool:
    """Kill a command at a call of its location; False if it ended before that."""
    file = folder / f"{method}-{number}"
    process = Forked(
        arguments, program=stop_in_the_middle, env=os.environ | {"TAPE_TEST_STOP": f"{method},{number},{file}"}
    )
    try:
        while not file.exists() and process.poll() is None:
            time.sleep(0.01)
        return file.exists()
    finally:
        process.kill()


@pytest.fixture
def empty_url(request: pytest.FixtureRequest, store_url: str, tmp_path: Path) -> Iterator[str]:
    """An empty store of the same kind."""
    if store_url.startswith("sqlite"):
        yield f"sqlite:{tmp_path / 'restored.db'}"
    else:
        server: Postgres = request.getfixturevalue("postgres")
        with server.fresh_database() as url:
            yield url


def question(url: str, ask: Any) -> Any:
    connection = open_database(url).connect(read_only=True)
    try:
        return ask(connection)
    finally:
        connection.close()


def test_a_backup_that_is_killed_goes_on_where_it_ended(store_url: str, empty_url: str, tmp_path: Path) -> None:
    append_entries(store_url, ENTRIES, payload="x" * 200)
    location, target = FolderLocation(tmp_path / "backup"), str(tmp_path / "backup")
    copied = 0
    for number in (1, 2, 5, 12, 200):
        was_killed = kill_in_the_middle("put", number, tmp_path, "backup", target, "--store", store_url)
        manifest = read_manifest(location)
        if manifest is not None:
            rows = sum(part.rows for part in manifest.journal)
            assert rows >= copied, "what was copied before is copied again"
            copied = rows
        if was_killed and (manifest is None or not manifest.snapshots):
            assert tape("restore", target, "--store", empty_url).returncode == 1
            assert not question_tables(empty_url)
    assert not was_killed
    assert manifest is not None
    present = {path.split("/")[1] for path in files_below(tmp_path / "backup") if path.startswith("snapshots/")}
    assert present == {each.name for each in manifest.snapshots}, "the snapshots of killed runs are removed"
    assert tape("restore", target, "--store", empty_url).returncode == 0
    assert question(empty_url, verify).ok


def question_tables(url: str) -> list[str]:
    if url.startswith("sqlite") and not Path(url.removeprefix("sqlite:")).exists():
        return []
    tables: list[str] = question(url, lambda connection: connection.tables())
    return tables


def test_a_restore_that_is_killed_leaves_no_data_and_is_begun_again(
    store_url: str, empty_url: str, tmp_path: Path
) -> None:
    append_entries(store_url, ENTRIES)
    target = str(tmp_path / "backup")
    assert tape("backup", target, "--store", store_url).returncode == 0
    for number in (3, 5, 9):
        assert kill_in_the_middle("get", number, tmp_path, "restore", target, "--store", empty_url)
        refused = tape("verify", "--store", empty_url)
        assert refused.returncode == 1
        assert "TAPE-2407" in refused.stderr
        assert "TAPE-2407" in tape("migrate", "--store", empty_url).stderr
    done = tape("restore", target, "--store", empty_url)
    assert done.returncode == 0
    assert question(empty_url, verify).ok
    assert len(read_tables(empty_url)["tape_journal"]) == ENTRIES + 1


def test_backups_while_entries_are_appended_are_prefixes_with_the_same_chain(
    store_url: str, empty_url: str, tmp_path: Path
) -> None:
    target = str(tmp_path / "backup")
    with ServerProcess(store_url) as server, TapeClient(server.url) as client:
        stop = threading.Event()

        def append() -> None:
            while not stop.is_set():
                client.append("/tape/order/created/x", {"n": 1})

        threads = [threading.Thread(target=append) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(3):
                assert tape("backup", target, "--store", store_url).returncode == 0
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    manifest = read_manifest(FolderLocation(Path(target)))
    assert manifest is not None
    assert len(manifest.snapshots) == 3
    done = tape("restore", target, "--store", empty_url)
    assert done.returncode == 0
    sql = "SELECT global_seq, chain FROM tape_journal ORDER BY global_seq"
    original = question(store_url, lambda reader: reader.query(sql))
    restored = question(empty_url, lambda reader: reader.query(sql))
    assert restored[:-1] == original[: len(restored) - 1]
    assert restored[-2][0] == manifest.snapshots[-1].global_seq
    heads = question(empty_url, lambda reader: reader.one("SELECT sum(entries) FROM tape_append_requests"))
    assert heads[0] == len(restored) - 1, "the ledgers are those of the same moment"
