"""A worker: takes the commands of one pool and runs their playbooks, as many at a time as it was given places."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from tape.base.owner import new_owner
from tape.base.process import run_async, stop_on_event, stop_on_signal
from tape.base.retry import RECONNECT, is_retryable, retry_async
from tape.base.telemetry.export import start_export
from tape.client import DEFAULT_URL, AsyncTapeClient, TapeClient
from tape.durable.server_retry import call_with_retry_async
from tape.errors import (
    IllegalTransition,
    InvalidInput,
    NeverRetry,
    NotFound,
    NotServed,
    PlaybookNotFound,
    ResourceNotFound,
    RunCancelled,
    RunInterrupted,
    StepFailed,
    TapeError,
)
from tape.model.payload import to_json
from tape.playbooks.document import Playbook
from tape.playbooks.functions import declared_playbooks
from tape.playbooks.host import RunInfo, is_interruption
from tape.playbooks.library import known_playbook
from tape.playbooks.pools import POOL_RULE, SHARED, is_pool, reaction_fields, reaction_id
from tape.playbooks.run_leases import RunLeases
from tape.playbooks.runner import run_playbook
from tape.playbooks.worker_host import RemoteHost
from tape.proto import tape_pb2 as pb
from tape.reactions.consumer import ReleaseTask
from tape.reactions.counters import Tally
from tape.reactions.dispatcher import DRAIN_S, Dispatcher
from tape.reactions.envelope import Envelope
from tape.reactions.slots import acquire_slot, release_slot

__all__ = ["run_worker", "work"]

log = logging.getLogger(__name__)

# A run's lease ends a little before that of its task: whoever gets the task then can take the run up at once.
TASK_LEASE_MS = 30_000
RUN_LEASE_SHARE = 0.8
MAX_THREADS = 1_000
# Runs that are prepared while others act, as long as those are quick: leased, and their first step on record.
PREFETCH = 64


class Command(msgspec.Struct, frozen=True):
    """What a pool is told to run."""

    execution_id: str
    path: str
    catalog_id: int
    payload: dict[str, Any]
    pool: str = ""
    parent_execution_id: str = ""
    subscription: str = ""
    message_id: str = ""
    priority: str = ""
    trace: dict[str, Any] = {}


def run_worker(
    url: str = DEFAULT_URL,
    *,
    pool: str = SHARED,
    concurrency: int = 4,
    owner: str = "",
    lease_ms: int = TASK_LEASE_MS,
    drain_s: float = DRAIN_S,
    once: bool = False,
    announce: bool = True,
    stop: threading.Event | None = None,
    tally: Tally | None = None,
) -> None:
    """Run the playbooks of a pool until SIGTERM or SIGINT, or (`once`) until nothing is due any more.

    Python playbooks declared in this process are announced to the catalog first, unless they belong to another pool.
    When told to stop, it takes nothing more and lets what runs finish within `drain_s` seconds; what does not is left
    to others, who go on where it was. A worker that is killed is missed after `lease_ms`.
    """
    start_export("tape-worker")
    with contextlib.suppress(asyncio.CancelledError):  # interrupted by a second signal
        run_async(
            work(
                url,
                pool=pool,
                concurrency=concurrency,
                owner=owner,
                lease_ms=lease_ms,
                drain_s=drain_s,
                once=once,
                announce=announce,
                stop=stop,
                tally=tally,
            )
        )


async def work(
    url: str = DEFAULT_URL,
    *,
    pool: str = SHARED,
    concurrency: int = 4,
    owner: str = "",
    lease_ms: int = TASK_LEASE_MS,
    announce: bool = True,
    stop: threading.Event | None = None,
    **options: Any,
) -> None:
    """`run_worker` for asyncio; cancel it or set `stop` to end it."""
    if not is_pool(pool):
        raise InvalidInput(f"pool {pool!r} {POOL_RULE}.")
    if concurrency < 1:
        raise InvalidInput(f"concurrency {concurrency} must be at least 1.")
    owner = owner or new_owner()
    threads = ThreadPoolExecutor(min(max(4 * concurrency, 32), MAX_THREADS), "tape-playbook")
    asyncio.get_running_loop().set_default_executor(threads)
    async with AsyncTapeClient(url) as client:
        blocking = await asyncio.to_thread(TapeClient, url)
        try:
            await _introduce(client, pool, announce=announce, waits=not options.get("once"))
            dispatcher = Dispatcher(client, owner=owner, claim_max=concurrency, lease_ms=lease_ms, **options)
            worker = Worker(client, blocking, owner, int(lease_ms * RUN_LEASE_SHARE), dispatcher.fail)
            dispatcher.add(
                reaction_id(pool), worker.handle, name=f"pool {pool}", max_concurrency=concurrency, prefetch=PREFETCH
            )
            async with worker.leases:
                with stop_on_signal(dispatcher.stop), stop_on_event(dispatcher.stop, stop):
                    await dispatcher.run()
        finally:
            await asyncio.to_thread(blocking.close)


async def _introduce(client: AsyncTapeClient, pool: str, *, announce: bool, waits: bool) -> None:
    """Tell the server of the pool and of this worker's playbooks; one that `waits` does so until there is a server."""

    async def register() -> None:
        if announce:
            await announce_playbooks(client, pool)
        await client.register_reaction(**reaction_fields(pool), handler_kind=pb.HANDLER_KIND_TASK)

    def log_retry(error: Exception, attempt: int, delay_s: float) -> None:
        log.warning("server unavailable, retrying in %.1f s: %s", delay_s, error)

    await retry_async(register, RECONNECT, can_retry=lambda error: waits and is_retryable(error), on_retry=log_retry)


