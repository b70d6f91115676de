"""`fanout`: publishes entries to a sink from many tasks in parallel, at least once, each run in order.

After a crash, the last round is published again; a receiver that deduplicates on the event id sees each entry once,
as with the relay. The position is a checkpoint in the store.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec

from tape.base import structs
from tape.base.retry import UNLIMITED, Backoff, RetryPolicy
from tape.errors import FanoutBlocked
from tape.journal.appender import read_head
from tape.pipeline.batch_writer import transact
from tape.pipeline.checkpoints import Checkpoint, find_checkpoint, save_checkpoint
from tape.pipeline.dead_letters import DeadLetterWriter
from tape.pipeline.fanout_task import publish_round
from tape.pipeline.job_context import JobContext
from tape.pipeline.journal_reader import query_store
from tape.pipeline.options import resolve_store, shown
from tape.sinks.dead_letters import Policy, check_location
from tape.sinks.names import open_sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSION = 1
ROUND_ENTRIES = 100_000
PAUSE_S = 1.0
RETRY = RetryPolicy(max_attempts=UNLIMITED, initial_interval_s=1.0, max_interval_s=30.0)


class FanoutTotals(msgspec.Struct):
    """The totals of a named fan-out since its first start."""

    entries: int = 0
    retries: int = 0
    skipped: int = 0
    dead_letters: int = 0


def sink_opener(text: str, *, headers: list[str], secret: str, allow_private: bool) -> Callable[[], Any]:
    """Return a picklable function that opens the sink of a URL."""
    return partial(open_sink, text, headers=headers, secret=secret, allow_private=allow_private, concurrency=1)


def checked_policy(policy: str, dead_letter: str, subject: str) -> Policy:
    """Return the policy if it is valid with this dead-letter target and subject. Raises InvalidInput."""
    check_location(policy, dead_letter, subject)
    return cast(Policy, policy)


def fanout(
    spark: SparkSession,
    store: str,
    name: str,
    opener: Callable[[], Any],
    context: JobContext,
    *,
    target: str = "",
    subject: str = "",
    where: str = "",
    policy: Policy = "block",
    dead_letter: str = "",
    from_now: bool = False,
    tenant_ids: bool = False,
    follow: bool = False,
    round_entries: int = ROUND_ENTRIES,
) -> FanoutTotals:
    """Publish the entries after the checkpoint of this name; return its totals. `from_now` applies to a new name.

    `opener` is called in every task and must be picklable. With `tenant_ids` event ids name the tenant. With the policy
    `block`, a rejected entry is retried with `follow`; without it, the job ends with FanoutBlocked.
    """
    store = resolve_store(store)
    dead_letter_target = check_location(policy, dead_letter, subject)
    options = {"sink": shown(target), "subject": subject, "where": where}
    if tenant_ids:
        options["tenant_ids"] = "true"
    transact(store, lambda tx: None)  # fails before anything is read if the schema is outdated
    wanted = Checkpoint("fanout", name, VERSION, options, 0)
    checkpoint = query_store(store, lambda reader: find_checkpoint(reader, wanted))
    if checkpoint is None:
        head = query_store(store, read_head)
        checkpoint = begun = wanted.at(head.global_seq if from_now else head.oldest - 1)
        transact(store, lambda tx: save_checkpoint(tx, begun))
    state, backoff = structs.convert(checkpoint.state, FanoutTotals), Backoff(RETRY)
    writer = DeadLetterWriter(store, name, dead_letter_target)
    while not context.is_stopping:
        after = checkpoint.position
        head = query_store(store, read_head)
        until = min(head.global_seq, after + round_entries)
        if after >= until:
            if not follow:
                break
            context.wait(PAUSE_S)
            continue
        started = time.monotonic()
        reader = spark.read.format("tape").option("store", store).option("subject", subject).option("where", where)
        entries = reader.option("startingOffsets", after).option("endingOffsets", until).load()
        done = publish_round(entries, opener, policy, tenant_ids=tenant_ids)
        # Tasks publish in journal order: everything before the first stuck entry was published.
        position = min([until, *(number - 1 for number, _ in done.stuck)])
        dead_letters = [(number, text) for number, text in done.dead_letters if number <= position]
        writer.write(dead_letters, after)
        state.entries += done.published
        state.retries += done.retries
        if policy == "skip":
            state.skipped += len(dead_letters)
        else:
            state.dead_letters += len(dead_letters)
        checkpoint = checkpoint.at(position, msgspec.to_builtins(state))
        transact(store, partial(save_checkpoint, checkpoint=checkpoint))
        context.report_progress(position - after, position, head.global_seq, time.monotonic() - started)
        context.report_count("retries", done.retries)
        what = "skipped" if policy == "skip" else "dead letters"
        context.report_count(what, len(dead_letters), dead_letters[-1][1] if dead_letters else "")
        if not done.stuck:
            backoff.reset()
            continue
        context.report_count("blocked", len(done.stuck), done.stuck[0][1])
        if not follow:
            raise FanoutBlocked(
                f"The sink rejects {done.stuck[0][1].rstrip('.')}. The checkpoint is before that entry, at {position}."
            )
        backoff.wait(stop=context)
    return state


if __name__ == "__main__":
    from tape.pipeline.jobs.command import main

    main("fanout")
