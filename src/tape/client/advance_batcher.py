"""`AdvanceRun` of many callers in few messages: runs that go on at the same time share commits."""

from __future__ import annotations

from collections.abc import Sequence

from tape.client.call_batcher import Caller, Gathering
from tape.client.channel import Channel, error_of
from tape.errors import NotServed
from tape.proto import tape_pb2 as pb

MAX_MOVES = 256
MAX_BYTES = 2 << 20


class Advances:
    """Gathers what runs do and sends it together. An older server is sent one by one."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._gathering: Gathering[pb.AdvanceRunRequest, pb.AdvanceRunResponse] = Gathering(
            self._deliver, max_count=MAX_MOVES, max_bytes=MAX_BYTES
        )
        self._is_one_by_one = False

    async def send(self, move: pb.AdvanceRunRequest) -> pb.AdvanceRunResponse:
        """What came of one run's move. It has to say itself whose it is: it travels with those of others."""
        if not self._is_one_by_one:
            try:
                return await self._gathering.send(move, 1, move.ByteSize())
            except NotServed:
                self._is_one_by_one = True
        whose = self._channel.speaking_as(move.lease_owner) if move.lease_owner else self._channel
        return await whose.call("AdvanceRun", move)  # type: ignore[no-any-return]

    async def flush(self) -> None:
        """Wait until nothing is on its way."""
        await self._gathering.flush()

    async def _deliver(self, callers: Sequence[Caller[pb.AdvanceRunRequest, pb.AdvanceRunResponse]]) -> None:
        request = pb.AdvanceRunsRequest(moves=[caller.item for caller in callers])
        try:
            answer: pb.AdvanceRunsResponse = await self._channel.call("AdvanceRuns", request)
        except Exception as error:
            for caller in callers:
                caller.fail(error)
            return
        for caller, result in zip(callers, answer.results, strict=True):
            if result.error_code:
                caller.fail(error_of(result.error_code, result.error_message))
            else:
                caller.answer(pb.AdvanceRunResponse(begun=result.begun if result.HasField("begun") else None))
