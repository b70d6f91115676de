"""Batches `AdvanceRun` calls of concurrent runs, so that they share commits."""

from __future__ import annotations

from collections.abc import Sequence

from tape.client import rpcs
from tape.client.call_batcher import CallBatcher, PendingCall
from tape.client.channel import Channel
from tape.client.failures import to_error
from tape.errors import NotServed, RunInterrupted
from tape.proto import tape_pb2 as pb

MAX_MOVES = 256
MAX_BYTES = 2 << 20


class AdvanceBatcher:
    """Sends the steps of runs in batches. A server without `AdvanceRuns` gets one call a step."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._batcher: CallBatcher[pb.AdvanceRunRequest, pb.AdvanceRunResponse] = CallBatcher(
            self._send_batch, max_count=MAX_MOVES, max_bytes=MAX_BYTES
        )
        self._can_batch = True

    async def send(self, move: pb.AdvanceRunRequest) -> pb.AdvanceRunResponse:
        """Send one run's step. It must name its lease owner itself: a batch has steps of several owners."""
        if self._can_batch:
            try:
                return await self._batcher.send(move, 1, move.ByteSize())
            except NotServed:
                self._can_batch = False
        channel = self._channel.with_lease_owner(move.lease_owner) if move.lease_owner else self._channel
        return await channel.call(rpcs.ADVANCE_RUN, move)

    async def flush(self) -> None:
        """Wait until every step has its answer."""
        await self._batcher.flush()

    async def _send_batch(self, calls: Sequence[PendingCall[pb.AdvanceRunRequest, pb.AdvanceRunResponse]]) -> None:
        request = pb.AdvanceRunsRequest(moves=[call.item for call in calls])
        try:
            answer = await self._channel.call(rpcs.ADVANCE_RUNS, request)
        except (Exception, RunInterrupted) as error:
            for call in calls:
                call.fail(error)
            return
        for call, result in zip(calls, answer.results, strict=True):
            if result.error_code:
                call.fail(to_error(result.error_code, result.error_message))
            else:
                call.answer(pb.AdvanceRunResponse(begun=result.begun if result.HasField("begun") else None))
