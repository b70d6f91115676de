"""Steps of the matcher in the transaction of an append: the same tasks, claims and counts as in steps of their own."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tape.engine.fanout.hub import Hub
from tape.engine.fanout.subscription import Batch, JournalSubscription
from tape.engine.reactions import matcher_steps, registry
from tape.engine.reactions.matcher import BATCH, MAX_INLINE, Matcher
from tape.engine.reactions.matcher_steps import StepResult
from tape.engine.reactions.reaction import Reaction, check_reaction
from tape.engine.reactions.task_broker import TaskBroker
from tape.engine.reactions.tasks import CLAIMED, Task, TaskFailure, TaskReport
from tape.errors import StoreError
from tape.journal.journal import Journal
from tape.model.entry import Draft
from tape.model.reaction_states import HandlerKind
from tape.store import Database, Reader, Transaction, open_database

EXAMPLES = settings.default.max_examples  # more of them in proofs
OWNER = "dispatcher"
SUBJECTS = ("/tape/order/paid", "/tape/order/sent", "/tape/invoice/paid")


class SeparateSteps(Matcher):
    """A matcher that writes all steps in transactions of their own."""

    async def _next_batch(self, subscription: JournalSubscription) -> Batch:
        return await subscription.next(BATCH, self._idle_s())


class Engine:
    """Matcher and broker of a server, and one dispatcher session."""

    def __init__(self, database: Database, *, joins: bool = True) -> None:
        self.database = database
        self.journal = Journal(database)
        self.hub = Hub(database)
        self.broker = TaskBroker(database)
        self.matcher = (Matcher if joins else SeparateSteps)(self.hub, self.broker, "server")
        self.joins = joins
        self.in_flight: list[Task] = []
        self.handled: list[int] = []
        self.window = 0

    async def register(self, reaction_id: str = "r", **fields: Any) -> None:
        """Register a reaction on orders."""
        defaults: dict[str, Any] = {
            "subject_pattern": "/tape/order/**",
            "predicate_cel": "",
            "handler_kind": HandlerKind.TASK,
            "max_concurrency": 100,
        }
        wanted = Reaction(reaction_id, "", **(defaults | fields))
        await self.database.write(lambda tx: registry.register(tx, check_reaction(wanted)))

    async def connect(self, reactions: Sequence[str] = ("r",), window: int = 10) -> None:
        """Connect the dispatcher."""
        self.session = self.broker.open_session(OWNER, reactions, 60_000)
        self.set_window(window)
        await self.rest()

    def set_window(self, window: int) -> None:
        """Let the dispatcher accept so many tasks."""
        self.window = window
        self.session.set_window(window)

    async def append(self, *drafts: Draft) -> None:
        """Append entries, with the matcher at the head of the journal, and wait until nothing is left to do."""
        if self.joins:
            await until(lambda: self.database._started_writer._piggyback is not None)
        await self.journal.append(drafts)
        await self.rest()

    async def report(self, report: TaskReport) -> None:
        """Report on tasks, and wait until nothing is left to do."""
        self.session.report(report, [])
        await until(lambda: not self.session.has_reports)
        await self.rest()

    async def rest(self) -> None:
        """Wait until everything is matched and claimed, and take what was delivered."""
        await until(lambda: self.matcher.position == self.hub.head)
        while True:
            await until(lambda: not self.broker._ready and not self.broker._round_lock._lock.locked())
            if self.session.deliveries.empty():
                return
            delivery = await self.session.next()
            assert delivery is not None
            settled = {each.task_id for each in (*delivery.settled.done, *delivery.settled.tasks)}
            self.in_flight = [task for task in self.in_flight if task.task_id not in settled]
            self.in_flight += delivery.tasks
            self.handled += [task.source_global_seq for task in delivery.tasks]
            assert len(self.in_flight) <= max(self.window, len(self.in_flight) - len(delivery.tasks))

    async def sources(self) -> list[int]:
        """The entries that have become tasks."""
        rows = await self.database.read(
            lambda reader: reader.query("SELECT source_global_seq FROM tape_tasks ORDER BY source_global_seq")
        )
        return [number for (number,) in rows]


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def running(store_url: str, *, joins: bool = True) -> AsyncIterator[Engine]:
    """An engine on a database."""
    async with open_database(store_url) as database:
        engine = Engine(database, joins=joins)
        await engine.hub.start()
        await engine.broker.start()
        await engine.matcher.start()
        try:
            yield engine
        finally:
            await engine.matcher.close()
            await engine.broker.close()
            await engine.hub.close()


def draft(subject: str = SUBJECTS[0], **fields: Any) -> Draft:
    """An entry to append."""
    return Draft(**({"subject": subject, "run_id": "run", "payload_json": '{"total":5}'} | fields))


def dump(reader: Reader) -> list[str]:
    """What a database has, without ids and times."""
    tasks = (
        "reaction_id, shard, source_run_id, source_global_seq, subject, payload_json, status, attempts, lease_owner,"
        " last_error, first_global_seq, coalesced, debounced, strict_order, source_seq, tenant, ordering_key"
    )
    cursors = "reaction_id, shard, lane, behind, matched, suppressed, errors, last_error, last_error_seq"
    statements = (
        f"SELECT {tasks} FROM tape_tasks ORDER BY source_global_seq, reaction_id, shard",
        f"SELECT {cursors} FROM tape_reaction_cursors ORDER BY reaction_id, shard",
        "SELECT lane, position FROM tape_reaction_lanes ORDER BY lane",
        "SELECT global_seq, subject, kind, seq, tenant FROM tape_journal ORDER BY global_seq",
        "SELECT global_seq, reaction_id FROM tape_entry_causes ORDER BY global_seq",
        "SELECT app_name, status, invocation_id FROM tape_runs ORDER BY invocation_id",
    )
    return [re.sub(r"[0-9a-f-]{16,}", "<id>", repr(row)) for sql in statements for row in reader.query(sql)]


async def test_an_entry_and_its_claimed_task_are_one_transaction(store_url: str) -> None:
    found: list[Any] = []

    def look(announced: list[Any]) -> None:
        """On the writer's thread, right after a commit and before the next transaction."""
        if announced:
            connection = engine.database.connect(read_only=True)
            found.append(connection.query("SELECT source_global_seq, status, lease_owner FROM tape_tasks"))
            connection.close()

    async with running(store_url) as engine:
        await engine.register()
        await engine.connect()
        engine.database.hooks.committed.append(look)
        await engine.append(draft())
        engine.database.hooks.committed.remove(look)
        assert found == [[(1, CLAIMED, OWNER)]]
        assert [task.source_global_seq for task in engine.in_flight] == [1]


