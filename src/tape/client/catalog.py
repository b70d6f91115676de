"""The calls about the catalog and executions, each named for its RPC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tape.client import rpcs
from tape.client.channel import ChannelCalls
from tape.errors import PlaybookError, all_errors
from tape.model.payload import to_json
from tape.proto import tape_pb2 as pb


class CatalogCalls(ChannelCalls):
    """Documents, and executions of playbooks."""

    async def register_resource(
        self, content: str, *, resource_type: str = "", if_changed: bool = False
    ) -> pb.Resource:
        """Register a document of the catalog, as the next version of its path."""
        request = pb.RegisterResourceRequest(content=content, resource_type=resource_type, if_changed=if_changed)
        return await self._channel.call(rpcs.REGISTER_RESOURCE, request)

    async def get_resource(self, path: str = "", *, version: int = 0, catalog_id: int = 0) -> pb.Resource:
        """A document with its content: the latest version of a path, unless one is named."""
        request = pb.GetResourceRequest(path=path, version=version, catalog_id=catalog_id)
        return await self._channel.call(rpcs.GET_RESOURCE, request)

    async def list_resources(self, kind: str = "", *, after_path: str = "", limit: int = 0) -> pb.ListResourcesResponse:
        """The latest version of every path, of one kind or of all, without contents."""
        request = pb.ListResourcesRequest(kind=kind, after_path=after_path, limit=limit)
        return await self._channel.call(rpcs.LIST_RESOURCES, request)

    async def execute(
        self,
        path: str,
        payload: Any = None,
        *,
        pool: str = "",
        parent_execution_id: int = 0,
        traceparent: str = "",
        dedup_key: str = "",
        dedup_window_secs: int = 0,
        ordering_key: str = "",
        record: str = "",
    ) -> pb.ExecutionResult:
        """Start a playbook on its pool, or find the run that has the `dedup_key`; raises the error of its result.

        Runs of one `ordering_key` are carried out one after the other, in the order of their calls. `record` says what
        the journal keeps of the run: "full" (the default) or "summary".
        """
        execution = pb.Execution(
            path=path,
            payload_json=to_json(payload),
            execution_pool=pool,
            parent_execution_id=parent_execution_id,
            traceparent=traceparent,
            dedup_key=dedup_key,
            dedup_window_secs=dedup_window_secs,
            ordering_key=ordering_key,
            record=record,
        )
        result = (await self.execute_many([execution])).results[0]
        if result.status == "error":
            raise all_errors().get(result.error_code, PlaybookError)(result.error)
        return result

    async def execute_many(self, executions: Sequence[pb.Execution]) -> pb.ExecuteResponse:
        """Start playbooks, up to 1,000 in one commit; a result for each, in order."""
        return await self._channel.call(rpcs.EXECUTE, pb.ExecuteRequest(executions=executions))
