"""The runtime supervisor of a server: runs continuous subscriptions with `runtime.target: local`, and scheduled drains.

Of several servers on one database, one runs a subscription; if it dies, another takes over when its lease expires, and
the same server takes over when it is started again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from tape.base.clock import CLOCK_TOLERANCE_MS, now_ms
from tape.base.retry import UNLIMITED, RetryPolicy
from tape.engine.catalog import Resource, fetch_id
from tape.errors import InvalidDocument, TapeError
from tape.journal.journal import Journal
from tape.model.cron import Cron
from tape.store import Reader, Transaction
from tape.subscriptions import events, lifecycle
from tape.subscriptions.dispatch.holds import HOLD_RETRY
from tape.subscriptions.dispatch.in_server import WriterDispatch, WriterDownstreams, WriterOutcomes
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.document.validator import parse_subscription
from tape.subscriptions.event_reporter import EventReporter
from tape.subscriptions.events import SubscriptionEvent
from tape.subscriptions.readiness import DatabaseReadiness
from tape.subscriptions.runtime import leases
from tape.subscriptions.runtime.assembly import assemble
from tape.subscriptions.runtime.runtime import FINISH_S, Runtime
from tape.subscriptions.secrets import reveal_within

log = logging.getLogger(__name__)

LOOK_S = 1.0
RESTART = RetryPolicy(max_attempts=UNLIMITED, initial_interval_s=1.0, max_interval_s=60.0)


class LiveRegistration(NamedTuple):
    """A live registration and the newest version of its document."""

    subscription_id: int
    path: str
    state: str
    catalog_id: int


class _Running:
    """A subscription that this server runs."""

    def __init__(self, live: LiveRegistration, subscription: Subscription) -> None:
        self.live = live
        self.subscription = subscription
        self.runtime: Runtime | None = None
        self.is_wanted = True
        self.task: asyncio.Task[None] | None = None

    def stop(self) -> None:
        self.is_wanted = False
        if self.runtime is not None:
            self.runtime.stop()


class RuntimeSupervisor:
    """Checks every second which subscriptions this server has to run, and runs them."""

    def __init__(self, journal: Journal, reveal: Callable[..., Awaitable[Any]], holder: str) -> None:
        self._journal = journal
        self._database = journal.database
        self._reveal = reveal
        self._holder = holder
        self._has_taken_over = False
        self._documents: dict[int, Subscription | None] = {}
        self._states: dict[int, str] = {}
        self._running: dict[str, _Running] = {}
        self._failures: dict[str, tuple[int, float]] = {}
        self._logged: dict[str, str] = {}  # the error that each subscription was last held for
        self._poll_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the supervisor."""
        work = self._database.metrics.background.supervise("subscriptions", self._poll)
        self._poll_task = asyncio.create_task(work, name="tape-supervisor")

    async def close(self, grace_s: float = 5.0) -> None:
        """Stop the runtimes, wait up to `grace_s` for messages in flight, and release the leases."""
        if self._poll_task is not None:
            self._poll_task.cancel()
            await asyncio.gather(self._poll_task, return_exceptions=True)
        for running in self._running.values():
            running.stop()
        tasks = [running.task for running in self._running.values() if running.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_s + FINISH_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _poll(self) -> None:
        while True:
            try:
                await self._poll_once()
            except TapeError as error:
                log.warning("subscriptions cannot be read, retrying: %s", error)
            await asyncio.sleep(LOOK_S)

    async def _poll_once(self) -> None:
        if not self._has_taken_over:
            count = await self._database.write(lambda tx: leases.release_former(tx, self._holder))
            self._has_taken_over = True
            if count:
                log.info("leases on %d subscriptions of the former process of this server released", count)
        found = await self._database.read(_live_registrations)
        await self._load_documents(found)
        self._states = {live.subscription_id: live.state for live in found}
        if self._running:
            paths, until = list(self._running), now_ms() + leases.LEASE_MS
            ours = await self._database.write(lambda tx: leases.renew(tx, paths, self._holder, until))
            for path in set(paths) - ours:
                log.warning("%s: lease lost to another server", path)
                self._running[path].stop()
        wanted = {live.path: live for live in found}
        for path in self._logged.keys() - wanted.keys():
            del self._logged[path]
            self._database.metrics.held.labels(path).set(0)
        for path, running in self._running.items():
            live = wanted.get(path)
            if live is None or live[:2] + live[3:] != running.live[:2] + running.live[3:]:
                running.stop()  # deactivated, or its document changed: a new runtime is started
        for live in found:
            subscription = self._documents.get(live.catalog_id)
            if subscription is not None and live.path not in self._running:
                await self._start_if_due(live, subscription)

    async def _start_if_due(self, live: LiveRegistration, subscription: Subscription) -> None:
        if time.monotonic() < self._failures.get(live.path, (0, 0.0))[1]:
            return
        now = now_ms()
        until = now + leases.LEASE_MS
        is_scheduled = subscription.spec.activation == "scheduled"
        if live.state == "DRAINING":
            # It does not run here; if the lease is free it runs nowhere, and its drain is complete.
            if await self._database.write(lambda tx: leases.claim(tx, live.path, self._holder, now, until)):
                await self._database.write(lambda tx: _deactivate(tx, live, self._holder))
            return
        if live.state != "ACTIVE":
            return
        if is_scheduled:
            due, latest = _next_ms(subscription, now), _next_ms(subscription, now + CLOCK_TOLERANCE_MS)
            mine = await self._database.write(
                lambda tx: leases.claim_due(tx, live.path, self._holder, now, until, due, latest)
            )
        else:
            mine = await self._database.write(lambda tx: leases.claim(tx, live.path, self._holder, now, until))
        if mine:
            running = self._running[live.path] = _Running(live, subscription)
            running.task = asyncio.create_task(self._run(running, is_scheduled), name=f"tape-runtime {live.path}")

    async def _run(self, running: _Running, is_scheduled: bool) -> None:
        live, subscription = running.live, running.subscription
        ref = events.subscription_ref(live.path, live.subscription_id)
        reporter = EventReporter(self._write_events, self._holder)
        readiness = DatabaseReadiness(self._database, live.path, live.subscription_id)
        try:
            running.runtime = runtime = await assemble(
                subscription,
                ref,
                WriterDispatch(
                    self._database,
                    ref,
                    self._journal.max_payload_bytes,
                    batch_max=subscription.spec.dispatch_batch,
                    worker_id=self._holder,
                ),
                reveal=reveal_within(live.path, partial(self._reveal, to=f"the runtime of {live.path} in this server")),
                reporter=reporter,
                metrics=self._database.metrics,
                downstreams=WriterDownstreams(self._database, live.path),
                readiness=readiness,
                outcomes=WriterOutcomes(self._database, live.path),
                state=lambda: self._states.get(live.subscription_id, "DEACTIVATED"),
                until_empty=is_scheduled,
            )
            if running.is_wanted:
                counts = await runtime.run()
                self._failures.pop(live.path, None)
                self._logged.pop(live.path, None)
                log.info("%s: %s", live.path, counts)
            if self._states.get(live.subscription_id) == "DRAINING" and not is_scheduled:
                await self._database.write(lambda tx: _deactivate(tx, live, self._holder))
        except Exception as error:
            attempt = self._failures.get(live.path, (0, 0.0))[0] + 1
            pause = (HOLD_RETRY if isinstance(error, TapeError) else RESTART).delay(attempt)
            self._failures[live.path] = (attempt, time.monotonic() + pause)
            if not isinstance(error, TapeError):
                log.exception("%s cannot run, retrying in %.0f s", live.path, pause)
            elif str(error) != self._logged.get(live.path):
                log.warning("%s cannot run, retrying every %.0f s: %s", live.path, HOLD_RETRY.max_interval_s, error)
            self._logged[live.path] = str(error)
            await self._report_failure(readiness, live.path, error)
            if attempt == 1:
                await reporter.emit([events.source_lost(ref, subscription.spec.source, str(error))])
        finally:
            del self._running[live.path]
            await self._database.write(lambda tx: leases.release(tx, live.path, self._holder))

    async def _report_failure(self, readiness: DatabaseReadiness, path: str, error: Exception) -> None:
        """Record why a subscription cannot run, with everything that is missing."""
        try:
            found = [each.reason for each in await readiness.find_problems() if each.kind != "playbook"]
            await readiness.report(found or [str(error)])
        except TapeError as problem:
            log.debug("%s: the hold is not recorded yet: %s", path, problem)
        self._database.metrics.held.labels(path).set(1)

    async def _load_documents(self, found: Sequence[LiveRegistration]) -> None:
        """Read new documents; keep those of subscriptions that a server runs."""
        for live in found:
            if live.catalog_id not in self._documents:
                resource = await self._database.read(lambda reader, live=live: fetch_id(reader, live.catalog_id))  # type: ignore[misc]
                self._documents[live.catalog_id] = _parse_if_hosted(resource) if resource is not None else None
        known = {live.catalog_id for live in found}
        self._documents = {number: document for number, document in self._documents.items() if number in known}

    async def _write_events(self, to_emit: Sequence[SubscriptionEvent]) -> None:
        await self._journal.append([event.draft() for event in to_emit])


def _live_registrations(reader: Reader | Transaction) -> list[LiveRegistration]:
    rows = reader.query(
        "SELECT s.subscription_id, s.path, s.state, c.catalog_id FROM tape_subscriptions s"
        " JOIN tape_catalog c ON c.path = s.path AND c.is_latest = 1 WHERE s.state <> 'DEACTIVATED' ORDER BY s.path"
    )
    return [LiveRegistration(*row) for row in rows]


def _deactivate(tx: Transaction, live: LiveRegistration, holder: str) -> None:
    if lifecycle.require(tx, live.subscription_id).state == "DRAINING":
        lifecycle.act(tx, live.subscription_id, "deactivate")
    leases.release(tx, live.path, holder)


def _parse_if_hosted(resource: Resource) -> Subscription | None:
    """The subscription of a document, if a server runs it."""
    try:
        subscription = parse_subscription(resource.content, resource.path)
    except InvalidDocument as error:  # registered by an older version
        log.warning("a subscription of the catalog is invalid: %s", error)
        return None
    spec = subscription.spec
    is_here = spec.mode == "pull" and (spec.activation == "scheduled" or spec.runtime.target == "local")
    return subscription if is_here else None


def _next_ms(subscription: Subscription, after_ms: int) -> int:
    return Cron.parse(subscription.spec.cadence).next_ms(after_ms)
