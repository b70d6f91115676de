"""Backups of both stores: what is in them, what restores from them, and what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tape.backup import parts
from tape.backup.location import FolderLocation
from tape.backup.manifest import FORMAT, BackupPart, Manifest, Snapshot, read_manifest, read_snapshot, write_snapshot
from tape.backup.parts import read_part
from tape.backup.restore import restore_backup
from tape.backup.writer import NOT_IN_SNAPSHOT, create_backup
from tape.errors import (
    BackupBusy,
    BackupDamaged,
    BackupError,
    BackupMismatch,
    BackupTooNew,
    InvalidInput,
    RestoreUnfinished,
    StoreDamaged,
    StoreNotEmpty,
    TapeError,
)
from tape.journal.appender import append, read_head
from tape.journal.epochs import DEFAULT_MARGIN, read_epochs
from tape.journal.key_index import look_up_subject
from tape.journal.retention import prune
from tape.journal.verifier import verify
from tape.model.entry import Draft, checked
from tape.store import open_database
from tests.backup.stores import append_entries, files_below, fill_every_table, read_tables, write_in_transaction
from tests.services import Postgres


@pytest.fixture
def location(tmp_path: Path) -> FolderLocation:
    return FolderLocation(tmp_path / "backup")


@pytest.fixture(params=["sqlite", "postgres"])
def other_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store without tables, of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:{tmp_path / 'restored.db'}"
    else:
        server: Postgres = request.getfixturevalue("postgres")
        with server.fresh_database() as url:
            yield url


@pytest.fixture
def restored(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'restored.db'}"


def backup(url: str, location: FolderLocation, **options: Any) -> Any:
    return create_backup(open_database(url), location, **options)


def restore(location: FolderLocation, url: str, **options: Any) -> Any:
    return restore_backup(location, open_database(url), **options)


def question(url: str, ask: Any) -> Any:
    connection = open_database(url).connect(read_only=True)
    try:
        return ask(connection)
    finally:
        connection.close()


# ── what is kept ─────────────────────────────────────────────────────────────────────────────────


def test_every_table_of_the_schema_is_restored_exactly_into_either_store(
    store_url: str, other_url: str, location: FolderLocation
) -> None:
    append_entries(store_url, 500)
    fill_every_table(store_url)
    before = read_tables(store_url)
    backup(store_url, location)
    report = restore(location, other_url, as_new=True)
    after = read_tables(other_url)
    assert before.keys() == after.keys()
    # What the restore itself writes: one entry, a new epoch, and the row of the backup.
    written = {"tape_journal", "tape_head", "tape_epochs", "tape_run_heads", "tape_counts", "tape_counted"}
    for table in before.keys() - written:
        assert after[table] == before[table], table
        assert before[table], f"{table} is empty, so that the test proves nothing about it"
    entries = question(other_url, lambda reader: reader.query("SELECT global_seq, chain FROM tape_journal ORDER BY 1"))
    assert entries[:-1] == question(
        store_url, lambda reader: reader.query("SELECT global_seq, chain FROM tape_journal ORDER BY 1")
    )
    assert report.entries == 500
    assert question(other_url, verify).ok


def test_a_table_of_the_schema_is_in_every_backup(store_url: str, location: FolderLocation) -> None:
    append_entries(store_url, 1)
    backup(store_url, location)
    manifest = read_manifest(location)
    assert manifest is not None
    snapshot = read_snapshot(location, manifest.snapshots[0])
    tables = question(store_url, lambda connection: connection.tables())
    assert {table.name for table in snapshot.tables} == set(tables) - set(NOT_IN_SNAPSHOT)


def test_entries_are_found_by_their_subject_after_a_restore(
    store_url: str, other_url: str, location: FolderLocation
) -> None:
    append_entries(store_url, 3_000)
    backup(store_url, location)
    restore(location, other_url)
    name = question(store_url, lambda reader: reader.one("SELECT subject FROM tape_journal WHERE global_seq = 1"))[0]
    ask = partial(look_up_subject(name).select, columns="global_seq", after=0, until=3_000, limit=3_000)
    assert question(other_url, ask) == question(store_url, ask) != []
    assert question(other_url, verify).ok


def test_a_second_backup_adds_only_what_is_new(
    store_url: str, location: FolderLocation, restored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 100_000)
    monkeypatch.setattr(parts, "FRAME_BYTES", 10_000)
    append_entries(store_url, 1_000, payload="x" * 500)
    first = backup(store_url, location)
    journal = {path for path in files_below(location.root) if path.startswith("journal/")}
    assert len(journal) > 1
    append_entries(store_url, 10, run="r2")
    second = backup(store_url, location)
    added = {path for path in files_below(location.root) if path.startswith("journal/")} - journal
    assert (first.entries, second.entries, len(added)) == (1_000, 10, 1)
    assert backup(store_url, location).entries == 0
    assert restore(location, restored).entries == 1_010
    assert question(restored, verify).ok


def test_an_empty_store_can_be_backed_up_and_restored(store_url: str, other_url: str, location: FolderLocation) -> None:
    backup(store_url, location)
    assert restore(location, other_url).entries == 0


def test_files_of_a_backup_are_readable_by_their_owner_only(sqlite_url: str, location: FolderLocation) -> None:
    open_database(sqlite_url).migrate()
    backup(sqlite_url, location)
    assert {(location.root / path).stat().st_mode & 0o777 for path in files_below(location.root)} == {0o600}
    assert location.root.stat().st_mode & 0o777 == 0o700


async def test_a_pruned_journal_is_restored_as_it_was(store_url: str, location: FolderLocation, restored: str) -> None:
    append_entries(store_url, 100)
    backup(store_url, location)
    append_entries(store_url, 100)
    async with open_database(store_url) as database:
        await prune(database, before_seq=151)
    report = backup(store_url, location)
    assert report.pruned == (101, 150)
    done = restore(location, restored)
    assert (done.oldest, done.global_seq, done.entries) == (151, 201, 51)
    assert question(restored, verify).ok
    assert restore(location, restored.replace("restored", "older"), until=150).global_seq == 100


# ── numbers are not given out twice ──────────────────────────────────────────────────────────────


def test_a_restored_journal_continues_above_every_number_that_may_have_been_given_out(
    store_url: str, other_url: str, location: FolderLocation
) -> None:
    append_entries(store_url, 20)
    backup(store_url, location)
    append_entries(store_url, 5)  # lost with the store
    report = restore(location, other_url)
    assert report.resumes_at == 20 + DEFAULT_MARGIN + 1
    head = question(other_url, read_head)
    assert (head.global_seq, head.epoch) == (report.resumes_at, 2)
    entry = question(
        other_url, lambda reader: reader.one("SELECT kind, payload_json FROM tape_journal ORDER BY global_seq DESC")
    )
    assert "restored from the backup" in msgspec.json.decode(entry[1])["cause"]
    append_entries(other_url, 2)
    seqs = question(
        other_url, lambda reader: reader.query("SELECT seq FROM tape_journal WHERE run_id = 'r1' ORDER BY seq")
    )
    assert seqs[-1][0] > DEFAULT_MARGIN, "a run that may have lost entries must not give out their seqs again"
    assert question(other_url, verify).ok


def test_a_known_last_number_makes_the_restore_exact(store_url: str, other_url: str, location: FolderLocation) -> None:
    append_entries(store_url, 20)
    backup(store_url, location)
    with pytest.raises(InvalidInput, match="--last-known 19 is below 20"):
        restore(location, other_url, last_known=19)
    assert restore(location, other_url, last_known=25).resumes_at == 26
    (epoch,) = question(other_url, read_epochs)
    assert (epoch.cut_after, epoch.last_known, epoch.resumes_at) == (20, 25, 26)


async def test_the_witness_of_the_lost_file_makes_the_restore_exact(
    tmp_path: Path, migrated_file: Path, location: FolderLocation
) -> None:
    path = tmp_path / "tape.db"
    shutil.copyfile(migrated_file, path)
    async with open_database(f"sqlite:{path}") as database:
        await database.write(lambda tx: None)
        append_entries(f"sqlite:{path}", 20)
        await database.write(lambda tx: None)
    backup(f"sqlite:{path}", location)
    async with open_database(f"sqlite:{path}") as database:
        await database.write(lambda tx: append(tx, [checked(Draft(subject="/tape/a/b", run_id="r"))]))
    path.unlink()
    report = restore(location, f"sqlite:{path}")
    assert (report.last_known, report.resumes_at) == (21, 22)
    async with open_database(f"sqlite:{path}") as database:  # the old witness agrees with the restored journal
        await database.write(lambda tx: append(tx, [checked(Draft(subject="/tape/a/b", run_id="r"))]))
    assert question(f"sqlite:{path}", read_head).global_seq == 23


def test_a_copy_has_a_journal_id_of_its_own(store_url: str, other_url: str, location: FolderLocation) -> None:
    append_entries(store_url, 20)
    backup(store_url, location)
    report = restore(location, other_url, as_new=True)
    assert report.journal_id != question(store_url, read_head).journal_id
    assert report.resumes_at == 21


def test_a_restored_journal_is_backed_up_to_the_same_location(
    store_url: str, location: FolderLocation, tmp_path: Path
) -> None:
    append_entries(store_url, 20)
    backup(store_url, location)
    append_entries(store_url, 20)
    backup(store_url, location)
    second = f"sqlite:{tmp_path / 'second.db'}"
    report = restore(location, second, until=30)
    assert (report.global_seq, report.not_restored) == (20, (21, 40))
    append_entries(second, 7)
    assert backup(second, location).entries == 8
    third = f"sqlite:{tmp_path / 'third.db'}"
    assert restore(location, third).entries == 28
    assert question(third, verify).ok
    assert question(third, read_head).epoch == 3
    # The history that was given up is still there.
    fourth = f"sqlite:{tmp_path / 'fourth.db'}"
    assert restore(location, fourth, until=40).entries == 40
    assert question(fourth, read_head).epoch == 3


def test_until_restores_the_newest_snapshot_at_or_before_a_number(
    store_url: str, location: FolderLocation, tmp_path: Path
) -> None:
    for _ in range(3):
        append_entries(store_url, 10)
        backup(store_url, location)
    for until, head in ((10, 10), (19, 10), (20, 20), (25, 20), (99, 30)):
        url = f"sqlite:{tmp_path / f'until-{until}.db'}"
        assert restore(location, url, until=until).global_seq == head
    with pytest.raises(InvalidInput, match="first snapshot of the backup, which is at 10"):
        restore(location, f"sqlite:{tmp_path / 'none.db'}", until=9)
    assert not (tmp_path / "none.db").exists()


# ── damage ───────────────────────────────────────────────────────────────────────────────────────


def damage_journal(url: str) -> None:
    def write(tx: Any) -> None:
        tx.execute("UPDATE tape_journal SET payload_json = '{}' WHERE global_seq = 5")
        tx.execute("DELETE FROM tape_journal WHERE global_seq IN (11, 12)")

    write_in_transaction(url, write)


def test_a_damaged_journal_is_backed_up_only_on_request_and_the_damage_is_named(
    store_url: str, location: FolderLocation, restored: str
) -> None:
    append_entries(store_url, 20)
    damage_journal(store_url)
    with pytest.raises(StoreDamaged, match="entries 5: altered; 11 to 12: missing"):
        backup(store_url, location)
    with pytest.raises(BackupMismatch, match="no whole backup"):
        restore(location, restored)
    report = backup(store_url, location, accept_damage=True)
    assert [(each.first, each.last) for each in report.damage] == [(5, 5), (11, 12)]
    done = restore(location, restored)
    assert (done.entries, done.damage) == (18, report.damage)


def test_the_last_entries_cannot_vanish_from_a_backup_unseen(store_url: str, location: FolderLocation) -> None:
    append_entries(store_url, 20)
    write_in_transaction(store_url, lambda tx: tx.execute("DELETE FROM tape_journal WHERE global_seq > 18"))
    with pytest.raises(StoreDamaged, match="19 to 20: missing"):
        backup(store_url, location)


def test_a_rewritten_journal_is_not_added_to_its_backup(store_url: str, location: FolderLocation) -> None:
    append_entries(store_url, 20)
    backup(store_url, location)
    rewrite = f"UPDATE tape_journal SET chain = {'x' if store_url.startswith('sqlite') else 'decode'}"
    rewrite += "'00'" if store_url.startswith("sqlite") else "('00', 'hex')"
    write_in_transaction(store_url, lambda tx: tx.execute(f"{rewrite} WHERE global_seq = 20"))
    append_entries(store_url, 1)
    with pytest.raises(BackupMismatch, match="rewritten"):
        backup(store_url, location)


def change_manifest(location: FolderLocation, **changes: Any) -> None:
    manifest = read_manifest(location)
    assert manifest is not None
    changed = msgspec.structs.replace(manifest, **changes)
    (location.root / "manifest.json").write_bytes(msgspec.json.encode(changed))


def first_part(location: FolderLocation) -> Any:
    manifest = read_manifest(location)
    assert manifest is not None
    return manifest.journal[0]


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"path": "journal/../../etc/passwd.gz"}, BackupDamaged, "no path of a backup"),
        ({"path": "/etc/passwd"}, BackupDamaged, "no path of a backup"),
        ({"size": 1 << 40}, BackupDamaged, "at most 268,435,456"),
        ({"raw_size": 1 << 40}, BackupDamaged, "at most 268,435,456"),
        ({"raw_size": 10}, BackupDamaged, "does not decompress"),
        ({"sha256": "0" * 64}, BackupDamaged, "SHA-256"),
        ({"rows": 3}, BackupDamaged, "20 rows"),
        ({"rows": -1}, BackupDamaged, "at least one row"),
        ({"columns": ["global_seq"]}, BackupDamaged, "lacks columns"),
        ({"last": 19}, BackupDamaged, "the entries 1 to 19"),
        ({"first": 1 << 70}, BackupDamaged, "no(t a)? description|entries"),
        ({"chain": "../x"}, BackupDamaged, "64 hexadecimal"),
    ],
)
def test_a_hostile_manifest_is_refused_before_anything_is_written(
    store_url: str, location: FolderLocation, restored: str, change: dict[str, Any], error: type, text: str
) -> None:
    append_entries(store_url, 20)
    backup(store_url, location)
    content = msgspec.json.decode((location.root / "manifest.json").read_bytes())
    content["journal"][0] |= change
    (location.root / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(error, match=text):
        restore(location, restored)
    assert not Path(restored.removeprefix("sqlite:")).exists()


def test_a_newer_format_and_unknown_migrations_are_refused(
    sqlite_url: str, location: FolderLocation, restored: str
) -> None:
    open_database(sqlite_url).migrate()
    backup(sqlite_url, location)
    change_manifest(location, format=FORMAT + 1)
    with pytest.raises(BackupTooNew, match="Upgrade Tape"):
        restore(location, restored)


@pytest.mark.parametrize("change", ["table", "column", "extra"])
def test_unknown_tables_and_columns_are_refused(
    sqlite_url: str, location: FolderLocation, restored: str, change: str
) -> None:
    open_database(sqlite_url).migrate()
    append_entries(sqlite_url, 3)
    backup(sqlite_url, location)
    manifest = read_manifest(location)
    assert manifest is not None
    ref = manifest.snapshots[0]
    snapshot = msgspec.json.decode((location.root / ref.path).read_bytes())
    if change == "table":
        snapshot["tables"][0]["name"] = "tape_x; DROP TABLE tape_head"
    elif change == "column":
        snapshot["tables"][0]["columns"][0][0] = 'x"; DROP TABLE tape_head'
    else:
        snapshot["tables"].append(snapshot["tables"][0] | {"name": "tape_extra"})
    changed = write_snapshot(location, msgspec.convert(snapshot, Snapshot))
    change_manifest(location, snapshots=[changed])
    with pytest.raises(BackupDamaged, match="the table"):
        restore(location, restored)
    assert not Path(restored.removeprefix("sqlite:")).exists()


def test_a_flipped_bit_in_any_file_of_a_backup_is_found_and_nothing_is_restored(
    sqlite_url: str, location: FolderLocation, restored: str
) -> None:
    open_database(sqlite_url).migrate()
    append_entries(sqlite_url, 50)
    backup(sqlite_url, location)
    for path in files_below(location.root):
        if path == ".lock":
            continue
        file = location.root / path
        content = file.read_bytes()
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 1
        file.write_bytes(flipped)
        if path == "manifest.json" and is_harmless(content, bytes(flipped)):
            file.write_bytes(content)
            continue
        with pytest.raises(TapeError):
            restore(location, restored)
        assert not Path(restored.removeprefix("sqlite:")).exists(), path
        file.write_bytes(content)
    assert restore(location, restored).entries == 50


def is_harmless(content: bytes, flipped: bytes) -> bool:
    """Whether a change of the manifest's text does not change what it says about what is restored."""
    try:
        before, after = (msgspec.json.decode(each, type=Manifest) for each in (content, flipped))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return before.journal == after.journal and before.snapshots == after.snapshots


