"""Reactions over history: a backtest shows what servers would have done, a backfill does it once."""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from tape.cli.reactions import declared
from tape.client import AsyncTapeClient
from tape.engine.reactions import registry
from tape.engine.reactions.reaction import Reaction
from tape.engine.reactions.simulation import QueueStatistics
from tape.errors import CheckpointRefused, InvalidReaction, ReactionChanged
from tape.journal.appender import read_head
from tape.model.entry import Entry
from tape.model.reaction_states import HandlerKind
from tape.pipeline.batch_writer import transact
from tape.pipeline.job_context import JobContext
from tape.pipeline.jobs import match as job
from tape.pipeline.jobs.archive import archive
from tape.pipeline.jobs.backtest import Backtest, Hour, Sample, backtest
from tape.pipeline.jobs.command import show_backtests
from tape.pipeline.jobs.match import match
from tape.pipeline.journal_reader import query_store_once
from tape.pipeline.session import QUICK_JVM
from tape.reactions import decorators
from tape.server.server import Server
from tape.store import Transaction
from tests.conftest import settings_for
from tests.engine.reactions.helpers import matched
from tests.engine.reactions.test_simulation import live, reaction
from tests.history import seal_all
from tests.pipeline.conftest import fill, order
from tests.pipeline.test_journal_source import entries_in
from tests.services import wait_for

QUIET = JobContext("match", quiet=True)
FAILED = 'payload.status == "failed" && payload.total > 100.0'


def give_times(store: str, times: list[int]) -> None:
    """Let the entries have come at these times."""
    rows = list(enumerate(times, start=1))

    def change(tx: Transaction) -> None:
        for number, ts_ms in rows:
            tx.execute("UPDATE tape_journal SET ts_ms = ? WHERE global_seq = ?", ts_ms, number)
        seal_all(tx)

    transact(store, change)


def register(store: str, wanted: Reaction, **begin: object) -> Reaction:
    return transact(store, lambda tx: registry.register(tx, wanted, **begin))  # type: ignore[arg-type]


def tasks_in(store: str, reaction_id: str = "r") -> list[tuple[object, ...]]:
    """What makes a task what it is, without its id and when it was made."""
    return query_store_once(
        store,
        lambda reader: reader.query(
            "SELECT source_global_seq, first_global_seq, coalesced, shard, source_run_id, subject, payload_json,"
            " status, next_attempt_at_ms, source_seq, source_ts_ms FROM tape_tasks WHERE reaction_id = ?"
            " ORDER BY source_global_seq",
            reaction_id,
        ),
    )


def digest(rows: list[tuple[object, ...]]) -> str:
    return hashlib.sha256(repr(rows).encode()).hexdigest()


def test_a_backtest_shows_what_servers_and_tasks_really_do(spark: SparkSession, store_url: str, tmp_path: Path) -> None:
    fill(store_url, [order(number) for number in range(1, 401)])
    rng = random.Random(8)
    now, times = 1_700_000_000_000, []
    for _ in range(400):
        now += rng.choice((0, 0, 3, 20, 90, 700, 9_000))
        times.append(now)
    give_times(store_url, times)
    entries = entries_in(store_url)
    cases = (
        {"predicate_cel": FAILED},
        {"debounce_ms": 5_000},
        {"rate_limit_per_s": 2},
        {"debounce_ms": 800, "rate_limit_per_s": 1, "predicate_cel": "payload.n % 7 != 0"},
        {"predicate_cel": "payload.missing > 1"},
    )
    for fields in cases:
        wanted = reaction(**fields)
        result = backtest(spark, store_url, wanted, samples=3)
        lived = live(f"sqlite:{tmp_path / 'stage.db'}", wanted, entries)
        sources = sorted(source for source, _, _ in lived.tasks)
        assert result.entries == sum(entry.kind == "order" for entry in entries)
        assert (result.fired, result.debounced) == (
            len(sources),
            sum(coalesced for _, _, coalesced in lived.tasks),
        )
        assert result.queue == lived.queue
        assert [sample.global_seq for sample in result.samples] == sources[:3]
        per_tenant = dict.fromkeys(result.tenants, 0)
        for source in sources:
            per_tenant[entries[source - 1].tenant] += 1
        assert result.tenants == per_tenant
        assert sum(hour.fired for hour in result.hours) == result.fired
    assert result.fired == 0
    assert result.errors == result.entries
    assert "missing" in result.last_error
    assert query_store_once(store_url, lambda reader: reader.one("SELECT count(*) FROM tape_tasks")) == (0,)


