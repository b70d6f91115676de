"""Where a task hands its records over: to a server over HTTP, or straight to the store. Both take each record once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from tape.engine.executions.execute import ExecuteRequest, checked_request
from tape.engine.executions.offsets import OffsetRange, OffsetRecord, Outcome, checked_range, execute_range
from tape.errors import ApiRefused, InvalidInput, ServerUnreachable, TapeError
from tape.model.dispatch_result import RunDispatchResult
from tape.model.entry import checked
from tape.pipeline.batches import transact
from tape.subscriptions.api_client import Control
from tape.subscriptions.dispatch.http import REFUSALS
from tape.subscriptions.events import SubscriptionEvent


class Offered(NamedTuple):
    """A record: its offset, and the execution that it asks for as JSON, or the dead letter that stands for it."""

    offset: int
    execution: bytes
    letter: SubscriptionEvent | None = None


class Answer(NamedTuple):
    """What became of records, one word each, up to where the stretch is taken, and why not further."""

    statuses: list[str]
    end: int
    reason: str = ""


class Outlet(Protocol):
    """Takes records in the order of their offsets, up to the first that is refused."""

    def take(self, stretch: OffsetRange, records: Sequence[Offered]) -> Answer:
        """Take a stretch. Raises a TapeError when nobody could say: it can be handed over again, as a whole."""

    def close(self) -> None:
        """Let go of what was opened."""


class ServerOutlet:
    """Hands over to a server, through `POST /api/taken`."""

    def __init__(self, url: str, token: str) -> None:
        self._control = Control(url, token)

    def take(self, stretch: OffsetRange, records: Sequence[Offered]) -> Answer:
        """Take a stretch in one request; if the server does not take it as a whole, in smaller ones."""
        body = {**msgspec.structs.asdict(stretch), "records": [_body(record) for record in records]}
        try:
            said = self._control.call("POST", "/api/taken", body)
        except ApiRefused as error:
            if error.http_status not in REFUSALS:
                raise ServerUnreachable(f"the server answers {error.http_status}: {error}") from error
            if len(records) > 1:
                return self._in_halves(stretch, records)
            if not records:
                raise
            return Answer(["refused"], records[0].offset, str(error))
        results = said["results"]
        reason = next((str(each["error"]) for each in results if each["status"] == "refused"), "")
        return Answer([each["status"] for each in results], said["end"], reason)

    def close(self) -> None:
        self._control.close()

    def _in_halves(self, stretch: OffsetRange, records: Sequence[Offered]) -> Answer:
        middle = len(records) // 2
        edge = records[middle].offset
        first = self.take(msgspec.structs.replace(stretch, end=edge), records[:middle])
        if first.end < edge:
            return Answer([*first.statuses, *["held"] * (len(records) - middle)], first.end, first.reason)
        second = self.take(msgspec.structs.replace(stretch, begin=edge), records[middle:])
        return Answer([*first.statuses, *second.statuses], second.end, second.reason)


class StoreOutlet:
    """Writes into the store itself, as the server would: for where many executors are more than its door can serve."""

    def __init__(self, store: str) -> None:
        self._store = store

    def take(self, stretch: OffsetRange, records: Sequence[Offered]) -> Answer:
        """Take a stretch in one transaction."""
        checked_range(stretch, [record.offset for record in records])
        read = [_read(record) for record in records]
        took = transact(self._store, lambda tx: execute_range(tx, stretch, read))
        reason = next((str(each) for each in took.outcomes if isinstance(each, TapeError)), "")
        return Answer([_word(outcome) for outcome in took.outcomes], took.end, reason)

    def close(self) -> None:
        """Every transaction has a connection of its own."""


def _body(record: Offered) -> dict[str, object]:
    if record.letter is not None:
        return {"offset": record.offset, "letter": record.letter.record()}
    return {"offset": record.offset, "execution": msgspec.Raw(record.execution)}


def _read(record: Offered) -> OffsetRecord:
    try:
        if record.letter is not None:
            return OffsetRecord(record.offset, checked(record.letter.draft()))
        request = msgspec.json.decode(record.execution, type=ExecuteRequest)
        return OffsetRecord(record.offset, checked_request(request))
    except TapeError as error:
        return OffsetRecord(record.offset, error)
    except (msgspec.DecodeError, RecursionError) as error:
        return OffsetRecord(record.offset, InvalidInput(f"the request cannot be read: {error}."))


def _word(outcome: Outcome) -> str:
    if isinstance(outcome, RunDispatchResult):
        return outcome.outcome
    return "refused" if isinstance(outcome, TapeError) else outcome
