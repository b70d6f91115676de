"""The database loses acknowledged entries under running servers: nothing stands still, nothing is given out twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

import tape
from tape.client import AsyncTapeClient
from tape.errors import CursorDiverged
from tape.journal.epochs import read_epochs
from tape.model.entry import Entry
from tape.server.server import Server
from tape.store import open_database
from tests.conftest import settings_for
from tests.services import Postgres
from tests.snapshot import replace_file
from tests.web import call

KEPT = 100
LOST = 50
ADA = {"tenant": "shop", "user": "ada", "session": "s1"}


class Store:
    """A database that can be put back to an older state while servers use it."""

    def __init__(self, url: str, save: Callable[[], None], put_back: Callable[[], None]) -> None:
        self.url = url
        self.save = save
        self.put_back = put_back


@contextmanager
def sqlite_store(folder: Path) -> Iterator[Store]:
    """A file, which is exchanged for an older copy of it."""
    path, copy = folder / "tape.db", folder / "copy.db"

    def save() -> None:
        connection = apsw.Connection(str(path))
        connection.execute("VACUUM INTO ?", (str(copy),))
        connection.close()

    yield Store(f"sqlite:{path}", save, lambda: replace_file(path, copy))


@contextmanager
def postgres_store() -> Iterator[Store]:
    """A PostgreSQL of its own, which is stopped, gets its older files, and is started."""
    with Postgres() as server:

        def save() -> None:
            server.stop()
            server.save_files()
            server.start()

        def put_back() -> None:
            server.stop()
            server.put_back_files()
            server.start()

        yield Store(server.url(), save, put_back)


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store of each kind that can be put back."""
    with sqlite_store(tmp_path) if request.param == "sqlite" else postgres_store() as store:
        yield store


class Readers:
    """Readers of a server over gRPC and HTTP, and everything that they ever got."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.got: dict[str, list[Entry]] = {"grpc": [], "skipping": []}
        self.http: list[int] = []
        self.errors: list[CursorDiverged] = []
        self.gaps: list[Any] = []
        self.http_gaps: list[Any] = []
        self._tasks = [asyncio.create_task(run()) for run in (self._follow, self._follow_on, self._stream)]

    async def _follow(self) -> None:
        """Follow with the defaults; on CursorDiverged resume where the error says."""
        position = 0
        async with AsyncTapeClient(f"tape://{self.server.grpc_address}") as client:
            while True:
                try:
                    async for entry in client.follow(from_global_seq=position):
                        self.got["grpc"].append(entry)
                        position = entry.global_seq
                except CursorDiverged as error:
                    self.errors.append(error)
                    position = error.last

    async def _follow_on(self) -> None:
        async with AsyncTapeClient(f"tape://{self.server.grpc_address}") as client:
            async for entry in client.follow(skip_gaps=True, on_gap=self.gaps.append):
                self.got["skipping"].append(entry)

    async def _stream(self) -> None:
        url = f"http://{self.server.http_address}"
        async for event in tape.stream(url, after=0, on_gap=self.http_gaps.append, **ADA):
            self.http.append(event.sequence)

    async def reach(self, *numbers: int) -> None:
        """Wait until every reader has got these entries."""
        wanted = set(numbers)
        async with asyncio.timeout(120):
            while True:
                for task in self._tasks:
                    if task.done():
                        task.result()
                seen = [{entry.global_seq for entry in got} for got in self.got.values()]
                if all(wanted <= each for each in (*seen, set(self.http))):
                    return
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Stop to read."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def running(store: Store, servers: int) -> AsyncIterator[list[Server]]:
    """Servers on one store."""
    started: list[Server] = []
    try:
        for _ in range(servers):
            started.append(Server(settings_for(store.url)))
            await started[-1].start()
        yield started
    finally:
        for server in started:
            await server.stop()


async def append(server: Server, count: int, run: str) -> list[int]:
    """Append entries one by one; the SDK retries."""
    async with AsyncTapeClient(f"tape://{server.grpc_address}") as client:
        return [await client.append(f"/tape/step/done/{run}", {}, run_id=run, **ADA) for _ in range(count)]


async def lose_entries(store: Store, servers: list[Server], readers: list[Readers]) -> list[int]:
    """Put the store back by 50 acknowledged entries that all readers have got; what was acknowledged."""
    kept = await append(servers[0], KEPT, "work")
    await asyncio.to_thread(store.save)
    lost = await append(servers[-1], LOST, "work")
    for each in readers:
        await each.reach(*kept, *lost)
    await asyncio.to_thread(store.put_back)
    return kept + lost


def assert_nothing_twice(readers: list[Readers]) -> None:
    """No reader got a number twice, and over all readers a number, and a run's seq, is of one entry."""
    by_number: dict[int, bytes] = {}
    by_seq: dict[tuple[str, str, int], int] = {}
    for each in readers:
        assert sorted(set(each.http)) == each.http
        for got in each.got.values():
            assert [entry.global_seq for entry in got] == sorted({entry.global_seq for entry in got})
            for entry in got:
                assert by_number.setdefault(entry.global_seq, entry.chain) == entry.chain
                key = (entry.tenant, entry.run_id, entry.seq)
                assert by_seq.setdefault(key, entry.global_seq) == entry.global_seq


