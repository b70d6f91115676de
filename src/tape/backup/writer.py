"""Makes a backup of a store beside its running servers.

Entries never change, so those before the head are copied in short reads first. One transaction then reads the entries
that were appended meanwhile and every other table, all as of the same head. A part of the journal is in the manifest
as soon as it is written, so an interrupted backup goes on where it ended; the snapshot is in it when it is whole.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec

from tape import __version__
from tape.backup.artifacts import copy_artifacts
from tape.backup.chain import Range, clip_ranges, entry_ranges
from tape.backup.journal_copy import TABLE as JOURNAL
from tape.backup.journal_copy import JournalCopy, damaged, find_position
from tape.backup.location import LOCK, Location
from tape.backup.manifest import (
    FILE,
    FORMAT,
    ArtifactList,
    BackupPart,
    Damage,
    JournalPart,
    Manifest,
    Snapshot,
    SnapshotRef,
    Table,
    WalletKey,
    read_manifest,
    write_manifest,
    write_snapshot,
)
from tape.backup.parts import PartWriter
from tape.base.clock import now_ms
from tape.base.url_mask import mask_urls
from tape.errors import BackupError, BackupLocationFailed, BackupMismatch, SchemaOutdated, StoreDamaged, TapeError
from tape.journal.appender import Head, read_head
from tape.journal.epochs import read_epochs
from tape.journal.key_index import TABLES as INDEX_TABLES
from tape.store import Database
from tape.store.connection import DatabaseConnection
from tape.store.migrations import applied_migrations, known_migrations, pending_migrations

# The migration that gives a journal its id.
CONTINUITY = 28
# Tables that are not in a snapshot: the journal is in parts, indexes are made from it, and a restored store has
# migrations of its own.
NOT_IN_SNAPSHOT = (JOURNAL, *INDEX_TABLES, "tape_migrations")
# Entries that are left for the snapshot's transaction, and how often that is tried while others append.
NEAR_ENTRIES = 10_000
ROUNDS = 10

Progress = Callable[[int, int], None]
ArtifactMode = Literal["copy", "reference"]


class BackupReport(msgspec.Struct, kw_only=True):
    """What a backup did."""

    location: str
    snapshot: str
    journal_id: str
    epoch: int
    oldest: int
    global_seq: int
    chain: str
    # Entries that this run added, and the bytes of all files that it wrote.
    entries: int
    bytes_written: int
    rows: int
    artifacts: ArtifactList
    wallet_keys: list[WalletKey]
    damage: list[Damage]
    # Entries that retention removed before any backup had them: first and last.
    pruned: tuple[int, int] | None = None
    notes: list[str]


class _Position(NamedTuple):
    """The last entry that is copied, and its chain value."""

    global_seq: int
    chain: bytes


def create_backup(
    database: Database,
    location: Location,
    *,
    artifacts: Location | None = None,
    artifact_mode: ArtifactMode = "copy",
    accept_damage: bool = False,
    progress: Progress = lambda done, total: None,
) -> BackupReport:
    """Add what is new to a backup, or begin one; the servers of the store may keep running."""
    connection = database.connect(read_only=True)
    try:
        pending = pending_migrations(connection)
        if len(pending) == len(known_migrations(database.dialect)):
            raise database.without_tables()
        if missing := [str(each) for each in pending if each.number <= CONTINUITY]:
            raise SchemaOutdated(
                f"The database {mask_urls(database.url)} lacks {', '.join(missing)}, with which journals have an id."
                f" Run: tape migrate --store {mask_urls(database.url)}"
            )
        with location.lock():
            run = _BackupRun(connection, location, accept_damage=accept_damage, progress=progress)
            report = run.execute(artifacts, artifact_mode)
    finally:
        connection.close()
    _record(database, report)
    return report


class _BackupRun:
    def __init__(
        self, connection: DatabaseConnection, location: Location, *, accept_damage: bool, progress: Progress
    ) -> None:
        self._connection = connection
        self._location = location
        self._accept_damage = accept_damage
        self._progress = progress
        self._done = 0
        self._total = 0
        self._bytes = 0
        self._entries = 0
        self._rows = 0
        self._damage: list[Damage] = []
        self._pruned: tuple[int, int] | None = None
        self._notes: list[str] = []
        self._manifest = self._begin(read_head(connection))

    def execute(self, artifacts: Location | None, artifact_mode: ArtifactMode) -> BackupReport:
        self._clean()
        self._copy_ahead()
        name = f"{now_ms()}-{secrets.token_hex(4)}"
        self._connection.begin_snapshot()
        try:
            head, ranges = self._read_ends()
            self._copy(head, ranges, accept_damage=self._accept_damage)
            tables = [self._copy_table(table, name) for table in self._snapshot_tables()]
            migrations = applied_migrations(self._connection)
            wallet_keys = self._wallet_keys()
        finally:
            self._connection.rollback()
        # After the snapshot: an artifact is stored before its entry is.
        listed = self._artifacts(artifacts, artifact_mode, f"snapshots/{name}")
        snapshot = Snapshot(
            format=FORMAT,
            name=name,
            journal_id=head.journal_id,
            epoch=head.epoch,
            oldest=head.oldest,
            anchor=head.anchor.hex(),
            global_seq=head.global_seq,
            chain=head.chain.hex(),
            created_ms=now_ms(),
            tape_version=__version__,
            dialect=self._connection.dialect,
            migrations=migrations,
            ranges=clip_ranges(ranges, head.oldest, head.global_seq),
            tables=tables,
            artifacts=listed,
            wallet_keys=wallet_keys,
        )
        self._finish(write_snapshot(self._location, snapshot))
        return BackupReport(
            location=self._location.name,
            snapshot=name,
            journal_id=head.journal_id,
            epoch=head.epoch,
            oldest=head.oldest,
            global_seq=head.global_seq,
            chain=head.chain.hex(),
            entries=self._entries,
            bytes_written=self._bytes,
            rows=self._rows,
            artifacts=listed,
            wallet_keys=wallet_keys,
            damage=self._damage,
            pruned=self._pruned,
            notes=self._notes,
        )

    # ── the manifest ─────────────────────────────────────────────────────────────────────────────

    def _begin(self, head: Head) -> Manifest:
        """The manifest that is there, or a first one: with it the location belongs to this journal."""
        manifest = read_manifest(self._location)
        if manifest is None:
            if foreign := next((file.path for file in self._location.list() if file.path != LOCK), None):
                raise BackupMismatch(
                    f"{self._location.name} is not empty (it has {foreign}) and holds no backup. Name an empty folder"
                    " or prefix."
                )
            manifest = Manifest(format=FORMAT, journal_id=head.journal_id, created_ms=now_ms(), updated_ms=now_ms())
            write_manifest(self._location, manifest)
        if manifest.journal_id != head.journal_id:
            raise BackupMismatch(
                f"{self._location.name} holds the backup of the journal {manifest.journal_id}; this one is"
                f" {head.journal_id}. Back it up to another location."
            )
        return manifest

    def _update(self, manifest: Manifest) -> None:
        if read_manifest(self._location) != self._manifest:
            raise BackupMismatch(
                f"Another process has changed {FILE} of {self._location.name} meanwhile. Run one backup at a time."
            )
        write_manifest(self._location, manifest)
        self._manifest = manifest

    def _add_part(self, part: JournalPart, content: bytes) -> None:
        self._put(part, content)
        self._entries += part.rows
        journal = [*self._manifest.journal, part]
        self._update(msgspec.structs.replace(self._manifest, journal=journal, updated_ms=now_ms()))

    def _finish(self, ref: SnapshotRef) -> None:
        known = set(self._manifest.damage)
        manifest = msgspec.structs.replace(
            self._manifest,
            snapshots=[*self._manifest.snapshots, ref],
            damage=[*self._manifest.damage, *(each for each in self._damage if each not in known)],
            updated_ms=now_ms(),
        )
        self._update(manifest)

    def _clean(self) -> None:
        """Remove what an interrupted backup left behind: files that the manifest does not name."""
        named = {part.path for part in self._manifest.journal}
        snapshots = tuple(f"snapshots/{each.name}/" for each in self._manifest.snapshots)
        try:
            for folder in ("journal", "snapshots"):
                files = self._location.list(folder, only_abandoned=True)
                stale = [file.path for file in files if file.path not in named and not file.path.startswith(snapshots)]
                self._location.delete(stale)
        except (BackupLocationFailed, OSError) as error:
            self._notes.append(f"the files of an interrupted backup could not be removed: {error}")

    # ── the journal ──────────────────────────────────────────────────────────────────────────────

    def _read_ends(self) -> tuple[Head, list[Range]]:
        head = read_head(self._connection)
        return head, entry_ranges(head, read_epochs(self._connection))

    def _copy_ahead(self) -> None:
        """Copy most of the journal in short reads. What looks like damage may be retention: the snapshot decides."""
        for _ in range(ROUNDS):
            head, ranges = self._read_ends()
            if head.global_seq - find_position(self._connection, self._manifest, head, ranges) <= NEAR_ENTRIES:
                return
            with contextlib.suppress(StoreDamaged):
                self._copy(head, ranges, accept_damage=False)
                continue
            self._damage.clear()
            return

    def _copy(self, head: Head, ranges: list[Range], *, accept_damage: bool) -> None:
        position = self._position(head, ranges)
        left = clip_ranges(ranges, position.global_seq + 1, head.global_seq)
        self._total += sum(last - first + 1 for first, last in left)
        copy = JournalCopy(self._connection, left, position.chain, self._add_part)
        copy.run(accept_damage=accept_damage, progress=self._advance)
        if copy.follower.chain != head.chain:
            copy.follower.damage.append(Damage(head.global_seq, head.global_seq, "is not what the head row says"))
            if not accept_damage:
                raise damaged(copy.follower)
        self._damage += copy.follower.damage

    def _position(self, head: Head, ranges: list[Range]) -> _Position:
        best = find_position(self._connection, self._manifest, head, ranges)
        if best < head.oldest:
            if best and best < head.oldest - 1:
                self._pruned = (best + 1, head.oldest - 1)
            return _Position(head.oldest - 1, head.anchor)
        row = self._connection.one(f"SELECT chain FROM {JOURNAL} WHERE global_seq = ?", best)
        known = next((part.chain for part in self._manifest.journal if part.last == best), "")
        return _Position(best, row[0] if row else bytes.fromhex(known))

    # ── other tables ─────────────────────────────────────────────────────────────────────────────

    def _snapshot_tables(self) -> list[str]:
        return [table for table in self._connection.tables() if table not in NOT_IN_SNAPSHOT]

    def _copy_table(self, table: str, name: str) -> Table:
        columns = self._connection.columns(table)
        parts: list[BackupPart] = []
        writer = PartWriter()

        def close() -> None:
            content, part = writer.finish()
            parts.append(msgspec.structs.replace(part, path=f"snapshots/{name}/{table}-{len(parts) + 1:04d}.gz"))
            self._put(parts[-1], content)

        names = ",".join(f'"{column.name}"' for column in columns)
        for rows in self._connection.stream(f"SELECT {names} FROM {table}"):
            writer.add(rows)
            self._rows += len(rows)
            self._progress(self._done, self._total)
            if writer.is_full:
                close()
                writer = PartWriter()
        if writer.rows:
            close()
        described = [(column.name, column.kind) for column in columns]
        return Table(name=table, columns=described, rows=sum(part.rows for part in parts), parts=parts)

    def _wallet_keys(self) -> list[WalletKey]:
        found: dict[str, list[str]] = {}
        for key_id, alias in self._connection.query(
            "SELECT DISTINCT master_key, alias FROM tape_secrets ORDER BY master_key, alias"
        ):
            found.setdefault(key_id, []).append(alias)
        return [WalletKey(*each) for each in found.items()]

    # ── artifacts ────────────────────────────────────────────────────────────────────────────────

    def _artifacts(self, source: Location | None, mode: ArtifactMode, folder: str) -> ArtifactList:
        references = sum(part.artifact_refs for part in self._manifest.journal)
        if source is None or mode == "reference":
            return ArtifactList(mode="reference", location=source.name if source else "", references=references)
        listed = copy_artifacts(source, self._location, folder, references, lambda _: None)
        if references and not listed.count:
            raise BackupError(
                f"{references:,} entries refer to artifacts, and there are none in {source.name}. Set artifacts"
                " (TAPE_ARTIFACTS) as for the server, or leave them where they are with --artifacts reference."
            )
        return listed

    # ── small things ─────────────────────────────────────────────────────────────────────────────

    def _put(self, part: BackupPart, content: bytes) -> None:
        self._location.put(part.path, content)
        self._bytes += part.size

    def _advance(self, entries: int) -> None:
        self._done += entries
        self._progress(self._done, self._total)


def _record(database: Database, report: BackupReport) -> None:
    """Note the backup in the store, for `tape info`; the backup is whole without it."""
    columns = ("location", "global_seq", "epoch", "created_ms", "snapshot")
    row = (report.location, report.global_seq, report.epoch, now_ms(), report.snapshot)
    try:
        connection = database.connect()
        try:
            if connection.has_table("tape_backups"):
                connection.begin()
                connection.upsert("tape_backups", ["location"], columns, [row])
                connection.commit()
        finally:
            connection.close()
    except TapeError as error:
        report.notes.append(f"the backup could not be recorded in the store: {error}")
