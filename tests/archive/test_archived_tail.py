"""The archive is a witness: a journal that ends before its own archive has lost its tail."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tape.base.config import Settings
from tape.errors import TailLost
from tape.journal.appender import read_head
from tape.server.server import Server
from tape.store import Transaction, open_database
from tests.archive.conftest import archive, fill, order
from tests.forked import tape


def settings(store_url: str, lake: str, *, accept_loss: bool = False) -> Settings:
    return Settings(
        store=store_url,
        listen="127.0.0.1:0",
        http_listen="",
        lake=lake,
        witness="off",
        match_reactions=False,
        accept_loss=accept_loss,
    )


async def archived(store_url: str, lake: str) -> None:
    async with open_database(store_url, witness="off") as database:
        await fill(database, [order(number) for number in range(60)])
        await archive(database, lake, 50)


async def cut_after(store_url: str, last: int) -> None:
    def cut(tx: Transaction) -> None:
        tx.execute("DELETE FROM tape_journal WHERE global_seq > ?", last)
        chain = "(SELECT chain FROM tape_journal WHERE global_seq = ?)"
        tx.execute(f"UPDATE tape_head SET global_seq = ?, chain = {chain}", last, last)

    async with open_database(store_url, witness="off") as database:
        await database.write(cut)


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


async def test_a_server_refuses_a_journal_that_ends_before_its_archive(store_url: str, lake: str) -> None:
    await archived(store_url, lake)
    async with Server(settings(store_url, lake)):
        pass
    await cut_after(store_url, 40)
    with pytest.raises(TailLost, match=r"entries 41 to 50 \(10\).*archive"):
        async with Server(settings(store_url, lake)):
            pass
    async with Server(settings(store_url, lake, accept_loss=True)) as server:
        assert (await server.database.read(read_head)).global_seq > 50


async def test_an_empty_journal_and_another_journal_start_beside_an_old_archive(
    store_url: str, lake: str, tmp_path: Path
) -> None:
    await archived(store_url, lake)
    other = f"sqlite:{tmp_path / 'other.db'}"
    for _ in range(2):  # empty, then with entries of its own
        async with Server(settings(other, lake)) as server:
            await fill(server.database, [order(number) for number in range(3)])


async def test_verify_names_a_journal_that_ends_before_the_archive_of_the_settings(store_url: str, lake: str) -> None:
    await archived(store_url, lake)
    await cut_after(store_url, 40)
    done = await asyncio.to_thread(
        tape, "verify", "--store", store_url, "--output", "json", env={"TAPE_LAKE": lake, "TAPE_WITNESS": "off"}
    )
    assert done.returncode == 1
    found = [one for one in json.loads(done.stdout)["findings"] if one["problem"] == "tail"]
    assert [(one["global_seq"], one["last"]) for one in found] == [(41, 50)]


async def test_a_pruned_entry_is_proven_by_the_archive(store_url: str, lake: str) -> None:
    await archived(store_url, lake)
    async with open_database(store_url, witness="off") as database:
        row = await database.read(lambda reader: reader.one("SELECT chain FROM tape_journal WHERE global_seq = 20"))
        assert row is not None
        await database.write(lambda tx: tx.execute("DELETE FROM tape_journal WHERE global_seq < 45"))
        await database.write(lambda tx: tx.execute("UPDATE tape_head SET oldest = 45"))
    for chain, code in ((bytes(row[0]), 0), (b"\1" * 32, 1)):
        arguments = ("--archive", lake, "--expect", f"20:{chain.hex()}")
        done = await asyncio.to_thread(tape, "verify", "--store", store_url, *arguments)
        assert done.returncode == code, done.stdout
