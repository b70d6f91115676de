"""Conformance of every log: ranges, reading by offset, removed messages, recreated sources."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import nats
import pytest

from tape.brokers.log import Log, LogRange, first_offset, open_log
from tape.errors import MessagesLost, SourceMisconfigured, SourceMissing, SourceReplaced, SourceUnavailable
from tests.broker_services import NatsServer
from tests.brokers.rigs import Rig, kafka_rig, nats_rig

LOGS = ("kafka", "nats")


@pytest.fixture(params=LOGS)
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    if request.param == "kafka":
        yield await kafka_rig(request.getfixturevalue("kafka_cluster"))
    else:
        yield await nats_rig(request.getfixturevalue("nats_server"))


@pytest.fixture
def opened() -> Iterator[list[Log]]:
    logs: list[Log] = []
    yield logs
    for log in logs:
        log.close()


class Reader:
    """A log on a thread of its own, where it has no event loop around it; as a task of Spark is."""

    def __init__(self, rig: Rig, opened: list[Log], **more: Any) -> None:
        self.log = open_log(rig.name, rig.spec | more)
        opened.append(self.log)

    def only(self) -> tuple[str, LogRange]:
        """The part that has messages, or any."""
        return max(self.log.ranges().items(), key=lambda item: item[1].end)

    def read(self, part: str, begin: int, end: int, **more: Any) -> list[tuple[int, bytes | None]]:
        found = self.log.read(part, begin, end, **more)
        return [(each.offset, each.delivery.body) for some in found for each in some]


async def off_loop(work: Any, *args: Any, **more: Any) -> Any:
    return await asyncio.to_thread(functools.partial(work, *args, **more))


async def test_a_range_is_read_in_order_and_can_be_read_again(rig: Rig, opened: list[Log]) -> None:
    bodies = [b"%d" % number for number in range(25)]
    await rig.feed(*bodies, headers=[("x-a", "1"), ("x-a", "2")])
    reader = Reader(rig, opened)
    part, there = await off_loop(reader.only)
    assert there.end - there.begin == 25
    everything = await off_loop(reader.read, part, there.begin, there.end)
    assert [body for _, body in everything] == bodies
    assert [offset for offset, _ in everything] == list(range(there.begin, there.end))
    middle = there.begin + 7
    assert await off_loop(reader.read, part, middle, middle + 10) == everything[7:17]
    assert await off_loop(reader.read, part, there.end, there.end) == []
    await rig.feed(b"more")
    assert (await off_loop(reader.only))[1].end == there.end + 1


async def test_a_message_is_what_the_source_of_the_same_name_gives(rig: Rig, opened: list[Log]) -> None:
    await rig.feed(b'{"n":1}', headers=[("X-A", "1"), ("x-a", "2")])
    source = rig.open()
    await source.open()
    (live,) = await source.poll(1, 30)
    await source.close()
    reader = Reader(rig, opened)
    part, there = await off_loop(reader.only)
    ((only,),) = await off_loop(lambda: [some for some in reader.log.read(part, *there) if some])
    read = only.delivery
    assert (read.message_id, read.body, list(read.headers)) == (live.message_id, live.body, list(live.headers))
    assert read.ordering_key == live.ordering_key
    assert read.metadata.items() <= live.metadata.items()


async def test_what_is_not_there_or_not_allowed_is_named(rig: Rig, opened: list[Log]) -> None:
    missing = Reader(rig, opened, **rig.missing)
    with pytest.raises(SourceUnavailable if rig.name == "kafka" else SourceMissing):
        await off_loop(missing.only)
    with pytest.raises(SourceMisconfigured, match="has no offsets that can be read again"):
        open_log("pubsub", {})


async def test_a_log_shows_the_committed_offsets_of_another_consumer(rig: Rig, opened: list[Log]) -> None:
    await rig.feed(b"1", b"2", b"3")
    source = rig.open()
    await source.open()
    found = [delivery for _ in range(3) for delivery in await source.poll(1, 30)]
    await source.ack([delivery.receipt for delivery in found[:2]])
    await source.close()
    reader = Reader(rig, opened)
    part, there = await off_loop(reader.only)
    assert (await off_loop(reader.log.committed_offsets))[part] == there.begin + 2
    if rig.name == "kafka":
        alone = Reader(rig, opened, group=f"{rig.spec['group']}-alone")
        assert await off_loop(alone.log.committed_offsets) == {}
        await off_loop(alone.log.commit, {part: there.end})
        assert await off_loop(alone.log.committed_offsets) == {part: there.end}
    else:
        assert await off_loop(Reader(rig, opened, consumer="").log.committed_offsets) == {}


async def test_nats_reads_one_subject_passes_over_deleted_messages_and_stops_where_retention_was_quicker(
    nats_server: NatsServer, opened: list[Log]
) -> None:
    rig = await nats_rig(nats_server)
    name = rig.spec["stream"]
    connection = await nats.connect(rig.spec["url"])
    stream = connection.jetstream()
    for number in range(12):
        await stream.publish(f"{name}.{'even' if number % 2 == 0 else 'odd'}", b"%d" % number)
    await stream.delete_msg(name, 5)
    reader = Reader(rig, opened, subject=f"{name}.even")
    part, _there = await off_loop(reader.only)
    assert await off_loop(reader.read, part, 2, 10) == [(3, b"2"), (7, b"6"), (9, b"8")]
    assert await off_loop(reader.read, part, 5, 6) == []
    await stream.purge_stream(name, seq=7)
    with pytest.raises(MessagesLost, match=r"offsets 2 to 6 of .* were removed before they were read"):
        await off_loop(reader.read, part, 2, 10)
    assert await off_loop(reader.read, part, 2, 10, fail_on_loss=False) == [(7, b"6"), (9, b"8")]
    await stream.delete_stream(name)
    await stream.add_stream(name=name, subjects=[f"{name}.>"])
    with pytest.raises(SourceReplaced, match=f"stream '{name}' is"):
        await off_loop(reader.read, part, 9, 10)
    await stream.delete_stream(name)
    await stream.add_stream(name=name, subjects=[f"{name}.>"], retention="workqueue")
    with pytest.raises(SourceMisconfigured, match="has the retention 'workqueue'"):
        await off_loop(reader.only)
    await connection.close()


@pytest.mark.parametrize(("begin", "end", "found"), [(5, 9, 5), (10, 12, 10), (7, 7, 7)])
def test_an_available_range_is_read_from_its_beginning(begin: int, end: int, found: int) -> None:
    assert first_offset("p", begin, end, LogRange(5, 12), "here") == found


def test_a_part_that_is_shorter_than_what_was_read_of_it_was_made_anew() -> None:
    with pytest.raises(SourceReplaced, match="p was read up to 13, but ends at 12"):
        first_offset("p", 13, 13, LogRange(5, 12), "here")
