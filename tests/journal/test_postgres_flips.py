"""Seeded damage to the files of PostgreSQL: `tape verify` never crashes, and calls nothing whole that is not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tape.cli.verify import _verify
from tape.errors import SchemaOutdated, StoreError
from tape.journal.journal import Journal
from tape.model.entry import COLUMNS, Draft
from tape.store import open_database
from tests.services import Postgres

ENTRIES, RUNS, SUBJECTS = 400, 11, 7
RELATIONS = ("tape_journal", "tape_journal_pkey", "tape_journal_run", "tape_journal_subject", "tape_journal_identity")
_ALL = ",".join(COLUMNS)


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A PostgreSQL server whose files a test may damage."""
    with Postgres() as server:
        yield server


async def write(url: str) -> None:
    async with open_database(url) as database:
        await Journal(database).append(
            [
                Draft(
                    subject=f"/tape/order/created/{n % SUBJECTS}",
                    run_id=f"run-{n % RUNS}",
                    payload_json=f'{{"n":{n}}}',
                    session=f"s{n % 3}",
                )
                for n in range(ENTRIES)
            ]
        )


def read_all(url: str) -> list[Any]:
    """What readers get: all entries, and those of each run and subject through their index."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
        found = [connection.execute(f"SELECT {_ALL} FROM tape_journal ORDER BY global_seq").fetchall()]
        for run in range(RUNS):
            sql = f"SELECT {_ALL} FROM tape_journal WHERE run_id = %s AND tenant = '' ORDER BY seq"
            found.append(connection.execute(sql, (f"run-{run}",)).fetchall())
        for subject in range(SUBJECTS):
            sql = f"SELECT {_ALL} FROM tape_journal WHERE subject = %s ORDER BY subject, global_seq"
            found.append(connection.execute(sql, (f"/tape/order/created/{subject}",)).fetchall())
        return found


@pytest.mark.proof
def test_flips_in_relations_are_named_or_harmless(own_postgres: Postgres) -> None:
    with own_postgres.migrated_database() as url:
        asyncio.run(write(url))
        truth = read_all(url)
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute("VACUUM FREEZE tape_journal")
            data = Path(admin.execute("SHOW data_directory").fetchall()[0][0])
            files = [
                data / admin.execute("SELECT pg_relation_filepath(%s::regclass)", (name,)).fetchall()[0][0]
                for name in RELATIONS
            ]
            admin.execute("CHECKPOINT")
        for seed in range(8):
            source = random.Random(seed)
            victim = source.choice(files)
            own_postgres.stop()
            whole = victim.read_bytes()
            offset, mask = source.randrange(len(whole)), 1 << source.randrange(8)
            damaged = bytearray(whole)
            damaged[offset] ^= mask
            victim.write_bytes(bytes(damaged))
            own_postgres.start()
            try:
                report = _verify(open_database(url, migrate=False, create=False))
            except (StoreError, SchemaOutdated):
                report = None
            if report is not None and report.ok:
                assert read_all(url) == truth, f"seed {seed}: {victim.name} at {offset} ^ {mask}"
            own_postgres.stop()
            victim.write_bytes(whole)
            own_postgres.start()
        assert read_all(url) == truth