async def announce_playbooks(client: AsyncTapeClient, pool: str) -> list[pb.Resource]:
    """Put the Python playbooks of this process into the catalog, unless they belong to another pool."""
    mine = [each for each in declared_playbooks().values() if each.pool in ("", pool)]
    return [await client.register_resource(each.document, if_changed=True) for each in mine]


class Worker:
    """Runs one command after the other, in any number of places."""

    def __init__(
        self,
        client: AsyncTapeClient,
        blocking: TapeClient,
        owner: str,
        lease_ms: int,
        give_up: Callable[[TapeError], None],
    ) -> None:
        self._give_up = give_up
        self._client = client
        self._blocking = blocking
        self._owner = owner
        self._lease_ms = lease_ms
        self._contents: dict[int, str] = {}
        self.leases = RunLeases(client, lease_ms)

    async def handle(self, envelope: Envelope) -> None:
        """Run the playbook of a command to its end. An exception means that somebody should try again later."""
        try:
            command = msgspec.convert(envelope.payload, Command, strict=False)
        except msgspec.ValidationError as error:
            raise NeverRetry(f"the command cannot be read: {error}") from error
        # Another attempt is another owner: one that was given up and goes on all the same is held to the lease.
        owner = f"{self._owner}:{envelope.task_id}:{envelope.attempt}"
        run = RunInfo(
            id=command.execution_id,
            path=command.path,
            pool=command.pool,
            parent=command.parent_execution_id,
            subscription=command.subscription,
            message_id=command.message_id,
            priority=command.priority,
            trace=command.trace,
        )
        client, blocking = self._client.with_lease_owner(owner), self._blocking.with_lease_owner(owner)
        host = RemoteHost(run, owner, self._lease_ms, client, blocking, self._load)
        try:
            with self.leases.keep((run.id, owner)):
                await self._run(command, run, host)
        except RunCancelled as error:
            log.info("run %s was cancelled: %s", run.id, error)
        except NotFound as error:
            raise NeverRetry(str(error)) from error
        except NotServed as error:  # that of any other command would be the same: none is to be used up
            self._give_up(error)
            with contextlib.suppress(TapeError):
                await host.let_go()
            raise ReleaseTask(str(error)) from error
        except BaseException:
            try:
                await asyncio.shield(host.let_go())
            except (TapeError, asyncio.CancelledError) as error:
                log.debug("the lease on run %s was not given back: %r", run.id, error)
            raise

    async def _run(self, command: Command, run: RunInfo, host: RemoteHost) -> None:
        try:
            playbook = await self._playbook(command.catalog_id)
            if playbook.python:
                await acquire_slot()
                await host.advance()  # a function is not called by somebody who does not have the run
            output = await run_playbook(playbook, command.payload, run, host)
            release_slot()  # what is left is to record the end, together with those of others
            await host.end(pb.RUN_STATUS_TERMINAL, to_json({"output": output}))
        except Exception as error:
            if is_interruption(error):
                raise
            if not host.has_lease and isinstance(error, NotFound):
                raise
            if not host.has_lease and isinstance(error, IllegalTransition):
                log.info("nothing to do for run %s: %s", run.id, error)
                return
            log.warning("run %s of %s failed: %s", run.id, command.path, error)
            log.debug("where it failed", exc_info=error)
            await self._fail(host, run.id, _told(error))

    async def _fail(self, host: RemoteHost, run_id: str, detail_json: str) -> None:
        try:
            await host.end(pb.RUN_STATUS_FAILED, detail_json)
        except IllegalTransition as error:
            log.info("run %s has ended in another way meanwhile: %s", run_id, error)

    # ── playbooks ────────────────────────────────────────────────────────────────────────────────

    async def _playbook(self, catalog_id: int) -> Playbook:
        """The playbook of a catalog id: what was registered under it never changes."""
        content = self._contents.get(catalog_id)
        if content is None:
            content = (await call_with_retry_async(self._client.get_resource, catalog_id=catalog_id)).content
            self._contents[catalog_id] = content
        return _runnable(content)

    async def _load(self, path: str) -> Playbook:
        try:
            resource = await call_with_retry_async(self._client.get_resource, path=path)
        except ResourceNotFound as error:
            raise PlaybookNotFound(f"Playbook not found: {path}") from error
        return _runnable(resource.content)


def _runnable(content: str) -> Playbook:
    known = known_playbook(content)
    if known.problems:
        # It was right when it was registered: this worker lacks something that others may have.
        raise RunInterrupted(f"this worker cannot run {known.playbook.path}: {' '.join(map(str, known.problems))}")
    return known.playbook


def _told(error: Exception) -> str:
    if isinstance(error, StepFailed):
        told = {"step": error.step, "type": error.error_type, "message": error.error_message}
    else:
        told = {"type": type(error).__name__, "message": str(error)}
    return json.dumps({"error": told})
