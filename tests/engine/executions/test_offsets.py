"""Records by offset start one run each, in whatever pieces and however often they are sent."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tape.engine.executions.execute import Dedup, ExecuteRequest
from tape.engine.executions.offsets import (
    OffsetRange,
    OffsetRecord,
    RangeResult,
    checked_range,
    execute_range,
    executed_ranges,
)
from tape.errors import InvalidInput, PlaybookNotFound, TapeError
from tape.model.dispatch_result import RunDispatchResult
from tape.model.entry import Draft
from tape.store import Database
from tests.engine.executions.test_execute import request, shop

__all__ = ["shop"]

PATH = "subscriptions/orders"


def record(offset: int, path: str = "domain/order", **fields: object) -> OffsetRecord:
    return OffsetRecord(offset, request(path, subscription=PATH, message_id=str(offset), **fields))


async def taken(database: Database, part: str = "orders:0") -> list[tuple[int, int]]:
    return (await database.read(lambda reader: executed_ranges(reader, PATH))).get(part, [])


async def took(
    database: Database, begin: int, end: int, records: Sequence[OffsetRecord], part: str = "orders:0"
) -> RangeResult:
    range_ = checked_range(OffsetRange(PATH, part, begin, end), [each.offset for each in records])
    return await database.write(lambda tx: execute_range(tx, range_, records))


def words(result: RangeResult) -> list[str]:
    return [
        each.outcome if isinstance(each, RunDispatchResult) else "refused" if isinstance(each, TapeError) else each
        for each in result.outcomes
    ]


async def runs_of(database: Database) -> list[str]:
    rows = await database.read(lambda reader: reader.query("SELECT labels_json FROM tape_runs ORDER BY run_id"))
    return [row[0].partition('message_id":"')[2].partition('"')[0] for row in rows]


async def test_records_become_runs_once_and_what_was_taken_is_one_row(shop: Database) -> None:
    assert words(await took(shop, 0, 10, [record(3), record(7)])) == ["started", "started"]
    assert words(await took(shop, 0, 10, [record(3), record(7)])) == ["taken", "taken"]
    assert words(await took(shop, 5, 20, [record(7), record(12)])) == ["taken", "started"]
    assert words(await took(shop, 0, 4, [record(1)], part="orders:1")) == ["started"]
    await took(shop, 20, 25, [])
    assert await taken(shop) == [(0, 25)]
    assert sorted(await runs_of(shop)) == ["1", "12", "3", "7"]


async def test_no_record_after_a_rejected_one_is_executed_until_it_is_a_dead_letter(shop: Database) -> None:
    records = [record(1), record(2, path="domain/nowhere"), record(3)]
    first = await took(shop, 0, 4, records)
    assert words(first) == ["started", "refused", "held"]
    assert isinstance(first.outcomes[1], PlaybookNotFound)
    assert (first.end, await taken(shop)) == (2, [(0, 2)])
    unreadable = [OffsetRecord(2, InvalidInput("too large")), record(3)]
    assert words(await took(shop, 2, 4, unreadable)) == ["refused", "held"]
    assert await taken(shop) == [(0, 2)]
    dead_letter = OffsetRecord(
        2, Draft(subject="/tape/subscription/message.dead_lettered/orders", payload_json='{"a":1}')
    )
    assert words(await took(shop, 2, 4, [dead_letter, record(3)])) == ["told", "started"]
    assert words(await took(shop, 2, 4, [dead_letter, record(3)])) == ["taken", "taken"]
    count = "SELECT COUNT(*) FROM tape_journal WHERE subject = ?"
    subject = "/tape/subscription/message.dead_lettered/orders"
    assert await shop.read(lambda reader: reader.one(count, subject)) == (1,)
    assert await taken(shop) == [(0, 4)]


async def test_adjacent_ranges_are_merged(shop: Database) -> None:
    await took(shop, 10, 20, [record(15)])
    await took(shop, 30, 40, [record(35)])
    assert await taken(shop) == [(10, 20), (30, 40)]
    assert words(await took(shop, 5, 45, [record(offset) for offset in (7, 15, 25, 35, 42)])) == [
        "started",
        "taken",
        "started",
        "taken",
        "started",
    ]
    assert await taken(shop) == [(5, 45)]


async def test_a_refusal_leaves_what_is_taken_behind_it_alone(shop: Database) -> None:
    await took(shop, 30, 40, [record(35)])
    result = await took(shop, 0, 50, [record(5), record(20, path="domain/nowhere"), record(35), record(45)])
    assert words(result) == ["started", "refused", "taken", "held"]
    assert await taken(shop) == [(0, 20), (30, 40)]


async def test_dedup_of_the_sender_works_beside_it(shop: Database) -> None:
    same = {"dedup": Dedup("order-7", 60)}
    assert words(await took(shop, 0, 2, [record(0, **same), record(1, **same)])) == ["started", "duplicate"]
    assert words(await took(shop, 2, 3, [record(2, **same)])) == ["duplicate"]
    assert len(await runs_of(shop)) == 1


async def test_any_pieces_in_any_order_make_each_record_one_run(shop: Database) -> None:
    rng = random.Random(7)
    for _ in range(60):
        begin = rng.randrange(100)
        end = rng.randrange(begin, 101)
        await took(shop, begin, end, [record(offset) for offset in range(begin, end) if offset % 3])
    await took(shop, 0, 100, [record(offset) for offset in range(100) if offset % 3])
    assert sorted(map(int, await runs_of(shop))) == [offset for offset in range(100) if offset % 3]
    assert await taken(shop) == [(0, 100)]


@pytest.mark.parametrize(
    ("range_", "offsets", "said"),
    [
        (OffsetRange("", "p", 0, 1), [], "subscription and part are required"),
        (OffsetRange("s", "p", 5, 1), [], "begin 5 and end 1"),
        (OffsetRange("s", "p", -1, 1), [], "begin -1"),
        (OffsetRange("s", "p", 0, 5), [5], "offset 5 is out of order"),
        (OffsetRange("s", "p", 0, 5), [3, 3], "offset 3 is out of order"),
        (OffsetRange("s", "p", 2, 5), [1], "offset 1 is out of order"),
    ],
)
def test_an_invalid_range_is_rejected(range_: OffsetRange, offsets: list[int], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        checked_range(range_, offsets)


def test_requests_are_what_a_record_holds() -> None:
    assert isinstance(record(1).wanted, ExecuteRequest)
