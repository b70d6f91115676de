"""`match`: creates the tasks of a reaction for entries that are older than the reaction, each once.

Executors match, the driver writes: the tasks of a round and its checkpoint are one transaction. A debounce uses the
time of the entries; after a crash, matches that were waiting in it are read again. `written` is the last entry whose
task was created, so that no task is created twice, not even one that has completed and was deleted meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as F  # noqa: N812  (the usual name)

from tape.archive.location import resolve_url
from tape.base import structs
from tape.engine.reactions import backfill
from tape.engine.reactions.matches import Match
from tape.engine.reactions.reaction import Reaction
from tape.engine.reactions.registry import read_matched_range
from tape.engine.reactions.simulation import SimulatedTask, Simulation
from tape.errors import InvalidReaction
from tape.pipeline.batch_writer import transact
from tape.pipeline.checkpoints import Checkpoint, find_checkpoint, save_checkpoint
from tape.pipeline.job_context import JobContext
from tape.pipeline.journal_reader import query_store
from tape.pipeline.journal_source import JournalReader
from tape.pipeline.options import read_options, resolve_store
from tape.pipeline.reaction_search import search
from tape.pipeline.selection import entries_of
from tape.store import Reader, Transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSION = 1
ROUND_ENTRIES = 200_000
# Tasks per transaction. Other writers wait for one transaction at most.
STEP_TASKS = 2_000
_DEFINITION = ("subject_pattern", "predicate_cel", "debounce_ms", "allow_self", "num_shards")


class BackfillTotals(msgspec.Struct):
    """The totals of a backfill: its range, the tasks and runs it created, and the matches it skipped, by reason."""

    after: int
    until: int
    # The last entry that was read, and the last whose task was created.
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
    context: JobContext,
    *,
    since: str = "earliest",
    until: str = "",
    lake: str = "",
    checkpoint: str = "",
    round_entries: int = ROUND_ENTRIES,
) -> BackfillTotals:
    """Create the tasks of a reaction, by id or name, for a range of the journal; return the totals.

    Without `until`, the range ends where servers began to match the reaction. A finished backfill does nothing.
    """
    store, lake = resolve_store(store), resolve_url(lake) if lake else ""
    transact(store, lambda tx: None)  # fails before anything is read if the schema is outdated
    reaction = query_store(store, lambda reader: backfill.find_by_name(reader, name))
    options = {"reaction": reaction.reaction_id, "from": since, "to": until, "lake": lake}
    options |= {field: getattr(reaction, field) for field in _DEFINITION}
    wanted = Checkpoint("match", checkpoint or reaction.reaction_id, VERSION, options, 0)
    found = query_store(store, lambda reader: find_checkpoint(reader, wanted))
    if found is None:
        after, end = _find_range(spark, store, reaction, since, until, lake)
        found = wanted.at(after, msgspec.to_builtins(BackfillTotals(after, end, after, after)))
        transact(store, lambda tx: save_checkpoint(tx, found))
    return _Backfill(spark, store, reaction, lake, found).run(context, round_entries)


def _find_range(
    spark: SparkSession, store: str, reaction: Reaction, since: str, until: str, lake: str
) -> tuple[int, int]:
    """Return the range of the backfill. It never goes beyond what servers have matched; they match the rest."""
    live = query_store(store, lambda reader: read_matched_range(reader, reaction.reaction_id))
    given = {"store": store, "startingOffsets": since, "endingOffsets": until or "latest"}
    options = read_options(given | ({"lake": lake} if lake else {}), streaming=False)
    parts = JournalReader(options, ("global_seq",)).partitions()
    if not parts:
        return live.first, live.first
    after, end = parts[0].value[0], parts[-1].value[1]
    if options.where:  # an archive resolves a time by reading its entries
        reader = spark.read.format("tape").schema("global_seq long").options(**given, lake=lake)
        found = reader.load().agg(F.min("global_seq").alias("first"), F.max("global_seq").alias("last")).first()
        if found is None or found["first"] is None:
            return live.first, live.first
        after, end = found["first"] - 1, found["last"]
    if until and end > live.first:
        raise InvalidReaction(
            f"--to {until} is entry {end}, but servers have matched {reaction.reaction_id!r} up to {live.first} only,"
            " and will match the rest themselves. Leave --to out, or give an earlier position."
        )
    if not until:
        end = min(end, live.began if live.began >= 0 else live.first)
    return min(after, end), end


class _Backfill:
    """The backfill of one reaction."""

    def __init__(self, spark: SparkSession, store: str, reaction: Reaction, lake: str, checkpoint: Checkpoint) -> None:
        self._spark, self._store, self._reaction, self._lake = spark, store, reaction, lake
        self._checkpoint = checkpoint
        self._state = structs.convert(checkpoint.state, BackfillTotals)
        self._compiled = backfill.index_reaction(reaction).reactions[reaction.reaction_id]
        self._simulation: Simulation[Match] = Simulation(reaction.debounce_ms)
        self._round = BackfillTotals(0, 0)
        self._covered = query_store(store, lambda reader: backfill.CoveredEntries(reader, reaction.reaction_id))

    def run(self, context: JobContext, round_entries: int) -> BackfillTotals:
        """Run to the end of the range, or until the job is stopped."""
        position, until = self._checkpoint.position, self._state.until
        while position < until and not context.is_stopping:
            started, seen = time.monotonic(), self._state.seen
            # Entries that were read before a crash are read again, but not counted again.
            end = seen if position < seen else until
            after, position = position, min(position + round_entries, end)
            fired = [one for match in self._find_matches(after, position) for one in self._simulate(match)]
            if position == until:
                fired += self._simulation.release_all()
            self._write(fired, position)
            context.report_progress(position - after, position, until, time.monotonic() - started)
        return self._state

    def _find_matches(self, after: int, until: int) -> Iterator[Match]:
        """Yield the matches of a range in order, without entries that the reaction caused itself."""
        frame = search(self._spark, self._store, self._reaction, since=str(after), until=str(until), lake=self._lake)
        table = frame.toArrow().sort_by("global_seq").combine_chunks()
        self._round = BackfillTotals(after, until)
        for batch in table.to_batches(STEP_TASKS):
            self._round.errors += sum(batch.column("errors").to_pylist())
            errors = (text for text in batch.column("error").to_pylist() if text)
            self._round.last_error = next(errors, self._round.last_error)
            shards = batch.column("shard").to_pylist()
            matches = [
                Match(self._compiled, shard, entry)
                for entry, shard in zip(entries_of(batch), shards, strict=True)
                if entry.global_seq > 0
            ]
            fires = self._without_own_work(matches)
            self._round.matched += len(matches)
            self._round.own_work += len(matches) - len(fires)
            yield from fires

    def _without_own_work(self, matches: list[Match]) -> list[Match]:
        def query(reader: Reader) -> list[Match]:
            return backfill.drop_own_work(reader, matches)

        return query_store(self._store, query) if matches else []

    def _simulate(self, match: Match) -> Iterator[SimulatedTask[Match]]:
        if match in self._covered:
            self._round.known += 1
            return iter(())
        return self._simulation.add(match, (match.entry.tenant, match.entry.subject), match.entry.ts_ms)

    def _write(self, fired: list[SimulatedTask[Match]], position: int) -> None:
        """Create the tasks of what fired, in steps, then save the checkpoint with the totals."""
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
        # Matches that wait in a debounce are read again after a restart.
        waiting = (one.first.entry.global_seq - 1 for one in self._simulation.waiting)
        self._checkpoint = self._checkpoint.at(min([position, *waiting]), msgspec.to_builtins(state))
        transact(self._store, lambda tx: save_checkpoint(tx, self._checkpoint))

    def _write_step(self, fired: list[SimulatedTask[Match]]) -> None:
        state = self._state
        written = fired[-1].newest.entry.global_seq
        debounced = state.debounced + sum(one.coalesced for one in fired)

        def write(tx: Transaction) -> BackfillTotals:
            made = backfill.write_backfill(tx, self._reaction, fired)
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
