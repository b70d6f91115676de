"""The Spark task of a subscription: turns rows of `format("tape-messages")` into executions and writes them.

Routing and planning are the code that the live runtime uses.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from tape.base import structs
from tape.base.owner import process_name
from tape.base.retry import RetryPolicy
from tape.brokers.source import Delivery
from tape.engine.executions.offsets import OffsetRange
from tape.errors import SubscriptionHeld, TapeError
from tape.pipeline.record_writers import PendingRecord, RecordWriter, WriteResult
from tape.subscriptions import events
from tape.subscriptions.dispatch.holds import CONFIGURATION_ERRORS
from tape.subscriptions.dispatch.http import BATCH_BYTES, EMITTER
from tape.subscriptions.dispatch.request import request_of
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.events import SubscriptionEvent, SubscriptionRef
from tape.subscriptions.message import SourceMessage, kept_fields, message_of
from tape.subscriptions.routing import Plan, resolve

REPORT_SCHEMA = "report string"
# A rejected record is retried after 0.5 s, 1 s, 2 s and 4 s. The four retries are per task, not per record: further
# rejected records become dead letters at once.
REJECTION_RETRY = RetryPolicy(max_attempts=5, initial_interval_s=0.5)

_encode = msgspec.json.Encoder().encode


class ExecutionReport(msgspec.Struct):
    """Counts of tasks. An earlier attempt has written the `known` records. `stuck` is why a task stopped.

    `is_held`: because the configuration of the subscription lets no run start.
    """

    received: int = 0
    started: int = 0
    duplicates: int = 0
    known: int = 0
    refusals: int = 0
    dead: int = 0
    requests: int = 0
    applied: dict[str, int] = {}
    stuck: str = ""
    is_held: bool = False

    def add(self, other: ExecutionReport) -> None:
        """Add the counts of another report."""
        for name in ("received", "started", "duplicates", "known", "refusals", "dead", "requests"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.applied = dict(Counter(self.applied) + Counter(other.applied))
        self.stuck = other.stuck or self.stuck
        self.is_held = other.is_held or self.is_held


class PlannedExecution(NamedTuple):
    """A message, its plan, and the request for its execution as JSON."""

    offset: int
    message: SourceMessage
    plan: Plan
    execution: bytes


@dataclass(frozen=True)
class SubscriptionTask:
    """The function that Spark runs on each partition. `open_writer` is called on the executor."""

    subscription: Subscription
    ref: SubscriptionRef
    open_writer: Callable[[], RecordWriter]
    retry: RetryPolicy = REJECTION_RETRY

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of a partition; yield one row with the report."""
        report = ExecutionReport()
        writer = self.open_writer()
        try:
            TaskAttempt(self, writer, report).write(row for batch in batches for row in batch.to_pylist())
        except SubscriptionHeld as error:
            report.stuck, report.is_held = str(error), True
        except TapeError as error:
            report.stuck = f"{type(error).__name__}: {error}"
        finally:
            writer.close()
        yield pa.RecordBatch.from_arrays([pa.array([_encode(report).decode()], pa.string())], names=["report"])

    def plan(self, row: dict[str, Any], worker_id: str) -> PlannedExecution:
        """Route a row and build the request for its execution."""
        delivery = Delivery(
            message_id=row["message_id"],
            body=row["body"],
            receipt="",
            headers=[(header["name"], header["value"]) for header in row["headers"]],
            metadata=msgspec.json.decode(row["metadata"]),
            ordering_key=row["ordering_key"],
        )
        message = message_of(self.subscription.spec.source, delivery)
        plan = resolve(self.subscription, message)
        return PlannedExecution(row["offset"], message, plan, _encode(request_of(self.ref, plan, EMITTER, worker_id)))


