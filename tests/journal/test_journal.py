"""Appending and reading: order, gaplessness, runs, requests, bad input."""

from __future__ import annotations

import asyncio
import time

import pytest

from tape.errors import (
    CursorBeyondHead,
    CursorExpired,
    InvalidInput,
    InvalidJson,
    InvalidPattern,
    InvalidSubject,
    PayloadTooLarge,
    TapeError,
)
from tape.journal import reader
from tape.journal.appender import append
from tape.journal.journal import Journal
from tape.journal.key_index import index_entries
from tape.journal.reader import (
    ExactCursor,
    RunCursor,
    Selection,
    Slice,
    SubjectCursor,
    checked_cursor,
    has_run,
    open_cursor,
    position_before,
)
from tape.journal.retention import prune
from tape.model.chain import GENESIS, canonical, link
from tape.model.entry import Draft, Entry
from tape.model.grants import compile_grants
from tape.model.pattern import Pattern
from tape.store import Reader, Transaction, WriterLimits, open_database
from tests.store.test_database import keep_busy, until_queue_is


def draft(subject: str = "/tape/order/created/1", **fields: object) -> Draft:
    return Draft(subject=subject, **fields)  # type: ignore[arg-type]


async def all_entries(journal: Journal, pattern: str = "", **conditions: str) -> list[Entry]:
    """Everything a cursor finds, step by step, as subscriptions read."""
    cursor = open_cursor(Selection(Pattern(pattern), **conditions))
    found: list[Entry] = []
    position = 0
    while True:
        piece = await journal.database.read(lambda reader: cursor.read(reader, position))  # noqa: B023
        assert piece.position > position or piece.position == piece.head
        found += piece.entries
        position = piece.position
        if position == piece.head:
            return found


async def test_an_entry_has_every_field_it_was_given(journal: Journal) -> None:
    given = draft(
        payload_json='{"a": 1}',
        run_id="r1",
        schema_version=3,
        trace_id="0123456789abcdef" * 2,
        span_id="0123456789abcdef",
        parent_span_id="fedcba9876543210",
        tenant="acme",
        user="ann",
        session="s1",
    )
    before = time.time_ns() // 1_000_000
    assert list(await journal.append([given])) == [1]
    (entry,) = await all_entries(journal)
    assert (entry.global_seq, entry.run_id, entry.seq, entry.kind, entry.subject) == (
        1,
        "r1",
        1,
        "order",
        "/tape/order/created/1",
    )
    assert entry.payload_json == '{"a": 1}'
    assert entry.payload == {"a": 1}
    assert entry.type == "order.created"
    assert (entry.schema_version, entry.trace_id, entry.span_id) == (3, given.trace_id, given.span_id)
    assert (entry.parent_span_id, entry.tenant, entry.user, entry.session) == (
        given.parent_span_id,
        "acme",
        "ann",
        "s1",
    )
    assert before <= entry.ts_ms <= time.time_ns() // 1_000_000 + 1


async def test_without_a_run_an_entry_belongs_to_the_log(journal: Journal) -> None:
    await journal.append([draft(), draft()])
    assert [(entry.run_id, entry.seq) for entry in await all_entries(journal)] == [("log", 1), ("log", 2)]


async def test_concurrent_appends_are_gapless_and_each_run_counts_for_itself(journal: Journal) -> None:
    async def caller(name: str) -> list[int]:
        got: list[int] = []
        for _ in range(20):
            got += await journal.append([draft(run_id=name), draft(run_id="shared")])
        return got

    numbers = await asyncio.gather(*(caller(f"r{n}") for n in range(10)))
    assert sorted(number for some in numbers for number in some) == list(range(1, 401))
    entries = await all_entries(journal)
    assert [entry.global_seq for entry in entries] == list(range(1, 401))
    for run in {entry.run_id for entry in entries}:
        seqs = [entry.seq for entry in entries if entry.run_id == run]
        assert seqs == list(range(1, len(seqs) + 1))
    assert [entry.ts_ms for entry in entries] == sorted(entry.ts_ms for entry in entries)


async def test_drafts_of_one_request_are_neighbours(journal: Journal) -> None:
    results = await asyncio.gather(*(journal.append([draft(run_id=f"r{n}")] * 7) for n in range(30)))
    for numbers in results:
        assert list(numbers) == list(range(numbers[0], numbers[0] + 7))


async def test_the_chain_seals_every_field(journal: Journal) -> None:
    await journal.append([draft(payload_json='{"n":1}'), draft(run_id="é", tenant="t", user="u", session="s")])
    previous = GENESIS
    for entry in await all_entries(journal):
        texts = (
            entry.run_id,
            entry.kind,
            entry.subject,
            entry.payload_json,
            entry.trace_id,
            entry.span_id,
            entry.parent_span_id,
            entry.tenant,
            entry.user,
            entry.session,
        )
        previous = link(previous, canonical(entry.global_seq, entry.seq, entry.ts_ms, entry.schema_version, texts))
        assert entry.chain == previous
    assert (await journal.head()).chain == previous


