"""A trial: what a pattern and a predicate would have fired on over a stretch of the journal."""

from __future__ import annotations

from collections import deque

import msgspec

from tape.cel import compile_predicate
from tape.errors import InvalidInput
from tape.journal.appender import read_head
from tape.journal.reader import Selection, SubjectCursor, checked_cursor
from tape.model.entry import Entry
from tape.model.pattern import Pattern
from tape.store import Database

HOUR_MS = 3_600_000
DEFAULT_SAMPLES = 5
MAX_SAMPLES = 100
MAX_BUCKETS = 10_000


class Trial(msgspec.Struct):
    """What was looked at and what would have fired."""

    from_global_seq: int
    to_global_seq: int
    matched: int = 0
    errors: int = 0
    last_error: str = ""
    buckets: dict[int, int] = msgspec.field(default_factory=dict)
    samples: list[Entry] = msgspec.field(default_factory=list)

    @property
    def examined(self) -> int:
        """How many entries the stretch has."""
        return self.to_global_seq - self.from_global_seq


async def try_out(
    database: Database,
    subject_pattern: str,
    predicate_cel: str = "",
    *,
    from_global_seq: int = 0,
    to_global_seq: int = 0,
    samples: int = 0,
    bucket_ms: int = 0,
) -> Trial:
    """Judge every entry after one and up to another (0: the oldest, the head). Nothing is written."""
    if not 0 <= samples <= MAX_SAMPLES:
        raise InvalidInput(f"samples {samples} must lie between 0 and {MAX_SAMPLES}; 0 means {DEFAULT_SAMPLES}.")
    if bucket_ms < 0:
        raise InvalidInput(f"bucket_ms {bucket_ms} must not be negative; 0 means an hour.")
    width = bucket_ms or HOUR_MS
    predicate = compile_predicate(predicate_cel)
    head = await database.read(read_head)
    start = checked_cursor(from_global_seq, head)
    end = min(to_global_seq or head.global_seq, head.global_seq)
    if end < start:
        raise InvalidInput(f"to_global_seq {to_global_seq} lies before from_global_seq {from_global_seq}.")
    trial = Trial(start, end)
    newest: deque[Entry] = deque(maxlen=samples or DEFAULT_SAMPLES)
    cursor = SubjectCursor(Selection(Pattern(subject_pattern)))
    position = start
    while position < end:
        found = await database.read(lambda reader: cursor.read(reader, position))  # noqa: B023
        for entry in found.entries:
            if entry.global_seq > end or not predicate.matches(entry):
                continue
            trial.matched += 1
            newest.append(entry)
            bucket = entry.ts_ms - entry.ts_ms % width
            trial.buckets[bucket] = trial.buckets.get(bucket, 0) + 1
            if len(trial.buckets) > MAX_BUCKETS:
                raise InvalidInput(
                    f"bucket_ms {width} cuts this stretch into more than {MAX_BUCKETS} pieces; use a larger one."
                )
        position = found.position
    trial.errors = predicate.errors
    trial.last_error = str(predicate.last_error) if predicate.errors else ""
    trial.samples = list(newest)
    return trial
