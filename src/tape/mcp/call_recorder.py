"""Records tool calls of an MCP server on the journal: who called what with which arguments, and how it ended."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter
from typing import Any

import msgspec
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError

from tape.base.ids import new_id
from tape.client.aio import AsyncTapeClient
from tape.client.channel import DEFAULT_URL
from tape.errors import InvalidInput, TapeError
from tape.mcp.event_ids import subject_of

log = logging.getLogger(__name__)

# Bytes of arguments that are recorded; of larger ones their size and SHA-256.
MAX_ARGUMENT_BYTES = 256 << 10
MAX_NAME = 100


class CallRecorder:
    """Middleware: `MCPServer(…, middleware=[CallRecorder(url)])`.

    `/tape/mcp/called/<tool>` is appended before a tool is called, with its arguments, and `/tape/mcp/answered/<tool>`
    after it. The server of the journal removes secrets from both. A call that cannot be recorded is refused; with
    `required=False` it is carried out, logged and counted in `unrecorded`.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str = "",
        client: AsyncTapeClient | None = None,
        server: str = "",
        required: bool = True,
    ) -> None:
        """`server` is a name for this server in the entries."""
        self._url = url
        self._token = token
        self._client = client
        self._owns_client = client is None
        self._server = server
        self._is_required = required
        self.counts: Counter[str] = Counter()

    @property
    def unrecorded(self) -> int:
        """Calls and answers that are not on the journal."""
        return self.counts["unrecorded"]

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Record a request, if it is a tool call, and carry it out."""
        if ctx.method != "tools/call" or ctx.request_id is None:
            return await call_next(ctx)
        params = ctx.params or {}
        tool, call_id, began = str(params.get("name", "")), new_id(), time.monotonic()
        facts: dict[str, Any] = {
            "call_id": call_id,
            "tool": tool[:MAX_NAME],
            "request_id": str(ctx.request_id)[:MAX_NAME],
        }
        if self._server:
            facts["server"] = self._server
        await self._append(
            "called", tool, {**facts, **_arguments(params.get("arguments"))}, is_required=self._is_required
        )
        outcome: dict[str, Any] = {"outcome": "cancelled"}
        try:
            result = await call_next(ctx)
            outcome = {"outcome": "error" if _is_error(result) else "ok"}
            return result
        except Exception as error:
            outcome = {"outcome": "refused" if isinstance(error, MCPError) else "error", "error": str(error)[:1_000]}
            raise
        finally:
            outcome["duration_ms"] = round((time.monotonic() - began) * 1_000)
            # The tool has been called: what it did cannot be taken back, so that a failure here is not the caller's.
            await self._append("answered", tool, {**facts, **outcome}, is_required=False)

    async def close(self) -> None:
        """Disconnect, unless the client was given."""
        if self._owns_client and self._client is not None:
            client, self._client = self._client, None
            await client.close()

    async def _append(self, verb: str, tool: str, payload: dict[str, Any], *, is_required: bool) -> None:
        if self._client is None:
            self._client = AsyncTapeClient(self._url, id_token=self._token)
        subject, run_id = subject_of(verb, _key_of(tool)), f"mcp:call:{payload['call_id']}"
        try:
            try:
                await self._client.append(subject, payload, run_id=run_id)
            except InvalidInput as error:  # such as arguments that are nested too deeply
                noted = {**payload, **_omitted(payload.get("arguments"), str(error))}
                await self._client.append(subject, noted, run_id=run_id)
            self.counts["recorded"] += 1
        except TapeError as error:
            self.counts["unrecorded"] += 1
            log.error("the tool call %s of %r is not on the journal (%s): %s", payload["call_id"], tool, verb, error)
            if is_required:
                message = f"The call was not made: it cannot be recorded on the journal ({error})."
                raise MCPError(-32603, message) from error


def _arguments(arguments: Any) -> dict[str, Any]:
    if arguments is None:
        return {"arguments": {}}
    size = len(msgspec.json.encode(arguments))
    if size > MAX_ARGUMENT_BYTES:
        return _omitted(arguments, f"more than {MAX_ARGUMENT_BYTES} bytes")
    return {"arguments": arguments}


def _omitted(arguments: Any, reason: str) -> dict[str, Any]:
    data = msgspec.json.encode(arguments)
    digest = hashlib.sha256(data).hexdigest()
    return {"arguments": None, "omitted": reason[:300], "bytes": len(data), "sha256": digest}


def _key_of(tool: str) -> str:
    """A tool's name as a segment of a subject: callers may send any text."""
    if len(tool) <= MAX_NAME and tool.isprintable():
        return tool or "-"
    return f"sha256:{hashlib.sha256(tool.encode(errors='surrogatepass')).hexdigest()[:32]}"


def _is_error(result: HandlerResult) -> bool:
    found = result.get("isError") if isinstance(result, dict) else getattr(result, "is_error", False)
    return bool(found)
