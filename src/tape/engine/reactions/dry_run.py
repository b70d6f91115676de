"""Dry runs: which entries of a range of the journal a pattern and a predicate would match."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import msgspec

from tape.cel import compile_predicate
from tape.engine.predicate_budget import QUERY, PredicateBudget
from tape.errors import InvalidInput
from tape.journal.reader import SubjectCursor, read_start, select_visible
from tape.model.entry import Entry
from tape.model.gap import JournalGap
from tape.model.principal import current_principal
from tape.store import Database

HOUR_MS = 3_600_000
DEFAULT_SAMPLES = 5
MAX_SAMPLES = 100
MAX_BUCKETS = 10_000
MAX_GAPS = 100


class DryRun(msgspec.Struct):
    """The result of a dry run: the range, the number of matches per bucket, and samples."""

    from_global_seq: int
    to_global_seq: int
    matched: int = 0
    errors: int = 0
    last_error: str = ""
    buckets: dict[int, int] = msgspec.field(default_factory=dict)
    samples: list[Entry] = msgspec.field(default_factory=list)
    # The first gaps that were met, and how many numbers of the range all of them have.
    gaps: list[JournalGap] = msgspec.field(default_factory=list)
    missed: int = 0

    @property
    def examined(self) -> int:
        """How many entries of the range can be read."""
        return self.to_global_seq - self.from_global_seq - self.missed

    def pass_gaps(self, gaps: Sequence[JournalGap]) -> None:
        """Leave out the numbers of gaps."""
        for gap in gaps:
            first, last = max(gap.first, self.from_global_seq + 1), min(gap.last, self.to_global_seq)
            if first <= last:
                self.missed += last - first + 1
                self.gaps += [gap] if len(self.gaps) < MAX_GAPS else []


async def dry_run_reaction(
    database: Database,
    budget: PredicateBudget,
    subject_pattern: str,
    predicate_cel: str = "",
    *,
    from_global_seq: int = 0,
    to_global_seq: int = 0,
    samples: int = 0,
    bucket_ms: int = 0,
) -> DryRun:
    """Match every entry after one global_seq up to another (0: the oldest, the head) that the caller sees.

    Nothing is written. The CPU time of the predicate is charged to the caller's tenant; a dry run without budget waits,
    and ends with PredicateOverBudget if the predicate takes more than 1 ms per entry on average.
    """
    if not 0 <= samples <= MAX_SAMPLES:
        raise InvalidInput(f"samples {samples} must lie between 0 and {MAX_SAMPLES}; 0 means {DEFAULT_SAMPLES}.")
    if bucket_ms < 0:
        raise InvalidInput(f"bucket_ms {bucket_ms} must not be negative; 0 means an hour.")
    width = bucket_ms or HOUR_MS
    predicate = await asyncio.to_thread(compile_predicate, predicate_cel)
    account = budget.open(QUERY, current_principal().tenant, f"dry run with predicate {predicate_cel[:200]!r}")
    head, start = await database.read(lambda reader: read_start(reader, from_global_seq))
    end = min(to_global_seq or head.global_seq, head.global_seq)
    if end < start:
        raise InvalidInput(f"to_global_seq {to_global_seq} lies before from_global_seq {from_global_seq}.")
    result = DryRun(start, end)
    newest: deque[Entry] = deque(maxlen=samples or DEFAULT_SAMPLES)
    cursor = SubjectCursor(select_visible(current_principal(), subject_pattern))
    position = start
    unevaluated: list[Entry] = []
    while position < end or unevaluated:
        await account.wait()
        if not unevaluated:
            found = await database.read(lambda reader: cursor.read(reader, position))  # noqa: B023
            position = found.position
            result.pass_gaps(found.gaps)
            unevaluated = [entry for entry in found.entries if entry.global_seq <= end]
        evaluations = budget.evaluations(QUERY)
        matching, done = await asyncio.to_thread(evaluations.filter, account, predicate, unevaluated)
        evaluations.close()
        unevaluated = unevaluated[done:]
        for entry in matching:
            result.matched += 1
            newest.append(entry)
            bucket = entry.ts_ms - entry.ts_ms % width
            result.buckets[bucket] = result.buckets.get(bucket, 0) + 1
            if len(result.buckets) > MAX_BUCKETS:
                raise InvalidInput(
                    f"bucket_ms {width} divides this range into more than {MAX_BUCKETS} buckets; use a larger one."
                )
    result.errors = predicate.errors
    result.last_error = str(predicate.last_error) if predicate.errors else ""
    result.samples = list(newest)
    return result
