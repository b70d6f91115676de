"""The log of a killed server is damaged: the next start names what is gone, and no number is given out twice."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tape.base.config import Settings
from tape.client import AsyncTapeClient
from tape.errors import CursorDiverged, TailLost
from tape.journal.appender import read_head
from tape.journal.epochs import read_epochs
from tape.model.entry import Draft
from tape.server.server import Server
from tape.store import Database, Transaction, open_database
from tests.forked import tape
from tests.services import Postgres, ServerProcess

APPENDS = 60
LOG = "tape.db-wal"


def flip(log: Path, chance: random.Random) -> None:
    content = bytearray(log.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    log.write_bytes(content)


def cut(log: Path, chance: random.Random) -> None:
    log.write_bytes(log.read_bytes()[: chance.randrange(log.stat().st_size)])


def delete(log: Path, chance: random.Random) -> None:
    log.unlink()


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a store, without those that any process that opens it writes."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith(("-shm", "-lock"))}


DAMAGES: list[Callable[[Path, random.Random], None]] = [flip, cut, delete]


@contextlib.contextmanager
def files_of_killed_server(sizes: random.Random) -> Iterator[tuple[Path, int]]:
    """The folder of a server that was killed, and the last number that it has acknowledged."""
    with tempfile.TemporaryDirectory() as folder:
        with ServerProcess(f"sqlite:{folder}/tape.db", "--no-match-reactions") as server:
            acknowledged = _append(server.url, [sizes.randrange(4_000) for _ in range(APPENDS)])
            server.kill()
        for name in ("tape.db-shm",):
            Path(folder, name).unlink(missing_ok=True)
        yield Path(folder), acknowledged


def _append(url: str, sizes: list[int]) -> int:
    from tape.client import TapeClient

    with TapeClient(url) as client:
        return max(client.append("/tape/order/created", {"text": "x" * size}, run_id="r") for size in sizes)


def settings(folder: Path, *, accept_loss: bool = False) -> Settings:
    return Settings(
        store=f"sqlite:{folder}/tape.db",
        listen="127.0.0.1:0",
        http_listen="",
        match_reactions=False,
        accept_loss=accept_loss,
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize("trials", [24, pytest.param(300, marks=pytest.mark.proof)])
async def test_a_damaged_log_is_refused_named_and_continued_above(trials: int, tmp_path: Path) -> None:
    chance = random.Random(20_261_118)
    outcomes = {"refused": 0, "whole": 0}
    with files_of_killed_server(chance) as (base, acknowledged):
        for number in range(trials):
            folder = tmp_path / str(number)
            shutil.copytree(base, folder)
            DAMAGES[number % len(DAMAGES)](folder / LOG, chance)
            head, loss = await start(folder)
            if loss is None:
                assert head >= acknowledged, f"trial {number}: a lost tail went unnamed"
                outcomes["whole"] += 1
            else:
                assert loss.last >= acknowledged
                assert problems(folder) == [(loss.first, loss.last)]
                await continue_without(folder, loss)
                outcomes["refused"] += 1
            shutil.rmtree(folder)
    assert outcomes["refused"] >= trials * 2 // 3


async def start(folder: Path) -> tuple[int, TailLost | None]:
    """The head of the journal that a server starts with, or why it does not start."""
    try:
        async with Server(settings(folder)) as server:
            return (await server.database.read(read_head)).global_seq, None
    except TailLost as loss:
        return 0, loss


def problems(folder: Path) -> list[tuple[int, int]]:
    """The lost tails that `tape verify` names; the database is not changed by it."""
    done = tape("verify", "--store", f"sqlite:{folder}/tape.db", "--output", "json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    return [(one["global_seq"], one["last"]) for one in report["findings"] if one["problem"] == "tail"]


async def continue_without(folder: Path, loss: TailLost) -> None:
    async with Server(settings(folder, accept_loss=True)) as server:
        numbers = await server.journal.append([Draft(subject="/tape/order/created", run_id="r", payload_json="{}")])
        assert numbers.start > loss.last + 1  # journal.diverged is before it
        epochs = await server.database.read(read_epochs)
        assert [(each.cut_after + 1, each.last_known) for each in epochs] == [(loss.first, loss.last)]
    async with Server(settings(folder)):  # the loss is known from now on
        pass


@pytest.mark.parametrize("damage", DAMAGES)
async def test_the_command_refuses_to_start_and_goes_on_once_the_loss_is_accepted(
    damage: Callable[[Path, random.Random], None],
) -> None:
    chance = random.Random(7)
    with files_of_killed_server(chance) as (folder, acknowledged):
        log = folder / LOG
        if damage is not delete:  # in the first half, so that entries are lost
            size = log.stat().st_size
            kept = log.read_bytes()[size // 2 :]
            log.write_bytes(log.read_bytes()[: size // 2])
            damage(log, chance)
            log.write_bytes(log.read_bytes() + (kept if damage is flip else b""))
        else:
            log.unlink()
        before = contents(folder)
        store = f"sqlite:{folder}/tape.db"
        done = tape("serve", "--store", store, "--listen", "127.0.0.1:0", "--http-listen", "")
        assert done.returncode == 1
        said = done.stderr
        assert "TAPE-1511" in said
        assert f"to {acknowledged}" in said or f"entry {acknowledged}" in said
        assert "--accept-loss" in said
        after = contents(folder)
        assert {name: after.get(name) for name in before if name != LOG} == {n: before[n] for n in before if n != LOG}
        with ServerProcess(store, "--accept-loss") as server:
            async with AsyncTapeClient(server.url) as client:
                assert await client.append("/tape/order/created", {}, run_id="r") > acknowledged + 1
                with pytest.raises(CursorDiverged):
                    async for _ in client.follow(from_global_seq=acknowledged - 1, reconnect=False):
                        pass


async def test_a_server_that_starts_on_an_older_postgresql_refuses_until_the_loss_is_accepted(
    postgres: Postgres, tmp_path: Path
) -> None:
    with postgres.migrated_database() as url:

        async def rewind(database: Database) -> None:
            def execute(tx: Transaction) -> None:
                tx.execute("DELETE FROM tape_journal WHERE global_seq > 7")
                chain = "(SELECT chain FROM tape_journal WHERE global_seq = 7)"
                tx.execute(f"UPDATE tape_head SET global_seq = 7, chain = {chain}")
                tx.execute("UPDATE tape_run_heads SET seq = 7")

            await database.write(execute)

        def server(*, accept_loss: bool = False) -> Server:
            chosen = {"store": url, "listen": "127.0.0.1:0", "http_listen": "", "match_reactions": False}
            return Server(Settings(**chosen, accept_loss=accept_loss))  # type: ignore[arg-type]

        draft = Draft(subject="/tape/order/created", run_id="r", payload_json="{}")
        async with server() as first:
            for _ in range(10):
                await first.journal.append([draft])
        async with open_database(url, witness="off") as restored:
            await rewind(restored)
        with pytest.raises(TailLost, match="entries 8 to 10"):
            async with server():
                pass
        async with server(accept_loss=True) as second:
            assert (await second.journal.append([draft])).start > 1_000_010
        async with server():
            pass


async def test_accepting_a_loss_where_nothing_is_lost_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Server(settings(tmp_path, accept_loss=True)) as server:
        assert not await server.database.read(read_epochs)
    assert "nothing was lost" in caplog.text
