"""A worker: claims the commands of one pool and runs their playbooks, up to `concurrency` at a time."""

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
from tape.model.shared_command import SUMMARY
from tape.model.tenant_names import plain_name, split_name
from tape.playbooks.answers import recording_answers
from tape.playbooks.batch_results import failed_messages, failures_json
from tape.playbooks.batch_runs import run_message
from tape.playbooks.document import Playbook
from tape.playbooks.functions import declared_playbooks
from tape.playbooks.host import RunInfo, is_interruption
from tape.playbooks.library import known_playbook
from tape.playbooks.pools import POOL_RULE, SHARED, is_pool, reaction_fields, reaction_id
from tape.playbooks.run_leases import RunLeases
from tape.playbooks.runner import run_playbook
from tape.playbooks.worker_host import RemoteHost, SummaryHost
from tape.proto import tape_pb2 as pb
from tape.reactions.consumer import ReleaseTask
from tape.reactions.counters import Tally
from tape.reactions.dispatcher import DRAIN_S, Dispatcher
from tape.reactions.envelope import Envelope
from tape.reactions.slots import acquire_slot, release_slot, report_answer

__all__ = ["run_worker", "work"]

log = logging.getLogger(__name__)

# A run's lease expires before that of its task, so that the next worker of the task can resume the run at once.
TASK_LEASE_MS = 30_000
RUN_LEASE_SHARE = 0.8
MAX_THREADS = 1_000
# Runs that are prepared while all slots are busy with short ones: leased, and their first step recorded.
PREFETCH = 64


class Command(msgspec.Struct, frozen=True):
    """A command to a pool: the execution to run."""

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
    downstream: str = ""
    record: str = "full"
    # The messages of a batch; 0 if the run is not one.
    batch: int = 0


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

    Registers the Python playbooks of this process in the catalog first, unless they belong to another pool. On stop it
    claims no more tasks and lets runs finish within `drain_s` seconds; other workers resume the rest. The runs of a
    killed worker are resumed after `lease_ms`.
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
            await _register_pool(client, pool, announce=announce, waits=not options.get("once"))
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


async def _register_pool(client: AsyncTapeClient, pool: str, *, announce: bool, waits: bool) -> None:
    """Register the pool and this worker's playbooks; with `waits`, retry until the server is available."""

    async def register() -> None:
        if announce:
            await announce_playbooks(client, pool)
        await client.register_reaction(**reaction_fields(pool), handler_kind=pb.HANDLER_KIND_TASK)

    def log_retry(error: Exception, attempt: int, delay_s: float) -> None:
        log.warning("server unavailable, retrying in %.1f s: %s", delay_s, error)

    await retry_async(register, RECONNECT, can_retry=lambda error: waits and is_retryable(error), on_retry=log_retry)


async def announce_playbooks(client: AsyncTapeClient, pool: str) -> list[pb.Resource]:
    """Register the Python playbooks of this process in the catalog, unless they belong to another pool."""
    mine = [each for each in declared_playbooks().values() if each.pool in ("", pool)]
    return [await client.register_resource(each.document, if_changed=True) for each in mine]


