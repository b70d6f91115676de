"""`fanout`: entries to a sink from many tasks at once, each run in its own order.

At least once: a round that is killed is handed over again, and a receiver that deduplicates on
`(run_id, seq)` sees each entry once, as with the relay. The position is a checkpoint in the store.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec

from tape.errors import FanoutBlocked
from tape.journal.appender import read_head
from tape.pipeline.batches import transact
from tape.pipeline.checkpoints import Checkpoint, find_checkpoint, save_checkpoint
from tape.pipeline.dead_letters import Letters
from tape.pipeline.job_context import Running
from tape.pipeline.journal_batches import ask_patiently
from tape.pipeline.options import resolve_store, shown
from tape.pipeline.sink_task import hand_over
from tape.sinks.names import open_sink
from tape.sinks.policy import Policy, checked_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSION = 1
ROUND_ENTRIES = 100_000
PAUSE_S = 1.0
MAX_PAUSE_S = 30.0


class FannedOut(msgspec.Struct):
    """What a name has handed over so far, and what it has left out by its policy."""

    entries: int = 0
    retries: int = 0
    skipped: int = 0
    dead_letters: int = 0


def sink_named(text: str, *, headers: list[str], secret: str, allow_private: bool) -> Callable[[], Any]:
    """What opens the sink that a command names, in any process."""
    return partial(open_sink, text, headers=headers, secret=secret, allow_private=allow_private, concurrency=1)


def checked_policy(policy: str, dead_letter: str, subject: str) -> Policy:
    """The policy, if it goes with its place and the subject. Raises InvalidInput."""
    checked_place(policy, dead_letter, subject)
    return cast(Policy, policy)


def fanout(
    spark: SparkSession,
    store: str,
    name: str,
    opener: Callable[[], Any],
    running: Running,
    *,
    target: str = "",
    subject: str = "",
    where: str = "",
    policy: Policy = "block",
    dead_letter: str = "",
    from_now: bool = False,
    follow: bool = False,
    round_entries: int = ROUND_ENTRIES,
) -> FannedOut:
    """Hand over what this name has not yet; what it has handed over in all. `from_now` counts the first time only.

    `opener` is called in every task and must be picklable. With the policy `block` an entry that is not taken is
    tried again with `follow`, and ends the job without: FanoutBlocked.
    """
    store = resolve_store(store)
    place = checked_place(policy, dead_letter, subject)
    options = {"sink": shown(target), "subject": subject, "where": where}
    transact(store, lambda tx: None)  # an old database is told to migrate before anything is read
    wanted = Checkpoint("fanout", name, VERSION, options, 0)
    checkpoint = ask_patiently(store, lambda reader: find_checkpoint(reader, wanted))
    if checkpoint is None:
        head = ask_patiently(store, read_head)
        checkpoint = begun = wanted.at(head.global_seq if from_now else head.oldest - 1)
        transact(store, lambda tx: save_checkpoint(tx, begun))
    state, pause_s = msgspec.convert(checkpoint.state, FannedOut), PAUSE_S
    letters = Letters(store, name, place)
    while not running.is_stopping:
        after = checkpoint.position
        head = ask_patiently(store, read_head)
        until = min(head.global_seq, after + round_entries)
        if after >= until:
            if not follow:
                break
            running.wait(PAUSE_S)
            continue
        started = time.monotonic()
        reader = spark.read.format("tape").option("store", store).option("subject", subject).option("where", where)
        entries = reader.option("startingOffsets", after).option("endingOffsets", until).load()
        done = hand_over(entries, opener, policy)
        # Tasks work in the order of the journal: before the first that is stuck, everything was taken.
        position = min([until, *(number - 1 for number, _ in done.stuck)])
        aside = [(number, letter) for number, letter in done.aside if number <= position]
        letters.write(aside, after)
        state.entries += done.given
        state.retries += done.retries
        if policy == "skip":
            state.skipped += len(aside)
        else:
            state.dead_letters += len(aside)
        checkpoint = checkpoint.at(position, msgspec.to_builtins(state))
        transact(store, partial(save_checkpoint, checkpoint=checkpoint))
        running.told(position - after, position, head.global_seq, time.monotonic() - started)
        running.noted("retries", done.retries)
        running.noted("skipped" if policy == "skip" else "dead letters", len(aside), aside[-1][1] if aside else "")
        if not done.stuck:
            pause_s = PAUSE_S
            continue
        running.noted("blocked", len(done.stuck), done.stuck[0][1])
        if not follow:
            raise FanoutBlocked(
                f"The sink does not take {done.stuck[0][1].rstrip('.')}. The position stands before it, at {position}."
            )
        running.wait(pause_s)
        pause_s = min(pause_s * 2, MAX_PAUSE_S)
    return state


if __name__ == "__main__":
    from tape.pipeline.jobs.command import main

    main("fanout")