def test_a_part_that_decompresses_to_more_than_it_says_is_refused_early(location: FolderLocation) -> None:
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = compressor.compress(bytes(1 << 28)) + compressor.flush()
    digest = hashlib.sha256(bomb).hexdigest()
    part = BackupPart(path="journal/x.gz", size=len(bomb), raw_size=1_000, rows=1, sha256=digest)
    with pytest.raises(BackupDamaged, match="does not decompress to the 1,000 bytes"):
        list(read_part(bomb, part, 1))


# ── what is refused ──────────────────────────────────────────────────────────────────────────────


def test_a_location_of_another_journal_is_not_overwritten(
    store_url: str, location: FolderLocation, tmp_path: Path
) -> None:
    append_entries(store_url, 3)
    backup(store_url, location)
    before = {path: (location.root / path).read_bytes() for path in files_below(location.root)}
    other = f"sqlite:{tmp_path / 'other.db'}"
    open_database(other).migrate()
    with pytest.raises(BackupMismatch, match="Back it up to another location"):
        backup(other, location)
    assert before == {path: (location.root / path).read_bytes() for path in files_below(location.root)}


def test_a_folder_with_other_files_is_not_taken(sqlite_url: str, location: FolderLocation) -> None:
    open_database(sqlite_url).migrate()
    location.root.mkdir()
    (location.root / "thesis.txt").write_text("x")
    with pytest.raises(BackupMismatch, match=r"it has thesis\.txt"):
        backup(sqlite_url, location)
    assert "manifest.json" not in files_below(location.root)


