"""`format("tape")` reads what is there: every entry, in parts, filtered by the database."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the usual name)

from tape.cel import compile_predicate
from tape.errors import JournalDataLost, TapeError
from tape.journal.reader import EVERYTHING, SubjectCursor
from tape.journal.retention import prune
from tape.model.entry import Draft, Entry
from tape.model.pattern import Pattern
from tape.pipeline import journal_reader, with_payload
from tape.pipeline.journal_reader import query_store_once
from tape.pipeline.journal_source import JournalReader
from tape.pipeline.options import read_options, shown
from tape.pipeline.selection import Bounds, EntrySelection
from tape.store import Reader, open_database
from tests.pipeline.conftest import fill, order


def entries_in(store: str) -> list[Entry]:
    def everything(reader: Reader) -> list[Entry]:
        cursor, position, found = SubjectCursor(EVERYTHING), 0, []
        while True:
            piece = cursor.read(reader, position)
            found += piece.entries
            if piece.position == piece.head:
                return found
            position = piece.position

    return query_store_once(store, everything)


def read(spark: SparkSession, store: str, **options: object) -> DataFrame:
    reader = spark.read.format("tape").option("store", store)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def selected(store: str, **options: object) -> list[int]:
    """What a reader selects, asked without Spark around it."""
    reader = JournalReader(
        read_options({"store": store} | {n: str(v) for n, v in options.items()}, streaming=False), ["global_seq"]
    )
    batches = (batch for part in reader.partitions() for batch in reader.read(part))
    return [number for batch in batches for number in batch.column("global_seq").to_pylist()]


def numbers(frame: DataFrame) -> list[int]:
    return [row[0] for row in frame.select("global_seq").orderBy("global_seq").collect()]


def test_every_field_of_every_entry_arrives(spark: SparkSession, orders: str) -> None:
    entries = entries_in(orders)
    frame = read(spark, orders, minPartitions=3)
    rows = {row.global_seq: row for row in frame.collect()}
    assert frame.rdd.getNumPartitions() == 3
    assert len(rows) == len(entries) == 1000
    for entry in entries:
        row = rows[entry.global_seq].asDict()
        assert row.pop("type") == entry.type
        assert int(row.pop("ts").timestamp() * 1000) == entry.ts_ms
        row["chain"] = bytes(row["chain"])
        assert Entry(**row) == entry


def test_the_payload_is_a_variant_if_asked_for(spark: SparkSession, sqlite_url: str) -> None:
    payloads = [
        '{"a": {"b": [1, 2.5]}, "a b": null}',
        '"text"',
        "[]",
        "null",
        "12345678901234567890",
        '{"x": 1, "x": 2}',
    ]
    fill(sqlite_url, [Draft(subject="/tape/a/b", payload_json=text) for text in payloads])
    frame = with_payload(read(spark, sqlite_url)).orderBy("global_seq")
    assert dict(frame.dtypes)["payload"] == "variant"
    rows = frame.selectExpr("to_json(payload) j", "try_variant_get(payload, '$.a.b[1]', 'double') b").collect()
    assert [json.loads(row.j) for row in rows] == [json.loads(text) for text in payloads]
    assert [row.b for row in rows] == [2.5, *[None] * 5]


def test_a_subject_without_a_verb_has_its_kind_as_type(spark: SparkSession, store_url: str) -> None:
    fill(store_url, [Draft(subject="/tape/lonely"), Draft(subject="/tape/value/changed/a/b")])
    assert [row.type for row in read(spark, store_url).orderBy("global_seq").collect()] == ["lonely", "value.changed"]


def test_fewer_columns_are_read_with_a_schema_of_ones_own(spark: SparkSession, orders: str) -> None:
    reader = spark.read.format("tape").schema("subject string, global_seq long").option("store", orders)
    frame = reader.load()
    assert frame.columns == ["subject", "global_seq"]
    assert frame.count() == 1000


PATTERNS = ("/tape/order/**", "/tape/order/paid", "/tape/order/paid/4", "/tape/*/failed/*", "/tape/order/*/5", "/**")


def test_a_subject_pattern_selects_what_a_subscription_would_get(orders: str) -> None:
    entries = entries_in(orders)
    for pattern in PATTERNS:
        wanted = [entry.global_seq for entry in entries if Pattern(pattern).matches(entry.subject)]
        assert selected(orders, subject=pattern) == wanted, pattern


def test_a_prefix_does_not_select_its_neighbours(store_url: str) -> None:
    subjects = ["/tape/a/b", "/tape/a/b/c", "/tape/a/b-c", "/tape/a/b0", "/tape/a"]
    fill(store_url, [Draft(subject=subject) for subject in subjects])
    assert selected(store_url, subject="/tape/a/b/**") == [1, 2]


def test_a_predicate_selects_what_it_matches(spark: SparkSession, orders: str) -> None:
    text = 'tenant == "t1" && payload.customer.name.startsWith("n3") && payload.total > 100.0'
    matches = compile_predicate(text).matches
    assert selected(orders, where=text) == [e.global_seq for e in entries_in(orders) if matches(e)]


def test_offsets_begin_after_the_first_and_end_with_the_last(orders: str) -> None:
    assert selected(orders, startingOffsets=10, endingOffsets=13) == [11, 12, 13]
    assert selected(orders, startingOffsets="latest") == []
    last = entries_in(orders)[-1]
    moment = dt.datetime.fromtimestamp(last.ts_ms / 1000, dt.UTC).isoformat()
    expected = [entry.global_seq for entry in entries_in(orders) if entry.ts_ms >= last.ts_ms]
    assert selected(orders, startingOffsets=moment) == expected


CONDITIONS = (
    "global_seq > 990",
    "5 <= global_seq && global_seq < 8",
    "global_seq == 77",
    'kind == "refund"',
    'tenant in ["t0", "t2"] && run_id == "run-1"',
    'subject.startsWith("/tape/order/paid/") && payload.n > 500',
    'user == "u1" && session == ""',
    'kind == "refund" || global_seq == 1',
    'type == "order.paid" && global_seq <= 30',
    "ts_ms >= 0 && ts_ms < 9000000000000",
    "ts_ms < 5",
    '!(kind == "refund")',
    'payload.nothing == 1 || tenant == "t1"',
)


def test_predicates_narrow_what_the_database_reads_and_never_the_result(orders: str) -> None:
    entries = entries_in(orders)
    for text in CONDITIONS:
        matches = compile_predicate(text).matches
        assert selected(orders, where=text) == [e.global_seq for e in entries if matches(e)], text


def test_predicates_reach_the_database() -> None:
    selection = EntrySelection("/tape/order/*/5", 'kind == "order" && global_seq > 9 && ts_ms <= 70 && payload.n == 2')
    assert selection.bounds == Bounds(after=9, before_ms=71)
    assert [condition.sql.partition(" ")[0] for condition in selection.conditions()] == ["((subject", "kind"]
    assert not EntrySelection("", 'kind == "a" || tenant == "b"').conditions()


def test_a_frame_can_be_asked_several_questions(spark: SparkSession, orders: str) -> None:
    frame = read(spark, orders)
    assert frame.where("tenant = 't1' AND global_seq <= 10").count() == 4
    assert frame.count() == 1000
    assert frame.where("kind = 'refund' OR global_seq = 1").count() == 201


def test_pruned_entries_are_an_error_unless_the_reader_may_lose_them(orders: str) -> None:
    async def forget() -> None:
        async with open_database(orders) as database:
            await prune(database, before_seq=101)

    asyncio.run(forget())
    with pytest.raises(JournalDataLost, match="Entries 51 to 100 were pruned"):
        selected(orders, startingOffsets=50)
    left = list(range(101, 1002))  # and the note of the pruning
    assert selected(orders, startingOffsets=50, failOnDataLoss="false") == left
    assert selected(orders) == left


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stor": "x"}, "no option 'stor' here. Did you mean store"),
        ({"colour": "x"}, "Known are store, subject, where, startingOffsets"),
        ({}, "The option store is missing"),
        ({"store": "memory"}, "is in the memory of one process"),
        ({"store": "sqlite:/nowhere/tape.db"}, "There is no journal at /nowhere/tape.db"),
        ({"store": "mysql://x"}, "unknown scheme 'mysql'"),
        ({"where": "kind =="}, "line 1, column"),
        ({"subject": "no-slash"}, "must begin with '/'"),
        ({"startingOffsets": "soon"}, "startingOffsets is 'soon'; use earliest"),
        ({"minPartitions": "0"}, "minPartitions is '0'; it must be a whole number"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss is 'maybe'; it must be true or false"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is for streams"),
    ],
)
def test_a_bad_option_is_named_with_its_remedy(options: dict[str, str], message: str, sqlite_url: str) -> None:
    fill(sqlite_url, [order(1)])
    given = options if not options or "store" in options or "stor" in options else {"store": sqlite_url, **options}
    with pytest.raises(TapeError) as caught:
        read_options(given, streaming=False)
    assert message in str(caught.value)


def test_a_database_without_a_journal_is_named(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    path.touch()
    with pytest.raises(PySparkException, match="is a database without a journal"):
        read(spark, f"sqlite:{path}").count()


def test_messages_show_no_password() -> None:
    assert shown("postgres://ann:secret@db/tape") == "postgres://ann:…@db/tape"
    assert shown("sqlite:/a/b.db") == "sqlite:/a/b.db"


def test_a_column_that_does_not_exist_is_named(spark: SparkSession, orders: str) -> None:
    with pytest.raises(PySparkException, match="the column 'colour'; known are global_seq"):
        spark.read.format("tape").schema("colour string").option("store", orders).load().count()


def test_aggregates_run_on_the_journal(spark: SparkSession, orders: str) -> None:
    frame = read(spark, orders).groupBy("tenant").agg(F.count("*").alias("n")).orderBy("tenant")
    assert [(row.tenant, row.n) for row in frame.collect()] == [("t0", 333), ("t1", 334), ("t2", 333)]


OTHER_PROCESS = """
import apsw, sys
other = apsw.Connection(sys.argv[1])
other.execute("UPDATE tape_head SET id = id")
print(other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0][0])
"""


def test_a_slow_reader_keeps_no_snapshot_of_the_file_between_batches(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(sqlite_url, [Draft(subject="/tape/a/b") for _ in range(25)])
    monkeypatch.setattr(journal_reader, "BATCH_ROWS", 10)
    batches = journal_reader.read_journal_range(
        sqlite_url, ["global_seq"], EntrySelection(), 0, 25, fail_on_data_loss=True
    )
    found = next(batches).column("global_seq").to_pylist()
    checkpoint = [sys.executable, "-c", OTHER_PROCESS, sqlite_url.removeprefix("sqlite:")]
    # 1 would mean that a reader keeps pages of the log, which grows meanwhile.
    assert subprocess.run(checkpoint, capture_output=True, text=True, check=True).stdout == "0\n"
    for batch in batches:
        found += batch.column("global_seq").to_pylist()
    assert found == list(range(1, 26))
