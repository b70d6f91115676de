"""Journals of which a part is archived and pruned, without Spark."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence

import pytest

pytest.importorskip("deltalake", reason="the extra lake is not installed")

from tape.archive.files import write_files
from tape.archive.reader import ArchiveReader
from tape.archive.rows import read_rows
from tape.archive.table import ArchiveTable
from tape.journal.appender import read_head
from tape.journal.history import EntryFilter
from tape.journal.journal import Journal
from tape.journal.retention import prune
from tape.model.entry import Draft
from tape.store import Database, open_database


def order(number: int) -> Draft:
    """One of many entries that differ in everything a reader can ask for."""
    verb = ("created", "paid", "failed")[number % 3]
    return Draft(
        subject=f"/tape/{('order', 'refund')[number % 5 == 0]}/{verb}/{number % 10}",
        payload_json=json.dumps({"n": number, "total": number / 2, "status": verb}),
        run_id=f"run-{number % 4}",
        tenant=f"t{number % 3}",
        user=f"u{number % 2}",
        session=("", "s1")[number % 7 == 0],
    )


async def fill(database: Database, drafts: Sequence[Draft], chunk: int = 20) -> None:
    """Append drafts, in several commits."""
    for start in range(0, len(drafts), chunk):
        await Journal(database).append(drafts[start : start + chunk])


async def archive(database: Database, url: str, until: int, options: Mapping[str, str] | None = None) -> ArchiveTable:
    """What a round of the job does."""
    lake = ArchiveTable.open_or_create(url, await database.read(read_head), options)
    rows = await database.read(lambda reader: read_rows(reader, lake.until, until))
    lake.add(write_files(lake.filesystem, rows), until)
    return lake


def prepare(
    store: str, url: str, entries: int, archived: Sequence[int], options: Mapping[str, str] | None = None
) -> None:
    """A journal of orders, and an archive that was added to up to each of these entries."""

    async def work() -> None:
        async with open_database(store) as database:
            await fill(database, [order(number) for number in range(1, entries + 1)])
            for until in archived:
                await archive(database, url, until, options)

    asyncio.run(work())


async def forget(database: Database, before: int) -> None:
    """Prune without proving anything."""
    await prune(database, before_seq=before)


def content(lake: ArchiveTable, options: Mapping[str, str] | None = None) -> str:
    """A hash over everything that readers see."""
    past = ArchiveReader(lake.url, options)
    entries = past.read(EntryFilter(), 0, past.extent()[-1], 1 << 30)
    return hashlib.sha256(repr(entries).encode()).hexdigest()
