"""Appends during an outage: sent again until the deadline, and safe to repeat after it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tape.client import AsyncTapeClient
from tape.client.append_batcher import AppendBatcher, RequestRef
from tape.errors import InvalidInput, RequestConflict, ServerUnreachable
from tape.journal.journal import Journal, Part
from tape.model.entry import Draft
from tests.services import ServerProcess


class Outage:
    """A server that carries out requests and loses its answers while it is down."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.is_down = True
        self.carries_out = True

    async def send(self, drafts: Sequence[Draft], ref: RequestRef, first_write_wins: bool) -> list[int]:
        part = Part(ref.of, ref.at) if ref.of else None
        if self.carries_out or not self.is_down:
            seqs = await self.journal.append(drafts, request_id=ref.request_id, part=part)
        if self.is_down:
            raise ServerUnreachable("the answer is lost")
        return list(seqs)


def draft(number: int, tenant: str = "") -> Draft:
    return Draft(subject="/tape/order/created/1", payload_json=f'{{"n":{number}}}', run_id="r", tenant=tenant)


async def payloads(journal: Journal) -> list[str]:
    rows = await journal.database.read(
        lambda reader: reader.query("SELECT payload_json FROM tape_journal ORDER BY global_seq")
    )
    return [row[0] for row in rows]


@pytest.mark.parametrize("carries_out", [True, False])
async def test_calls_of_a_failed_batch_are_repeated_one_by_one_without_a_duplicate(
    journal: Journal, carries_out: bool
) -> None:
    outage = Outage(journal)
    outage.carries_out = carries_out
    batcher = AppendBatcher(outage.send, timeout_s=0.0)
    calls = [batcher.append([draft(number)]) for number in range(8)]
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(error, ServerUnreachable) for error in errors)
    ids = [error.request_id for error in errors if isinstance(error, ServerUnreachable)]
    assert len(set(ids)) == 8
    outage.is_down = False
    for _ in range(2):  # a repetition of the repetition has the same answer
        repeated = [await batcher.send([draft(number)], ids[number]) for number in (7, 3, 0, 1, 2, 4, 5, 6)]
        assert len({seqs[0] for seqs in repeated}) == 8
    assert sorted(await payloads(journal)) == [f'{{"n":{number}}}' for number in range(8)]


async def test_a_request_whose_parts_were_appended_is_never_appended_late(journal: Journal) -> None:
    assert await journal.append([draft(1)], request_id="id", part=Part(2, 1)) == range(1, 2)
    with pytest.raises(RequestConflict, match="a part of this request was appended by itself"):
        await journal.append([draft(0), draft(1)], request_id="id")
    assert await payloads(journal) == ['{"n":1}']


async def test_a_part_must_lie_within_its_request(journal: Journal) -> None:
    with pytest.raises(InvalidInput, match="part_at 2 and 1 drafts are more than part_of 2"):
        await journal.append([draft(1)], request_id="id", part=Part(2, 2))
    with pytest.raises(InvalidInput, match="request_id is empty"):
        await journal.append([draft(1)], part=Part(2, 1))


async def test_calls_of_several_tenants_do_not_share_a_request(journal: Journal) -> None:
    outage = Outage(journal)
    batcher = AppendBatcher(outage.send, timeout_s=0.0)
    calls = [batcher.append([draft(number, tenant=f"t{number % 2}")]) for number in range(6)]
    errors = await asyncio.gather(*calls, return_exceptions=True)
    outage.is_down = False
    for number, error in enumerate(errors):
        assert isinstance(error, ServerUnreachable)
        await batcher.send([draft(number, tenant=f"t{number % 2}")], error.request_id)
    assert sorted(await payloads(journal)) == [f'{{"n":{number}}}' for number in range(6)]


def test_an_id_that_a_caller_chose_is_sent_as_it_is() -> None:
    assert RequestRef.parse("order#1/2") == RequestRef("order#1/2")
    made = RequestRef("0" * 16 + "-" + "a" * 16, 8, 3)
    assert RequestRef.parse(str(made)) == made


def test_an_append_survives_a_restart_of_the_server(tmp_path: Path) -> None:
    with ServerProcess(f"sqlite:{tmp_path / 'tape.db'}") as server:
        address = server.url.removeprefix("tape://")

        async def restart_under_appends() -> list[int]:
            async with AsyncTapeClient(server.url) as client:
                first = await client.append("/tape/a/b", {"n": 0})
                server.kill()
                appending = asyncio.gather(*(client.append("/tape/a/b", {"n": n}) for n in range(1, 50)))
                await asyncio.to_thread(server.start, address)
                return [first, *await appending]

        assert sorted(asyncio.run(restart_under_appends())) == list(range(1, 51))


async def test_the_error_of_an_append_says_how_to_repeat_it(tmp_path: Path) -> None:
    with ServerProcess(f"sqlite:{tmp_path / 'tape.db'}") as server:
        async with AsyncTapeClient(server.url, append_timeout_s=0.1) as client:
            await client.append("/tape/a/b")
            server.kill()
            with pytest.raises(ServerUnreachable) as raised:
                await client.append("/tape/a/b", {"n": 1})
        assert raised.value.request_id
        assert any(raised.value.request_id in note for note in raised.value.__notes__)
        server.start()
        async with AsyncTapeClient(server.url) as client:
            seqs = [await client.append("/tape/a/b", {"n": 1}, request_id=raised.value.request_id) for _ in range(2)]
        assert seqs == [2, 2]
