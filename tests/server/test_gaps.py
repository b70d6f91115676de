"""Damaged entries on every wire: named with their numbers, and everything else is served."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import tape
from tape.client import AsyncTapeClient, TapeClient
from tape.engine.fanout.hub import Hub
from tape.engine.fanout.subscription import Batch
from tape.errors import EntryDamaged
from tape.journal.epochs import close_cut
from tape.journal.journal import Journal
from tape.journal.reader import Selection
from tape.model.entry import Draft, Entry
from tape.model.gap import JournalGap
from tape.model.pattern import Pattern
from tape.proto import tape_pb2 as pb
from tape.server.grpc.frames import Frames, encode_batches
from tape.server.grpc.waiting_gaps import WaitingGaps
from tape.server.server import Server
from tape.sinks import FnSink
from tape.sinks.metrics import RelayMetrics
from tape.sinks.relay import outbox_relay_tick, run_outbox_relay
from tape.store import Database, open_database
from tests.conftest import settings_for
from tests.engine.reactions.helpers import matched, register, sources
from tests.forked import tape as run_tape
from tests.web import Stream, call

ALTERED = "UPDATE tape_journal SET payload_json = '{\"n\":-1}' WHERE global_seq = 20"
REMOVED = "DELETE FROM tape_journal WHERE global_seq IN (30, 31)"
LAST = 40
WHOLE = [*range(1, 20), *range(21, 30), *range(32, LAST + 1)]


async def fill(database: Database, *damage: str) -> None:
    """Entries 1 to 40 of two tenants, then changed by SQL."""
    journal = Journal(database)
    journal.shares_runs = True  # as an open server does
    await journal.append(
        [
            Draft(
                subject=f"/tape/order/created/{n}",
                run_id="log",
                payload_json=f'{{"n":{n}}}',
                tenant="acme" if n % 2 else "globex",
            )
            for n in range(1, LAST + 1)
        ]
    )
    for statement in damage:
        await database.write(lambda tx: tx.execute(statement))  # noqa: B023


@pytest.fixture
async def damaged(store_url: str) -> AsyncIterator[Server]:
    """A server on a journal whose entry 20 is altered, and whose entries 30 and 31 are gone."""
    async with open_database(store_url) as database:
        await fill(database, ALTERED, REMOVED)
    async with Server(settings_for(store_url)) as server:
        yield server


@pytest.fixture
async def reader(damaged: Server) -> AsyncIterator[AsyncTapeClient]:
    async with AsyncTapeClient(f"tape://{damaged.grpc_address}") as client:
        yield client


async def read(stream: AsyncIterator[Any], numbers: list[int], until: int = LAST) -> list[int]:
    """The numbers of entries up to one; what comes after it is about the damage."""
    async with asyncio.timeout(120):
        async for entry in stream:
            if entry.global_seq <= until:
                numbers.append(entry.global_seq)
            if entry.global_seq >= until:
                break
    return numbers


def ranges(gaps: Any) -> list[tuple[str, int, int]]:
    return [(gap.reason, gap.first, gap.last) for gap in gaps]


async def test_a_raw_stream_ends_with_data_loss_and_the_numbers_and_goes_on_after_them(damaged: Server) -> None:
    async with grpc.aio.insecure_channel(damaged.grpc_address) as channel:
        follow = channel.unary_stream(
            "/tape.v1.Tape/Follow",
            request_serializer=pb.FollowRequest.SerializeToString,
            response_deserializer=pb.EntryBatch.FromString,
        )
        position, ends = 0, []
        got: list[int] = []
        while position < LAST:
            try:
                async for batch in follow(pb.FollowRequest(from_global_seq=position)):
                    assert not batch.gaps
                    got += [entry.global_seq for entry in batch.entries if entry.global_seq <= LAST]
                    position = batch.position
                    if position >= LAST:
                        break
            except grpc.aio.AioRpcError as error:
                trailers = dict(error.trailing_metadata() or ())
                names_remedy = "Resume after" in str(error.details())
                ends.append((error.code().name, trailers["tape-error-code"], trailers["tape-gap"], names_remedy))
                position = int(str(trailers["tape-gap"]).partition("-")[2])
    assert ends == [("DATA_LOSS", "TAPE-1103", "20-20", True), ("DATA_LOSS", "TAPE-1103", "30-31", True)]
    assert got == WHOLE


async def test_a_raw_stream_with_skip_gaps_names_each_gap_before_the_cursor_is_behind_it(damaged: Server) -> None:
    async with grpc.aio.insecure_channel(damaged.grpc_address) as channel:
        follow = channel.unary_stream(
            "/tape.v1.Tape/Follow",
            request_serializer=pb.FollowRequest.SerializeToString,
            response_deserializer=pb.EntryBatch.FromString,
        )
        got, gaps = [], []
        async for batch in follow(pb.FollowRequest(skip_gaps=True, max_entries=7)):
            got += [entry.global_seq for entry in batch.entries if entry.global_seq <= LAST]
            gaps += ranges(batch.gaps)
            expected = [gap for gap in [("damaged", 20, 20), ("missing", 30, 31)] if gap[2] <= batch.position]
            assert gaps == expected
            if batch.position >= LAST:
                break
    assert got == WHOLE


async def test_a_follow_raises_what_is_damaged_after_everything_before_it(reader: AsyncTapeClient) -> None:
    got: list[int] = []
    position = 0
    raised: list[tuple[int, int]] = []
    while not got or got[-1] < LAST:
        try:
            await read(reader.follow(from_global_seq=position), got)
        except tape.EntryDamaged as error:
            raised.append((error.first, error.last))
            position = error.last
    assert raised == [(20, 20), (30, 31)]
    assert got == WHOLE


async def test_a_follow_with_skip_gaps_goes_on_and_reports_each_gap_in_its_place(
    reader: AsyncTapeClient, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[int] = []
    gaps: list[tape.Gap] = []
    places: list[int] = []

    def on_gap(gap: tape.Gap) -> None:
        gaps.append(gap)
        places.append(got[-1])

    await read(reader.follow(skip_gaps=True, on_gap=on_gap), got)
    assert got == WHOLE
    assert ranges(gaps) == [("damaged", 20, 20), ("missing", 30, 31)]
    assert [gap.count for gap in gaps] == [1, 2]
    assert places == [19, 29]
    with caplog.at_level(logging.WARNING):
        await read(reader.follow(skip_gaps=True), [])
    assert caplog.text.count("the stream has a gap") == 2


async def test_the_streams_of_single_entries_name_gaps_with_the_next_entry(reader: AsyncTapeClient) -> None:
    streams: dict[str, Any] = {
        "subject": lambda **options: reader.subscribe_by_subject(subject_pattern="/tape/**", **options),
        "events": reader.subscribe_events,
        "run": lambda **options: reader.subscribe_run(run_id="log", **options),
    }
    for name, subscribe in streams.items():
        got: list[int] = []
        with pytest.raises(EntryDamaged):
            await read(subscribe(), got)
        assert got == list(range(1, 20)), name
        gaps: list[tape.Gap] = []
        async with asyncio.timeout(120):
            async for entry in subscribe(skip_gaps=True, on_gap=gaps.append):
                if entry.gaps:
                    assert entry.global_seq in (21, 32), name
                if entry.global_seq >= LAST:
                    break
        assert [(gap.first, gap.last) for gap in gaps] == [(20, 20), (30, 31)], name


async def test_a_stream_over_http_names_gaps_in_their_place_and_goes_on(damaged: Server) -> None:
    async with Stream(damaged.http_address, "/v1/events?resume_seq=15") as stream:
        frames = await stream.frames(25)
    seen = [frame.id or (frame.event, frame.data["payload"]) for frame in frames]
    before, after = seen.index(19), seen.index(21)
    kind, notice = seen[before + 1]
    assert after == before + 2
    assert kind == "bus.gap"
    assert {name: notice[name] for name in ("FromSeq", "ToSeq", "Reason")} == {
        "FromSeq": 20,
        "ToSeq": 20,
        "Reason": "damaged",
    }
    assert [frame.id for frame in frames if frame.id and frame.id <= LAST] == [n for n in WHOLE if n > 15]
    gaps: list[tape.Gap] = []
    got: list[int] = []
    async for event in tape.stream(f"http://{damaged.http_address}", after=0, on_gap=gaps.append):
        got.append(event.sequence)
        if event.sequence >= LAST:
            break
    assert got == WHOLE
    assert ranges(gaps) == [("damaged", 20, 20), ("missing", 30, 31)]


async def test_a_list_names_gaps_and_does_not_fail(damaged: Server) -> None:
    answer = await call(damaged.http_address, "POST", "/v1/events/list", {"limit": 200})
    page = answer.json()
    assert [event["sequence"] for event in page["events"] if event["sequence"] <= LAST] == WHOLE
    assert ("damaged", 20, 20) in [(gap["reason"], gap["first"], gap["last"]) for gap in page["gaps"]]
    batched = await call(
        damaged.http_address,
        "POST",
        "/v1/events/list",
        {"limit": 200},
        accept="application/cloudevents-batch+json",
    )
    assert "20-20;damaged" in batched.headers["tape-gaps"]
    whole = await call(damaged.http_address, "POST", "/v1/events/list", {"limit": 5, "cursor": 15})
    assert "gaps" not in whole.json()


async def test_a_relay_goes_on_over_gaps_and_shows_them(
    damaged: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, got = f"tape://{damaged.grpc_address}", []
    metrics = RelayMetrics()
    cursor = tmp_path / "cursor"
    with caplog.at_level(logging.WARNING):
        await asyncio.to_thread(
            run_outbox_relay, url, FnSink(got.append), cursor_path=str(cursor), once=True, metrics=metrics
        )
    assert [entry.global_seq for entry in got if entry.global_seq <= LAST] == WHOLE
    assert metrics.status.gaps == 2
    assert ", 2 gaps" in str(metrics.status)
    assert "FnSink does not get entries 20 to 20: damaged" in caplog.text
    assert metrics.registry.get_sample_value("tape_relay_gaps_total", {"reason": "missing"}) == 1
    assert json.loads(cursor.read_text())["last_global_seq"] >= LAST
    again: list[Any] = []
    await asyncio.to_thread(outbox_relay_tick, url, FnSink(again.append))
    assert [entry.global_seq for entry in again if entry.global_seq <= LAST] == WHOLE


async def test_reactions_are_matched_on_everything_else(damaged: Server, reader: AsyncTapeClient) -> None:
    await register(reader, backfill=True)
    new = [await reader.append(f"/tape/order/paid/{n}", {"n": n}) for n in range(3)]
    await matched(reader)
    assert await sources(reader) == [*WHOLE, *new]
    metrics = (await call(damaged.http_address, "GET", "/metrics")).body.decode()
    assert "tape_reaction_entries_missed_total 0.0" not in metrics


async def test_damage_is_journaled_once_and_leaves_the_server_ready(damaged: Server, reader: AsyncTapeClient) -> None:
    for _ in range(3):
        await read(reader.follow(skip_gaps=True, on_gap=lambda gap: None), [])
    named: list[tuple[str, int, int]] = []
    async with asyncio.timeout(120):
        async for entry in reader.follow("/tape/journal/damaged", from_global_seq=LAST):
            facts = entry.payload
            named.append((facts["problem"], facts["first"], facts["last"]))
            if len(named) == 2:
                break
    assert sorted(named) == [("damaged", 20, 20), ("missing", 30, 31)]
    ready = await call(damaged.http_address, "GET", "/readyz")
    assert ready.status == 200
    async with asyncio.timeout(120):
        while b"tape_journal_damaged_entries 3.0" not in (await call(damaged.http_address, "GET", "/metrics")).body:
            await asyncio.sleep(0.02)
    metrics = (await call(damaged.http_address, "GET", "/metrics")).body.decode()
    assert 'tape_journal_gaps_total{reason="damaged"}' in metrics
    last = await reader.append("/tape/order/created/last", {})
    await read(reader.follow(from_global_seq=LAST), [], last)
    journaled = await reader.head()
    assert journaled.global_seq == last
    assert last == LAST + 3


async def test_the_damage_of_another_tenant_stops_a_reader_once_and_never_for_ever(journal: Journal, hub: Hub) -> None:
    await fill(journal.database, ALTERED)
    hub.ring.clear()
    theirs = Selection(Pattern("/tape/order/**"), tenants=("acme",))  # entry 20 is of globex
    got: list[int] = []
    position, said = 0, []
    async with asyncio.timeout(120):
        while position < LAST:
            subscription = await hub.subscribe(theirs, position)
            try:
                while subscription.position < LAST:
                    got += [entry.global_seq for entry in (await subscription.next()).entries]
                position = subscription.position
            except EntryDamaged as error:
                said.append(str(error))
                position = error.last
            finally:
                subscription.close()
    assert got == list(range(1, LAST, 2))
    assert len(said) <= 1
    assert "-1" not in "".join(said)  # nothing of what the entry says


async def test_the_tail_shows_a_line_for_each_gap(damaged: Server) -> None:
    url = ["--url", f"tape://{damaged.grpc_address}", "--from", "start", "--no-follow"]
    text = (await asyncio.to_thread(run_tape, "tail", *url)).stdout
    assert "      20 gap: 20 damaged" in text
    assert "      30 gap: 30 to 31 missing" in text
    lines = (await asyncio.to_thread(run_tape, "tail", *url, "-o", "json")).stdout.splitlines()
    gaps = [found["gap"] for line in lines if "gap" in (found := json.loads(line))]
    assert [(gap["first"], gap["last"], gap["reason"], gap["count"]) for gap in gaps] == [
        (20, 20, "damaged", 1),
        (30, 31, "missing", 2),
    ]
    verified = (await asyncio.to_thread(run_tape, "tail", *url, "--verify")).stdout
    assert verified.count("gap:") == 2
    http = ["--http", f"http://{damaged.http_address}", "--from", "start", "--count", "35"]
    assert "gap: 20 damaged" in (await asyncio.to_thread(run_tape, "tail", *http)).stdout


async def test_a_verified_follow_agrees_with_the_server_about_what_is_damaged(reader: AsyncTapeClient) -> None:
    gaps: list[tape.Gap] = []
    got = await read(reader.follow(verify=True, skip_gaps=True, on_gap=gaps.append), [])
    assert got == WHOLE
    assert ranges(gaps) == [("damaged", 20, 20), ("missing", 30, 31)]


async def test_a_session_tape_is_read_without_its_damaged_entries(store_url: str) -> None:
    async with Server(settings_for(store_url)) as server:
        url = f"tape://{server.grpc_address}"

        def write() -> str:
            backend = tape.ServerBackend(url)
            for seq in range(5):
                backend.append({"seq": seq, "kind": "message", "payload": {"n": seq}})
            backend.close()
            return backend.run_id

        run_id = await asyncio.to_thread(write)
        await server.database.write(
            lambda tx: tx.execute("UPDATE tape_journal SET payload_json = '{}' WHERE run_id = ? AND seq = 3", run_id)
        )
        server.hub.ring.clear()

        def read_back() -> tuple[list[int], int]:
            backend = tape.ServerBackend(url, run_id=run_id)
            found = [entry["seq"] for entry in backend.read_since(0)]
            skipped = backend.skipped
            backend.close()
            return found, skipped

        assert await asyncio.to_thread(read_back) == ([0, 1, 3, 4], 1)


async def test_a_synchronous_follow_raises_and_skips_too(damaged: Server) -> None:
    def work() -> tuple[int, list[int], list[tape.Gap]]:
        with TapeClient(f"tape://{damaged.grpc_address}") as client:
            try:
                for entry in client.follow():
                    assert entry.global_seq < 20
            except tape.EntryDamaged as error:
                last = error.last
            got: list[int] = []
            gaps: list[tape.Gap] = []
            for entry in client.follow(from_global_seq=0, skip_gaps=True, on_gap=gaps.append):
                got.append(entry.global_seq)
                if entry.global_seq >= LAST:
                    break
            return last, got, gaps

    last, got, gaps = await asyncio.to_thread(work)
    assert (last, got) == (20, WHOLE)
    assert ranges(gaps) == [("damaged", 20, 20), ("missing", 30, 31)]


async def test_a_cursor_inside_of_a_lost_range_is_named_on_every_wire(server: Server, client: AsyncTapeClient) -> None:
    await client.append_many([Draft(subject="/tape/order/created/1") for _ in range(10)])
    async with Stream(server.http_address, "/v1/events?resume_seq=8") as live:
        assert await live.ids(2) == [9, 10]
        await server.database.write(lambda tx: close_cut(tx, last_known=15, margin=0, cause="a test"))
        notice, entry = await live.frames(2)
    assert (notice.event, notice.data["payload"]["FromSeq"], notice.data["payload"]["ToSeq"]) == ("bus.gap", 11, 15)
    assert (notice.data["payload"]["Reason"], entry.id) == ("diverged", 16)
    with pytest.raises(tape.CursorDiverged) as ended:
        await read(client.follow(from_global_seq=13), [], 16)
    assert (ended.value.first, ended.value.last) == (11, 15)
    assert await read(client.follow(from_global_seq=ended.value.last), [], 16) == [16]
    assert await read(client.follow(from_global_seq=10), [], 16) == [16]
    gaps: list[tape.Gap] = []
    assert await read(client.follow(from_global_seq=13, skip_gaps=True, on_gap=gaps.append), [], 16) == [16]
    assert ranges(gaps) == [("diverged", 11, 15)]
    async with Stream(server.http_address, "/v1/events?resume_seq=13") as resumed:
        notice, entry = await resumed.frames(2)
    assert (notice.event, entry.id) == ("bus.gap", 16)
    tested = await client.test_reaction(subject_pattern="/tape/**")
    assert (tested.examined, tested.matched) == (11, 11)
    assert ranges(tested.gaps) == [("diverged", 11, 15)]


async def test_watching_a_value_goes_on_over_a_damaged_version(server: Server, client: AsyncTapeClient) -> None:
    for version in range(3):
        await client.write_value(namespace="n", key="k", value_json=str(version), if_version=-1)
    await server.database.write(
        lambda tx: tx.execute("UPDATE tape_journal SET payload_json = '{}' WHERE global_seq = 2")
    )
    server.hub.ring.clear()
    seen: list[tuple[int, int]] = []
    async with asyncio.timeout(120):
        async for event in client.watch_value(namespace="n", key="k"):
            seen.append((event.prev_version, event.value.version))
            if len(seen) == 2:
                break
    assert seen == [(0, 1), (2, 3)]


def test_a_gap_is_in_the_message_whose_cursor_is_behind_it() -> None:
    def entry(number: int) -> Entry:
        payload = '"' + "x" * 600_000 + '"'
        return Entry(number, "r", number, "order", "/tape/order/a", payload, 1, "", "", "", 1, "", "", "", b"")

    gaps = (JournalGap(2, 3, "damaged", "d" * 1_000), JournalGap(6, 6, "missing"))
    batch = Batch([entry(1), entry(4), entry(5)], 9, gaps)
    messages = encode_batches(batch, 1_024, 9)
    assert messages == list(Frames().batches(batch, 1_024, 9))
    found = [pb.EntryBatch.FromString(message) for message in messages]
    assert [([e.global_seq for e in batch.entries], batch.position, ranges(batch.gaps)) for batch in found] == [
        ([1], 1, []),
        ([4], 4, [("damaged", 2, 3)]),
        ([5], 9, [("missing", 6, 6)]),
    ]
    assert len(found[1].gaps[0].detail) == 200


def test_gaps_that_wait_for_an_entry_are_bounded() -> None:
    waiting = WaitingGaps()
    many = tuple(JournalGap(n, n, "damaged") for n in range(1, 10_000, 2))
    assert list(waiting.pair(Batch([], 10_000, many))) == []
    entry = Entry(10_001, "r", 1, "order", "/tape/order/a", "{}", 1, "", "", "", 1, "", "", "", b"")
    ((got, named),) = waiting.pair(Batch([entry], 10_001))
    assert got is entry
    assert len(named) == 1_000
    assert (named[0].first, named[-1].last) == (1, 9_999)
    assert [gaps for _, gaps in waiting.pair(Batch([entry], 10_001))] == [()]