async def test_an_operation_that_is_rolled_back_leaves_no_gap_and_no_cause(journal: Journal) -> None:
    def fails(tx: Transaction) -> None:
        append(tx, [draft(kind="order", run_id="r1", cause="rolled-back")] * 3)
        raise ValueError("after appending")

    def succeeds(tx: Transaction) -> int:
        return append(tx, [draft(kind="order", run_id="r1", cause="committed")])[0].global_seq

    database = journal.database
    release, first = await keep_busy(database)
    operations = [asyncio.create_task(database.write(each)) for each in (succeeds, fails, succeeds)]
    await until_queue_is(database, len(operations))
    release.set()
    await first
    results = await asyncio.gather(*operations, return_exceptions=True)
    # The three share one transaction, so the failed one is rolled back to a savepoint.
    assert database.metrics.registry.get_sample_value("tape_commits_total") == 2
    assert isinstance(results[1], ValueError)
    assert (results[0], results[2]) == (1, 2)
    assert [(entry.global_seq, entry.seq) for entry in await all_entries(journal)] == [(1, 1), (2, 2)]
    causes = "SELECT global_seq, reaction_id FROM tape_entry_causes ORDER BY global_seq"
    assert await database.read(lambda reader: reader.query(causes)) == [(1, "committed"), (2, "committed")]


async def test_a_repeated_request_gets_its_old_answer_and_appends_nothing(journal: Journal) -> None:
    first = await journal.append([draft(), draft()], request_id="once")
    await journal.append([draft()])
    again = await journal.append([draft(), draft()], request_id="once")
    together = await asyncio.gather(*(journal.append([draft()], request_id="same") for _ in range(5)))
    assert list(first) == list(again) == [1, 2]
    assert {tuple(numbers) for numbers in together} == {(4,)}
    assert (await journal.head()).global_seq == 4


@pytest.mark.parametrize(
    ("bad", "error", "reason"),
    [
        ({"payload_json": "{"}, InvalidJson, "payload_json '{' is not JSON"),
        ({"payload_json": '{"a": NaN}'}, InvalidJson, "is not JSON"),
        ({"payload_json": '"' + "x" * 2000 + '"'}, PayloadTooLarge, "2002 bytes; this server takes 1000"),
        ({"payload_json": '"' + "é" * 600 + '"'}, PayloadTooLarge, "1202 bytes"),
        ({"subject": "order"}, InvalidSubject, "must begin with /tape/"),
        ({"kind": "invoice"}, InvalidInput, "kind 'invoice' differs"),
        ({"run_id": "x" * 600}, InvalidInput, "run_id .* more than 500 bytes"),
        ({"run_id": "a\0b"}, InvalidInput, "run_id .* NUL"),
        ({"trace_id": "xyz"}, InvalidInput, "trace_id 'xyz' must be 32"),
        ({"span_id": "ABCDEF0123456789"}, InvalidInput, "span_id .* must be 16"),
        ({"schema_version": 70_000}, InvalidInput, "schema_version 70000"),
    ],
)
async def test_bad_input_is_named_and_nothing_is_written(
    journal: Journal, bad: dict[str, object], error: type[TapeError], reason: str
) -> None:
    journal.max_payload_bytes = 1000
    with pytest.raises(error, match=reason):
        await journal.append([draft(**({"subject": "/tape/order/created/1"} | bad))])
    with pytest.raises(error, match=r"drafts\[1\]: "):
        await journal.append([draft(), draft(**({"subject": "/tape/order/created/1"} | bad))])
    assert (await journal.head()).global_seq == 0


async def test_a_request_that_no_queue_could_hold_is_refused_for_good(store_url: str) -> None:
    async with open_database(store_url, limits=WriterLimits(queue_bytes=10_000)) as database:
        with pytest.raises(PayloadTooLarge, match="Append them in several requests"):
            await Journal(database).append([draft()] * 30)


async def test_an_empty_request_is_refused(journal: Journal) -> None:
    with pytest.raises(InvalidInput, match="at least one"):
        await journal.append([])


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


async def fill(journal: Journal) -> None:
    drafts = [
        draft(f"/tape/{kind}/{verb}/{key}", run_id=f"r{key}")
        for key in range(20)
        for kind in ("order", "invoice")
        for verb in ("created", "paid", "created.late")
    ]
    await journal.append(drafts)


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "/tape/**",
        "/tape/order/**",
        "/tape/order/created/*",
        "/tape/order/created/7",
        "/tape/*/paid/1*"[:-1],
        "/tape/none/**",
    ],
)
@pytest.mark.parametrize("force", ["scan", "index"])
async def test_reading_by_pattern_equals_matching_each_entry(
    journal: Journal, pattern: str, force: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "WINDOW", 5 if force == "index" else 50)
    monkeypatch.setattr(reader, "SPARSE", 10_000 if force == "index" else 0)
    monkeypatch.setattr(reader, "FIRST_LIMIT", 4)
    await fill(journal)
    everything = await all_entries(journal)
    assert len(everything) == 120
    assert await all_entries(journal, pattern) == [e for e in everything if Pattern(pattern).matches(e.subject)]
    assert await all_entries(journal, pattern, kind="order") == [
        e for e in everything if Pattern(pattern).matches(e.subject) and e.kind == "order"
    ]