def test_a_store_with_data_is_not_restored_into(store_url: str, other_url: str, location: FolderLocation) -> None:
    append_entries(store_url, 3)
    backup(store_url, location)
    restore(location, other_url)
    with pytest.raises(StoreNotEmpty, match="with entries up to 1,000,004"):
        restore(location, other_url)
    assert question(other_url, verify).ok


def test_a_store_with_rows_of_a_ledger_is_not_restored_into(store_url: str, location: FolderLocation) -> None:
    backup(store_url, location)
    fill_every_table(store_url)
    with pytest.raises(StoreNotEmpty, match=r"tape_budget \(1 rows\)"):
        restore(location, store_url)


def test_a_migrated_store_without_data_is_restored_into(
    store_url: str, location: FolderLocation, tmp_path: Path
) -> None:
    source = f"sqlite:{tmp_path / 'source.db'}"
    open_database(source).migrate()
    append_entries(source, 3)
    backup(source, location)
    assert restore(location, store_url).entries == 3


def test_two_backups_to_one_folder_exclude_each_other(sqlite_url: str, location: FolderLocation) -> None:
    open_database(sqlite_url).migrate()
    with location.lock(), pytest.raises(BackupBusy):
        backup(sqlite_url, FolderLocation(location.root))


def test_artifacts_that_entries_refer_to_are_not_left_out_silently(
    sqlite_url: str, location: FolderLocation, tmp_path: Path
) -> None:
    open_database(sqlite_url).migrate()
    append_entries(sqlite_url, 1, payload="x")
    write_reference(sqlite_url)
    missing = FolderLocation(tmp_path / "nowhere")
    with pytest.raises(BackupError, match="1 entries refer to artifacts"):
        backup(sqlite_url, location, artifacts=missing)
    report = backup(sqlite_url, location, artifacts=missing, artifact_mode="reference")
    assert (report.artifacts.mode, report.artifacts.references) == ("reference", 1)


