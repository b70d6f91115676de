"""Delivers the dead letters of a relay again: only a relay has the sink, so `tape relay --redrive` does it.

The message and its event id are those of the first attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tape.client import TapeClient
from tape.errors import InvalidInput
from tape.model.message import TenantEntry
from tape.model.subject import normalize
from tape.proto import tape_pb2 as pb
from tape.sinks.batch_publisher import BatchPublisher
from tape.sinks.dead_letters import dead_letter_of, write_dead_letters
from tape.sinks.metrics import RelayMetrics

BATCH = 512
# A file is renamed while its dead letters are delivered, so that a running relay can go on writing to it.
MOVED = ".redriving"


class DeadEntry(msgspec.Struct, frozen=True):
    """An entry as its dead letter has it."""

    run_id: str
    seq: int
    kind: str
    payload_json: str
    ts_ms: int
    global_seq: int
    subject: str
    schema_version: int = 1
    trace_id: str = ""
    span_id: str = ""
    tenant: str | None = None


class Redriven(NamedTuple):
    """What became of dead letters: delivered, rejected again, or not deliverable (its entry is gone)."""

    delivered: int = 0
    rejected: int = 0
    unreadable: int = 0

    def plus(self, other: Redriven) -> Redriven:
        """The sum of two."""
        return Redriven(*map(sum, zip(self, other, strict=True)))


def redrive_dead_letters(url: str, sink: Any, location: str, metrics: RelayMetrics | None = None) -> Redriven:
    """Deliver the dead letters of a file or subject to a sink, in their order. Those that it rejects again stay.

    Any other error of the sink is raised, and what was not delivered stays. If this is interrupted, some may be
    delivered twice: receivers deduplicate on the event id.
    """
    metrics = metrics or RelayMetrics()
    if location.startswith("/tape/"):
        with TapeClient(url) as client:
            return _redrive_subject(client, sink, normalize(location), metrics)
    return _redrive_file(sink, Path(location), metrics)


def _redrive_file(sink: Any, file: Path, metrics: RelayMetrics) -> Redriven:
    moved = file.with_name(file.name + MOVED)
    if not moved.exists() and not file.exists():
        raise InvalidInput(f"There is no file {file}; name the file of the relay's --dead-letter.")
    total = Redriven()
    if moved.exists():  # an earlier command was killed
        total = _deliver_file(sink, moved, file, metrics)
    if file.exists() and not total.rejected + total.unreadable:
        file.replace(moved)
        total = total.plus(_deliver_file(sink, moved, file, metrics))
    return total


def _deliver_file(sink: Any, moved: Path, file: Path, metrics: RelayMetrics) -> Redriven:
    """Deliver the dead letters of a renamed file. What stays goes back before the file is deleted."""
    total, settled = Redriven(), 0
    try:
        for lines in _batches(moved):
            decoded = [(line, _decode(line)) for line in lines]
            entries = [entry for _, entry in decoded if entry is not None]
            unreadable = [line for line, entry in decoded if entry is None]
            errors = _publish(sink, entries, metrics)
            rejected = [
                dead_letter_of(entry, errors[entry.global_seq]) for entry in entries if entry.global_seq in errors
            ]
            if rejected or unreadable:
                write_dead_letters(str(file), rejected + unreadable)
            settled += len(lines)
            total = total.plus(Redriven(len(entries) - len(rejected), len(rejected), len(unreadable)))
    except BaseException:
        for lines in _batches(moved, skip=settled):
            write_dead_letters(str(file), lines)
        moved.unlink()
        raise
    moved.unlink()
    return total


def _redrive_subject(client: TapeClient, sink: Any, subject: str, metrics: RelayMetrics) -> Redriven:
    """Deliver the entries that the dead letters of a subject name, as the journal has them.

    Their copies in the dead letters are not used: a caller that may write to the subject could have forged one.
    """
    total, open_numbers, head = Redriven(), _find_open(client), client.head()
    if not open_numbers:
        return total
    for batch in client.follow_batches(subject, from_global_seq=min(open_numbers) - 1, skip_gaps=True):
        for dead_letter in batch.entries:
            if dead_letter.global_seq not in open_numbers or dead_letter.subject != subject:
                continue
            entry = _find_original(client, dead_letter)
            if entry is None:
                total = total.plus(Redriven(unreadable=1))
            elif _publish(sink, [TenantEntry(entry) if head.several_tenants else entry], metrics):
                total = total.plus(Redriven(rejected=1))
            else:
                client.drop_dead_letters(ids=[f"relay/{dead_letter.global_seq}"], reason="redriven by the relay")
                total = total.plus(Redriven(delivered=1))
        if batch.position >= head.global_seq:
            break
    return total


def _find_original(client: TapeClient, dead_letter: Any) -> Any:
    """The entry that a dead letter names; None if it is not in the journal, or is another one."""
    dead = _decode(dead_letter.payload_json)
    if dead is None or not 0 < dead.global_seq < dead_letter.global_seq:
        return None
    for batch in client.follow_batches(from_global_seq=dead.global_seq - 1, skip_gaps=True):
        for entry in batch.entries:
            if entry.global_seq == dead.global_seq and (entry.run_id, entry.seq) == (dead.run_id, dead.seq):
                return entry
        if batch.position >= dead.global_seq:
            break
    return None


def _find_open(client: TapeClient) -> set[int]:
    """The numbers of the dead letters in the journal that are neither redriven nor dropped."""
    found: set[int] = set()
    cursor = ""
    while True:
        page = client.list_dead_letters(filter=pb.DeadLetterFilter(origins=["relay"]), cursor=cursor, limit=1_000)
        found.update(int(each.id.removeprefix("relay/")) for each in page.dead_letters)
        cursor = page.next_cursor
        if not cursor:
            return found


class _Rejections:
    """Takes the entries that the sink rejects again."""

    policy = "dead_letter"
    is_blocking = False

    def __init__(self) -> None:
        self.errors: dict[int, Exception] = {}

    def dead_letter(self, entry: Any, error: Exception) -> None:
        """Keep the error of an entry."""
        self.errors[entry.global_seq] = error


def _publish(sink: Any, entries: Sequence[Any], metrics: RelayMetrics) -> dict[int, Exception]:
    """Publish entries; the errors of those that the sink rejects, by global_seq. Raises any other error."""
    rejections = _Rejections()
    error, _ = BatchPublisher(sink, rejections, metrics).publish(list(entries))
    if error is not None:
        raise error
    return rejections.errors


def _batches(path: Path, skip: int = 0) -> Iterator[list[str]]:
    """The lines of a file that are not empty, in batches, without the first `skip` of them."""
    with path.open(encoding="utf-8", errors="replace") as file:
        lines = islice((line.rstrip("\n") for line in file if line.strip()), skip, None)
        while batch := list(islice(lines, BATCH)):
            yield batch


def _decode(text: str) -> Any:
    """The entry of a dead letter; None if the text is none."""
    try:
        entry = msgspec.json.decode(text, type=DeadEntry)
    except (msgspec.DecodeError, RecursionError):
        return None
    return entry if entry.tenant is None else TenantEntry(entry)