@pytest.mark.parametrize(
    "selection",
    [
        Selection(Pattern("")),
        Selection(Pattern("/tape/order/*/7")),
        Selection(Pattern("/tape/order/**"), run_id="r7"),
        Selection(Pattern(""), kind="invoice"),
        Selection(Pattern(""), tenants=("acme", "globex")),
        Selection(Pattern("/tape/**"), tenants=()),
        Selection(Pattern(""), grants=compile_grants(("/tape/*/paid/**", "/tape/invoice/created/7"))),
        Selection(Pattern("/tape/order/**"), "r7", "order", ("",), compile_grants(("/tape/*/created/**",))),
    ],
)
async def test_a_selection_filters_as_it_matches_each_entry(journal: Journal, selection: Selection) -> None:
    await fill(journal)
    await journal.append([draft(tenant=tenant) for tenant in ("acme", "globex", "other")])
    everything = await all_entries(journal)
    assert selection.filter(everything) == [entry for entry in everything if selection.matches(entry)]


async def test_a_pattern_of_many_entries_is_counted_once(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "WINDOW", 5)
    monkeypatch.setattr(reader, "SPARSE", 10)
    monkeypatch.setattr(reader, "FIRST_LIMIT", 4)
    await fill(journal)
    if journal.database.dialect == "sqlite":  # so few entries would not be indexed yet
        await journal.database.write(lambda tx: index_entries(tx, 0))
    cursor = open_cursor(Selection(Pattern("/tape/order/**")))
    queries: list[str] = []

    def read(connection: Reader) -> Slice:
        query = connection.query
        with monkeypatch.context() as patched:
            patched.setattr(connection, "query", lambda sql, *params: queries.append(sql) or query(sql, *params))
            return cursor.read(connection, position)

    position = found = 0
    while found < 60:
        piece = await journal.database.read(read)
        position, found = piece.position, found + len(piece.entries)
    assert sum("count(*)" in sql for sql in queries) == 1


async def test_a_run_is_read_from_a_seq(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "FIRST_LIMIT", 2)
    await fill(journal)
    assert [entry.seq for entry in await all_entries(journal, run_id="r3")] == [1, 2, 3, 4, 5, 6]
    cursor = RunCursor(Selection(Pattern(""), "r3"), from_seq=4)
    piece = await journal.database.read(lambda reader: cursor.read(reader, 0))
    assert [entry.seq for entry in piece.entries] == [4, 5]
    assert await journal.database.read(lambda reader: has_run(reader, "r3"))
    assert not await journal.database.read(lambda reader: has_run(reader, "unknown"))


async def test_exact_subjects_are_read_together_in_order(journal: Journal) -> None:
    await fill(journal)
    cursor = ExactCursor(("/tape/order/created/3", "/tape/invoice/paid/3"))
    piece = await journal.database.read(lambda reader: cursor.read(reader, 0))
    assert [entry.subject for entry in piece.entries] == ["/tape/order/created/3", "/tape/invoice/paid/3"]
    assert piece.position == piece.head == 120


async def test_a_time_is_found_by_its_first_entry(journal: Journal) -> None:
    for _ in range(5):
        await journal.append([draft()])
        await asyncio.sleep(0.003)
    entries = await all_entries(journal)
    for entry in entries:
        position = await journal.database.read(lambda reader: position_before(reader, entry.ts_ms))  # noqa: B023
        assert position == min(e.global_seq for e in entries if e.ts_ms == entry.ts_ms) - 1
    assert await journal.database.read(lambda reader: position_before(reader, 0)) == 0
    assert await journal.database.read(lambda reader: position_before(reader, 1 << 60)) == 5


async def test_a_cursor_beyond_the_head_or_below_the_oldest_is_refused(journal: Journal) -> None:
    await journal.append([draft()] * 10)
    await prune(journal.database, before_seq=6)
    cursor = SubjectCursor(Selection(Pattern("")))
    with pytest.raises(CursorBeyondHead, match="from_global_seq 99 is beyond the head of this journal"):
        await journal.database.read(lambda reader: cursor.read(reader, 99))
    with pytest.raises(CursorExpired, match="entries 4 to 5 were pruned"):
        await journal.database.read(lambda reader: cursor.read(reader, 3))
    head = await journal.head()
    piece = await journal.database.read(lambda reader: cursor.read(reader, checked_cursor(0, head)))
    assert piece.entries[0].global_seq == 6


def test_a_pattern_that_cannot_be_is_refused_before_reading() -> None:
    with pytest.raises(InvalidPattern):
        Selection(Pattern("/tape/**/x"))
