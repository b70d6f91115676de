"""Writes the records of a subscription task: through a server's HTTP API, or directly into the store.

Both write each record once, however often a range of offsets is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from tape.base import structs
from tape.engine.executions.execute import ExecuteRequest, checked_request
from tape.engine.executions.offsets import OffsetRange, OffsetRecord, Outcome, checked_range, execute_range
from tape.errors import ApiRefused, InvalidInput, ServerUnreachable, TapeError
from tape.model.dispatch_result import RunDispatchResult
from tape.model.entry import checked
from tape.pipeline.batch_writer import transact
from tape.subscriptions.api_client import Control
from tape.subscriptions.dispatch.http import REFUSALS
from tape.subscriptions.events import SubscriptionEvent


class PendingRecord(NamedTuple):
    """A record at an offset: the request for its execution as JSON, or the dead letter that replaces it."""

    offset: int
    execution: bytes
    dead_letter: SubscriptionEvent | None = None


class WriteResult(NamedTuple):
    """The status of each record, the first offset that was not written, and why writing stopped there."""

    statuses: list[str]
    end: int
    reason: str = ""
    # The code of the error that it stopped with.
    code: str = ""


class RecordWriter(Protocol):
    """Writes records in the order of their offsets, up to the first that is rejected."""

    def write(self, offsets: OffsetRange, records: Sequence[PendingRecord]) -> WriteResult:
        """Write a range of offsets. Raises a TapeError if the result is unknown: the range can be written again."""

    def close(self) -> None:
        """Close the connection."""


class ServerRecordWriter:
    """Writes through a server, with `POST /api/taken`."""

    def __init__(self, url: str, token: str) -> None:
        self._control = Control(url, token)

    def write(self, offsets: OffsetRange, records: Sequence[PendingRecord]) -> WriteResult:
        """Write a range in one request; if the server rejects the request as a whole, in two halves."""
        body = {**msgspec.structs.asdict(offsets), "records": [_to_json(record) for record in records]}
        try:
            response = self._control.call("POST", "/api/taken", body)
        except ApiRefused as error:
            if error.http_status not in REFUSALS:
                raise ServerUnreachable(f"the server answers {error.http_status}: {error}") from error
            if len(records) > 1:
                return self._write_halves(offsets, records)
            if not records:
                raise
            return WriteResult(["refused"], records[0].offset, str(error), error.error_code)
        results = response["results"]
        refused: dict[str, object] = next((each for each in results if each["status"] == "refused"), {})
        reason, code = str(refused.get("error", "")), str(refused.get("code", ""))
        return WriteResult([each["status"] for each in results], response["end"], reason, code)

    def close(self) -> None:
        self._control.close()

    def _write_halves(self, offsets: OffsetRange, records: Sequence[PendingRecord]) -> WriteResult:
        middle = len(records) // 2
        edge = records[middle].offset
        first = self.write(msgspec.structs.replace(offsets, end=edge), records[:middle])
        if first.end < edge:
            statuses = [*first.statuses, *["held"] * (len(records) - middle)]
            return WriteResult(statuses, first.end, first.reason, first.code)
        second = self.write(msgspec.structs.replace(offsets, begin=edge), records[middle:])
        return WriteResult([*first.statuses, *second.statuses], second.end, second.reason, second.code)


class StoreRecordWriter:
    """Writes into the store as the server does, for clusters whose executors would overload one server."""

    def __init__(self, store: str) -> None:
        self._store = store

    def write(self, offsets: OffsetRange, records: Sequence[PendingRecord]) -> WriteResult:
        """Write a range in one transaction."""
        checked_range(offsets, [record.offset for record in records])
        decoded = [_decode(record) for record in records]
        result = transact(self._store, lambda tx: execute_range(tx, offsets, decoded))
        refused = next((each for each in result.outcomes if isinstance(each, TapeError)), None)
        reason, code = ("", "") if refused is None else (str(refused), refused.code)
        return WriteResult([_status(outcome) for outcome in result.outcomes], result.end, reason, code)

    def close(self) -> None:
        """Nothing to close: every transaction has a connection of its own."""


def _to_json(record: PendingRecord) -> dict[str, object]:
    if record.dead_letter is not None:
        return {"offset": record.offset, "letter": record.dead_letter.record()}  # vocabulary: a field of the API
    return {"offset": record.offset, "execution": msgspec.Raw(record.execution)}


def _decode(record: PendingRecord) -> OffsetRecord:
    try:
        if record.dead_letter is not None:
            return OffsetRecord(record.offset, checked(record.dead_letter.draft()))
        request = structs.decode(record.execution, ExecuteRequest)
        return OffsetRecord(record.offset, checked_request(request))
    except TapeError as error:
        return OffsetRecord(record.offset, error)
    except (msgspec.DecodeError, RecursionError) as error:
        return OffsetRecord(record.offset, InvalidInput(f"the request cannot be read: {error}."))


def _status(outcome: Outcome) -> str:
    if isinstance(outcome, RunDispatchResult):
        return outcome.outcome
    return "refused" if isinstance(outcome, TapeError) else outcome