def write_reference(url: str) -> None:
    payload = msgspec.json.encode({"field": {"artifact_ref": f"{'0' * 64}.txt"}}).decode()
    draft = checked(Draft(subject="/tape/a/b", run_id="r", payload_json=payload))
    write_in_transaction(url, lambda tx: append(tx, [draft]))


def test_a_store_whose_restore_was_interrupted_says_so(
    store_url: str, location: FolderLocation, tmp_path: Path
) -> None:
    source = f"sqlite:{tmp_path / 'source.db'}"
    open_database(source).migrate()
    append_entries(source, 3)
    backup(source, location)
    write_in_transaction(
        store_url, lambda tx: tx.execute("CREATE TABLE tape_restore (source TEXT NOT NULL, started_ms BIGINT NOT NULL)")
    )
    for use in (lambda: open_database(store_url).migrate(), lambda: backup(store_url, location)):
        with pytest.raises(RestoreUnfinished, match="run the same tape restore again"):
            use()
    assert restore(location, store_url).entries == 3
    assert open_database(store_url).pending() == []


def test_rows_on_a_damaged_page_are_left_out_and_named(
    sqlite_url: str, location: FolderLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_database(sqlite_url).migrate()
    append_entries(sqlite_url, 50)
    connect = type(open_database(sqlite_url)).connect

    def broken(self: Any, **options: Any) -> Any:
        connection = connect(self, **options)
        query = connection.query

        def failing(sql: str, *params: Any) -> Any:
            rows = query(sql, *params)
            if "payload_json" in sql and any(row[0] in (7, 8) for row in rows):
                raise StoreDamaged("a page")
            return rows

        connection.query = failing
        return connection

    monkeypatch.setattr(type(open_database(sqlite_url)), "connect", broken)
    report = backup(sqlite_url, location, accept_damage=True)
    assert [(each.first, each.last) for each in report.damage] == [(7, 8)]