async def test_with_a_window_of_one_each_event_is_claimed_with_its_append(store_url: str) -> None:
    async with running(store_url) as engine:
        await engine.register(max_concurrency=1)
        await engine.connect(window=1)
        statuses = []
        for number in (1, 2, 3):
            await engine.append(draft())
            statuses.append([(task.source_global_seq, task.attempts) for task in engine.in_flight])
            await engine.report(TaskReport(completed=[task.task_id for task in engine.in_flight]))
            assert len(statuses) == number
        assert statuses == [[(1, 1)], [(2, 1)], [(3, 1)]]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_concurrency": 1},
        {"num_shards": 3},
        {"num_shards": 3, "strict_order": True},
        {"predicate_cel": "payload.total > 10"},
        {"predicate_cel": "payload.nested.total > 10"},
        {"handler_kind": HandlerKind.AGENT, "agent_app": "app"},
        {"debounce_ms": 3_600_000},
        {"allow_self": True},
    ],
    ids=str,
)
async def test_joined_steps_write_what_separate_steps_write(
    fields: dict[str, Any], store_url: str, tmp_path: Path, migrated_file: Path
) -> None:
    shutil.copyfile(migrated_file, tmp_path / "separate.db")
    dumps, handled = [], []
    for url, joins in ((store_url, True), (f"sqlite:{tmp_path / 'separate.db'}", False)):
        async with running(url, joins=joins) as engine:
            await engine.register(**fields)
            await engine.register("all", subject_pattern="/tape/**")
            await engine.connect(["r", "all"])
            await engine.append(draft(), draft(SUBJECTS[1], run_id="b"))
            await engine.append(draft(SUBJECTS[2]))
            await engine.append(draft(payload_json='{"total":20}', cause="r"), draft(run_id="c", tenant="t"))
            await engine.report(TaskReport(completed=[engine.in_flight[0].task_id]))
            await engine.append(draft(payload_json='{"nested":{"total":20}}', run_id="d"))
            handled.append(engine.handled)
            await engine.matcher.close()  # it writes its positions
            dumps.append(await engine.database.read(dump))
    assert dumps[0] == dumps[1]
    assert sorted(handled[0]) == sorted(handled[1])


OPERATIONS = st.one_of(
    st.tuples(st.just("append"), st.lists(st.sampled_from(range(len(SUBJECTS))), min_size=1, max_size=3)),
    st.tuples(st.just("complete"), st.just([])),
    st.tuples(st.just("fail"), st.just([])),
    st.tuples(st.just("release"), st.just([])),
    st.tuples(st.just("window"), st.lists(st.integers(0, 3), min_size=1, max_size=1)),
)


