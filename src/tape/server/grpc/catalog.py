"""The RPCs of the catalog and of executions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from tape.documents.document import Check, checked_document
from tape.engine import catalog
from tape.engine.catalog import Resource
from tape.engine.executions.execute import (
    MAX_BATCH,
    Dedup,
    ExecuteRequest,
    Result,
    checked_record,
    checked_request,
    execute_batch,
)
from tape.errors import InvalidInput, InvalidJson, TapeError
from tape.journal.journal import Journal
from tape.model.dispatch_result import RunDispatchResult
from tape.model.json_depth import check_depth
from tape.model.tenant_names import display, qualify, visible_prefix
from tape.proto import tape_pb2 as pb
from tape.server.grpc.messages import to_message
from tape.server.grpc.methods import Context
from tape.store import Reader

MAX_LISTED = 1_000
DEFAULT_WINDOW_S = 300


class CatalogService:
    """RPCs of documents and executions."""

    def __init__(self, journal: Journal, kinds: Mapping[str, Check]) -> None:
        self._database = journal.database
        self._max_bytes = journal.max_payload_bytes
        self._kinds = kinds
        self._outcomes = journal.database.metrics.executes

    async def register_resource(self, request: pb.RegisterResourceRequest, context: Context) -> pb.Resource:
        """Validate a document and store it as the next version."""
        kind = request.resource_type or "Playbook"
        document = await asyncio.to_thread(checked_document, request.content, self._kinds, kind)
        resource = await self._database.write(
            lambda tx: catalog.register(tx, document, path=qualify(document.path), if_changed=request.if_changed),
            len(document.content) + 256,
        )
        return _message(resource)

    async def get_resource(self, request: pb.GetResourceRequest, context: Context) -> pb.Resource:
        """A document with its content."""

        def find(reader: Reader) -> Resource:
            if not request.catalog_id:
                return catalog.require(reader, qualify(request.path), request.version or None)
            return catalog.require_id(reader, request.catalog_id)

        return _message(await self._database.read(find))

    async def list_resources(self, request: pb.ListResourcesRequest, context: Context) -> pb.ListResourcesResponse:
        """The latest version of every path."""
        if request.limit < 0:
            raise InvalidInput(f"limit {request.limit} must not be negative; 0 means {MAX_LISTED}.")
        limit = min(request.limit or MAX_LISTED, MAX_LISTED)
        found = await self._database.read(
            lambda reader: catalog.list_latest(
                reader, request.kind, qualify(request.after_path), limit, prefix=visible_prefix()
            )
        )
        bare = (msgspec.structs.replace(resource, content="") for resource in found)
        return pb.ListResourcesResponse(resources=map(_message, bare))

    async def execute(self, request: pb.ExecuteRequest, context: Context) -> pb.ExecuteResponse:
        """Start playbooks; each has its own result."""
        if not 0 < len(request.executions) <= MAX_BATCH:
            raise InvalidInput(f"executions has {len(request.executions)} elements; send 1 to {MAX_BATCH}.")
        results: list[Result | None] = []
        good: list[ExecuteRequest] = []
        for each in request.executions:
            try:
                good.append(checked_request(_request(each), self._max_bytes))
                results.append(None)
            except TapeError as error:
                results.append(error)
        size = request.ByteSize() + 2_048 * len(good)
        done = iter(await self._database.write(lambda tx: execute_batch(tx, good), size) if good else [])
        return pb.ExecuteResponse(results=[self._result(result or next(done)) for result in results])

    def _result(self, result: Result) -> pb.ExecutionResult:
        if isinstance(result, RunDispatchResult):
            self._outcomes.labels("rpc", "new" if result.outcome == "started" else "duplicate").inc()
            return pb.ExecutionResult(
                execution_id=result.run_id,
                status=result.outcome,
                commands_generated=int(result.outcome == "started"),
            )
        self._outcomes.labels("rpc", "error").inc()
        return pb.ExecutionResult(status="error", error=str(result), error_code=result.code)


def _message(resource: Resource) -> pb.Resource:
    return to_message(pb.Resource, msgspec.structs.replace(resource, path=display(resource.path)))


def _request(each: pb.Execution) -> ExecuteRequest:
    check_depth(each.payload_json.encode())
    try:
        payload = msgspec.json.decode(each.payload_json or "{}", type=dict)
    except msgspec.DecodeError as error:
        raise InvalidJson(f"payload_json {each.payload_json[:80]!r} is not a JSON object: {error}.") from error
    return ExecuteRequest(
        path=each.path,
        catalog_id=each.catalog_id or "",
        payload=payload,
        parent_execution_id=each.parent_execution_id or None,
        execution_pool=each.execution_pool,
        trace={"traceparent": each.traceparent} if each.traceparent else None,
        dedup=Dedup(each.dedup_key, each.dedup_window_secs or DEFAULT_WINDOW_S) if each.dedup_key else None,
        subscription=each.subscription,
        message_id=each.message_id,
        ordering_key=each.ordering_key,
        downstream=each.downstream,
        record=checked_record(each.record or "full"),
        batch=each.batch,
    )
