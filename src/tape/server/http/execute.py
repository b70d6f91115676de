"""`/api/execute`, `/api/execute/batch`, `/api/executions/{id}`: start playbooks and read their state."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tape.base import structs
from tape.engine.executions.execute import MAX_BATCH, ExecuteRequest, Result, checked_request, execute_batch
from tape.engine.ledgers import runs
from tape.engine.ledgers.run_record import PLAYBOOKS
from tape.errors import ExecutionSkipped, InvalidInput, NotFound, TapeError
from tape.journal.journal import Journal
from tape.model.dispatch_result import RunDispatchResult
from tape.server.http.internal import MAX_BODY_BYTES, answer, decode
from tape.server.http.request_bodies import read_body, to_time

# Bytes a run adds to the write queue besides its payload.
RUN_OVERHEAD_BYTES = 2_048


class BatchRequest(msgspec.Struct):
    """Requests, decoded one by one: one that cannot be decoded fails alone."""

    executions: list[msgspec.Raw] = []


class ExecuteRoutes:
    """Routes of executions."""

    def __init__(self, journal: Journal) -> None:
        self._database = journal.database
        self._max_bytes = journal.max_payload_bytes
        self._outcomes = journal.database.metrics.executes
        self._batch_size = journal.database.metrics.execute_batch_size

    async def execute(self, request: Request) -> Response:
        """Start one playbook."""
        body = await read_body(request, MAX_BODY_BYTES)
        wanted = read_request(body or b"{}", self._max_bytes)
        if wanted.lane:
            raise InvalidInput(f"lane {wanted.lane!r} keeps an order within a batch; send it to /api/execute/batch.")
        # Requests that wait at the same time share one call of execute_batch and one commit.
        result = await self._database.write_bulk(execute_batch, wanted, len(body) + RUN_OVERHEAD_BYTES)
        if isinstance(result, TapeError):
            raise result
        self._outcomes.labels("single", _OUTCOMES[result.outcome]).inc()
        return answer(_run_of(result))

    async def execute_batch(self, request: Request) -> Response:
        """Start up to 1,000 playbooks in one commit; each has its own result.

        Executions of one `lane` are started in order; after one that fails the rest of its lane is skipped.
        """
        body = await read_body(request, MAX_BODY_BYTES)
        items = decode(body or b"{}", BatchRequest).executions
        if not items:
            raise InvalidInput("execute batch requires a non-empty 'executions' array")
        if len(items) > MAX_BATCH:
            raise InvalidInput(f"execute batch size {len(items)} exceeds the {MAX_BATCH} cap")
        self._batch_size.observe(len(items))
        results: list[Result | None] = []
        good: list[ExecuteRequest] = []
        stopped: set[str] = set()
        for item in items:
            try:
                wanted = read_request(item, self._max_bytes)
                if wanted.lane in stopped:
                    raise ExecutionSkipped(f"not tried: an execution before it in lane {wanted.lane!r} failed.")
                good.append(wanted)
                results.append(None)
            except TapeError as error:
                results.append(error)
                stopped |= _lane_of(item)
        size = len(body) + RUN_OVERHEAD_BYTES * len(good)
        done = iter(await self._database.write(lambda tx: execute_batch(tx, good), size) if good else [])
        shown = [self._shown(index, result or next(done)) for index, result in enumerate(results)]
        counts = [each["status"] for each in shown]
        skipped = counts.count("skipped")
        return answer(
            {
                "count": len(shown),
                "started": counts.count("started"),
                "duplicates": counts.count("duplicate"),
                "failed": counts.count("error"),
                **({"skipped": skipped} if skipped else {}),
                "results": shown,
            }
        )

    async def show(self, request: Request) -> Response:
        """The state of an execution, with its output or error."""
        execution_id = str(request.path_params["name"])
        run = await self._database.read(lambda reader: runs.find(reader, execution_id))
        if run is None or run.app_name != PLAYBOOKS:
            raise NotFound(f"Execution not found: {execution_id}")
        detail = msgspec.json.decode(run.detail_json) if run.detail_json else {}
        return answer(
            {
                "execution_id": run.run_id,
                "status": run.status.name,
                **{name.removeprefix("tape."): value for name, value in run.labels.items()},
                "started_at": to_time(run.started_at_ms * 1_000_000),
                "ended_at": to_time(run.ended_at_ms * 1_000_000) if run.ended_at_ms else None,
                **(detail if isinstance(detail, dict) else {"detail": detail}),
            }
        )

    def _shown(self, index: int, result: Result) -> dict[str, Any]:
        if isinstance(result, RunDispatchResult):
            self._outcomes.labels("batch", _OUTCOMES[result.outcome]).inc()
            return {"index": index, **_run_of(result)}
        if isinstance(result, ExecutionSkipped):
            self._outcomes.labels("batch", "skipped").inc()
            return {"index": index, "status": "skipped", "commands_generated": 0, "error": str(result)}
        self._outcomes.labels("batch", "error").inc()
        prefix = "Resource not found: " if isinstance(result, NotFound) else "Validation error: "
        return {
            "index": index,
            "status": "error",
            "commands_generated": 0,
            "error": f"{prefix}{result}",
            "code": result.code,
        }


_OUTCOMES = {"started": "new", "duplicate": "duplicate"}


def _run_of(result: RunDispatchResult) -> dict[str, Any]:
    return {
        "execution_id": result.run_id,
        "status": result.outcome,
        "commands_generated": int(result.outcome == "started"),
    }


def read_request(item: bytes | msgspec.Raw, max_bytes: int) -> ExecuteRequest:
    """A validated request to execute. Raises InvalidInput, which names the field."""
    return checked_request(decode(item, ExecuteRequest), max_bytes)


class _Lane(msgspec.Struct):
    lane: str = ""


def _lane_of(item: msgspec.Raw) -> set[str]:
    """The lane of an invalid request; empty if the lane is invalid too."""
    try:
        return {structs.decode(item, _Lane).lane} - {""}
    except (msgspec.DecodeError, UnicodeDecodeError):
        return set()
