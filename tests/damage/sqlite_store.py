"""A SQLite journal to damage: at rest, and as kill -9 leaves it with its last entries in the write-ahead log only."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import apsw

from tape.client import AsyncTapeClient
from tape.journal.index_check import rebuild_indexes
from tape.store import open_database
from tests.damage import byte_damage, sql_damage
from tests.damage.store import Damage, Look, StoreCopy
from tests.damage.truth import Truth, append_entries, load_truth, read_truth
from tests.services import ServerProcess

PAGE = 4_096
WAL_HEADER, FRAME_HEADER = 32, 24
# Entries after which an old copy of the file is kept, entries of the file at rest, and entries with those of the log.
OLD, AT_REST, IN_LOG = 360, 500, 640
OBJECTS = (
    *("tape_journal", "tape_journal_run", "tape_journal_subjects", "tape_journal_identities", "tape_journal_blocks"),
    *("tape_head", "tape_run_heads", "sqlite_schema", "others"),
)
# How often each target is damaged, relative to the others.
WEIGHTS = {
    "tape_journal": 8,
    "tape_journal_run": 5,
    "tape_journal_subjects": 3,
    "tape_journal_identities": 2,
    "tape_journal_blocks": 1,
    "tape_head": 2,
    "tape_run_heads": 2,
    "sqlite_schema": 1,
    "others": 1,
    "log": 7,
    "witness": 2,
    "SQL": 8,
}


class SqliteTemplate:
    """Made once in a folder, copied for each case."""

    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def build(self) -> None:
        """Write the journal: an old copy, the file at rest, and one with a log."""
        work = self._folder / "work"
        work.mkdir(parents=True)
        asyncio.run(self._build(work))
        shutil.rmtree(work)

    async def _build(self, work: Path) -> None:
        acknowledged: dict[int, int] = {}
        last = 0
        for name, until in (("old", OLD), ("rest", AT_REST), ("log", IN_LOG)):
            with ServerProcess(f"sqlite:{work / 'tape.db'}") as server:
                async with AsyncTapeClient(server.url) as client:
                    acknowledged |= await append_entries(client, range(last + 1, until + 1))
                    truth = await read_truth(client, acknowledged)
                if name != "log":
                    assert server.terminate() == 0
                    # So few entries would not be indexed yet.
                    rebuild_indexes(open_database(f"sqlite:{work / 'tape.db'}", create=False))
            shutil.copytree(work, self._folder / name)
            truth.save(self._folder / f"{name}.truth")
            last = until

    def close(self) -> None:
        """Nothing runs for it."""

    @contextmanager
    def damaged_copy(self, seed: int, folder: Path) -> Iterator[StoreCopy]:
        """A damaged copy."""
        chance = random.Random(seed)
        target = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        state = "log" if target in ("log", "witness") or (target == "SQL" and chance.random() < 0.3) else "rest"
        truth = load_truth(self._folder / f"{state}.truth")
        shutil.copytree(self._folder / state, folder)
        path = folder / "tape.db"
        if target == "SQL":
            damage = _change_by_sql(path, truth, chance)
        elif target == "log":
            damage = _damage_log(path, chance)
        elif target == "witness":
            damage = _damage_witness(folder, chance)
        else:
            damage = _damage_pages(path, self._folder / "old" / "tape.db", target, chance)
        intact = self._folder / state
        yield StoreCopy(f"sqlite:{path}", folder, truth, damage, lambda: _look(folder, intact))


def _damage_pages(path: Path, old: Path, target: str, chance: random.Random) -> Damage:
    pages = _pages_of(path, target)
    kind = chance.choice(list(byte_damage.KINDS))
    number = chance.choice(pages)
    where = range((number - 1) * PAGE, number * PAGE)
    return Damage(target, kind, f"page {number}: " + byte_damage.damage_file(path, kind, where, chance, old))


def _pages_of(path: Path, target: str) -> list[int]:
    """The pages of a table or an index; of the schema the first one too, which has the file's header."""
    db = apsw.Connection(str(path))
    found: dict[str, list[int]] = {}
    for name, page in db.execute("SELECT name, pageno FROM dbstat"):
        found.setdefault(name if name in OBJECTS else "others", []).append(page)
    db.close()
    return found[target]


