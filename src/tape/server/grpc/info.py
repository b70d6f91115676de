"""The RPC with which a client finds out how it can call a server."""

from __future__ import annotations

from collections.abc import Callable

from tape.journal.journal import Journal
from tape.proto import tape_pb2 as pb
from tape.server.grpc.methods import Context


class InfoService:
    """The RPC about the server itself."""

    def __init__(self, journal: Journal, describe: Callable[[], pb.ServerInfo]) -> None:
        self._journal = journal
        self._describe = describe

    async def get_server_info(self, request: pb.GetServerInfoRequest, context: Context) -> pb.ServerInfo:
        """Version, journal, ports and call protocols."""
        info = self._describe()
        info.journal_id = (await self._journal.head()).journal_id
        return info
