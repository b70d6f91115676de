"""Seeded damage to the file of a journal: `tape verify` never crashes, and calls nothing whole that is not."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tape.cli.verify import _verify
from tape.errors import SchemaOutdated, StoreNotFound, StoreUnavailable
from tape.journal.journal import Journal
from tape.journal.key_index import index_entries, look_up_identities, look_up_subject
from tape.model.entry import COLUMNS, Draft
from tape.store import Database, open_database

ENTRIES = 150
RUNS, SUBJECTS = 11, 7
_ALL = ",".join(COLUMNS)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """The file of a journal, closed, and what its readers get."""
    path = tmp_path_factory.mktemp("sound") / "tape.db"
    asyncio.run(write(path))
    return path, list(read_all(open_database(f"sqlite:{path}")))


async def write(path: Path) -> None:
    async with open_database(f"sqlite:{path}") as database:
        for start in range(0, ENTRIES, 30):
            await Journal(database).append(
                [
                    Draft(
                        subject=f"/tape/order/created/{n % SUBJECTS}",
                        run_id=f"run-{n % RUNS}",
                        payload_json=f'{{"n":{n},"note":"{"x" * (n % 50)}"}}',
                        tenant="acme",
                        user="u",
                        session=f"s{n % 3}",
                    )
                    for n in range(start, start + 30)
                ]
            )
        await database.write(lambda tx: index_entries(tx, 0))


def read_all(database: Database) -> Iterator[Any]:
    """What readers get: all entries, those of each run, subject and session, and the heads."""
    reader = database.connect(read_only=True)
    try:
        yield reader.query(f"SELECT {_ALL} FROM tape_journal NOT INDEXED ORDER BY global_seq")
        for run in range(RUNS):
            sql = f"SELECT {_ALL} FROM tape_journal INDEXED BY tape_journal_run WHERE run_id = ? AND tenant = ?"
            yield reader.query(f"{sql} ORDER BY seq", f"run-{run}", "acme")
        for subject in range(SUBJECTS):
            yield look_up_subject(f"/tape/order/created/{subject}").select(reader, _ALL, 0, ENTRIES, ENTRIES)
        for session in range(3):
            yield look_up_identities([("acme", "u", f"s{session}")]).select(reader, _ALL, 0, ENTRIES, ENTRIES)
        for number in range(1, ENTRIES + 1):
            yield reader.query(f"SELECT {_ALL} FROM tape_journal WHERE global_seq = ?", number)
        yield reader.query("SELECT global_seq, chain, oldest, anchor FROM tape_head")
        yield reader.query("SELECT run_id, tenant, seq FROM tape_run_heads ORDER BY run_id, tenant")
    finally:
        reader.close()


def judge(path: Path, truth: list[Any]) -> str:
    """`named`, `whole`, or `refused`; anything else is a failure of the test."""
    database = open_database(f"sqlite:{path}", migrate=False, create=False)
    try:
        report = _verify(database)
    except (SchemaOutdated, StoreNotFound, StoreUnavailable):
        return "refused"
    if not report.ok:
        return "named"
    return "whole" if list(read_all(database)) == truth else "silent"


def flip(path: Path, random_source: random.Random) -> str:
    """Change one to eight adjacent bits, or a few bytes, of one page of the file."""
    size = path.stat().st_size
    offset = random_source.randrange(size)
    length = random_source.choice([1, 1, 1, 1, 2, 8, 64])
    with path.open("r+b") as file:
        file.seek(offset)
        before = file.read(length)
        mask = random_source.randrange(1, 256)
        if random_source.random() < 0.5:
            mask = 1 << random_source.randrange(8)
        file.seek(offset)
        file.write(bytes(byte ^ mask for byte in before))
    return f"{length} bytes at {offset} ^ {mask}"


@pytest.mark.parametrize(
    ("first", "count"), [(0, 200), pytest.param(1_000, 3_000, marks=pytest.mark.proof)], ids=["200", "3000"]
)
def test_flips_are_named_or_harmless(sound: tuple[Path, list[Any]], tmp_path: Path, first: int, count: int) -> None:
    path, truth = sound
    outcomes: dict[str, int] = {}
    for seed in range(first, first + count):
        victim = tmp_path / "tape.db"
        shutil.copyfile(path, victim)
        for beside in tmp_path.glob("tape.db-*"):
            beside.unlink()
        damage = flip(victim, random.Random(seed))
        outcome = judge(victim, truth)
        assert outcome != "silent", f"seed {seed}: {damage}"
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert outcomes["named"] > count / 20


@pytest.mark.parametrize("keep", [0, 1, 50, 99, 100, 4_095, 4_096, 5_000, 20_000, 100_000])
def test_a_file_that_was_cut_is_never_whole(sound: tuple[Path, list[Any]], tmp_path: Path, keep: int) -> None:
    path, truth = sound
    victim = tmp_path / "tape.db"
    victim.write_bytes(path.read_bytes()[:keep])
    assert judge(victim, truth) in ("named", "refused")
