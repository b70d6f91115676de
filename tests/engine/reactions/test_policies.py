"""The numbers behind the limits, for any input: retries, rates, debounce and order."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tape.engine.reactions import claims, registry, tasks
from tape.engine.reactions.claims import ClaimRequest
from tape.engine.reactions.compiled import CompiledReaction, Shard
from tape.engine.reactions.enqueue import enqueue
from tape.engine.reactions.matches import Match
from tape.engine.reactions.reaction import Reaction, check_reaction
from tape.engine.reactions.tasks import TaskFailure, TaskReport
from tape.model.entry import Entry
from tape.model.reaction_states import HandlerKind
from tape.model.task_pacing import MAX_BACKOFF_MS, backoff_ms, pace
from tape.store import Transaction, open_database

EXAMPLES = settings.default.max_examples  # more of them in proofs

T = TypeVar("T")


@given(base=st.integers(1, MAX_BACKOFF_MS), attempts=st.integers(1, 10_000), random_share=st.floats(0, 1))
def test_a_retry_never_comes_before_the_doubling_nor_after_an_hour(
    base: int, attempts: int, random_share: float
) -> None:
    wait = backoff_ms(base, attempts, random_share)
    assert min(base * 2 ** min(attempts - 1, 20), MAX_BACKOFF_MS) <= wait <= MAX_BACKOFF_MS
    assert backoff_ms(base, attempts, 0) <= wait


def test_the_first_retries_after_a_second_come_after_one_two_four_and_eight() -> None:
    assert [backoff_ms(1_000, attempt, 0) for attempt in (1, 2, 3, 4)] == [1_000, 2_000, 4_000, 8_000]


@pytest.mark.parametrize("rate", [1, 3, 7, 9, 11, 300, 999, 10_000])
def test_the_first_may_come_at_once_whatever_the_rate(rate: int) -> None:
    assert all(pace(rate, 0, 1_763_000_000_000_000 + moment, 1)[0] == 1 for moment in range(1_000))


@given(
    rate=st.integers(1, 10_000),
    begin=st.sampled_from([1_000_000, 1_763_000_000_000_000]),
    asks=st.lists(st.tuples(st.integers(0, 400_000), st.integers(1, 50)), min_size=1, max_size=60),
)
def test_in_any_second_no_more_is_handed_out_than_the_rate_and_a_small_burst(
    rate: int, begin: int, asks: list[tuple[int, int]]
) -> None:
    now, state = begin, 0
    handed: list[tuple[int, int]] = []
    for pause_us, wanted in asks:
        now += pause_us
        allowed, after, again = pace(rate, state, now, wanted)
        assert 0 <= allowed <= wanted
        if allowed:
            state = after
            handed.append((now, allowed))
        if allowed < wanted:
            assert pace(rate, state, max(again, now), 1)[0] == 1, "it may be asked again when it says"
    for start, _ in handed:
        within = sum(number for at, number in handed if start <= at < start + 1_000_000)
        assert within <= rate + max(rate * 0.1, 1) + 1


def entry(global_seq: int, subject: str, run_id: str) -> Entry:
    return Entry(
        global_seq, run_id, global_seq, "order", subject, f'{{"n":{global_seq}}}', 1, "", "", "", 1_000, "", "", "", b""
    )


def in_a_database(work: Callable[[Transaction], T]) -> T:
    """Run something in one transaction of an empty database."""

    async def run() -> T:
        with tempfile.TemporaryDirectory() as folder:
            async with open_database(f"sqlite:{Path(folder) / 'tape.db'}") as database:
                return await database.write(work)

    return asyncio.run(run())


@settings(max_examples=EXAMPLES // 4)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("entry"), st.integers(0, 2)),
            st.tuples(st.just("pass"), st.integers(1, 150)),
            st.just(("claim", 0)),
        ),
        max_size=30,
    )
)
def test_a_debounce_hands_out_the_last_of_each_subject_after_its_time_and_forgets_none(
    steps: list[tuple[str, int]],
) -> None:
    debounce = 100

    def play(tx: Transaction) -> None:
        wanted = Reaction("r", "", "**", "", HandlerKind.TASK, max_concurrency=1_000, debounce_ms=debounce)
        reaction = registry.register(tx, check_reaction(wanted))
        watch = CompiledReaction(reaction, {0: Shard(0, 0, False)})
        now, number = 1_000_000, 0
        open_entries: dict[str, list[int]] = {}
        last_at: dict[str, int] = {}
        handed: list[int] = []

        def claim() -> None:
            for task in claims.claim_tasks(tx, ClaimRequest("r", "w", max=1_000), now).tasks:
                entries = open_entries.pop(task.subject)
                assert (task.source_global_seq, task.first_global_seq) == (entries[-1], entries[0])
                assert task.coalesced == len(entries) - 1
                assert now >= last_at[task.subject] + debounce
                handed.extend(entries)

        for what, value in steps:
            if what == "pass":
                now += value
            elif what == "claim":
                claim()
            else:
                number += 1
                subject = f"/tape/order/paid/{value}"
                enqueue(tx, [Match(watch, 0, entry(number, subject, "run"))], now)
                open_entries.setdefault(subject, []).append(number)
                last_at[subject] = now
        now += debounce
        claim()
        assert sorted(handed) == list(range(1, number + 1))

    in_a_database(play)


@settings(max_examples=EXAMPLES // 4)
@given(
    runs=st.lists(st.integers(0, 5), min_size=1, max_size=25),
    outcomes=st.lists(st.sampled_from(["done", "failed", "vanished"]), min_size=5, max_size=60),
    num_shards=st.integers(1, 4),
    free_slots=st.integers(1, 5),
)
def test_in_strict_order_a_shard_is_worked_off_one_by_one_in_the_order_of_the_journal(
    runs: list[int], outcomes: list[str], num_shards: int, free_slots: int
) -> None:
    def play(tx: Transaction) -> None:
        wanted = Reaction(
            "r", "", "**", "", HandlerKind.TASK, max_concurrency=free_slots, num_shards=num_shards, strict_order=True
        )
        reaction = registry.register(tx, check_reaction(wanted))
        watch = CompiledReaction(reaction, {shard: Shard(0, 0, False) for shard in range(num_shards)})
        now = 1_000_000
        matches = [
            Match(watch, run % num_shards, entry(number, f"/tape/order/paid/{run}", f"run-{run}"))
            for number, run in enumerate(runs, start=1)
        ]
        enqueue(tx, matches, now)
        settled: dict[int, list[int]] = {shard: [] for shard in range(num_shards)}
        expected = {
            shard: [match.entry.global_seq for match in matches if match.shard == shard] for shard in range(num_shards)
        }
        for outcome in [*outcomes, *["done"] * 200]:
            claimed = claims.claim_tasks(tx, ClaimRequest("r", "w", lease_ms=1_000, max=10), now).tasks
            assert len(claimed) <= min(free_slots, num_shards)
            assert len({task.shard for task in claimed}) == len(claimed), "one of a shard at a time"
            note_dead_letters(tx, settled, runs)
            for task in claimed:
                waiting = [number for number in expected[task.shard] if number not in settled[task.shard]]
                assert task.source_global_seq == waiting[0], "nothing overtakes"
                if outcome == "done":
                    tasks.settle_tasks(tx, "w", TaskReport(completed=[task.task_id]), now)
                elif outcome == "failed":
                    tasks.settle_tasks(tx, "w", TaskReport(failed=[TaskFailure(task.task_id, "no")]), now)
                found = tasks.get(tx, task.task_id)
                if found.status in (tasks.DONE, tasks.DLQ):
                    settled[task.shard].append(task.source_global_seq)
            now += 3_700_000  # every lease has run out, every retry is due
        assert settled == expected

    in_a_database(play)


def note_dead_letters(tx: Transaction, settled: dict[int, list[int]], runs: list[int]) -> None:
    """A dead letter is settled too: what follows it may go on."""
    for (number,) in tx.query("SELECT source_global_seq FROM tape_tasks WHERE status = 5 ORDER BY 1"):
        shard = settled[runs[number - 1] % len(settled)]
        if number not in shard:
            shard.append(number)
