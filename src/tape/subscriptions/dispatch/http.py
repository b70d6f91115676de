"""Dispatch to a server over HTTP. `in_server` does the same inside the server's process."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from typing import Any

import msgspec

from tape.errors import ApiRefused, ServerUnreachable
from tape.model.dispatch_result import RunDispatchResult
from tape.model.run_outcome import RunOutcome
from tape.subscriptions.api_client import Control
from tape.subscriptions.dispatch.holds import CONFIGURATION_ERRORS, ConfigurationProblem, is_configuration_error
from tape.subscriptions.dispatch.outcomes import DownstreamCounts, ResumedRun
from tape.subscriptions.dispatch.request import request_of
from tape.subscriptions.events import SubscriptionRef
from tape.subscriptions.routing import Plan
from tape.subscriptions.spool.replay import batched, in_batches, in_turns, named

EMITTER = "subscription_runtime"
# Batches are split at this size; the server accepts 2 MiB.
BATCH_BYTES = 1_500_000
REPLAYED_AT_ONCE = 500
CONCURRENCY = 16
# Statuses of permanent errors: a retry cannot succeed.
REFUSALS = frozenset({400, 404, 409, 413, 422})


class ServerDownstreams:
    """The downstreams of a subscription, through `POST /api/downstreams` of a server."""

    def __init__(self, control: Control, path: str) -> None:
        self._control = control
        self._path = path

    async def read(self) -> dict[str, DownstreamCounts]:
        """The counts by name."""
        found = (await self._ask("read"))["downstreams"]
        return {name: DownstreamCounts(**counts) for name, counts in found.items()}

    async def hold(self, name: str) -> None:
        """Let the tasks of a downstream wait."""
        await self._ask("hold", name=name)

    async def probe(self, name: str, *, may_repeat: bool) -> ResumedRun | None:
        """Let one waiting task of a held downstream go."""
        runs = _resumed(await self._ask("probe", name=name, may_repeat=may_repeat))
        return runs[0] if runs else None

    async def release(self, name: str, limit: int) -> list[ResumedRun]:
        """Hold a downstream no longer, and let its waiting tasks go."""
        return _resumed(await self._ask("release", name=name, limit=limit))

    async def _ask(self, action: str, **more: Any) -> dict[str, Any]:
        body = {"subscription": self._path, "action": action, **more}
        return dict(await self._control.ask("POST", "/api/downstreams", body))


class ServerOutcomes:
    """The outcomes of the runs of a subscription, through `POST /api/executions/outcomes` of a server."""

    def __init__(self, control: Control, path: str) -> None:
        self._control = control
        self._path = path

    async def read(self, execution_ids: Sequence[int]) -> dict[int, RunOutcome]:
        """The outcomes by execution id."""
        body = {"subscription": self._path, "execution_ids": [str(each) for each in execution_ids]}
        found = (await self._control.ask("POST", "/api/executions/outcomes", body))["outcomes"]
        return {int(each["execution_id"]): RunOutcome(each["status"], each["error"]) for each in found}


def _resumed(answer: dict[str, Any]) -> list[ResumedRun]:
    return [ResumedRun(int(each["execution_id"]), each["message_id"]) for each in answer["resumed"]]


class ServerReadiness:
    """The check of a runtime or listener outside of the server, through `POST /api/holds`."""

    asks_server = True

    def __init__(self, control: Control, subscription_id: int, emitter: str = "") -> None:
        self._control = control
        self._about = {"subscription_id": str(subscription_id), "emitter": emitter}

    async def find_problems(self) -> list[ConfigurationProblem]:
        """What prevents runs from starting."""
        found = await self._control.ask("POST", "/api/holds", self._about)
        return [ConfigurationProblem(each["kind"], each["name"], each["reason"]) for each in found["problems"]]

    async def report(self, reasons: Sequence[str]) -> None:
        """Record why the subscription is held."""
        await self._control.ask("POST", "/api/holds", {**self._about, "reasons": list(reasons)})


class ServerDispatch:
    """Starts runs on a server with `POST /api/execute`, or `POST /api/execute/batch` for several."""

    def __init__(
        self,
        control: Control,
        ref: SubscriptionRef,
        *,
        batch_max: int = 1,
        concurrency: int | None = None,
        worker_id: str = "",
        emitter: str = EMITTER,
    ) -> None:
        self._control = control
        self._ref = ref
        self._batch_max = batch_max
        self._worker_id = worker_id
        self._emitter = emitter
        self._slots = asyncio.Semaphore(concurrency or CONCURRENCY)

    async def __call__(self, plans: Sequence[Plan]) -> list[RunDispatchResult]:
        """Start the runs: batches one after the other, or single requests concurrently."""
        requests = self._requests(plans)
        if self._batch_max == 1 or len(requests) == 1:
            return await self._each(requests)
        answers: list[RunDispatchResult] = []
        for some in batched(_sizes(requests), self._batch_max, BATCH_BYTES):
            answers += await self._many([requests[index] for index in some])
        return answers

    async def in_lanes(self, plans: Sequence[Plan], lanes: Sequence[Hashable]) -> list[RunDispatchResult]:
        """Start the runs in batches, each lane in order; after a failure the rest of its lane is skipped."""
        requests = self._requests(plans)
        for request, lane in zip(requests, named(lanes), strict=True):
            if lane:
                request["lane"] = lane

        async def send(some: list[int]) -> list[RunDispatchResult]:
            return await self._many([requests[index] for index in some])

        return await in_batches(send, batched(_sizes(requests), REPLAYED_AT_ONCE, BATCH_BYTES), lanes)

    def _requests(self, plans: Sequence[Plan]) -> list[dict[str, Any]]:
        return [request_of(self._ref, plan, self._emitter, self._worker_id) for plan in plans]

    async def _each(self, requests: Sequence[dict[str, Any]]) -> list[RunDispatchResult]:
        return list(await asyncio.gather(*map(self._one, requests)))

    async def _one(self, request: dict[str, Any]) -> RunDispatchResult:
        async with self._slots:
            try:
                return _result(await self._control.ask("POST", "/api/execute", request))
            except ApiRefused as error:
                if is_configuration_error(error):
                    return RunDispatchResult("misconfigured", error=str(error))
                return RunDispatchResult(
                    "rejected" if error.http_status in REFUSALS else "unavailable", error=str(error)
                )
            except ServerUnreachable as error:
                return RunDispatchResult("unavailable", error=str(error))

    async def _many(self, requests: list[dict[str, Any]]) -> list[RunDispatchResult]:
        try:
            answer = await self._control.ask("POST", "/api/execute/batch", {"executions": requests})
        except ApiRefused as error:
            if error.http_status in REFUSALS and len(requests) > 1:
                # The server rejected the whole batch: send the requests one by one to find the invalid one.
                lanes = [request.pop("lane", index) for index, request in enumerate(requests)]
                return await in_turns(self._each, requests, lanes)
            return [RunDispatchResult("unavailable", error=str(error))] * len(requests)
        except ServerUnreachable as error:
            return [RunDispatchResult("unavailable", error=str(error))] * len(requests)
        return [_result(each) for each in answer["results"]]


def _sizes(requests: Sequence[dict[str, Any]]) -> list[int]:
    return [len(msgspec.json.encode(request)) for request in requests]


def _result(answer: dict[str, Any]) -> RunDispatchResult:
    if answer.get("status") in ("started", "duplicate"):
        return RunDispatchResult(answer["status"], int(answer["execution_id"]))
    if answer.get("status") == "skipped":
        return RunDispatchResult("skipped")
    error = str(answer.get("error", "the server gave no reason"))
    return RunDispatchResult("misconfigured" if answer.get("code") in CONFIGURATION_ERRORS else "rejected", error=error)