def _damage_log(path: Path, chance: random.Random) -> Damage:
    """Damage to the write-ahead log: any byte of it, a frame, its header, or all of it."""
    log = path.with_name(path.name + "-wal")
    size = log.stat().st_size
    kind = chance.choice([*byte_damage.KINDS, "log deleted", "log of before"])
    if kind == "log deleted":
        log.unlink()
        return Damage("log", kind, "")
    if kind == "log of before":  # as a copy of the files that is not atomic has it
        frames = (size - WAL_HEADER) // (FRAME_HEADER + PAGE)
        kept = WAL_HEADER + chance.randrange(frames) * (FRAME_HEADER + PAGE)
        with log.open("r+b") as file:
            file.truncate(kept)
        return Damage("log", kind, f"{kept} of {size} bytes")
    if kind in ("pages swapped", "page zeroed", "old page back"):
        first = WAL_HEADER + chance.randrange((size - WAL_HEADER) // (FRAME_HEADER + PAGE)) * (FRAME_HEADER + PAGE)
        where = range(first, first + FRAME_HEADER + PAGE)
    else:
        where = range(size)
    return Damage("log", kind, byte_damage.damage_file(log, kind, where, chance))


def _damage_witness(folder: Path, chance: random.Random) -> Damage:
    """Damage to the witness beside the database; one that is gone is written anew."""
    found = sorted(path for path in folder.iterdir() if "witness" in path.name and path.is_file())
    if not found:
        return Damage("witness", "none", "there is no witness")
    path, kind = chance.choice(found), chance.choice(["bit flipped", "byte changed", "file cut", "deleted", "emptied"])
    if kind == "deleted":
        path.unlink()
        return Damage("witness", kind, path.name)
    if kind == "emptied":
        path.write_bytes(b"")
        return Damage("witness", kind, path.name)
    where = range(path.stat().st_size)
    return Damage("witness", kind, byte_damage.damage_file(path, kind, where, chance))


def _change_by_sql(path: Path, truth: Truth, chance: random.Random) -> Damage:
    kind = chance.choice(list(sql_damage.KINDS))
    db = apsw.Connection(str(path))

    def sql(text: str, *params: Any) -> list[tuple[Any, ...]]:
        return db.execute(text, params).fetchall()

    with db:
        what = sql_damage.KINDS[kind](sql, truth, chance)
    db.close()
    return Damage("SQL", kind, what)


def _look(damaged: Path, intact: Path) -> Look:
    """Compare what SQLite itself sees in both files."""
    before = _tables(intact)
    try:
        with _opened(damaged) as db:
            problems = [row[0] for row in db.execute("PRAGMA integrity_check")]
            changed = [name for name, rows in before.items() if _rows(db, name) != rows]
    except (apsw.Error, UnicodeDecodeError) as error:
        return Look(is_intact=False, text=str(error))
    if problems == ["ok"] and not changed:
        return Look(is_intact=True)
    return Look(is_intact=False, text=f"changed: {changed}; {'; '.join(problems)[:200]}")


@cache
def _tables(folder: Path) -> dict[str, list[Any]]:
    with _opened(folder) as db:
        names = [row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {name: _rows(db, name) for name in names}


def _rows(db: apsw.Connection, table: str) -> list[Any]:
    return sorted(db.execute(f"SELECT * FROM {table} NOT INDEXED").fetchall(), key=repr)


@contextmanager
def _opened(folder: Path) -> Iterator[apsw.Connection]:
    """A copy of its own, so that looking changes nothing."""
    with tempfile.TemporaryDirectory(prefix="tape-damage-look-") as name:
        for path in folder.glob("tape.db*"):
            shutil.copy(path, name)
        db = apsw.Connection(str(Path(name) / "tape.db"))
        try:
            yield db
        finally:
            db.close()