def test_a_backfill_makes_the_tasks_that_a_server_would_have_made(spark: SparkSession, orders: str) -> None:
    wanted = reaction(predicate_cel=FAILED, num_shards=3)
    register(orders, wanted)
    done = match(spark, orders, "r", QUIET, round_entries=300)
    assert (done.after, done.seen, done.until) == (0, 1_000, 1_000)
    mine = tasks_in(orders)
    assert (done.matched, done.tasks) == (len(mine), len(mine))
    assert match(spark, orders, "r", QUIET) == done, "a second time changes nothing"
    assert tasks_in(orders) == mine

    async def by_a_server() -> None:
        async with Server(settings_for(orders)) as server, AsyncTapeClient(f"tape://{server.grpc_address}") as client:
            fields = {"subject_pattern": wanted.subject_pattern, "predicate_cel": FAILED, "num_shards": 3}
            await client.register_reaction(reaction_id="live", handler_kind=HandlerKind.TASK, backfill=True, **fields)
            await matched(client)

    asyncio.run(by_a_server())
    assert tasks_in(orders, "live") == mine


def test_history_is_debounced_in_its_own_time_and_may_come_from_the_archive(
    spark: SparkSession, sqlite_url: str, tmp_path: Path
) -> None:
    fill(sqlite_url, [order(number) for number in range(1, 301)])
    give_times(sqlite_url, [1_700_000_000_000 + number * 1_000 + number // 50 * 20_000 for number in range(300)])
    wanted = reaction(debounce_ms=40_000, subject_pattern="/tape/**")
    register(sqlite_url, wanted)
    entries = entries_in(sqlite_url)
    lived = live(f"sqlite:{tmp_path / 'stage.db'}", wanted, entries)
    lake = str(tmp_path / "lake")
    archive(spark, sqlite_url, lake, QUIET)
    transact(sqlite_url, lambda tx: _prune(tx, 200, entries[199]))
    done = match(spark, sqlite_url, "r", QUIET, lake=lake, round_entries=70)
    rows = tasks_in(sqlite_url)
    assert [(row[0], row[1], row[2]) for row in rows] == sorted(lived.tasks)
    assert (done.tasks, done.debounced) == (len(rows), 300 - len(rows))
    assert 30 < len(rows) < 300, "some were debounced, and some not"
    moment = dt.datetime.fromtimestamp(entries[99].ts_ms / 1_000, dt.UTC).isoformat()
    late = match(spark, sqlite_url, "r", QUIET, lake=lake, since=moment, checkpoint="late")
    assert (late.after, late.until) == (99, 300), "a time in the archive"


def _prune(tx: Transaction, until: int, last: Entry) -> None:
    tx.execute("DELETE FROM tape_journal WHERE global_seq <= ?", until)
    tx.execute("UPDATE tape_head SET oldest = ?, anchor = ? WHERE id = 1", until + 1, last.chain)


def test_a_backfill_beside_servers_at_work_gives_every_entry_one_task(spark: SparkSession, store_url: str) -> None:
    fill(store_url, [order(number) for number in range(1, 401)])

    async def work() -> None:
        async with (
            Server(settings_for(store_url)) as server,
            AsyncTapeClient(f"tape://{server.grpc_address}") as client,
        ):
            await client.register_reaction(
                reaction_id="r", subject_pattern="/tape/**", handler_kind=HandlerKind.TASK, num_shards=2
            )
            backfilling = asyncio.create_task(asyncio.to_thread(match, spark, store_url, "r", QUIET, round_entries=50))
            number = 400
            while not backfilling.done():
                number += 1
                await client.append_many([order(number)])
            await backfilling
            await matched(client)

    asyncio.run(work())
    head = query_store_once(store_url, read_head).global_seq
    assert head > 400
    assert [row[0] for row in tasks_in(store_url)] == list(range(1, head + 1))


def test_what_servers_have_done_already_is_left_alone(spark: SparkSession, sqlite_url: str) -> None:
    fill(sqlite_url, [order(number) for number in range(1, 101)])

    async def live_first() -> None:
        async with Server(settings_for(sqlite_url)) as server:
            async with AsyncTapeClient(f"tape://{server.grpc_address}") as client:
                for name, debounce_ms in (("plain", 0), ("slow", 86_000_000)):
                    await client.register_reaction(
                        reaction_id=name,
                        subject_pattern="/tape/**",
                        handler_kind=HandlerKind.TASK,
                        from_global_seq=60,
                        debounce_ms=debounce_ms,
                    )
                await matched(client)

    asyncio.run(live_first())
    assert len(tasks_in(sqlite_url, "plain")) == 40
    done = match(spark, sqlite_url, "plain", QUIET)
    assert (done.until, done.tasks, done.known) == (60, 60, 0)
    done = match(spark, sqlite_url, "plain", QUIET, until="90", checkpoint="more")
    assert (done.tasks, done.known) == (0, 90)
    before = tasks_in(sqlite_url, "slow")
    done = match(spark, sqlite_url, "slow", QUIET, until="100")
    assert done.known == 40, "those that went into a task that waits"
    assert [row for row in tasks_in(sqlite_url, "slow") if row in before] == before


def test_a_backfill_that_does_not_fit_is_refused_in_a_sentence(spark: SparkSession, sqlite_url: str) -> None:
    fill(sqlite_url, [order(number) for number in range(1, 21)])
    with pytest.raises(InvalidReaction, match="there is no reaction 'r'; give an id; none is registered"):
        match(spark, sqlite_url, "r", QUIET)
    register(sqlite_url, reaction())
    match(spark, sqlite_url, "r", QUIET)
    with pytest.raises(CheckpointRefused, match=r"other options: to was '', now it is '10'. Give another --name"):
        match(spark, sqlite_url, "r", QUIET, until="10")
    fill(sqlite_url, [order(number) for number in range(1, 21)])
    with pytest.raises(InvalidReaction, match="servers have matched 'r' up to 20 only"):
        match(spark, sqlite_url, "r", QUIET, until="latest", checkpoint="all")

    class Meddling(JobContext):
        def report_progress(self, *figures: object) -> None:
            register(sqlite_url, reaction(debounce_ms=5))

    with pytest.raises(ReactionChanged, match="was changed while its history was matched"):
        match(spark, sqlite_url, "r", Meddling("match"), until="20", checkpoint="slow", round_entries=10)


def _two_alike(store: str, entries: int) -> None:
    """A history in bursts, and two reactions that debounce it."""
    fill(store, [order(number) for number in range(1, entries + 1)])
    give_times(store, [1_700_000_000_000 + number * 700 + number // 200 * 20_000 for number in range(entries)])
    for name in ("r", "clean"):
        register(store, msgspec.structs.replace(reaction(debounce_ms=25_000), reaction_id=name))


def test_a_backfill_that_dies_after_any_commit_ends_as_one_that_does_not(
    spark: SparkSession, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _two_alike(store_url, 500)
    clean = match(spark, store_url, "clean", QUIET)
    monkeypatch.setattr(job, "STEP_TASKS", 7)

    class Died(Exception):
        pass

    commits = itertools.count()

    def mortal(store: str, operation: Any) -> Any:
        done = transact(store, operation)
        if next(commits) % 4 == 3:
            raise Died
        return done

    monkeypatch.setattr(job, "transact", mortal)
    deaths, done = 0, None
    while done is None:
        try:
            done = match(spark, store_url, "r", QUIET, round_entries=220)
        except Died:
            deaths += 1
    assert deaths > 3
    assert 24 < done.tasks < 500
    assert digest(tasks_in(store_url)) == digest(tasks_in(store_url, "clean"))
    assert done == clean


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_a_backfill_killed_in_the_middle_ends_as_one_that_was_not(spark: SparkSession, store_url: str) -> None:
    _two_alike(store_url, 1_500)
    command = [sys.executable, "-m", "tape.pipeline.jobs.match", "--reaction", "r", "--store", store_url]
    command += ["--master", "local[1]", "--round-entries", "20", "--conf", f"spark.driver.extraJavaOptions={QUICK_JVM}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0) as working:
        try:
            wait_for(lambda: len(tasks_in(store_url)) > 30, "some tasks", 300)
        finally:
            os.killpg(working.pid, signal.SIGKILL)
    assert working.returncode == -signal.SIGKILL
    half = len(tasks_in(store_url))
    done = match(spark, store_url, "r", QUIET)
    clean = match(spark, store_url, "clean", QUIET)
    assert half < len(tasks_in(store_url))
    assert digest(tasks_in(store_url)) == digest(tasks_in(store_url, "clean"))
    assert done == clean


def test_reactions_declared_in_code_can_be_tried_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "declaring_handlers.py").write_text(
        "import tape\n\n@tape.on('/tape/order/paid/**', predicate='payload.total > 5', reaction_id='dear')\n"
        "def handle(envelope): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(decorators, "_registry", [])
    found = declared("declaring_handlers")
    assert (found["dear"].subject_pattern, found["dear"].predicate_cel) == ("/tape/order/paid/**", "payload.total > 5")


def test_an_outcome_is_shown_in_words_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    hours = [Hour("2026-01-31T12:00Z", "shop", 1_200, 3), Hour("2026-01-31T13:00Z", "", 34, 0)]
    result = Backtest(
        5_000,
        1_234,
        3,
        2,
        "no such key: 'total'",
        QueueStatistics(7, 1_500, 4, 99),
        hours,
        [Sample(9, "/tape/a", "{}")],
    )
    show_backtests([("", result)], "text")
    shown = capsys.readouterr().out
    for line in (
        "Would have fired 1,234 times on 5,000 entries.",
        "debounced: 3 matches were merged into a later match of their subject",
        "rate limited: 7 would have waited, up to 1.5 s; the queue would have grown to 4",
        "the predicate raised an error on 2 entries, such as: no such key: 'total'",
        "e.g. 9 /tape/a {}",
    ):
        assert line in shown
    show_backtests([("r", result)], "json")
    said = json.loads(capsys.readouterr().out)
    assert (said["reaction"], said["fired"], said["tenants"]) == ("r", 1_234, {"": 34, "shop": 1_200})
