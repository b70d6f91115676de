"""`/api/taken`: start executions of records that are read by offset, each exactly once; and the consumed ranges."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tape.engine.executions.execute import MAX_BATCH
from tape.engine.executions.offsets import (
    OffsetRange,
    OffsetRecord,
    Outcome,
    checked_range,
    execute_range,
    executed_ranges,
)
from tape.errors import InvalidInput, TapeError
from tape.journal.journal import Journal
from tape.model.dispatch_result import RunDispatchResult
from tape.model.entry import check_payload, checked
from tape.model.tenant_names import qualify
from tape.server.http.execute import RUN_OVERHEAD_BYTES, read_request
from tape.server.http.internal import MAX_BODY_BYTES, answer, decode
from tape.server.http.request_bodies import read_body
from tape.server.http.subscriptions import EventBody, draft_of


class RecordBody(msgspec.Struct):
    """The record at an offset: an execution as for `/api/execute`, or its dead letter."""

    offset: int
    execution: msgspec.Raw = msgspec.Raw(b"")
    dead_letter: EventBody | None = msgspec.field(default=None, name="letter")  # vocabulary: name on the wire


class OffsetRangeBody(msgspec.Struct):
    """An offset range of a partition, with its records in the order of their offsets."""

    subscription: str
    part: str
    begin: int
    end: int
    records: list[RecordBody] = []


class OffsetRoutes:
    """Routes of consumed offset ranges."""

    def __init__(self, journal: Journal) -> None:
        self._database = journal.database
        self._max_bytes = journal.max_payload_bytes
        self._outcomes = journal.database.metrics.executes

    async def take(self, request: Request) -> Response:
        """Start executions of new records, in order and in one commit, up to the first rejected one."""
        content = await read_body(request, MAX_BODY_BYTES)
        body: OffsetRangeBody = decode(content or b"{}", OffsetRangeBody)
        if len(body.records) > MAX_BATCH:
            raise InvalidInput(f"{len(body.records)} records exceed the {MAX_BATCH} of one request.")
        subscription = qualify(body.subscription)
        offsets = OffsetRange(subscription, body.part, body.begin, body.end)
        checked_range(offsets, [record.offset for record in body.records])
        records = [self._read(subscription, record) for record in body.records]
        size = len(content) + RUN_OVERHEAD_BYTES * len(records)
        took = await self._database.write(lambda tx: execute_range(tx, offsets, records), size)
        results = [
            {"offset": record.offset, **self._shown(outcome)}
            for record, outcome in zip(records, took.outcomes, strict=True)
        ]
        return answer({"end": took.end, "results": results})

    async def show(self, request: Request) -> Response:
        """The consumed ranges of each partition of a subscription's source, as pairs (first offset, next offset)."""
        subscription = qualify(request.query_params.get("subscription", ""))
        if not subscription:
            raise InvalidInput("the parameter subscription is missing: /api/taken?subscription=PATH.")
        return answer({"parts": await self._database.read(lambda reader: executed_ranges(reader, subscription))})

    def _read(self, subscription: str, record: RecordBody) -> OffsetRecord:
        try:
            if record.dead_letter is None:
                return OffsetRecord(record.offset, read_request(record.execution, self._max_bytes))
            draft = checked(draft_of(record.dead_letter, subscription))
            check_payload(draft.payload_json, self._max_bytes)
            return OffsetRecord(record.offset, draft)
        except TapeError as error:
            return OffsetRecord(record.offset, error)

    def _shown(self, outcome: Outcome) -> dict[str, Any]:
        if isinstance(outcome, RunDispatchResult):
            self._outcomes.labels("batch", "new" if outcome.outcome == "started" else "duplicate").inc()
            return {"status": outcome.outcome, "execution_id": outcome.run_id}
        if isinstance(outcome, TapeError):
            self._outcomes.labels("batch", "error").inc()
            return {"status": "refused", "error": str(outcome), "code": outcome.code}
        return {"status": outcome}
