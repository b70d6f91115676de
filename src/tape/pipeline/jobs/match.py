"""`match`: a reaction over entries that came before it, as tasks, each once.

Executors match, the driver writes: the tasks of a stretch and how far it has come are one transaction. A debounce
counts in the time of the entries. What still waits in it when the job is killed is read again; `written` is the last
entry that has its task, so that no task is written twice, not even one that was done and removed meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from tape.archive.location import resolve_url
from tape.engine.reactions import backfill
from tape.engine.reactions.matches import Match
from tape.engine.reactions.reaction import Reaction
from tape.engine.reactions.registry import matched_by_servers
from tape.engine.reactions.simulation import Fired, Rehearsal
from tape.errors import InvalidReaction
from tape.pipeline.batches import transact
from tape.pipeline.checkpoints import Checkpoint, find_checkpoint, save_checkpoint
from tape.pipeline.job_context import Running
from tape.pipeline.journal_batches import ask_patiently
from tape.pipeline.options import read_options, resolve_store
from tape.pipeline.reaction_search import search
from tape.pipeline.selection import entries_of
from tape.pipeline.source import JournalReader
from tape.store import Reader, Transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSION = 1
ROUND_ENTRIES = 200_000
# Tasks that are written in one transaction: servers wait that long only.
STEP_TASKS = 2_000
_DEFINITION = ("subject_pattern", "predicate_cel", "debounce_ms", "allow_self", "num_shards")


class Backfilled(msgspec.Struct):
    """What a backfill has done so far: up to where, what it made, and what it left out and why."""

    after: int
    until: int
    # The last entry that has been read, and the last that has its task.
    seen: int = 0
    written: int = 0
    matched: int = 0
    tasks: int = 0
    runs: int = 0
    debounced: int = 0
    own_work: int = 0
    known: int = 0
    errors: int = 0
    last_error: str = ""


def match(
    spark: SparkSession,
    store: str,
    name: str,
    running: Running,
    *,
    since: str = "earliest",
    until: str = "",
    lake: str = "",
    checkpoint: str = "",
    round_entries: int = ROUND_ENTRIES,
) -> Backfilled:
    """Make tasks of what the reaction of that id or name would have fired on between two places.

    Without `until` it ends where servers began to match the reaction. A checkpoint that is done is done.
    """
    store, lake = resolve_store(store), resolve_url(lake) if lake else ""
    transact(store, lambda tx: None)  # an old database is told to migrate before anything is read
    reaction = ask_patiently(store, lambda reader: backfill.named(reader, name))
    options = {"reaction": reaction.reaction_id, "from": since, "to": until, "lake": lake}
    options |= {field: getattr(reaction, field) for field in _DEFINITION}
    place = Checkpoint("match", checkpoint or reaction.reaction_id, VERSION, options, 0)
    found = ask_patiently(store, lambda reader: find_checkpoint(reader, place))
    if found is None:
        after, end = _extent(spark, store, reaction, since, until, lake)
        found = place.at(after, msgspec.to_builtins(Backfilled(after, end, after, after)))
        transact(store, lambda tx: save_checkpoint(tx, found))
    return _Backfill(spark, store, reaction, lake, found).run(running, round_entries)


def _extent(spark: SparkSession, store: str, reaction: Reaction, since: str, until: str, lake: str) -> tuple[int, int]:
    """Where the backfill begins and ends: never beyond what servers have matched, for the rest is theirs."""
    live = ask_patiently(store, lambda reader: matched_by_servers(reader, reaction.reaction_id))
    given = {"store": store, "startingOffsets": since, "endingOffsets": until or "latest"}
    options = read_options(given | ({"lake": lake} if lake else {}), streaming=False)
    parts = JournalReader(options, ("global_seq",)).partitions()
    if not parts:
        return live.first, live.first
    after, end = parts[0].value[0], parts[-1].value[1]
    if options.where:  # times in an archive are found by looking at its entries
        reader = spark.read.format("tape").schema("global_seq long").options(**given, lake=lake)
        found = reader.load().agg(F.min("global_seq").alias("first"), F.max("global_seq").alias("last")).first()
        if found is None or found["first"] is None:
            return live.first, live.first
        after, end = found["first"] - 1, found["last"]
    if until and end > live.first:
        raise InvalidReaction(
            f"--to {until} is entry {end}, but servers have matched {reaction.reaction_id!r} up to {live.first} only,"
            " and will match the rest themselves. Leave --to out, or give an earlier place."
        )
    if not until:
        end = min(end, live.began if live.began >= 0 else live.first)
    return min(after, end), end


class _Backfill:
    """One backfill of one process."""

    def __init__(self, spark: SparkSession, store: str, reaction: Reaction, lake: str, checkpoint: Checkpoint) -> None:
        self._spark, self._store, self._reaction, self._lake = spark, store, reaction, lake
        self._checkpoint = checkpoint
        self._state = msgspec.convert(checkpoint.state, Backfilled)
        self._watch = backfill.alone(reaction).watches[reaction.reaction_id]
        self._rehearsal: Rehearsal[Match] = Rehearsal(reaction.debounce_ms)
        self._round = Backfilled(0, 0)
        self._covered = ask_patiently(store, lambda reader: backfill.Covered(reader, reaction.reaction_id))

    def run(self, running: Running, round_entries: int) -> Backfilled:
        """Go on to the end, or until told to stop."""
        position, until = self._checkpoint.position, self._state.until
        while position < until and not running.is_stopping:
            started, seen = time.monotonic(), self._state.seen
            # What was read before the job was killed is read again, but not counted again.
            end = seen if position < seen else until
            after, position = position, min(position + round_entries, end)
            fired = [one for match in self._found(after, position) for one in self._play(match)]
            if position == until:
                fired += self._rehearsal.rest()
            self._write(fired, position)
            running.told(position - after, position, until, time.monotonic() - started)
        return self._state

    def _found(self, after: int, until: int) -> Iterator[Match]:
        """The matches of a stretch, in order, without what the reaction caused itself."""
        frame = search(self._spark, self._store, self._reaction, since=str(after), until=str(until), lake=self._lake)
        table = frame.toArrow().sort_by("global_seq").combine_chunks()
        self._round = Backfilled(after, until)
        for batch in table.to_batches(STEP_TASKS):
            self._round.errors += sum(batch.column("errors").to_pylist())
            errors = (text for text in batch.column("error").to_pylist() if text)
            self._round.last_error = next(errors, self._round.last_error)
            shards = batch.column("shard").to_pylist()
            matches = [
                Match(self._watch, shard, entry)
                for entry, shard in zip(entries_of(batch), shards, strict=True)
                if entry.global_seq > 0
            ]
            fires = self._without_own_work(matches)
            self._round.matched += len(matches)
            self._round.own_work += len(matches) - len(fires)
            yield from fires

    def _without_own_work(self, matches: list[Match]) -> list[Match]:
        def ask(reader: Reader) -> list[Match]:
            return backfill.without_own_work(reader, matches)

        return ask_patiently(self._store, ask) if matches else []

    def _play(self, match: Match) -> Iterator[Fired[Match]]:
        if match in self._covered:
            self._round.known += 1
            return iter(())
        return self._rehearsal.add(match, match.entry.subject, match.entry.ts_ms)

    def _write(self, fired: list[Fired[Match]], position: int) -> None:
        """Write what fired, in steps; with the last one goes how far the journal was read, and what was counted."""
        written = self._state.written
        fired = [one for one in fired if one.newest.entry.global_seq > written]
        for start in range(0, len(fired), STEP_TASKS):
            self._write_step(fired[start : start + STEP_TASKS])
        state = self._state
        if position > state.seen:
            state.seen = position
            for name in ("matched", "own_work", "known", "errors"):
                setattr(state, name, getattr(state, name) + getattr(self._round, name))
            state.last_error = self._round.last_error or state.last_error
        # What waits in a debounce is read again by whoever goes on from here.
        waiting = (one.first.entry.global_seq - 1 for one in self._rehearsal.waiting)
        self._checkpoint = self._checkpoint.at(min([position, *waiting]), msgspec.to_builtins(state))
        transact(self._store, lambda tx: save_checkpoint(tx, self._checkpoint))

    def _write_step(self, fired: list[Fired[Match]]) -> None:
        state = self._state
        written = fired[-1].newest.entry.global_seq
        debounced = state.debounced + sum(one.coalesced for one in fired)

        def write(tx: Transaction) -> Backfilled:
            made = backfill.write(tx, self._reaction, fired)
            after = msgspec.structs.replace(
                state,
                written=written,
                debounced=debounced,
                tasks=state.tasks + made.tasks,
                runs=state.runs + made.runs,
                known=state.known + made.known,
            )
            save_checkpoint(tx, self._checkpoint.at(self._checkpoint.position, msgspec.to_builtins(after)))
            return after

        self._state = transact(self._store, write)


if __name__ == "__main__":
    from tape.pipeline.jobs.command import main

    main("match")
