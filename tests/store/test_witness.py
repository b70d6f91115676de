"""The witness: a database that lost acknowledged entries is named before anything is written to it."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from tape.errors import InvalidConfig, TailLost
from tape.journal.appender import read_head
from tape.journal.epochs import close_cut
from tape.journal.journal import Journal
from tape.journal.retention import prune
from tape.model.entry import Draft
from tape.store import Database, Transaction, open_database
from tape.store.tail import Tail
from tape.store.witness_file import SLOT_BYTES, WitnessFile

DRAFT = Draft(subject="/tape/order/created/1", run_id="r1", payload_json="{}")
JOURNAL_ID = "0123456789abcdef0123456789abcdef"


def tail(global_seq: int, epoch: int = 1, journal_id: str = JOURNAL_ID) -> Tail:
    return Tail(journal_id, epoch, global_seq, bytes([global_seq % 256]) * 32)


async def append(database: Database, count: int) -> None:
    for _ in range(count):
        await Journal(database).append([DRAFT])


async def fill(url: str, count: int = 10) -> None:
    async with open_database(url) as database:
        await append(database, count)


async def cut_after(url: str, last: int) -> None:
    """Remove the newest entries as a lost log or an older copy would."""
    async with open_database(url, witness="off") as database:

        def cut(tx: Transaction) -> None:
            tx.execute("DELETE FROM tape_journal WHERE global_seq > ?", last)
            sql = "(SELECT chain FROM tape_journal WHERE global_seq = ?)"
            tx.execute(f"UPDATE tape_head SET global_seq = ?, chain = {sql} WHERE id = 1", last, last)

        await database.write(cut)


async def last_known(database: Database) -> Tail | None:
    head = await database.read(read_head)
    return database.witness.last_known(head.journal_id)


async def test_the_witness_knows_every_entry_when_it_is_acknowledged(store_url: str) -> None:
    async with open_database(store_url) as database:
        for number in range(1, 6):
            await append(database, 1)
            head = await database.read(read_head)
            assert await last_known(database) == Tail(head.journal_id, 1, number, head.chain)


async def test_a_database_that_lost_its_tail_is_refused_and_the_entries_are_named(store_url: str) -> None:
    await fill(store_url, 10)
    await cut_after(store_url, 7)
    with pytest.raises(TailLost, match=r"entries 8 to 10 \(3\).*--accept-loss") as refused:
        await fill(store_url, 1)
    assert (refused.value.first, refused.value.last) == (8, 10)


async def test_a_command_that_writes_refuses_and_one_that_reads_does_not(store_url: str) -> None:
    await fill(store_url, 10)
    await cut_after(store_url, 9)
    async with open_database(store_url, migrate=False) as database:
        assert (await database.read(read_head)).global_seq == 9
        for _ in range(2):  # not only the first time
            with pytest.raises(TailLost, match="entry 10"):
                await append(database, 1)
        assert (await database.read(read_head)).global_seq == 9


async def test_a_replaced_tail_is_refused(store_url: str) -> None:
    await fill(store_url, 10)
    await cut_after(store_url, 8)
    async with open_database(store_url, witness="off") as database:
        await append(database, 5)
    with pytest.raises(TailLost, match="entry 10 is not the one that was acknowledged"):
        await fill(store_url, 1)


async def test_a_loss_that_an_epoch_names_is_not_refused_again(store_url: str) -> None:
    await fill(store_url, 10)
    await cut_after(store_url, 7)
    async with open_database(store_url, witness="off") as database:  # as another server that has no witness here
        await database.write(lambda tx: close_cut(tx, last_known=10, margin=5, cause="test"))
    async with open_database(store_url) as database:
        await append(database, 1)
        known = await last_known(database)
    assert known is not None
    assert known.order == (2, 17)


async def test_pruned_entries_are_not_lost(store_url: str) -> None:
    await fill(store_url, 10)
    async with open_database(store_url, witness="off") as database:
        await append(database, 5)
        await prune(database, before_seq=11)
    await fill(store_url, 1)
    async with open_database(store_url, witness="off") as database:
        await append(database, 5)
        await prune(database, before_seq=20)
    await fill(store_url, 1)


async def test_a_journal_without_a_witness_gets_one_with_a_warning(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(sqlite_url, 3)
    assert not caplog.messages
    (tmp_path / "tape.db-witness").unlink()
    async with open_database(sqlite_url) as database:
        assert (await last_known(database)) is not None
    assert "there was no witness" in caplog.text
    assert (tmp_path / "tape.db-witness").stat().st_mode & 0o777 == 0o600


async def test_deleting_the_database_is_harmless(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_database(sqlite_url) as database:
        await append(database, 5)
        old = (await database.read(read_head)).journal_id
    (tmp_path / "tape.db").unlink()
    await fill(sqlite_url, 2)
    assert (tmp_path / f"tape.db-witness.{old[:8]}.old").exists()
    assert "another journal" in caplog.text
    await fill(sqlite_url, 2)


async def test_a_lost_log_is_named_even_if_it_had_every_entry(sqlite_url: str, tmp_path: Path) -> None:
    source, copy = tmp_path / "tape.db", tmp_path / "copy"
    async with open_database(sqlite_url) as database:
        await append(database, 5)
        copy.mkdir()
        for name in ("tape.db", "tape.db-witness"):  # as they are on the disk, without the log
            shutil.copyfile(source.with_name(name), copy / name)
    with pytest.raises(TailLost, match="entries 1 to 5"):
        await fill(f"sqlite:{copy / 'tape.db'}")


async def test_a_refused_start_leaves_the_damaged_log_as_it_is(sqlite_url: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    async with open_database(sqlite_url) as database:
        await append(database, 5)
        for name in ("tape.db", "tape.db-witness", "tape.db-wal"):
            shutil.copyfile(tmp_path / name, copy / name)
    log = copy / "tape.db-wal"
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)
    for _ in range(2):
        with pytest.raises(TailLost):
            await fill(f"sqlite:{copy / 'tape.db'}")
        assert log.read_bytes() == content


async def test_a_copy_of_the_database_elsewhere_starts_with_a_witness_of_its_own(
    sqlite_url: str, tmp_path: Path
) -> None:
    await fill(sqlite_url, 5)
    (tmp_path / "elsewhere").mkdir()
    shutil.copyfile(tmp_path / "tape.db", tmp_path / "elsewhere" / "tape.db")
    await fill(f"sqlite:{tmp_path / 'elsewhere' / 'tape.db'}", 2)
    await fill(sqlite_url, 1)


async def test_two_processes_on_one_database_never_set_the_witness_back(store_url: str) -> None:
    async with open_database(store_url) as first, open_database(store_url) as second:
        for number in range(1, 21):
            await append(first if number % 3 else second, 1)
            known = await last_known(first)
            assert known is not None
            assert known.global_seq == number
    await cut_after(store_url, 19)
    with pytest.raises(TailLost, match="entry 20"):
        await fill(store_url)


async def test_files_of_ended_processes_are_deleted(sqlite_url: str, tmp_path: Path) -> None:
    async with open_database(sqlite_url) as first:
        await append(first, 1)
        async with open_database(sqlite_url) as second:
            await append(second, 1)
            assert (tmp_path / "tape.db-witness-2").exists()
    await fill(sqlite_url, 1)
    assert not (tmp_path / "tape.db-witness-2").exists()


async def test_a_witness_that_cannot_be_written_is_a_warning_and_shows_in_the_metrics(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    witness = tmp_path / "file" / "tape.witness"  # root may write to folders that are read-only
    async with open_database(sqlite_url, witness=str(witness)) as database:
        await append(database, 2)
        assert "cannot be written" in database.witness.problems[0]
        assert f'tape_witness_up{{witness="{witness}"}} 0.0' in database.metrics.render().decode()
    assert "cannot be written" in caplog.text


async def test_a_witness_that_is_removed_is_written_again(sqlite_url: str, tmp_path: Path) -> None:
    async with open_database(sqlite_url) as database:
        await append(database, 2)
        (tmp_path / "tape.db-witness").unlink()
        await append(database, 1)
        async with asyncio.timeout(60):
            while not (tmp_path / "tape.db-witness").exists():
                await asyncio.sleep(0.02)
        known = await last_known(database)
        assert known is not None
        assert known.global_seq == 3


async def test_the_witness_can_be_off_or_elsewhere(sqlite_url: str, tmp_path: Path) -> None:
    async with open_database(sqlite_url, witness="off") as database:
        await append(database, 1)
        assert await last_known(database) is None
    async with open_database(sqlite_url, witness=str(tmp_path / "other" / "tape.witness")) as database:
        await append(database, 1)
    assert (tmp_path / "other" / "tape.witness").exists()
    assert not (tmp_path / "tape.db-witness").exists()


async def test_the_setting_is_found_in_the_environment(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAPE_WITNESS", str(tmp_path / "tape.witness"))
    await fill(sqlite_url, 1)
    assert (tmp_path / "tape.witness").exists()


@pytest.mark.parametrize("setting", ["off,/tmp/x", "/tmp/x,/tmp/y", "nosuch://bucket", "/"])
def test_a_setting_that_makes_no_sense_is_refused(sqlite_url: str, setting: str) -> None:
    with pytest.raises(InvalidConfig, match="witness"):
        open_database(sqlite_url, witness=setting)


async def test_a_file_of_another_kind_is_never_overwritten(sqlite_url: str, tmp_path: Path) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("dear reader")
    with pytest.raises(InvalidConfig, match="not a witness file"):
        await _open(sqlite_url, str(letter))
    assert letter.read_text() == "dear reader"


async def _open(url: str, witness: str) -> None:
    async with open_database(url, witness=witness) as database:
        await append(database, 1)


async def test_an_object_store_knows_what_a_lost_machine_knew(sqlite_url: str, tmp_path: Path) -> None:
    objects = f"file://{tmp_path / 'bucket'}"
    await _open(sqlite_url, objects)
    await _open(sqlite_url, objects)
    (tmp_path / "tape.db-witness").unlink()
    await cut_after(sqlite_url, 1)
    with pytest.raises(TailLost, match="entry 2"):
        await _open(sqlite_url, objects)


def test_a_torn_write_leaves_the_entry_before(tmp_path: Path) -> None:
    path = tmp_path / "witness"
    witness = WitnessFile(path)
    witness.begin(tail(1))
    for number in range(2, 8):
        witness.record(tail(number))
    witness.close()
    content = path.read_bytes()
    for start in (0, SLOT_BYTES):
        for end in range(start, start + 100, 7):
            torn = bytearray(content)
            torn[end] ^= 0x10
            path.write_bytes(torn)
            assert [each.global_seq in (6, 7) for each in WitnessFile(path).last_known(JOURNAL_ID)] == [True]


def test_a_damaged_file_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "witness"
    path.write_bytes(b"TapeWit1" + os.urandom(2 * SLOT_BYTES - 8))
    witness = WitnessFile(path)
    assert witness.last_known(JOURNAL_ID) == []
    witness.begin(tail(3))
    witness.close()
    assert (tmp_path / "witness.damaged").exists()
    assert "damaged" in caplog.text
    assert WitnessFile(path).last_known(JOURNAL_ID) == [tail(3)]
