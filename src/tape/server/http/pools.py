"""`/api/pools/{pool}`: queue length of a pool, for autoscalers."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tape.engine.reactions.statistics import count_backlog, read_statistics
from tape.errors import NotFound
from tape.playbooks.pools import reaction_id
from tape.server.http.internal import answer
from tape.store import Database


class PoolRoutes:
    """The route of pools."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def show(self, request: Request) -> Response:
        """Pending, claimed and dead-lettered tasks, and the backlog that workers can reduce; zeros without tasks."""
        pool = request.path_params["name"]
        try:
            (found,), _ = await self._database.read(lambda reader: read_statistics(reader, reaction_id(pool)))
            backlog = await self._database.read(lambda reader: count_backlog(reader, reaction_id(pool)))
        except NotFound:
            return answer({"pool": pool, "waiting": 0, "claimed": 0, "backlog": 0, "dead": 0, "oldest_ms": 0})
        return answer(
            {
                "pool": pool,
                "waiting": found.pending,
                "claimed": found.claimed,
                "backlog": backlog,
                "dead": found.dlq,
                "oldest_ms": found.oldest_pending_ms,
            }
        )
