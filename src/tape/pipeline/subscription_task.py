"""What a task of a subscription on Spark does: rows become envelopes, plans and executions, and are handed over.

The rows are those of `format("tape-messages")`, and everything between them and a run is what a live message meets.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from tape.base.owner import process_name
from tape.base.retry import RetryPolicy
from tape.brokers.source import Delivery
from tape.engine.executions.offsets import OffsetRange
from tape.errors import TapeError
from tape.pipeline.outlets import Answer, Offered, Outlet
from tape.subscriptions import events
from tape.subscriptions.dispatch.http import BATCH_BYTES, EMITTER
from tape.subscriptions.dispatch.request import request_of
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.events import SubscriptionEvent, SubscriptionRef
from tape.subscriptions.message import SourceMessage, message_fields, message_of
from tape.subscriptions.routing import Plan, resolve

REPORT = "report string"
# A record that is refused is tried again after 0.5 s, 1 s, 2 s and 4 s. So long a task waits in all, not each record:
# of many that are refused, those behind the first become dead letters at once.
PATIENCE = RetryPolicy(max_attempts=5, initial_interval_s=0.5)

_encode = msgspec.json.Encoder().encode


class Report(msgspec.Struct):
    """What tasks did. `known` were taken before, by an attempt that was cut short. `stuck` says why one stopped."""

    received: int = 0
    started: int = 0
    duplicates: int = 0
    known: int = 0
    refusals: int = 0
    dead: int = 0
    requests: int = 0
    applied: dict[str, int] = {}
    stuck: str = ""

    def add(self, other: Report) -> None:
        """Count what another has done, too."""
        for name in ("received", "started", "duplicates", "known", "refusals", "dead", "requests"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.applied = dict(Counter(self.applied) + Counter(other.applied))
        self.stuck = other.stuck or self.stuck


class Planned(NamedTuple):
    """A message on its way: what it is, what it becomes, and that as the request for it."""

    offset: int
    envelope: SourceMessage
    plan: Plan
    execution: bytes


@dataclass(frozen=True)
class Taking:
    """The work of a task. `opener` makes the outlet, in whichever process the task runs."""

    subscription: Subscription
    about: SubscriptionRef
    opener: Callable[[], Outlet]
    pauses: RetryPolicy = PATIENCE

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take the rows of a task; one row that reports it."""
        report = Report()
        outlet = self.opener()
        try:
            Task(self, outlet, report).take(row for batch in batches for row in batch.to_pylist())
        except TapeError as error:
            report.stuck = f"{type(error).__name__}: {error}"
        finally:
            outlet.close()
        yield pa.RecordBatch.from_arrays([pa.array([_encode(report).decode()], pa.string())], names=["report"])

    def planned(self, row: dict[str, Any], worker_id: str) -> Planned:
        """What a row becomes."""
        delivery = Delivery(
            message_id=row["message_id"],
            body=row["body"],
            receipt="",
            headers=[(header["name"], header["value"]) for header in row["headers"]],
            metadata=msgspec.json.decode(row["metadata"]),
            ordering_key=row["ordering_key"],
        )
        envelope = message_of(self.subscription.spec.source, delivery)
        plan = resolve(self.subscription, envelope)
        return Planned(row["offset"], envelope, plan, _encode(request_of(self.about, plan, EMITTER, worker_id)))


class Task:
    """One task: gathers records, hands them over in order, and puts aside what is refused for good."""

    def __init__(self, taking: Taking, outlet: Outlet, report: Report) -> None:
        self._taking = taking
        self._outlet = outlet
        self._report = report
        self._most = taking.subscription.spec.batch_max
        self._worker_id = process_name()
        self._waits = 0

    def take(self, rows: Iterator[dict[str, Any]]) -> None:
        """Hand over all rows; those of one stretch come one after the other."""
        waiting: list[Planned] = []
        place: tuple[str, int, int] | None = None
        begin = size = 0
        for row in rows:
            found = (row["part"], row["stretch_begin"], row["stretch_end"])
            record = self._taking.planned(row, self._worker_id)
            if place is not None and found != place:
                self._hand_over(place[0], begin, place[2], waiting)
                waiting = []
            elif place and (len(waiting) >= self._most or size + len(record.execution) > BATCH_BYTES) and waiting:
                # Offsets in between had no message: they are taken along.
                self._hand_over(place[0], begin, record.offset, waiting)
                begin, size, waiting = record.offset, 0, []
            if found != place:
                place, begin, size = found, found[1], 0
            waiting.append(record)
            size += len(record.execution)
            self._report.received += 1
        if place is not None:
            self._hand_over(place[0], begin, place[2], waiting)

    def _hand_over(self, part: str, begin: int, end: int, waiting: list[Planned]) -> None:
        """Hand over until all is taken; what is refused again and again goes as a dead letter, in its place."""
        tries: Counter[int] = Counter()
        letters: dict[int, SubscriptionEvent] = {}
        while begin < end:
            stretch = OffsetRange(self._taking.subscription.path, part, begin, end)
            offered = [Offered(each.offset, each.execution, letters.get(each.offset)) for each in waiting]
            answer = self._outlet.take(stretch, offered)
            self._count(waiting, answer)
            begin = answer.end
            waiting = [each for each in waiting if each.offset >= begin]
            if begin == end:
                return
            refused = waiting[0]
            tries[refused.offset] += 1
            if refused.offset in letters:
                letters[refused.offset] = self._smaller(refused, letters[refused.offset], answer.reason)
            elif self._waits < self._taking.pauses.max_attempts - 1:
                self._waits += 1
                time.sleep(self._taking.pauses.delay(self._waits))
            else:
                letters[refused.offset] = self._letter(refused, tries[refused.offset], answer.reason)

    def _count(self, waiting: list[Planned], answer: Answer) -> None:
        report = self._report
        report.requests += 1
        for record, status in zip(waiting, answer.statuses, strict=True):
            report.started += status == "started"
            report.duplicates += status == "duplicate"
            report.known += status == "taken"
            report.refusals += status == "refused"
            report.dead += status == "told"
            for applied in record.plan.applied if status == "started" else ():
                report.applied[applied.controls] = report.applied.get(applied.controls, 0) + 1

    def _letter(self, record: Planned, attempts: int, reason: str) -> SubscriptionEvent:
        headers = self._taking.subscription.spec.headers
        message = message_fields(record.envelope, headers, record.envelope.data)
        event = events.dead_lettered(
            self._taking.about,
            record.envelope.message_id,
            0,
            "",
            attempts,
            f"refused: {reason}",
            message=message,
            emitter=EMITTER,
        )
        return events.stamped(event, self._worker_id)

    def _smaller(self, record: Planned, letter: SubscriptionEvent, reason: str) -> SubscriptionEvent:
        """A dead letter without the body, which stays at the source; raises if even that is refused."""
        message = letter.context["message"]
        if message["data"] is None:
            raise TapeError(f"message {record.envelope.message_id} cannot even be told as a dead letter: {reason}")
        kept = {**message, "data": None, "bytes": len(record.envelope.body or b"")}
        return msgspec.structs.replace(letter, context={**letter.context, "message": kept})


def total(reports: list[str]) -> Report:
    """What all tasks did."""
    found = Report()
    for text in reports:
        found.add(msgspec.json.decode(text, type=Report))
    return found
