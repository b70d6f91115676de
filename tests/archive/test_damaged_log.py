"""The Delta log of an archive is damaged: `tape verify --archive` and readers name it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tape.archive.reader import ArchiveReader
from tape.archive.table import ArchiveTable
from tape.errors import ArchiveDamaged
from tests.archive.conftest import prepare
from tests.forked import tape


@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_a_damaged_log_is_named_and_not_taken_for_an_outage(sqlite_url: str, tmp_path: Path, damage: str) -> None:
    lake = tmp_path / "lake"
    prepare(sqlite_url, str(lake), 60, [20, 40])
    first = lake / "_delta_log" / f"{0:020}.json"
    if damage == "cut":
        first.write_bytes(first.read_bytes()[:300])
    else:
        first.unlink()
    with pytest.raises(ArchiveDamaged, match="log of the archive"):
        ArchiveTable.open(str(lake))
    with pytest.raises(ArchiveDamaged):
        ArchiveReader(str(lake)).extent()
    done = tape("verify", "--store", sqlite_url, "--archive", str(lake))
    assert done.returncode == 1
    assert "TAPE-2005" in done.stderr
    assert "Traceback" not in done.stderr
