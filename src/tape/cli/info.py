"""`tape info`: which store this is, and the state of its journal. Reads only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tape.backup.location import Location, open_location
from tape.backup.manifest import existing_manifest
from tape.base.extras import require_server_libraries
from tape.base.store_url import StoreUrl
from tape.base.url_mask import mask_urls
from tape.cli.options import DEFAULT_STORE, Output, OutputOption, StoreOption
from tape.cli.output import moment, print_facts, print_json
from tape.errors import SchemaOutdated
from tape.journal.appender import Head, read_head
from tape.journal.epochs import Epoch, read_epochs
from tape.store import Database, open_database
from tape.store.connection import DatabaseConnection, Row
from tape.store.migrations import applied_migrations, known_migrations, pending_migrations

# The migration that gives a journal its id.
CONTINUITY = 28


class BackupInfo(msgspec.Struct, frozen=True):
    """The last backup to a location, and how far behind the head it is."""

    location: str
    global_seq: int
    epoch: int
    created_ms: int
    snapshot: str


class WitnessInfo(msgspec.Struct, frozen=True):
    """The last entry that a witness knows."""

    name: str
    global_seq: int
    epoch: int
    # What the database lost, if it lacks that entry.
    loss: str


class StoreInfo(msgspec.Struct, kw_only=True):
    """A store and its journal. Sizes are in bytes; `wal_bytes` is that of SQLite's log."""

    store: str
    found_by: str
    dialect: str
    journal_id: str
    epoch: int
    epochs: list[Epoch]
    oldest: int
    head: int
    entries: int
    chain: str
    last_entry_ms: int
    size_bytes: int
    wal_bytes: int | None
    migrations: int
    pending_migrations: list[str]
    witness: WitnessInfo | None
    damage: list[tuple[int, int, str]]
    backups: list[BackupInfo]


def info(
    store: StoreOption = DEFAULT_STORE,
    backup: Annotated[
        str, typer.Option(help="Show this backup instead, and the points that it can be restored to.")
    ] = "",
    output: OutputOption = Output.text,
) -> None:
    """Show which store is used and how it was found, its journal, size, witness, damage and last backup."""
    require_server_libraries("tape info")
    if backup:
        _show_backup(open_location(backup), output)
        return
    database = open_database(store, create=False)
    connection = database.connect(read_only=True)
    try:
        found = read_info(database, connection)
    finally:
        connection.close()
    if output is Output.json:
        print_json(found)
    else:
        _print(found)


def _show_backup(location: Location, output: Output) -> None:
    manifest = existing_manifest(location)
    if output is Output.json:
        print_json(manifest)
        return
    parts = sum(part.size for part in manifest.journal)
    print_facts(
        {
            "backup": location.name,
            "journal": manifest.journal_id,
            "entries": f"up to {manifest.last_seq}, {parts:,} bytes in {len(manifest.journal):,} parts",
            "last run": moment(manifest.updated_ms),
            "damage": f"{len(manifest.damage):,} ranges, the first at {manifest.damage[0].first}"
            if manifest.damage
            else "none",
            "snapshots": f"{len(manifest.snapshots):,}, to restore one: tape restore {location.name} --until SEQ"
            if manifest.snapshots
            else "none yet: nothing can be restored. Run tape backup again",
        }
    )
    for each in manifest.snapshots:
        typer.echo(f"{each.global_seq:>10}  {moment(each.created_ms)}  epoch {each.epoch}  {each.name}")


