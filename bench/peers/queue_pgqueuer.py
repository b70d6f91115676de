"""pgqueuer as a queue; runs in the peers' environment."""

from __future__ import annotations

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.peers.queue import Queue, measure

BATCH = 100


class Pgqueuer(Queue):
    """One connection to put in, one to work."""

    async def open(self, dsn: str) -> None:
        """Its tables, durable as they are by default."""
        self._sending = PgQueuer.from_asyncpg_connection(await asyncpg.connect(dsn))
        self._working = PgQueuer.from_asyncpg_connection(await asyncpg.connect(dsn))
        assert isinstance(self._sending.queries, Queries)
        self._queries = self._sending.queries
        await self._queries.install()

        @self._working.entrypoint("work")
        async def work(job: Job) -> None:
            self.handle()

    async def enqueue(self, payloads: list[str]) -> None:
        """All in one statement."""
        texts = [payload.encode() for payload in payloads]
        await self._queries.enqueue(["work"] * len(texts), texts, [0] * len(texts))

    async def work(self) -> None:
        """With the batch size that suits it."""
        await self._working.run(batch_size=BATCH)


if __name__ == "__main__":
    uvloop.run(measure(Pgqueuer()))
