"""`follow(verify=True)`: the client finds what was altered on the way, without the server's help."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

import tape
from tape.client import AsyncTapeClient, TapeClient
from tape.errors import EntryDamaged, InvalidInput
from tape.journal.epochs import close_cut
from tape.model.entry import Draft
from tape.proto import tape_pb2 as pb
from tape.server.server import Server

Alter = Callable[[pb.EntryBatch], None]


@asynccontextmanager
async def tampering(server: Server, alter: Alter) -> AsyncIterator[AsyncTapeClient]:
    """A client of a proxy that alters what the server sends."""
    upstream = grpc.aio.insecure_channel(server.grpc_address)
    source = upstream.unary_stream("/tape.v1.Tape/Follow", response_deserializer=pb.EntryBatch.FromString)

    async def follow(request: bytes, context: Any) -> AsyncIterator[bytes]:
        async for batch in source(request):
            alter(batch)
            yield batch.SerializeToString()

    proxy = grpc.aio.server()
    handler = grpc.unary_stream_rpc_method_handler(follow)
    proxy.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tape.v1.Tape", {"Follow": handler}),))
    port = proxy.add_insecure_port("127.0.0.1:0")
    await proxy.start()
    try:
        async with AsyncTapeClient(f"tape://127.0.0.1:{port}") as client:
            yield client
    finally:
        await proxy.stop(None)
        await upstream.close()


async def fill(client: AsyncTapeClient, count: int) -> None:
    await client.append_many(
        [
            Draft(subject=f"/tape/order/created/{n}", payload_json=f'{{"n":{n},"name":"Zoë"}}', user="ada")
            for n in range(count)
        ]
    )


async def read(stream: AsyncIterator[tape.Entry], until: int, numbers: list[int] | None = None) -> list[int]:
    numbers = [] if numbers is None else numbers
    async with asyncio.timeout(60):
        async for entry in stream:
            numbers.append(entry.global_seq)
            if entry.global_seq >= until:
                break
    return numbers


def edit(number: int, change: Callable[[pb.EventEntry], None]) -> Alter:
    def alter(batch: pb.EntryBatch) -> None:
        for entry in batch.entries:
            if entry.global_seq == number:
                change(entry)

    return alter


def drop(*numbers: int) -> Alter:
    def alter(batch: pb.EntryBatch) -> None:
        left = [entry for entry in batch.entries if entry.global_seq not in numbers]
        del batch.entries[:]
        batch.entries.extend(left)

    return alter


def forge_payload(entry: pb.EventEntry) -> None:
    entry.payload_json = '{"n":-1}'


def forge_chain(entry: pb.EventEntry) -> None:
    entry.chain = bytes(32)


def forge_user(entry: pb.EventEntry) -> None:
    entry.user = "eve"


def forge_time(entry: pb.EventEntry) -> None:
    entry.ts_ms += 1


def forge_version(entry: pb.EventEntry) -> None:
    entry.schema_version = -1


async def test_an_unaltered_journal_is_proven_from_its_first_entry(client: AsyncTapeClient) -> None:
    await fill(client, 50)
    reading = asyncio.create_task(read(client.follow(verify=True), 60))
    await fill(client, 10)
    assert await reading == list(range(1, 61))


@pytest.mark.parametrize("change", [forge_payload, forge_chain, forge_user, forge_time, forge_version])
async def test_an_entry_that_was_altered_on_the_way_is_caught(
    server: Server, client: AsyncTapeClient, change: Callable[[pb.EventEntry], None]
) -> None:
    await fill(client, 50)
    async with tampering(server, edit(20, change)) as victim:
        got: list[int] = []
        with pytest.raises(tape.EntryDamaged, match="chain value does not follow") as caught:
            await read(victim.follow(verify=True), 50, got)
        assert got == list(range(1, 20))
        assert (caught.value.first, caught.value.last) == (20, 20)
        # Without it the altered entry is delivered.
        assert await read(victim.follow(), 50) == list(range(1, 51))


@pytest.mark.parametrize("change", [forge_payload, forge_chain])
async def test_with_skip_gaps_only_what_was_altered_is_left_out_and_named(
    server: Server, client: AsyncTapeClient, change: Callable[[pb.EventEntry], None]
) -> None:
    await fill(client, 50)
    async with tampering(server, edit(20, change)) as victim:
        gaps: list[tape.Gap] = []
        stream = victim.follow(verify=True, skip_gaps=True, on_gap=gaps.append)
        assert await read(stream, 50) == [*range(1, 20), *range(21, 51)]
        assert [(gap.reason, gap.first, gap.last, gap.count) for gap in gaps] == [("damaged", 20, 20, 1)]


async def test_entries_that_were_left_out_on_the_way_are_named(server: Server, client: AsyncTapeClient) -> None:
    await fill(client, 50)
    async with tampering(server, drop(20, 21)) as victim:
        with pytest.raises(EntryDamaged, match="Entries 20 to 21 are damaged: the server has not sent them"):
            await read(victim.follow(verify=True), 50)
        with pytest.raises(EntryDamaged, match="Entries 20 to 21"):
            await read(victim.follow(from_global_seq=19, verify=True), 50)
        gaps: list[tape.Gap] = []
        stream = victim.follow(verify=True, skip_gaps=True, on_gap=gaps.append)
        assert await read(stream, 50) == [*range(1, 20), *range(22, 51)]
        assert [(gap.reason, gap.first, gap.last) for gap in gaps] == [("missing", 20, 21)]


async def test_an_entry_that_comes_twice_is_not_delivered_twice(server: Server, client: AsyncTapeClient) -> None:
    await fill(client, 50)

    def repeat(batch: pb.EntryBatch) -> None:
        if len(batch.entries) > 30:
            batch.entries.insert(30, batch.entries[5])

    async with tampering(server, repeat) as victim:
        with pytest.raises(EntryDamaged, match="Entry 6 is damaged: it came after a later entry"):
            await read(victim.follow(verify=True), 50)


async def test_a_chain_value_that_is_kept_elsewhere_proves_what_follows(
    server: Server, client: AsyncTapeClient
) -> None:
    await fill(client, 20)
    head = await client.head()
    await fill(client, 20)
    assert await read(client.follow(verify=True, verify_from=(20, head.chain)), 40) == list(range(21, 41))
    assert await read(client.follow(verify=True, verify_from=(20, head.chain.hex())), 40) == list(range(21, 41))
    with pytest.raises(EntryDamaged, match="Entry 21 is damaged"):
        await read(client.follow(verify=True, verify_from=(20, bytes(32))), 40)
    async with tampering(server, drop(21)) as victim:
        with pytest.raises(EntryDamaged, match="Entry 21 is damaged: the server has not sent them"):
            await read(victim.follow(verify=True, verify_from=(20, head.chain)), 40)


async def test_a_named_cut_of_the_journal_is_part_of_the_chain(server: Server, client: AsyncTapeClient) -> None:
    await fill(client, 10)
    await server.database.write(lambda tx: close_cut(tx, last_known=15, margin=0, cause="a test"))
    await fill(client, 5)
    expected = [*range(1, 11), *range(16, 22)]
    assert await read(client.follow(verify=True), 21) == expected

    def forge_cut(entry: pb.EventEntry) -> None:
        entry.payload_json = entry.payload_json.replace('"cut_after":10', '"cut_after":9')

    async with tampering(server, edit(16, forge_cut)) as victim:
        with pytest.raises(EntryDamaged, match="Entries 11 to 15"):
            await read(victim.follow(verify=True), 21)


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        ({"subject_pattern": "/tape/order/**"}, "subject_pattern leaves"),
        ({"run_id": "r"}, "run_id leaves"),
        ({"kind": "order", "predicate_cel": "true"}, "kind and predicate_cel leaves"),
    ],
)
async def test_a_part_of_the_journal_cannot_be_proven(
    client: AsyncTapeClient, wanted: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidInput, match=named):
        await anext(client.follow(**wanted, verify=True))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"verify_from": (1, bytes(32))}, "verify_from needs verify=True"),
        ({"verify": True, "verify_from": (1, b"short")}, "64 hex digits"),
        ({"verify": True, "verify_from": (1, "no hex")}, "64 hex digits"),
        ({"verify": True, "verify_from": (-1, bytes(32))}, "64 hex digits"),
        ({"verify": True, "verify_from": (3, bytes(32)), "from_global_seq": 2}, "differ"),
        ({"on_gap": print}, "on_gap needs skip_gaps=True"),
    ],
)
async def test_options_that_contradict_each_other_are_rejected(
    client: AsyncTapeClient, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidInput, match=named):
        await anext(client.follow(**options))
    with pytest.raises(InvalidInput, match=named):
        await anext(client.follow_batches(**options))


async def test_a_pattern_that_matches_every_entry_can_be_proven(client: AsyncTapeClient) -> None:
    await fill(client, 5)
    assert await read(client.follow("/tape/**", verify=True), 5) == [1, 2, 3, 4, 5]


async def test_the_synchronous_client_verifies_and_reports_gaps_where_the_client_may_be_used(
    server: Server, client: AsyncTapeClient
) -> None:
    await fill(client, 10)

    def work(url: str) -> tuple[list[int], list[int]]:
        heads: list[int] = []
        with TapeClient(url) as sync, TapeClient(f"tape://{server.grpc_address}") as direct:
            numbers = []
            for entry in sync.follow(
                verify=True, skip_gaps=True, on_gap=lambda gap: heads.append(direct.head().global_seq)
            ):
                numbers.append(entry.global_seq)
                if entry.global_seq == 10:
                    break
            return numbers, heads

    async with tampering(server, edit(4, forge_payload)) as victim:
        numbers, heads = await asyncio.to_thread(work, victim.url)
    assert numbers == [1, 2, 3, 5, 6, 7, 8, 9, 10]
    assert heads == [10]
