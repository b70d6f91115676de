"""The calls about values. Each is named for its RPC."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tape.client import rpcs
from tape.client.channel import ChannelCalls
from tape.client.resumption import ResumableCall, Resumptions
from tape.proto import tape_pb2 as pb


class ValueCalls(ChannelCalls):
    """Small shared state with versions."""

    _resumptions: Resumptions

    async def write_value(
        self, *, namespace: str, key: str, value_json: str, if_version: int = -1, writer: str = ""
    ) -> pb.ValueRecord:
        """Write a value; with `if_version` >= 0 only if that is its current version (0: it does not exist)."""
        return await self._channel.call(
            rpcs.WRITE_VALUE,
            pb.WriteValueRequest(
                namespace=namespace, key=key, value_json=value_json, if_version=if_version, writer=writer
            ),
        )

    async def get_value(self, *, namespace: str, key: str) -> pb.GetValueResponse:
        """The current value, and whether it exists."""
        return await self._channel.call(rpcs.GET_VALUE, pb.GetValueRequest(namespace=namespace, key=key))

    async def delete_value(self, *, namespace: str, key: str) -> pb.DeleteValueResponse:
        """Delete a value."""
        return await self._channel.call(rpcs.DELETE_VALUE, pb.DeleteValueRequest(namespace=namespace, key=key))

    def watch_value(self, *, namespace: str, key: str, from_version: int = 0) -> AsyncIterator[pb.ValueEvent]:
        """Every version above `from_version`, in order, then each new one."""
        request = pb.WatchValueRequest(namespace=namespace, key=key, from_version=from_version)
        return self._resumptions.stream(self._channel, _WATCH, request)


def _move_after(request: pb.WatchValueRequest, event: pb.ValueEvent) -> None:
    request.from_version = event.value.version


_WATCH = ResumableCall(rpcs.WATCH_VALUE, _move_after)
