"""A simulation predicts exactly what matching, enqueueing and claiming do, for any history."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tape.engine.reactions import claims, registry, tasks
from tape.engine.reactions.backfill import index_reaction, match_all
from tape.engine.reactions.claims import ClaimRequest
from tape.engine.reactions.enqueue import enqueue
from tape.engine.reactions.matches import Match
from tape.engine.reactions.reaction import Reaction, check_reaction
from tape.engine.reactions.simulation import QueueMonitor, QueueStatistics, Simulation
from tape.engine.reactions.tasks import TaskReport
from tape.model.entry import Entry
from tape.model.reaction_states import HandlerKind
from tape.store import Transaction, open_database


class Lived(msgspec.Struct):
    """What really happened: the tasks by their last and first entry, how many went in, and how the queue stood."""

    tasks: list[tuple[int, int, int]]
    queue: QueueStatistics


def reaction(**fields: object) -> Reaction:
    """A reaction that nothing but its own limits holds up."""
    defaults = {"subject_pattern": "/tape/order/**", "predicate_cel": "", "max_concurrency": 100_000}
    return check_reaction(Reaction("r", "", handler_kind=HandlerKind.TASK, **(defaults | fields)))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database to play in; nothing stays there."""
    return f"sqlite:{tmp_path_factory.mktemp('stage') / 'tape.db'}"


def live(stage: str, wanted: Reaction, history: Sequence[Entry]) -> Lived:
    """Play a history through the matcher's and the dispatchers' own functions, with a clock of its own."""

    def play(tx: Transaction) -> Lived:
        registered = registry.register(tx, wanted)
        catalog = index_reaction(registered)
        handed: list[tuple[int, int, int]] = []
        waits: list[tuple[int, int]] = []
        again = 0

        def ask(now: int) -> None:
            nonlocal again
            claimed = claims.claim_tasks(tx, ClaimRequest("r", "w", max=claims.MAX_AT_ONCE), now)
            tasks.settle_tasks(tx, "w", TaskReport(completed=[task.task_id for task in claimed.tasks]), now)
            for task in claimed.tasks:
                handed.append((task.source_global_seq, task.first_global_seq, task.coalesced))
                waits.append((task.next_attempt_at_ms, now))
            again = claimed.next_check_at_ms

        def run_to(now: float) -> None:
            while again and again <= now:
                ask(again)

        for entry in history:
            run_to(entry.ts_ms)
            ask(entry.ts_ms)
            if found := match_all(catalog, [entry]).matches:
                enqueue(tx, found, entry.ts_ms)
            ask(entry.ts_ms)
        run_to(float("inf"))
        return Lived(handed, queue_of(waits))

    class Undone(Exception):
        pass

    async def run() -> Lived:
        lived: list[Lived] = []

        def play_and_undo(tx: Transaction) -> None:
            lived.append(play(tx))
            raise Undone

        async with open_database(stage) as database:
            with contextlib.suppress(Undone):
                await database.write(play_and_undo)
        return lived[0]

    return asyncio.run(run())


def queue_of(waits: Sequence[tuple[int, int]]) -> QueueStatistics:
    """How a queue stood whose members were due and were handed out at these times, counted one by one."""
    held = [(due, at) for due, at in waits if at > due]
    lengths = {due: sum(since <= due < at for since, at in held) for due, _ in held}
    longest = max(lengths.values(), default=0)
    first = min((due for due, length in lengths.items() if length == longest), default=0)
    return QueueStatistics(len(held), max((at - due for due, at in held), default=0), longest, first)


def history(steps: Sequence[tuple[int, int]], start_ms: int = 1_000_000) -> list[Entry]:
    """Entries from pauses in ms and numbers that say what they are about."""
    entries, now = [], start_ms
    for number, (pause, what) in enumerate(steps, start=1):
        now += pause
        subject = f"/tape/{'order' if what < 4 else 'refund'}/paid/{what}"
        payload = f'{{"n": {number}}}'
        run = f"run-{what}"
        entries.append(
            Entry(
                number,
                run,
                number,
                subject.split("/")[2],
                subject,
                payload,
                1,
                "",
                "",
                "",
                now,
                f"t{what}",
                "",
                "",
                b"",
            )
        )
    return entries


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(st.sampled_from([0, 1, 7, 40, 100, 101, 600]), st.integers(0, 5)), max_size=40),
    debounce_ms=st.sampled_from([0, 1, 100, 500]),
    rate=st.sampled_from([0, 1, 3, 7, 10, 25, 400]),
)
def test_a_simulation_predicts_what_really_happens(
    stage: str, steps: list[tuple[int, int]], debounce_ms: int, rate: int
) -> None:
    wanted = reaction(debounce_ms=debounce_ms, rate_limit_per_s=rate, predicate_cel="payload.n % 5 != 0")
    entries = history(steps)
    lived = live(stage, wanted, entries)
    simulation: Simulation[Match] = Simulation(debounce_ms, rate)
    counting, fired = QueueMonitor(), []
    for match in match_all(index_reaction(wanted), entries).matches:
        fired += simulation.add(match, match.entry.subject, match.entry.ts_ms)
    fired += simulation.release_all()
    for one in fired:
        counting.observe(one.due_ms, one.at_ms)
    predicted = [(one.newest.entry.global_seq, one.first.entry.global_seq, one.coalesced) for one in fired]
    assert sorted(predicted) == sorted(lived.tasks)
    assert counting.queue == lived.queue