def read_info(database: Database, connection: DatabaseConnection) -> StoreInfo:
    """Read everything about a store."""
    pending = pending_migrations(connection)
    if len(pending) == len(known_migrations(database.dialect)):
        raise database.without_tables()
    if any(migration.number <= CONTINUITY for migration in pending):
        names = ", ".join(map(str, pending))
        shown = mask_urls(database.url)
        raise SchemaOutdated(f"The database {shown} lacks {names}. Run: tape migrate --store {shown}")
    head, epochs = read_head(connection), read_epochs(connection)
    size, wal = _sizes(database, connection)
    return StoreInfo(
        store=str(mask_urls(database.url)),
        found_by=database.url.found_by if isinstance(database.url, StoreUrl) else "",
        dialect=database.dialect,
        journal_id=head.journal_id,
        epoch=head.epoch,
        epochs=epochs,
        oldest=head.oldest,
        head=head.global_seq,
        entries=count_entries(head, epochs),
        chain=head.chain.hex(),
        last_entry_ms=head.ts_ms,
        size_bytes=size,
        wal_bytes=wal,
        migrations=len(applied_migrations(connection)),
        pending_migrations=[str(migration) for migration in pending],
        witness=_witness(database, connection, head),
        damage=_rows(connection, "tape_damage", "first, last, problem", "first LIMIT 100"),
        backups=[
            BackupInfo(*row)
            for row in _rows(
                connection, "tape_backups", "location, global_seq, epoch, created_ms, snapshot", "created_ms DESC"
            )
        ],
    )


def count_entries(head: Head, epochs: list[Epoch]) -> int:
    """The entries between both ends, without the numbers that epochs leave out."""
    lost = 0
    for epoch in epochs:
        first = max(epoch.cut_after + 1, head.oldest)
        lost += max(epoch.resumes_at - first, 0)
    return head.global_seq - head.oldest + 1 - lost


def _rows(connection: DatabaseConnection, table: str, columns: str, order: str) -> list[Row]:
    if not connection.has_table(table):
        return []
    return connection.query(f"SELECT {columns} FROM {table} ORDER BY {order}")


def _sizes(database: Database, connection: DatabaseConnection) -> tuple[int, int | None]:
    path: Path | None = getattr(database, "path", None)
    if path is not None:
        wal = path.with_name(f"{path.name}-wal")
        return path.stat().st_size, wal.stat().st_size if wal.exists() else 0
    row = connection.one("SELECT pg_database_size(current_database())")
    return (row[0] if row else 0), None


def _witness(database: Database, connection: DatabaseConnection, head: Head) -> WitnessInfo | None:
    known = database.witness.last_known(head.journal_id)
    if known is None:
        return None
    loss = database.witness.find_loss(connection)
    return WitnessInfo(database.witness.name, known.global_seq, known.epoch, str(loss) if loss else "")


def _print(found: StoreInfo) -> None:
    size = f"{found.size_bytes:,} bytes"
    facts = {
        "store": f"{found.store} (found by: {found.found_by})",
        "journal": f"{found.journal_id}, epoch {found.epoch}",
        "entries": f"{found.entries:,} ({found.oldest} to {found.head})" if found.entries else "none",
        "chain": found.chain,
        "last entry": moment(found.last_entry_ms) if found.last_entry_ms else "none",
        "size": size if found.wal_bytes is None else f"{size}, and {found.wal_bytes:,} in the write-ahead log",
        "migrations": f"{found.migrations}, pending: {', '.join(found.pending_migrations) or 'none'}",
        "witness": _describe_witness(found),
        "damage": f"{len(found.damage):,} known ranges, the first at {found.damage[0][0]}"
        if found.damage
        else "none known",
        "last backup": _describe_backup(found),
    }
    print_facts(facts)
    for epoch in found.epochs:
        typer.echo(
            f"epoch {epoch.epoch}: no entries from {epoch.cut_after + 1} to {epoch.resumes_at - 1} ({epoch.cause})"
        )


def _describe_witness(found: StoreInfo) -> str:
    if found.witness is None:
        return "none"
    return found.witness.loss or f"{found.witness.name}, at {found.witness.global_seq}"


def _describe_backup(found: StoreInfo) -> str:
    if not found.backups:
        return "none"
    last = found.backups[0]
    return f"{last.location} at {last.global_seq}, of {moment(last.created_ms)}"