@settings(max_examples=EXAMPLES // 2)
@given(
    operations=st.lists(OPERATIONS, min_size=1, max_size=10),
    fields=st.fixed_dictionaries(
        {"max_concurrency": st.integers(1, 4), "num_shards": st.integers(1, 2), "strict_order": st.booleans()}
    ),
)
def test_whatever_happens_joined_steps_do_what_separate_steps_do(
    operations: list[tuple[str, list[int]]], fields: dict[str, Any], migrated_file: Path
) -> None:
    async def play(folder: Path, *, joins: bool) -> tuple[list[int], list[str]]:
        shutil.copyfile(migrated_file, folder / "tape.db")
        async with running(f"sqlite:{folder / 'tape.db'}", joins=joins) as engine:
            await engine.register(**fields)
            await engine.connect(window=2)
            number = 0
            for name, values in operations:
                oldest = engine.in_flight[0].task_id if engine.in_flight else ""
                if name == "append":
                    await engine.append(*(draft(SUBJECTS[value], run_id=f"run-{value}") for value in values))
                    number += len(values)
                elif name == "window":
                    engine.set_window(values[0])
                    await engine.rest()
                elif name == "complete" and oldest:
                    await engine.report(TaskReport(completed=[oldest]))
                elif name == "fail" and oldest:
                    await engine.report(TaskReport(failed=[TaskFailure(oldest, "no", permanent=True)]))
                elif name == "release" and oldest:
                    await engine.report(TaskReport(released=[oldest]))
            await engine.matcher.close()
            return engine.handled, await engine.database.read(dump)

    async def play_both() -> None:
        results = []
        for joins in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                results.append(await play(Path(folder), joins=joins))
        assert results[0] == results[1]

    asyncio.run(play_both())


async def test_an_append_succeeds_when_its_step_fails_and_the_matcher_makes_the_task(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = matcher_steps.advance_partitions, 0

    def fail_once(tx: Transaction, step: Any, claim_round: Any = None) -> StepResult | None:
        nonlocal failures
        done = real(tx, step, claim_round)
        if not failures and step.result.matches:
            failures += 1
            raise StoreError("the table of tasks cannot be written")
        return done

    async with running(store_url) as engine:
        await engine.register()
        await engine.connect()
        monkeypatch.setattr(matcher_steps, "advance_partitions", fail_once)
        await engine.append(draft())
        await until(lambda: engine.matcher.position == 1)
        await engine.rest()
        await engine.append(draft())
        assert failures == 1
        assert await engine.sources() == [1, 2]
        assert [task.attempts for task in engine.in_flight] == [1, 1]


async def test_entries_of_another_server_that_come_before_are_not_passed_over(store_url: str) -> None:
    async with running(store_url) as engine, open_database(store_url) as other:
        await engine.register()
        await engine.connect()
        elsewhere = Journal(other)
        for number in range(5):
            await elsewhere.append([draft()])
            await engine.journal.append([draft()])  # most likely before the first one is known here
            await until(lambda number=number: engine.hub.head == 2 * number + 2)  # type: ignore[misc]
            await engine.rest()
        assert await engine.sources() == list(range(1, 11))
        assert sorted(engine.handled) == list(range(1, 11))


@pytest.mark.parametrize(("predicate", "errors"), [("payload.total > 10", 0), ("payload.nested.total > 10", 1)])
async def test_a_predicate_is_evaluated_once_for_an_entry(store_url: str, predicate: str, errors: int) -> None:
    async with running(store_url) as engine:
        await engine.register(predicate_cel=predicate)
        await engine.connect()
        await engine.append(draft())
        assert engine.database.metrics.evaluated._value.get() == 1
        await engine.matcher.close()  # it writes its errors
        rows = await engine.database.read(lambda reader: reader.query("SELECT errors FROM tape_reaction_cursors"))
        assert rows == [(errors,)]


async def test_many_entries_are_left_to_the_matcher(store_url: str) -> None:
    count = MAX_INLINE + 1
    async with running(store_url) as engine:
        await engine.register()
        await engine.connect(window=100)
        await engine.append(*(draft() for _ in range(count)))
        assert sorted(engine.handled) == list(range(1, count + 1))


async def test_tasks_that_no_dispatcher_waits_for_are_made_and_stay_pending(store_url: str) -> None:
    async with running(store_url) as engine:
        await engine.register()
        await engine.register("other", subject_pattern="/tape/invoice/**")
        await engine.connect(["r"])
        await engine.append(draft(SUBJECTS[2]))
        rows = await engine.database.read(
            lambda reader: reader.query("SELECT reaction_id, status, lease_owner FROM tape_tasks")
        )
        assert rows == [("other", 1, "")]
        assert engine.in_flight == []


async def test_while_a_claim_round_is_in_progress_a_task_waits_for_the_next_one(store_url: str) -> None:
    async with running(store_url) as engine:
        await engine.register()
        await engine.connect()
        await engine.broker._round_lock.acquire()
        await until(lambda: engine.database._started_writer._piggyback is not None)
        await engine.journal.append([draft()])
        await until(lambda: engine.matcher.position == 1)
        assert await engine.sources() == [1]
        assert engine.session.deliveries.empty()
        engine.broker._round_lock.release()
        await until(lambda: not engine.session.deliveries.empty())
        await engine.rest()
        assert [(task.source_global_seq, task.attempts) for task in engine.in_flight] == [(1, 1)]
