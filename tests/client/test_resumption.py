"""Streams of a client whose server is killed, stopped or unavailable: each entry once, in order, without a hole."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tape.client import AsyncTapeClient, TapeClient
from tape.errors import CursorExpired, NotFound, RpcFailed, ServerUnreachable
from tape.journal.retention import prune
from tape.model.entry import Draft
from tape.server.server import Server
from tests.conftest import settings_for
from tests.services import ServerProcess, free_port

RUN = "r1"
BY_SUBJECT = "SubscribeBySubject"  # the SDK reads it through Follow

Open = Callable[[AsyncTapeClient], AsyncIterator[Any]]
STREAMS: dict[str, tuple[Open, Callable[[Any], int]]] = {
    "Follow": (lambda client: client.follow("/tape/load/**"), lambda entry: entry.seq),
    BY_SUBJECT: (
        lambda client: client.subscribe_by_subject(subject_pattern="/tape/load/**"),
        lambda entry: entry.seq,
    ),
    "SubscribeEvents": (lambda client: client.subscribe_events(run_id=RUN, from_ts_ms=1), lambda entry: entry.seq),
    "SubscribeRun": (lambda client: client.subscribe_run(run_id=RUN), lambda entry: entry.seq),
    "WatchValue": (
        lambda client: client.watch_value(namespace="n", key="k"),
        lambda event: event.value.version,
    ),
}


class Reading:
    """One open stream and the numbers that it returned."""

    def __init__(self, stream: AsyncIterator[Any], number: Callable[[Any], int]) -> None:
        self.numbers: list[int] = []
        self._task = asyncio.create_task(self._read(stream, number))

    async def _read(self, stream: AsyncIterator[Any], number: Callable[[Any], int]) -> None:
        async for message in stream:
            self.numbers.append(number(message))

    async def until(self, last: int) -> None:
        async with asyncio.timeout(120):
            while not self.numbers or self.numbers[-1] < last:
                if self._task.done():
                    self._task.result()
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=pytest.mark.proof)])
async def test_every_stream_resumes_when_its_server_is_killed_while_it_sends(store_url: str, kills: int) -> None:
    server = ServerProcess(store_url)
    server.start()
    listen = server.url.removeprefix("tape://")
    try:
        async with AsyncTapeClient(server.url) as client, AsyncTapeClient(server.url) as writer:
            written = itertools.count(1)

            async def write(count: int) -> int:
                last = 0
                for _ in range(count):
                    last = next(written)
                    await writer.append("/tape/load/sent", {"n": last}, run_id=RUN, request_id=f"request-{last}")
                    await writer.write_value(namespace="n", key="k", value_json="1", if_version=last - 1)
                return last

            last = await write(50)
            readings = {name: Reading(open_(client), number) for name, (open_, number) in STREAMS.items()}
            for reading in readings.values():
                await reading.until(1)  # most of them are in the middle of what they replay
            for _ in range(kills):
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start, listen)
                last = await write(50)
                late = Reading(client.subscribe_by_subject(subject_pattern="/tape/load/**"), lambda entry: entry.seq)
                await late.until(1)
                await late.stop()
            for name, reading in readings.items():
                await reading.until(last)
                await reading.stop()
                assert reading.numbers == list(range(1, last + 1)), name
            assert {name for name, count in client.reconnects.items() if count >= kills} == set(STREAMS) - {BY_SUBJECT}
    finally:
        server.kill()


FROM_NOW_ON: dict[str, Open] = {
    "Follow": lambda client: client.follow("/tape/**", from_global_seq=-1),
    BY_SUBJECT: lambda client: client.subscribe_by_subject(subject_pattern="/tape/**", from_global_seq=-1),
    "SubscribeEvents": lambda client: client.subscribe_events(from_global_seq=-1),
}


@pytest.mark.parametrize("entries_before", [0, 1])
@pytest.mark.parametrize("name", FROM_NOW_ON)
async def test_a_subscription_from_now_on_misses_nothing_of_an_outage_before_its_first_entry(
    sqlite_url: str, name: str, entries_before: int
) -> None:
    settings = settings_for(sqlite_url)
    async with AsyncTapeClient(f"tape://{settings.listen}") as client:
        async with Server(settings) as server:
            for _ in range(entries_before):
                await client.append("/tape/load/sent")
            stream = FROM_NOW_ON[name](client)
            first = asyncio.ensure_future(anext(stream))
            async with asyncio.timeout(60):
                while not server.metrics.subscriptions._value.get():
                    await asyncio.sleep(0.01)
        async with Server(settings) as server:
            await server.journal.append([Draft(subject="/tape/load/missed")])
            async with asyncio.timeout(60):
                assert (await first).subject == "/tape/load/missed"
            await stream.aclose()  # type: ignore[attr-defined]
        assert client.reconnects["Follow" if name == BY_SUBJECT else name] >= 1


def test_a_synchronous_client_resumes_too(sqlite_url: str) -> None:
    with ServerProcess(sqlite_url) as server, TapeClient(server.url) as client:
        client.append("/tape/load/sent", run_id=RUN)
        stream = client.subscribe_by_subject(subject_pattern="/tape/load/**")
        assert next(stream).seq == 1
        listen = server.url.removeprefix("tape://")
        server.kill()
        server.start(listen)
        client.append("/tape/load/sent", run_id=RUN)
        assert next(stream).seq == 2
        stream.close()
        assert client.reconnects == {"Follow": client.reconnects["Follow"]}


async def test_a_stream_without_a_server_fails_at_once() -> None:
    async with AsyncTapeClient(f"tape://127.0.0.1:{free_port()}") as client:
        for open_, _ in list(STREAMS.values())[1:]:
            with pytest.raises(ServerUnreachable, match="Is it running"):
                await anext(open_(client))
        assert client.reconnects == {}


async def test_a_server_that_stays_away_ends_the_stream_at_the_deadline(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tape.client.resumption")
    settings = settings_for(sqlite_url)
    async with AsyncTapeClient(f"tape://{settings.listen}", reconnect_timeout_s=1.0) as client:
        async with Server(settings):
            await client.append("/tape/load/sent")
            stream = client.subscribe_by_subject(subject_pattern="/tape/load/**")
            await anext(stream)
        with pytest.raises(ServerUnreachable):
            async with asyncio.timeout(60):
                await anext(stream)
        assert client.reconnects["Follow"] > 1
    lost = [record.levelname for record in caplog.records]
    assert lost[0] == "WARNING"
    assert set(lost[1:]) == {"INFO"}


async def test_errors_that_are_final_are_raised_at_once(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url)) as server:
        async with AsyncTapeClient(f"tape://{server.grpc_address}") as client:
            await server.journal.append([Draft(subject="/tape/load/sent")] * 9)
            await prune(server.database, before_seq=6)
            with pytest.raises(CursorExpired):
                await anext(client.subscribe_by_subject(subject_pattern="", from_global_seq=2))
            with pytest.raises(NotFound):
                await anext(client.subscribe_run(run_id="no-such-run"))
            with pytest.raises(RpcFailed, match="DEADLINE_EXCEEDED"):
                await anext(client.subscribe_by_subject(subject_pattern="", from_global_seq=-1, timeout=0.2))
            assert client.reconnects == {}