async def test_servers_go_on_in_a_new_epoch_and_readers_of_lost_entries_get_the_range(store: Store) -> None:
    async with running(store, 2) as servers:
        readers = [Readers(server) for server in servers]
        acknowledged = await lose_entries(store, servers, readers)
        new = await append(servers[0], 10, "work") + await append(servers[1], 10, "work")
        for each in readers:
            await each.reach(*new)
            await each.stop()
        assert min(new) > max(acknowledged)
        assert_nothing_twice(readers)
        epochs = await servers[0].database.read(read_epochs)
        hole = (epochs[0].cut_after + 1, epochs[0].resumes_at - 1)
        assert hole[0] == acknowledged[KEPT - 1] + 1
        for each in readers:
            assert [(error.first, error.last) for error in each.errors] == [hole]
            assert [(gap.first, gap.last, gap.reason) for gap in each.gaps] == [(*hole, "diverged")]
            assert each.http_gaps
            assert (await call(each.server.http_address, "GET", "/readyz")).status == 200
            metrics = (await call(each.server.http_address, "GET", "/metrics")).body.decode()
            assert f"tape_epoch {epochs[-1].epoch}.0" in metrics


async def test_a_server_that_only_reads_goes_on_too(store: Store) -> None:
    async with running(store, 2) as servers:
        readers = [Readers(servers[1])]
        kept = await append(servers[0], KEPT, "work")
        await asyncio.to_thread(store.save)
        lost = await append(servers[0], LOST, "work")
        await readers[0].reach(*kept, *lost)
        await servers[0].stop()
        await asyncio.to_thread(store.put_back)
        async with asyncio.timeout(60):
            while not readers[0].errors:
                await asyncio.sleep(0.01)
        new = await append(servers[1], 3, "work")
        await readers[0].reach(*new)
        await readers[0].stop()
        assert_nothing_twice(readers)


async def test_reactions_go_on_after_the_cut(store: Store) -> None:
    async with running(store, 1) as servers:
        (server,) = servers
        async with AsyncTapeClient(f"tape://{server.grpc_address}") as client:
            await append(server, KEPT, "work")
            await asyncio.to_thread(store.save)
            await append(server, 1, "work")  # the SDK waits until the store is back
            await client.register_reaction(
                reaction_id="late", subject_pattern="/tape/step/**", handler_kind="HANDLER_KIND_TASK"
            )
            await append(server, LOST, "work")
            await settled(server)
            await asyncio.to_thread(store.put_back)
            await append(server, 1, "work")
            # The registration is lost with the entries. Another one gets the version number that it had.
            await client.register_reaction(
                reaction_id="other", subject_pattern="/tape/step/**", handler_kind="HANDLER_KIND_TASK"
            )
            await append(server, 3, "work")
            await settled(server)
            found = {each.reaction_id: each.matched for each in (await client.get_reaction_stats()).stats}
            assert found == {"other": 3}


async def test_a_watcher_gets_the_version_that_the_value_went_back_to(store: Store) -> None:
    async with (
        running(store, 1) as (server,),
        AsyncTapeClient(f"tape://{server.grpc_address}") as client,
        AsyncTapeClient(f"tape://{server.grpc_address}") as other,
    ):
        for number in range(2):
            await client.write_value(namespace="ns", key="key", value_json=str(number))
        await asyncio.to_thread(store.save)
        await append(server, 1, "work")
        await client.write_value(namespace="ns", key="key", value_json="2")
        seen: list[int] = []

        async def watch() -> None:
            async for event in client.watch_value(namespace="ns", key="key"):
                seen.append(event.value.version)

        watching = asyncio.create_task(watch())
        await wait_until(lambda: seen == [1, 2, 3])
        await asyncio.to_thread(store.put_back)
        await append(server, 1, "work")
        await wait_until(lambda: seen == [1, 2, 3, 2])
        watching.cancel()
        late: list[int] = []

        async def watch_from_lost_version() -> None:
            async for event in other.watch_value(namespace="ns", key="key", from_version=3):
                late.append(event.value.version)

        watching = asyncio.create_task(watch_from_lost_version())
        await wait_until(lambda: late == [2])
        await client.write_value(namespace="ns", key="key", value_json="3")
        await wait_until(lambda: late == [2, 3])
        watching.cancel()


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def settled(server: Server) -> None:
    """Wait until everything is matched."""
    async with asyncio.timeout(60):
        while not server.matcher.is_settled_at((await server.journal.head()).global_seq):
            await asyncio.sleep(0.02)


async def test_another_journal_under_a_server_is_named_by_readyz(tmp_path: Path) -> None:
    with sqlite_store(tmp_path) as store:
        other = tmp_path / "other" / "tape.db"
        other.parent.mkdir()
        async with open_database(f"sqlite:{other}"):
            pass
        async with running(store, 1) as (server,):
            await append(server, 1, "work")
            replace_file(tmp_path / "tape.db", other)
            async with asyncio.timeout(60):
                while (answer := await call(server.http_address, "GET", "/readyz")).status == 200:
                    await asyncio.sleep(0.1)
            assert b"was replaced under this server" in answer.body
