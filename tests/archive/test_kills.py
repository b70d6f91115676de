"""A writer of the archive that is killed leaves what a clean run leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tape.archive.table import ArchiveTable
from tape.pipeline.archive_verifier import verify_archive
from tests.archive.conftest import content, prepare

_ARCHIVING = """
import os, signal, sys
from tape.archive.files import write_files
from tape.archive.table import ArchiveTable
from tape.archive.rows import read_rows
from tape.journal.appender import read_head
from tape.pipeline.journal_reader import query_store

store, url, dies = sys.argv[1:]
lake = ArchiveTable.open_or_create(url, query_store(store, read_head))
while lake.until < 300:
    rows = query_store(store, lambda reader: read_rows(reader, lake.until, lake.until + 100))
    files = write_files(lake.filesystem, rows)
    if dies == "yes" and lake.until == 100:
        os.kill(os.getpid(), signal.SIGKILL)
    lake.add(files, lake.until + 100)
"""


def test_a_writer_killed_between_its_files_and_their_commit_leaves_what_a_clean_run_leaves(
    sqlite_url: str, tmp_path: Path
) -> None:
    prepare(sqlite_url, str(tmp_path / "clean"), 300, (100, 200, 300))
    clean, url = ArchiveTable.open(str(tmp_path / "clean")), str(tmp_path / "lake")

    def run(dies: str) -> int:
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        return subprocess.run([sys.executable, "-c", _ARCHIVING, sqlite_url, url, dies], env=environment).returncode

    assert run("yes") == -signal.SIGKILL
    killed = ArchiveTable.open(url)
    assert killed.until == 100
    written = {path.relative_to(url).as_posix() for path in Path(url).rglob("*.parquet")}
    assert written > {file.path for file in killed.files()}
    assert verify_archive(killed).ok
    assert run("no") == 0
    killed.refresh()
    assert content(killed) == content(clean)
    assert verify_archive(killed, sqlite_url).ok
