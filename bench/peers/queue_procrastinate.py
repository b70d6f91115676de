"""procrastinate as a queue; runs in the peers' environment."""

from __future__ import annotations

import logging

import procrastinate
import uvloop

from bench.peers.queue import Queue, measure

CONCURRENCY = 100


class Procrastinate(Queue):
    """One app with one worker."""

    async def open(self, dsn: str) -> None:
        """Its tables, durable as they are by default."""
        logging.getLogger("procrastinate").setLevel(logging.ERROR)
        self._app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn, max_size=20))
        await self._app.open_async()
        await self._app.schema_manager.apply_schema_async()

        @self._app.task(name="work")
        async def work(payload: str) -> None:
            self.handle()

        self._task = work

    async def enqueue(self, payloads: list[str]) -> None:
        """All in one statement."""
        await self._task.batch_defer_async(*({"payload": payload} for payload in payloads))

    async def work(self) -> None:
        """With many jobs at once."""
        await self._app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)


if __name__ == "__main__":
    uvloop.run(measure(Procrastinate()))
