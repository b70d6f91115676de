"""A journal of which the older part is archived and pruned, to damage the archive: its files and its Delta log."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tape.archive.files import write_files
from tape.archive.rows import read_rows
from tape.archive.table import ArchiveTable
from tape.client import AsyncTapeClient
from tape.journal.appender import read_head
from tape.journal.retention import prune
from tape.store import open_database
from tests.damage import byte_damage
from tests.damage.store import Damage, Look, StoreCopy
from tests.damage.truth import append_entries, load_truth, read_truth
from tests.services import ServerProcess

# Entries of the journal, the commits of the archive by their last entries, and the first entry that is not pruned.
ENTRIES, COMMITS, KEPT_FROM = 400, (100, 200, 300), 281
KINDS = ("bit flipped", "byte changed", "sector zeroed", "sectors swapped", "file cut", "file deleted", "files swapped")


class ArchiveTemplate:
    """Made once in a folder, copied for each case."""

    name = "archive"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def build(self) -> None:
        """Write the journal, archive and prune it."""
        (self._folder / "whole").mkdir(parents=True)
        asyncio.run(self._build(self._folder / "whole"))

    async def _build(self, folder: Path) -> None:
        store = f"sqlite:{folder / 'tape.db'}"
        with ServerProcess(store) as server:
            async with AsyncTapeClient(server.url) as client:
                acknowledged = await append_entries(client, range(1, ENTRIES + 1))
                (await read_truth(client, acknowledged)).save(self._folder / "truth")
            assert server.terminate() == 0
        async with open_database(store) as database:
            for until in COMMITS:
                lake = ArchiveTable.open_or_create(str(folder / "lake"), await database.read(read_head))
                after = lake.until
                rows = await database.read(lambda reader, a=after, u=until: read_rows(reader, a, u))  # type: ignore[misc]
                lake.add(write_files(lake.filesystem, rows), until)
            await prune(database, before_seq=KEPT_FROM)

    def close(self) -> None:
        """Nothing runs for it."""

    @contextmanager
    def damaged_copy(self, seed: int, folder: Path) -> Iterator[StoreCopy]:
        """A damaged copy."""
        chance = random.Random(seed)
        shutil.copytree(self._folder / "whole", folder)
        lake = folder / "lake"
        is_log = chance.random() < 0.25
        files = sorted(lake.rglob("*.json") if is_log else lake.rglob("*.parquet"))
        path, kind = chance.choice(files), chance.choice(KINDS)
        where = _damage(path, files, kind, chance)
        damage = Damage("archive log" if is_log else "archive file", kind, f"{path.name[:40]}: {where}")
        url = f"sqlite:{folder / 'tape.db'}"
        yield StoreCopy(
            url,
            folder,
            load_truth(self._folder / "truth"),
            damage,
            lambda: _look(lake, self._folder / "whole" / "lake"),
            settings={"lake": str(lake)},
            verify=("--archive", str(lake)),
        )


def _damage(path: Path, files: list[Path], kind: str, chance: random.Random) -> str:
    if kind == "file deleted":
        path.unlink()
        return "deleted"
    if kind == "files swapped":
        other = chance.choice([one for one in files if one != path])
        one, two = path.read_bytes(), other.read_bytes()
        path.write_bytes(two)
        other.write_bytes(one)
        return f"swapped with {other.name[:40]}"
    return byte_damage.damage_file(path, kind, range(path.stat().st_size), chance)


def _look(damaged: Path, intact: Path) -> Look:
    """Compare the tables of the files, and the log byte by byte."""
    for path in sorted(intact.rglob("*.parquet")):
        try:
            table = pq.read_table(
                damaged / path.relative_to(intact), page_checksum_verification=True, partitioning=None
            )
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            return Look(is_intact=False, text=f"{path.name}: {error}"[:200])
        if not table.equals(pq.read_table(path, partitioning=None), check_metadata=True):
            return Look(is_intact=False, text=f"{path.name} differs")
    for path in sorted(intact.rglob("*.json")):
        there = damaged / path.relative_to(intact)
        if not there.exists() or there.read_bytes() != path.read_bytes():
            return Look(is_intact=False, text=f"{path.name} differs")
    return Look(is_intact=True)
