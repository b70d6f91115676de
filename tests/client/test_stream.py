"""tape.stream: the journal over HTTP, resumed and without a silent gap."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest

import tape
from tape.client import TapeClient
from tape.errors import HttpFailed, InvalidConfig, ServerUnreachable
from tape.journal.retention import prune
from tape.server.server import Server
from tests import forked
from tests.conftest import settings_for
from tests.server.test_stream import drafts, settled
from tests.services import ServerProcess

ADA = {"tenant": "shop", "user": "ada", "session": "s1"}


async def take(events: object, count: int) -> list[tape.Event]:
    found = []
    async with asyncio.timeout(120):
        async for event in events:  # type: ignore[attr-defined]
            found.append(event)
            if len(found) == count:
                break
    await events.aclose()  # type: ignore[attr-defined]
    return found


async def test_events_come_as_objects_with_everything_that_was_said(server: Server) -> None:
    await server.journal.append([*drafts(2, run_id="r1"), *drafts(1, session="other")])
    found = await take(tape.stream(f"http://{server.http_address}", after=0, **ADA), 2)
    assert [event.sequence for event in found] == [1, 2]
    first = found[0]
    assert (first.type, first.run, first.payload) == ("order.created", "r1", {"n": 1})
    assert (first.tenant, first.user, first.session) == ("shop", "ada", "s1")
    assert first.extra["subject"] == "/tape/order/created/0"
    found = await take(tape.stream(f"http://{server.http_address}", after=0, admin=True, types=["order.created"]), 3)
    assert [event.sequence for event in found] == [1, 2, 3]


def test_a_killed_server_is_resumed_without_a_hole_or_a_repeat(tmp_path: Path) -> None:
    with ServerProcess(f"sqlite:{tmp_path / 'tape.db'}") as server:
        http, grpc = server.http_url.removeprefix("http://"), server.url.removeprefix("tape://")

        async def read() -> list[int]:
            found = []
            async with asyncio.timeout(120):
                async for event in tape.stream(server.http_url, after=0):
                    found.append(event.sequence)
                    if event.sequence in (20, 40):
                        await asyncio.to_thread(server.kill)
                        await asyncio.to_thread(server.start, grpc, http)
                        await asyncio.to_thread(append, 20)
                    if event.sequence == 60:
                        return found
            raise AssertionError

        def append(count: int) -> None:
            with TapeClient(server.url) as client:
                for _ in range(count):
                    client.append("/tape/a/b")

        append(20)
        assert asyncio.run(read()) == list(range(1, 61))


async def test_gaps_are_reported(sqlite_url: str) -> None:
    gaps: list[tape.Gap] = []
    async with Server(settings_for(sqlite_url, subscriber_buffer_size=5, drop_window_s=0.02)) as server:
        await server.journal.append(drafts(9))
        await prune(server.database, before_seq=6)
        events = tape.stream(f"http://{server.http_address}", after=2, on_gap=gaps.append, **ADA)
        assert (await anext(events)).sequence == 6
        assert gaps[0].reason == "reconnect cursor older than the retained window"
        await settled(server, 1)
        async with asyncio.timeout(120):
            while not server.metrics.registry.get_sample_value("tape_live_dropped_total"):
                await server.journal.append(drafts(20, size=20_000))
            head = (await server.journal.head()).global_seq
            seen = [6]
            while seen[-1] < head:
                seen.append((await anext(events)).sequence)
        await events.aclose()
        lost = [gap for gap in gaps if gap.count]
        assert sum(gap.count for gap in lost) == head - 1 - 5 - len(seen)  # 10 is the note on pruning
        assert all(sequence not in seen for gap in lost for sequence in (gap.first, gap.last))


async def test_rejections_and_wrong_addresses_raise_at_once(server: Server) -> None:
    with pytest.raises(InvalidConfig, match="http://127"):
        await take(tape.stream("tape://127.0.0.1:1"), 1)
    with pytest.raises(ServerUnreachable, match="tape serve"):
        await take(tape.stream("http://127.0.0.1:9"), 1)
    with pytest.raises(InvalidConfig, match="x-harbor-session"):
        await take(tape.stream(f"http://{server.http_address}", session="a\nb"), 1)
    with pytest.raises(HttpFailed, match="400"):
        await take(tape.stream(f"http://{server.http_address}", session="x" * 501), 1)


async def test_tail_reads_the_http_stream(server: Server) -> None:
    await server.journal.append(drafts(3))
    whose = ["--tenant", "shop", "--user", "ada", "--session", "s1", "--count", "3"]
    run = partial(forked.tape, "tail", "--http", f"http://{server.http_address}", "--from", "start", *whose)

    shown = await asyncio.to_thread(run)
    assert [line.split()[0] for line in shown.stdout.splitlines()] == ["1", "2", "3"], shown.stderr
    assert "/tape/order/created/0" in shown.stdout
    shown = await asyncio.to_thread(run, "--output", "json")
    assert [json.loads(line)["sequence"] for line in shown.stdout.splitlines()] == [1, 2, 3]
    refused = await asyncio.to_thread(run, "--where", "true")
    assert "--where cannot be used with --http" in refused.stderr