class TaskAttempt:
    """One run of the task: batches records, writes them in order, and dead-letters records that stay rejected."""

    def __init__(self, task: SubscriptionTask, writer: RecordWriter, report: ExecutionReport) -> None:
        self._task = task
        self._writer = writer
        self._report = report
        self._max_records = task.subscription.spec.batch_max
        self._worker_id = process_name()
        self._retries = 0

    def write(self, rows: Iterator[dict[str, Any]]) -> None:
        """Write all rows. The rows of one range of offsets are contiguous."""
        pending: list[PlannedExecution] = []
        current: tuple[str, int, int] | None = None
        begin = size = 0
        for row in rows:
            found = (row["part"], row["stretch_begin"], row["stretch_end"])  # vocabulary: columns of tape-messages
            record = self._task.plan(row, self._worker_id)
            if current is not None and found != current:
                self._write_range(current[0], begin, current[2], pending)
                pending = []
            elif (
                current
                and (len(pending) >= self._max_records or size + len(record.execution) > BATCH_BYTES)
                and pending
            ):
                # Offsets without a message, up to this record, belong to the range.
                self._write_range(current[0], begin, record.offset, pending)
                begin, size, pending = record.offset, 0, []
            if found != current:
                current, begin, size = found, found[1], 0
            pending.append(record)
            size += len(record.execution)
            self._report.received += 1
        if current is not None:
            self._write_range(current[0], begin, current[2], pending)

    def _is_full(self, records: int, size: int) -> bool:
        return records >= self._max_records or size > BATCH_BYTES

    def _write_range(self, part: str, begin: int, end: int, pending: list[PlannedExecution]) -> None:
        """Write until the range is complete; a record that stays rejected is replaced by a dead letter."""
        attempts: Counter[int] = Counter()
        dead_letters: dict[int, SubscriptionEvent] = {}
        while begin < end:
            offsets = OffsetRange(self._task.subscription.path, part, begin, end)
            offered = [PendingRecord(each.offset, each.execution, dead_letters.get(each.offset)) for each in pending]
            result = self._writer.write(offsets, offered)
            self._count(pending, result)
            begin = result.end
            pending = [each for each in pending if each.offset >= begin]
            if begin == end:
                return
            refused = pending[0]
            if result.code in CONFIGURATION_ERRORS:
                raise SubscriptionHeld(result.reason)  # no property of the message: it stays at its source
            attempts[refused.offset] += 1
            if refused.offset in dead_letters:
                dead_letters[refused.offset] = self._without_body(refused, dead_letters[refused.offset], result.reason)
            elif self._retries < self._task.retry.max_attempts - 1:
                self._retries += 1
                time.sleep(self._task.retry.delay(self._retries))
            else:
                dead_letters[refused.offset] = self._dead_letter(refused, attempts[refused.offset], result.reason)

    def _count(self, pending: list[PlannedExecution], result: WriteResult) -> None:
        report = self._report
        report.requests += 1
        for record, status in zip(pending, result.statuses, strict=True):
            report.started += status == "started"
            report.duplicates += status == "duplicate"
            report.known += status == "taken"
            report.refusals += status == "refused"
            report.dead += status == "told"  # vocabulary: a status of the API
            for applied in record.plan.applied if status == "started" else ():
                report.applied[applied.controls] = report.applied.get(applied.controls, 0) + 1

    def _dead_letter(self, record: PlannedExecution, attempts: int, reason: str) -> SubscriptionEvent:
        message = kept_fields(record.message, self._task.subscription.spec.headers)
        event = events.dead_lettered(
            self._task.ref,
            record.message.message_id,
            0,
            "",
            attempts,
            f"refused: {reason}",
            message=message,
            emitter=EMITTER,
        )
        return events.stamped(event, self._worker_id)

    def _without_body(self, record: PlannedExecution, dead_letter: SubscriptionEvent, reason: str) -> SubscriptionEvent:
        """Remove the body from a rejected dead letter; raise if it has none. The message stays at the source."""
        message = dead_letter.context["message"]
        if message["data"] is None:
            raise TapeError(f"message {record.message.message_id} cannot be dead-lettered: {reason}")
        kept = {**message, "data": None, "bytes": len(record.message.body or b"")}
        return msgspec.structs.replace(dead_letter, context={**dead_letter.context, "message": kept})


def sum_reports(reports: list[str]) -> ExecutionReport:
    """Sum the reports of all tasks."""
    found = ExecutionReport()
    for text in reports:
        found.add(structs.decode(text, ExecutionReport))
    return found
