"""Restores a backup into an empty store, in one transaction: everything or nothing.

The store gets the migrations that the backup's store had, then its tables and its journal, then the migrations that
are newer. Numbers that the lost store may have given out after the backup are left out: the restored journal begins a
new epoch above them.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from tape.backup.artifacts import restore_artifacts
from tape.backup.chain import REQUIRED, ChainFollower, clip_ranges
from tape.backup.journal_copy import TABLE as JOURNAL
from tape.backup.location import Location
from tape.backup.manifest import (
    ArtifactList,
    BackupPart,
    Damage,
    JournalPart,
    Manifest,
    Snapshot,
    WalletKey,
    existing_manifest,
    read_snapshot,
)
from tape.backup.parts import read_part
from tape.backup.writer import NOT_IN_SNAPSHOT, Progress
from tape.base.clock import now_ms
from tape.base.url_mask import mask_urls
from tape.errors import BackupDamaged, BackupMismatch, BackupTooNew, InvalidInput, StoreNotEmpty
from tape.journal.appender import read_head
from tape.journal.epochs import DEFAULT_MARGIN, close_cut
from tape.store import Database, Transaction
from tape.store.connection import DatabaseConnection, Row
from tape.store.migrations import RESTORE_MARKER, applied_migrations, apply_migrations, known_migrations

# Tables that have rows after the migrations of an empty store.
_SEEDED = frozenset(
    {
        "tape_access_version",
        "tape_counted",
        "tape_head",
        "tape_migrations",
        "tape_reaction_catalog",
        "tape_reaction_lanes",
        "tape_rollup_position",
        "tape_scrub",
        RESTORE_MARKER,
    }
)


class RestoreReport(msgspec.Struct, kw_only=True):
    """What a restore did. `global_seq` is the head of the snapshot, `resumes_at` the first entry after it."""

    source: str
    snapshot: str
    created_ms: int
    journal_id: str
    epoch: int
    oldest: int
    global_seq: int
    chain: str
    entries: int
    rows: int
    last_known: int
    resumes_at: int
    # Entries of the backup after the snapshot, which are not restored: first and last.
    not_restored: tuple[int, int] | None
    artifacts: ArtifactList
    restored_artifacts: int
    wallet_keys: list[WalletKey]
    damage: list[Damage]


def restore_backup(
    location: Location,
    database: Database,
    *,
    until: int | None = None,
    last_known: int | None = None,
    as_new: bool = False,
    artifacts: Location | None = None,
    progress: Progress = lambda done, total: None,
) -> RestoreReport:
    """Restore the newest snapshot, or the newest at or before `until`, into an empty store.

    `last_known` is the last number that the lost store gave out, where that is known: from a witness, for example.
    Without it a margin of 1,000,000 numbers is left out. `as_new` makes a copy: a journal of its own, with a new id.
    """
    manifest, snapshot = choose_snapshot(location, until)
    cut = _find_cut(manifest, snapshot, database, last_known, as_new=as_new)
    parts = _select_parts(manifest, snapshot)
    _check_migrations(snapshot)
    existed = database.exists
    connection = database.connect()
    try:
        _check_empty(connection, database, snapshot)
        _mark(connection, location)
        try:
            restore = _Restore(connection, location, manifest, snapshot, progress)
            restore.load(parts)
            copied = restore.copy_artifacts(artifacts)
            report = restore.finish(cut)
        except BaseException:
            connection.rollback()
            _unmark(connection)
            raise
    except BaseException:
        connection.close()
        if not existed:
            _remove_files(database)
        raise
    connection.close()
    report.restored_artifacts = copied
    return report


def choose_snapshot(location: Location, until: int | None = None) -> tuple[Manifest, Snapshot]:
    """The manifest of a backup, and its newest snapshot whose head is at or before `until`."""
    manifest = existing_manifest(location)
    if not manifest.snapshots:
        raise BackupMismatch(
            f"{location.name} holds no whole backup yet: its first run was interrupted. Run tape backup again."
        )
    found = [each for each in manifest.snapshots if until is None or each.global_seq <= until]
    if not found:
        oldest = min(each.global_seq for each in manifest.snapshots)
        raise InvalidInput(
            f"--until {until} is before the first snapshot of the backup, which is at {oldest}."
            f" All of them: tape info --backup {location.name}"
        )
    # The last run decides among those of one head; a later epoch has higher numbers.
    ref = max(enumerate(found), key=lambda each: (each[1].global_seq, each[0]))[1]
    snapshot = read_snapshot(location, ref)
    if snapshot.journal_id != manifest.journal_id:
        raise BackupDamaged(f"{ref.path} is of the journal {snapshot.journal_id}, not {manifest.journal_id}.")
    return manifest, snapshot


class _Cut(NamedTuple):
    """Where the restored journal continues: above the last known number and a margin, in an epoch after this one."""

    last_known: int
    margin: int
    epoch: int
    is_copy: bool


def _find_cut(
    manifest: Manifest, snapshot: Snapshot, database: Database, last_known: int | None, *, as_new: bool
) -> _Cut:
    # A later epoch of the lost journal is not begun a second time.
    epoch = max(each.epoch for each in manifest.snapshots)
    if as_new:
        return _Cut(snapshot.global_seq, 0, epoch, is_copy=True)
    known, margin = manifest.last_seq, DEFAULT_MARGIN
    if (witness := database.witness.last_known(manifest.journal_id)) is not None:
        known, epoch = max(known, witness.global_seq), max(epoch, witness.epoch)
        # The files beside a database file know the last entry. Of a database server, each machine has its own.
        margin = 0 if database.dialect == "sqlite" else margin
    if last_known is not None:
        if last_known < known:
            raise InvalidInput(f"--last-known {last_known} is below {known}, which is known to have been given out.")
        known, margin = last_known, 0
    return _Cut(known, margin, epoch, is_copy=False)


def _select_parts(manifest: Manifest, snapshot: Snapshot) -> list[JournalPart]:
    """The parts with entries of a snapshot, in order. Raises BackupDamaged if a range is in none of them."""
    _check_ranges(snapshot)
    parts = sorted(
        (part for part in manifest.journal if clip_ranges(snapshot.ranges, part.first, part.last)),
        key=lambda part: part.first,
    )
    for before, after in pairwise(parts):
        if after.first <= before.last:
            raise BackupDamaged(f"{before.path} and {after.path} have the same entries.")
    for part in parts:
        if not set(REQUIRED) <= set(part.columns) or len(set(part.columns)) != len(part.columns):
            raise BackupDamaged(f"{part.path} lacks columns of entries, or has one twice.")
    held = [(part.first, part.last) for part in parts] + [(each.first, each.last) for each in manifest.damage]
    for first, last in snapshot.ranges:
        position = first
        for low, high in sorted(held):
            if low <= position <= high:
                position = high + 1
        if position <= last:
            raise BackupDamaged(f"The backup lacks entries from {position} on, which its snapshot needs up to {last}.")
    return parts


def _check_ranges(snapshot: Snapshot) -> None:
    end = snapshot.oldest - 1
    for first, last in snapshot.ranges:
        if not end < first <= last <= snapshot.global_seq:
            raise BackupDamaged(f"The snapshot {snapshot.name} has the entries {first} to {last} out of order.")
        end = last
    if snapshot.ranges and end != snapshot.global_seq:
        raise BackupDamaged(f"The snapshot {snapshot.name} ends at {end}, and its head is {snapshot.global_seq}.")


def _check_migrations(snapshot: Snapshot) -> None:
    known = {migration.number for migration in known_migrations("sqlite")}
    if unknown := [f"{number:04d}_{name}" for number, name in snapshot.migrations if number not in known]:
        raise BackupTooNew(
            f"The backup has the migrations {', '.join(unknown)}, which this version of Tape does not know. Upgrade"
            " Tape to restore it."
        )


def _check_empty(connection: DatabaseConnection, database: Database, snapshot: Snapshot) -> None:
    shown = mask_urls(database.url)
    tables = connection.tables()
    if "tape_head" in tables and (head := read_head(connection)).global_seq:
        raise StoreNotEmpty(
            f"{shown} has the journal {head.journal_id} with entries up to {head.global_seq:,}. A backup is restored"
            " into an empty store only: name a new file or an empty database with --store."
        )
    filled = [
        f"{table} ({count:,} rows)"
        for table in tables
        if table not in _SEEDED and (count := (connection.one(f"SELECT count(*) FROM {table}") or (0,))[0])
    ]
    if filled:
        raise StoreNotEmpty(
            f"{shown} has data in {', '.join(filled)}. A backup is restored into an empty store only: name a new file"
            " or an empty database with --store."
        )
    wanted = {number for number, _ in snapshot.migrations}
    if newer := [f"{number:04d}_{name}" for number, name in applied_migrations(connection) if number not in wanted]:
        raise StoreNotEmpty(
            f"{shown} has tables of a newer version than the backup ({', '.join(newer)}). Name a new file or a"
            " database without tables; the restore makes them and migrates them afterwards."
        )


def _mark(connection: DatabaseConnection, location: Location) -> None:
    """Say in the store that a restore has begun, so that nothing else uses it until that has finished."""
    connection.begin()
    if not connection.has_table(RESTORE_MARKER):
        connection.run_script(f"CREATE TABLE {RESTORE_MARKER} (source TEXT NOT NULL, started_ms BIGINT NOT NULL)")
    connection.execute(f"DELETE FROM {RESTORE_MARKER}")
    connection.execute(f"INSERT INTO {RESTORE_MARKER} (source, started_ms) VALUES (?, ?)", location.name, now_ms())
    connection.commit()


def _unmark(connection: DatabaseConnection) -> None:
    with contextlib.suppress(Exception):  # the error that led here is the one to report
        connection.begin()
        connection.run_script(f"DROP TABLE {RESTORE_MARKER}")
        connection.commit()


def _remove_files(database: Database) -> None:
    """Remove the file that this restore has made."""
    path = getattr(database, "path", None)
    if path is not None:
        for end in ("", "-wal", "-shm"):
            path.with_name(path.name + end).unlink(missing_ok=True)


class _Restore:
    def __init__(
        self,
        connection: DatabaseConnection,
        location: Location,
        manifest: Manifest,
        snapshot: Snapshot,
        progress: Progress,
    ) -> None:
        self._connection = connection
        self._location = location
        self._manifest = manifest
        self._snapshot = snapshot
        self._progress = progress
        self._known = known_migrations(connection.dialect)
        self._entries = 0
        self._rows = 0
        self._total = sum(last - first + 1 for first, last in snapshot.ranges)

    def load(self, parts: Sequence[JournalPart]) -> None:
        """Load tables and entries, in a transaction that stays open."""
        connection = self._connection
        connection.sort_on_disk()
        connection.lift_time_limits()
        connection.begin()
        wanted = {number for number, _ in self._snapshot.migrations}
        applied = {number for number, _ in applied_migrations(connection)}
        apply_migrations(connection, [each for each in self._known if each.number in wanted - applied])
        self._check_schema()
        # In the order of their names, in which `tape_run_heads` is before `tape_runs`: its trigger finds no run.
        for table in sorted(self._snapshot.tables, key=lambda table: table.name):
            connection.execute(f"DELETE FROM {table.name}")
            columns = [name for name, _ in table.columns]
            for part in table.parts:
                for rows in self._read(part, len(columns)):
                    connection.load(table.name, columns, rows)
                    self._rows += len(rows)
        self._load_journal(parts)
        self._check_head()

    def copy_artifacts(self, target: Location | None) -> int:
        """Copy artifacts to where the server expects them; their number."""
        if target is None:
            return 0
        return restore_artifacts(self._location, self._snapshot, target, lambda _: None)

    def finish(self, cut: _Cut) -> RestoreReport:
        """Bring the schema up to date, begin a new epoch, and commit."""
        connection, snapshot = self._connection, self._snapshot
        applied = {number for number, _ in applied_migrations(connection)}
        apply_migrations(connection, [each for each in self._known if each.number not in applied])
        connection.execute("UPDATE tape_head SET epoch = ? WHERE id = 1", cut.epoch)
        cause = f"restored from the backup {self._location.name}, snapshot {snapshot.name} at {snapshot.global_seq}"
        if cut.is_copy:
            connection.execute("UPDATE tape_head SET journal_id = ? WHERE id = 1", secrets.token_hex(16))
            cause += f", as a copy of the journal {snapshot.journal_id}"
        tx = Transaction(connection)
        entry = close_cut(tx, last_known=cut.last_known, margin=cut.margin, cause=cause)
        journal_id = read_head(tx).journal_id
        connection.run_script(f"DROP TABLE {RESTORE_MARKER}")
        connection.commit(tx.flush)
        copied = [(part.first, part.last) for part in self._manifest.journal]
        later = clip_ranges(copied, snapshot.global_seq + 1, self._manifest.last_seq)
        return RestoreReport(
            source=self._location.name,
            snapshot=snapshot.name,
            created_ms=snapshot.created_ms,
            journal_id=journal_id,
            epoch=cut.epoch + 1,
            oldest=snapshot.oldest,
            global_seq=snapshot.global_seq,
            chain=snapshot.chain,
            entries=self._entries,
            rows=self._rows,
            last_known=cut.last_known,
            resumes_at=entry.global_seq,
            not_restored=(later[0][0], max(last for _, last in later)) if later else None,
            artifacts=snapshot.artifacts,
            restored_artifacts=0,
            wallet_keys=snapshot.wallet_keys,
            damage=self._damage,
        )

    def _check_schema(self) -> None:
        connection = self._connection
        present = {
            table: sorted((column.name, column.kind) for column in connection.columns(table))
            for table in connection.tables()
            if table not in (*NOT_IN_SNAPSHOT, RESTORE_MARKER)
        }
        described = {table.name: sorted(table.columns) for table in self._snapshot.tables}
        if len(described) != len(self._snapshot.tables):
            raise BackupDamaged(f"The snapshot {self._snapshot.name} has a table twice.")
        for name in sorted(present.keys() | described.keys()):
            if present.get(name) != described.get(name):
                problem = "lacks" if name not in described else "has other columns in" if name in present else "has"
                raise BackupDamaged(
                    f"The snapshot {self._snapshot.name} {problem} the table {name!r}; its migrations make another."
                )

    def _load_journal(self, parts: Sequence[JournalPart]) -> None:
        snapshot = self._snapshot
        follower = ChainFollower(snapshot.ranges, bytes.fromhex(snapshot.anchor))
        schema = {column.name for column in self._connection.columns(JOURNAL)}
        for part in parts:
            if unknown := set(part.columns) - schema:
                raise BackupDamaged(f"{part.path} has the unknown columns {', '.join(sorted(unknown))}.")
            follower.set_columns(part.columns)
            numbered = part.columns.index("global_seq")
            ranges = clip_ranges(snapshot.ranges, part.first, part.last)
            for rows in self._read(part, len(part.columns)):
                wanted = [row for row in rows if any(low <= row[numbered] <= high for low, high in ranges)]
                for row in wanted:
                    follower.check(row)
                self._check_damage(follower)
                self._connection.load(JOURNAL, part.columns, wanted)
                self._entries += len(wanted)
                self._progress(self._entries, self._total)
        follower.finish()
        self._check_damage(follower)
        if follower.chain.hex() != snapshot.chain and not self._is_known(
            Damage(snapshot.global_seq, snapshot.global_seq, "")
        ):
            raise BackupDamaged(
                f"The entries of the backup end with the chain value {follower.chain.hex()}, and its head has"
                f" {snapshot.chain}."
            )
        self._damage = follower.damage

    def _check_damage(self, follower: ChainFollower) -> None:
        for damage in follower.damage:
            if not self._is_known(damage):
                raise BackupDamaged(
                    f"Entries {damage.first} to {damage.last} of the backup: {damage.problem}. The manifest does not"
                    " name this damage, so it happened to the backup."
                )

    def _is_known(self, damage: Damage) -> bool:
        """Whether the entries were damaged in the journal already when they were copied."""
        return any(each.first <= damage.first and damage.last <= each.last for each in self._manifest.damage)

    def _check_head(self) -> None:
        head, snapshot = read_head(self._connection), self._snapshot
        loaded = (head.journal_id, head.epoch, head.global_seq, head.chain.hex(), head.oldest, head.anchor.hex())
        described = (
            snapshot.journal_id,
            snapshot.epoch,
            snapshot.global_seq,
            snapshot.chain,
            snapshot.oldest,
            snapshot.anchor,
        )
        if loaded != described:
            raise BackupDamaged(f"The head row of the snapshot {snapshot.name} is not that of its description.")

    def _read(self, part: BackupPart, columns: int) -> Iterator[list[Row]]:
        content = self._location.get(part.path, part.size)
        if content is None:
            raise BackupDamaged(f"{part.path} is missing in {self._location.name}.")
        return read_part(content, part, columns)