class Worker:
    """Runs the playbooks of commands."""

    def __init__(
        self,
        client: AsyncTapeClient,
        blocking: TapeClient,
        owner: str,
        lease_ms: int,
        stop_worker: Callable[[TapeError], None],
    ) -> None:
        self._stop_worker = stop_worker
        self._client = client
        self._blocking = blocking
        self._owner = owner
        self._lease_ms = lease_ms
        self._contents: dict[int, str] = {}
        self.leases = RunLeases(client, lease_ms)

    async def handle(self, envelope: Envelope) -> None:
        """Run the playbook of a command to its end. After an exception the task is retried."""
        try:
            command = msgspec.convert(envelope.payload, Command, strict=False)
        except msgspec.ValidationError as error:
            raise NeverRetry(f"the command cannot be read: {error}") from error
        if command.execution_id != envelope.run_id:
            raise NeverRetry(
                f"the command names the run {command.execution_id!r} and is an entry of {envelope.run_id!r}; a command"
                " runs its own run only."
            )
        # Each attempt is a lease owner of its own: an abandoned attempt that still runs loses its lease.
        owner = f"{self._owner}:{envelope.task_id}:{envelope.attempt}"
        tenant, path = split_name(command.path)
        run = RunInfo(
            id=command.execution_id,
            path=path,
            tenant=tenant,
            pool=command.pool,
            parent=command.parent_execution_id,
            subscription=command.subscription,
            message_id=command.message_id,
            priority=command.priority,
            trace=command.trace,
            downstream=command.downstream.rpartition("|")[2],
        )
        client, blocking = self._client.with_lease_owner(owner), self._blocking.with_lease_owner(owner)
        kind = SummaryHost if command.record == SUMMARY else RemoteHost
        host = kind(run, owner, self._lease_ms, client, blocking, self._load)
        try:
            with self.leases.keep_while((run.id, owner), lambda: host.has_lease), recording_answers(report_answer):
                await self._run(command, run, host)
        except RunCancelled as error:
            log.info("run %s was cancelled: %s", run.id, error)
        except NotFound as error:
            raise NeverRetry(str(error)) from error
        except NotServed as error:  # every command would fail the same way: keep their attempts
            self._stop_worker(error)
            with contextlib.suppress(TapeError, RunInterrupted):
                await host.release()
            raise ReleaseTask(str(error)) from error
        except BaseException:
            try:
                await asyncio.shield(host.release())
            except (TapeError, RunInterrupted, asyncio.CancelledError) as error:
                log.debug("the lease on run %s was not given back: %r", run.id, error)
            raise

    async def _run(self, command: Command, run: RunInfo, host: RemoteHost) -> None:
        try:
            playbook = await self._playbook(command.catalog_id)
            if playbook.python:
                await acquire_slot()
                if command.record != SUMMARY or not playbook.idempotent:
                    await host.advance()  # acquire the lease before the function is called
            if command.batch == 1:
                output = await run_message(playbook, command.payload, run, host)
            else:
                output = await run_playbook(playbook, command.payload, run, host)
            failed = failed_messages(output, command.batch) if command.batch > 1 else []
            release_slot()  # recording the end needs no slot
            if failed:
                await host.record_end(pb.RUN_STATUS_TERMINAL, failures_json(output, failed))
            else:
                await host.end(pb.RUN_STATUS_TERMINAL, to_json({"output": output}))
        except Exception as error:
            if is_interruption(error) or isinstance(error, NeverRetry):
                raise
            if not host.has_lease and isinstance(error, NotFound):
                raise
            if not host.has_lease and isinstance(error, IllegalTransition):
                log.info("nothing to do for run %s: %s", run.id, error)
                return
            log.warning("run %s of %s failed: %s", run.id, command.path, error)
            log.debug("traceback of the failure", exc_info=error)
            await self._fail(host, run.id, _failure_json(error))

    async def _fail(self, host: RemoteHost, run_id: str, detail_json: str) -> None:
        try:
            await host.end(pb.RUN_STATUS_FAILED, detail_json)
        except IllegalTransition as error:
            log.info("run %s has ended already: %s", run_id, error)

    # ── playbooks ────────────────────────────────────────────────────────────────────────────────

    async def _playbook(self, catalog_id: int) -> Playbook:
        """The playbook of a catalog id; its content never changes."""
        content = self._contents.get(catalog_id)
        if content is None:
            content = (await call_with_retry_async(self._client.get_resource, catalog_id=catalog_id)).content
            self._contents[catalog_id] = content
        return _runnable(content)

    async def _load(self, path: str) -> Playbook:
        try:
            resource = await call_with_retry_async(self._client.get_resource, path=path)
        except ResourceNotFound as error:
            raise PlaybookNotFound(f"Playbook not found: {plain_name(path)}") from error
        return _runnable(resource.content)


def _runnable(content: str) -> Playbook:
    known = known_playbook(content)
    if known.problems:
        # It was valid when it was registered: this worker lacks a tool that others may have.
        raise RunInterrupted(f"this worker cannot run {known.playbook.path}: {' '.join(map(str, known.problems))}")
    return known.playbook


def _failure_json(error: Exception) -> str:
    if isinstance(error, StepFailed):
        failure = {"step": error.step, "type": error.error_type, "message": error.error_message}
    else:
        failure = {"type": type(error).__name__, "message": str(error)}
    return json.dumps({"error": failure})
