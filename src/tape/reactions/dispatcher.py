"""The dispatcher: runs the handlers of this process on the tasks of a server.

The server pushes tasks as soon as they are due; several dispatchers share them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Sequence
from typing import Any

from tape.base.lease import renewal_interval_s
from tape.base.owner import new_owner
from tape.base.process import run_async, stop_on_event, stop_on_signal
from tape.base.telemetry.export import start_export
from tape.client import DEFAULT_URL, AsyncTapeClient
from tape.errors import InvalidInput, NothingToDispatch, NotServed, TapeError
from tape.model.message import BodyFormat
from tape.reactions.consumer import MAX_WAIT_S, TaskConsumer
from tape.reactions.counters import Tally
from tape.reactions.decorators import TASK, ReactionDef, get_registry
from tape.reactions.feeds import Feed, poll
from tape.reactions.invocation import Handler, HandlerInvoker
from tape.reactions.registration import id_of
from tape.reactions.registration import register as register_reactions
from tape.reactions.threads import Threads

log = logging.getLogger(__name__)

DRAIN_S = 30.0
MAX_THREADS = 1_000
CATCH_UP_S = 0.05


def run_dispatcher(
    url: str = DEFAULT_URL,
    *,
    owner: str = "",
    poll_interval_s: float = 0.5,
    once: bool = False,
    register: bool = True,
    prefix: str = "",
    claim_max: int = 16,
    lease_ms: int = 60000,
    reactions: Sequence[ReactionDef] | None = None,
    bridges: bool = False,
    drain_s: float = DRAIN_S,
    stop: threading.Event | None = None,
    tally: Tally | None = None,
    bridge_body: BodyFormat = "standard",
) -> None:
    """Run the declared handlers until SIGTERM or SIGINT, or (`once`) until no task is due.

    `register` registers the reactions first; `prefix` is prepended to their ids. At most `claim_max` tasks of a
    reaction are leased at a time by `owner` (default `<host>-<pid>-<random>`), each for `lease_ms`, renewed while its
    handler runs. `poll_interval_s` is the poll interval for a server that does not push. On a stop signal it accepts
    no more tasks, releases those that have not begun, and waits up to `drain_s` seconds for running handlers; a second
    signal ends it at once. `stop` does the same from another thread. With `bridges`, publish reactions are served too,
    with the body `bridge_body` (see `run_bridge`). Spans are exported if OpenTelemetry's standard variables
    (`OTEL_EXPORTER_OTLP_ENDPOINT`, …) are set.
    """
    start_export("tape-dispatcher")
    wanted = get_registry() if reactions is None else reactions
    work = dispatch(
        url,
        wanted,
        owner=owner,
        poll_interval_s=poll_interval_s,
        once=once,
        register=register,
        prefix=prefix,
        claim_max=claim_max,
        lease_ms=lease_ms,
        bridges=bridges,
        bridge_body=bridge_body,
        drain_s=drain_s,
        stop=stop,
        tally=tally,
    )
    with contextlib.suppress(asyncio.CancelledError):  # interrupted by a second signal
        run_async(work)


async def dispatch(
    url: str,
    wanted: Sequence[ReactionDef],
    *,
    register: bool = True,
    prefix: str = "",
    bridges: bool = False,
    bridge_body: BodyFormat = "standard",
    stop: threading.Event | None = None,
    **options: Any,
) -> None:
    """`run_dispatcher` for asyncio; cancel it or set `stop` to end it."""
    if not wanted and not bridges:
        raise NothingToDispatch(
            "No reaction is declared in this process. Declare one with @tape.on(…), and import its module before"
            " the dispatcher runs."
        )
    async with AsyncTapeClient(url) as client:
        dispatcher = Dispatcher(client, **options)
        if register:
            await register_reactions(client, wanted, prefix)
            log.info("%d reactions are registered", len(wanted))
        for known in wanted:
            if known.handler_kind == TASK and known.handler is not None:
                dispatcher.add(
                    known.server_reaction_id if register else prefix + id_of(known),
                    known.handler,
                    name=known.name,
                    max_concurrency=known.max_concurrency,
                    rate_limit_per_s=known.rate_limit_per_s,
                    timeout_s=known.timeout_s,
                )
        async with contextlib.AsyncExitStack() as stack:
            if bridges:
                from tape.reactions.bridges.bridge import by_target, serve_bridges

                await stack.enter_async_context(serve_bridges(client, dispatcher, by_target(), bridge_body))
            stack.enter_context(stop_on_signal(dispatcher.stop))
            stack.enter_context(stop_on_event(dispatcher.stop, stop))
            await dispatcher.run(idles=bridges and not dispatcher.once)


class Dispatcher:
    """Serves any number of reactions over one connection. Add them, then `run`; `stop` may be called at any time."""

    def __init__(
        self,
        client: AsyncTapeClient,
        *,
        owner: str = "",
        poll_interval_s: float = 0.5,
        once: bool = False,
        claim_max: int = 16,
        lease_ms: int = 60_000,
        drain_s: float = DRAIN_S,
        tally: Tally | None = None,
    ) -> None:
        for name, value in (("claim_max", claim_max), ("lease_ms", lease_ms), ("poll_interval_s", poll_interval_s)):
            if value <= 0:
                raise InvalidInput(f"{name} {value} must be larger than 0.")
        self.owner = owner or new_owner()
        self.tally = tally if tally is not None else Tally()
        self.consumers: dict[str, TaskConsumer] = {}
        self._feed = Feed(client, self.owner, self.tally, poll_interval_s)
        self.once = once
        self._claim_max = claim_max
        self._lease_ms = lease_ms
        self._drain_s = drain_s
        self._threads = Threads(MAX_THREADS)
        self._serving: set[asyncio.Task[None]] = set()
        self._failed: TapeError | None = None
        self._changed = asyncio.Event()
        self._is_stopping = False
        self._is_running = False

    def add(
        self,
        reaction_id: str,
        handler: Handler,
        *,
        name: str = "",
        max_concurrency: int = 1,
        rate_limit_per_s: int = 0,
        timeout_s: float = 0.0,
        prefetch: int = 0,
    ) -> None:
        """Serve a reaction too; one that is served already stays as it is.

        While its handlers are fast, up to `prefetch` tasks beyond the running ones are leased in advance.
        """
        if reaction_id in self.consumers or self._is_stopping:
            return
        consumer = self.consumers[reaction_id] = TaskConsumer(
            reaction_id,
            HandlerInvoker(handler, name or reaction_id, self._threads, timeout_s),
            self.tally,
            max_concurrency=max_concurrency,
            rate_limit_per_s=rate_limit_per_s,
            claim_max=self._claim_max,
            lease_ms=self._lease_ms,
            prefetch=prefetch,
        )
        if self._is_running:
            self._serve(consumer)

    async def run(self, *, idles: bool = False) -> None:
        """Serve until stopped, or (`once`) until nothing is due. With `idles`, also while there is nothing to serve."""
        self._is_running = True
        renewing = asyncio.create_task(self._renew())
        try:
            for consumer in self.consumers.values():
                self._serve(consumer)
            while (self._serving or idles) and not self._is_stopping and self._failed is None:
                self._changed.clear()
                await self._changed.wait()
            self.stop()
            await self._drain()
        finally:
            renewing.cancel()
            for task in self._serving:
                task.cancel()
            await asyncio.gather(renewing, *self._serving, return_exceptions=True)
            self._threads.close()
        if self._failed is not None:
            raise self._failed

    def stop(self) -> None:
        """Accept no more tasks, release those that have not begun, and let running handlers finish."""
        if not self._is_stopping:
            self._is_stopping = True
            for consumer in self.consumers.values():
                consumer.stop()
            self._changed.set()
            log.info("stopping: waiting up to %g s for running tasks", self._drain_s)

    def fail(self, error: TapeError) -> None:
        """Stop, and let `run` end with this error."""
        self._failed = self._failed or error
        self.stop()

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    def _serve(self, consumer: TaskConsumer) -> None:
        task = asyncio.create_task(self._serve_once(consumer) if self.once else self._feed.serve(consumer))
        self._serving.add(task)
        task.add_done_callback(self._is_served)

    async def _serve_once(self, consumer: TaskConsumer) -> None:
        await self._wait_for_matcher(consumer)
        await poll(self._feed, consumer, once=True)

    async def _wait_for_matcher(self, consumer: TaskConsumer) -> None:
        """Wait until the entries that are in the journal now have been matched."""
        client = self._feed.client
        try:
            head = (await client.head()).global_seq
            while not consumer.is_stopping:
                stats = (await client.get_reaction_stats(consumer.reaction_id)).stats
                if not stats or stats[0].position >= head:
                    return
                await asyncio.sleep(CATCH_UP_S)
        except NotServed:
            log.debug("this server has no reaction stats: entries that are not matched yet are not waited for")

    def _is_served(self, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        self._changed.set()
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, TapeError):
            self._failed = self._failed or error
        elif error is not None:
            log.error("serving a reaction failed", exc_info=error)
            self._failed = self._failed or TapeError(f"serving a reaction failed: {error!r}")

    async def _drain(self) -> None:
        if self._serving:
            await asyncio.wait(self._serving, timeout=self._drain_s)
        if self._serving:
            log.warning("%d handlers did not finish within %.3g s", self.tally.in_flight, self._drain_s)
            for consumer in self.consumers.values():
                consumer.abandon()
            await asyncio.wait(self._serving, timeout=1.0)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(min(renewal_interval_s(self._lease_ms), MAX_WAIT_S) / 2)
            for consumer in self.consumers.values():
                consumer.renew_leases()
                consumer.release_waiting()
