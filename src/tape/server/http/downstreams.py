"""Outcomes of runs for runtimes: by downstream, for their circuits, and by execution, for acknowledgement."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tape.engine.executions.outcomes import read_outcomes
from tape.errors import InvalidInput
from tape.model.entry import check_id
from tape.model.run_outcome import MAX_OUTCOMES
from tape.model.tenant_names import qualify
from tape.server.http.internal import answer, read_request
from tape.store import Database
from tape.subscriptions.dispatch.in_server import WriterDownstreams
from tape.subscriptions.dispatch.outcomes import RELEASED_AT_ONCE, ResumedRun


class DownstreamRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What to do with a downstream of a subscription. `read` needs no name; `limit` is for `release`.

    `may_repeat` is for `probe`: whether the task that was the last probe may be the next one."""

    subscription: str
    action: Literal["read", "hold", "probe", "release"] = "read"
    name: str = ""
    limit: int = RELEASED_AT_ONCE
    may_repeat: bool = True


class DownstreamRoutes:
    """The route of downstreams."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def act(self, request: Request) -> Response:
        """Read the counts of a subscription, or hold, probe or release one of its downstreams."""
        wanted = await read_request(request, DownstreamRequest)
        check_id("subscription", wanted.subscription)
        check_id("name", wanted.name)
        if not wanted.subscription:
            raise InvalidInput("subscription is empty; name the path of a subscription.")
        if wanted.action != "read" and not wanted.name:
            raise InvalidInput(f"name is empty; {wanted.action} needs the name of a downstream.")
        if not 1 <= wanted.limit <= RELEASED_AT_ONCE:
            raise InvalidInput(f"limit {wanted.limit} must lie between 1 and {RELEASED_AT_ONCE}.")
        downstreams = WriterDownstreams(self._database, qualify(wanted.subscription))
        resumed: list[ResumedRun] = []
        match wanted.action:
            case "hold":
                await downstreams.hold(wanted.name)
            case "probe":
                if (run := await downstreams.probe(wanted.name, may_repeat=wanted.may_repeat)) is not None:
                    resumed = [run]
            case "release":
                resumed = await downstreams.release(wanted.name, wanted.limit)
            case "read":
                pass
        return answer(
            {
                "downstreams": {name: counts._asdict() for name, counts in (await downstreams.read()).items()},
                "resumed": [_resumed(each) for each in resumed],
            }
        )


class OutcomesRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Which executions of a subscription: up to 1,000."""

    subscription: str
    execution_ids: list[str]


class OutcomeRoutes:
    """The route of outcomes of executions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, request: Request) -> Response:
        """Whether executions of a subscription have ended, and how; those that do not exist are left out."""
        wanted = await read_request(request, OutcomesRequest)
        check_id("subscription", wanted.subscription)
        if not wanted.subscription:
            raise InvalidInput("subscription is empty; name the path of a subscription.")
        if len(wanted.execution_ids) > MAX_OUTCOMES:
            raise InvalidInput(f"execution_ids has {len(wanted.execution_ids)} elements; send {MAX_OUTCOMES} at most.")
        for each in wanted.execution_ids:
            check_id("execution_ids", each)
        path = qualify(wanted.subscription)
        found = await self._database.read(lambda reader: read_outcomes(reader, path, wanted.execution_ids))
        return answer({"outcomes": [{"execution_id": each, **outcome._asdict()} for each, outcome in found.items()]})


def _resumed(run: ResumedRun) -> dict[str, Any]:
    return {"execution_id": str(run.execution_id), "message_id": run.message_id}
