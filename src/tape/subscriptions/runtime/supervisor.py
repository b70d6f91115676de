"""The pull subscriptions that a server runs itself: continuous ones with `runtime.target: local`, and scheduled drains.

Of several servers on one database, one runs a subscription; when it is gone, another takes over within its lease.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from tape.base.clock import now_ms
from tape.base.retry import RetryPolicy
from tape.engine.catalog import fetch_id
from tape.errors import InvalidDocument, TapeError
from tape.journal.journal import Journal
from tape.store import Reader, Transaction
from tape.subscriptions import events, lifecycle
from tape.subscriptions.dispatch.in_server import WriterDispatch
from tape.subscriptions.document.cron import Cron
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.document.validator import parse_subscription
from tape.subscriptions.event_reporter import EventReporter
from tape.subscriptions.events import SubscriptionEvent
from tape.subscriptions.runtime import leases
from tape.subscriptions.runtime.assembly import Reveal, assemble
from tape.subscriptions.runtime.runtime import FINISH_S, Runtime

log = logging.getLogger(__name__)

LOOK_S = 1.0
LEASE_MS = 15_000
RESTART = RetryPolicy(max_attempts=1_000_000, initial_interval_s=1.0, max_interval_s=60.0)


class LiveRegistration(NamedTuple):
    """A registration that is alive, and the newest version of its document."""

    subscription_id: int
    path: str
    state: str
    catalog_id: int


class _Running:
    """A subscription that this server runs."""

    def __init__(self, seen: LiveRegistration, subscription: Subscription) -> None:
        self.seen = seen
        self.subscription = subscription
        self.runtime: Runtime | None = None
        self.is_wanted = True
        self.task: asyncio.Task[None] | None = None

    def stop(self) -> None:
        self.is_wanted = False
        if self.runtime is not None:
            self.runtime.stop()


class RuntimeSupervisor:
    """Looks every second which subscriptions are to run here, and runs them."""

    def __init__(self, journal: Journal, reveal: Reveal, holder: str) -> None:
        self._journal = journal
        self._database = journal.database
        self._reveal = reveal
        self._holder = holder
        self._documents: dict[int, Subscription | None] = {}
        self._states: dict[int, str] = {}
        self._running: dict[str, _Running] = {}
        self._failures: dict[str, tuple[int, float]] = {}
        self._poll_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to look."""
        self._poll_task = asyncio.create_task(self._poll(), name="tape-hosting")

    async def close(self, grace_s: float = 5.0) -> None:
        """Let every runtime finish what it has, for so long, and let go of their subscriptions."""
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
                log.warning("subscriptions cannot be looked at, trying again: %s", error)
            await asyncio.sleep(LOOK_S)

    async def _poll_once(self) -> None:
        found = await self._database.read(_alive)
        await self._load_documents(found)
        self._states = {seen.subscription_id: seen.state for seen in found}
        if self._running:
            paths, until = list(self._running), now_ms() + LEASE_MS
            ours = await self._database.write(lambda tx: leases.renew(tx, paths, self._holder, until))
            for path in set(paths) - ours:
                log.warning("%s is run by another server now", path)
                self._running[path].stop()
        wanted = {seen.path: seen for seen in found}
        for path, running in self._running.items():
            seen = wanted.get(path)
            if seen is None or seen[:2] + seen[3:] != running.seen[:2] + running.seen[3:]:
                running.stop()  # it is gone, or its document is another: what comes next begins anew
        for seen in found:
            subscription = self._documents.get(seen.catalog_id)
            if subscription is not None and seen.path not in self._running:
                await self._start_if_due(seen, subscription)

    async def _start_if_due(self, seen: LiveRegistration, subscription: Subscription) -> None:
        if time.monotonic() < self._failures.get(seen.path, (0, 0.0))[1]:
            return
        now, until = now_ms(), now_ms() + LEASE_MS
        is_scheduled = subscription.spec.activation == "scheduled"
        if seen.state == "DRAINING":
            # Nothing of it runs here; if it runs nowhere, it has come to its end.
            if await self._database.write(lambda tx: leases.claim(tx, seen.path, self._holder, now, until)):
                await self._database.write(lambda tx: _deactivate(tx, seen, self._holder))
            return
        if seen.state != "ACTIVE":
            return
        if is_scheduled:
            due = _next_ms(subscription)
            mine = await self._database.write(lambda tx: leases.claim_due(tx, seen.path, self._holder, now, until, due))
        else:
            mine = await self._database.write(lambda tx: leases.claim(tx, seen.path, self._holder, now, until))
        if mine:
            running = self._running[seen.path] = _Running(seen, subscription)
            running.task = asyncio.create_task(self._run(running, is_scheduled), name=f"tape-runtime {seen.path}")

    async def _run(self, running: _Running, is_scheduled: bool) -> None:
        seen, subscription = running.seen, running.subscription
        ref = events.subscription_ref(seen.path, seen.subscription_id)
        reporter = EventReporter(self._write_events, self._holder)
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
                reveal=self._reveal,
                reporter=reporter,
                metrics=self._database.metrics,
                state=lambda: self._states.get(seen.subscription_id, "DEACTIVATED"),
                until_empty=is_scheduled,
            )
            if running.is_wanted:
                counts = await runtime.run()
                self._failures.pop(seen.path, None)
                log.info("%s: %s", seen.path, counts)
            if self._states.get(seen.subscription_id) == "DRAINING" and not is_scheduled:
                await self._database.write(lambda tx: _deactivate(tx, seen, self._holder))
        except Exception as error:
            attempt = self._failures.get(seen.path, (0, 0.0))[0] + 1
            pause = RESTART.delay(attempt)
            self._failures[seen.path] = (attempt, time.monotonic() + pause)
            log.log(
                logging.WARNING if isinstance(error, TapeError) else logging.ERROR,
                "%s cannot run, trying again in %.0f s: %s",
                seen.path,
                pause,
                error,
                exc_info=not isinstance(error, TapeError),
            )
            if attempt == 1:
                await reporter.emit([events.source_lost(ref, subscription.spec.source, str(error))])
        finally:
            del self._running[seen.path]
            await self._database.write(lambda tx: leases.release(tx, seen.path, self._holder))

    async def _load_documents(self, found: Sequence[LiveRegistration]) -> None:
        """Read the documents that are new; only those of subscriptions that run here are kept."""
        for seen in found:
            if seen.catalog_id not in self._documents:
                resource = await self._database.read(lambda reader, seen=seen: fetch_id(reader, seen.catalog_id))  # type: ignore[misc]
                self._documents[seen.catalog_id] = _ours(resource.content) if resource is not None else None
        known = {seen.catalog_id for seen in found}
        self._documents = {number: document for number, document in self._documents.items() if number in known}

    async def _write_events(self, to_emit: Sequence[SubscriptionEvent]) -> None:
        await self._journal.append([event.draft() for event in to_emit])


def _alive(reader: Reader | Transaction) -> list[LiveRegistration]:
    rows = reader.query(
        "SELECT s.subscription_id, s.path, s.state, c.catalog_id FROM tape_subscriptions s"
        " JOIN tape_catalog c ON c.path = s.path AND c.is_latest = 1 WHERE s.state <> 'DEACTIVATED' ORDER BY s.path"
    )
    return [LiveRegistration(*row) for row in rows]


def _deactivate(tx: Transaction, seen: LiveRegistration, holder: str) -> None:
    if lifecycle.require(tx, seen.subscription_id).state == "DRAINING":
        lifecycle.act(tx, seen.subscription_id, "deactivate")
    leases.release(tx, seen.path, holder)


def _ours(content: str) -> Subscription | None:
    """The subscription of a document, if a server runs it."""
    try:
        subscription = parse_subscription(content)
    except InvalidDocument as error:  # an older version took it
        log.warning("a subscription of the catalog cannot be run: %s", error)
        return None
    spec = subscription.spec
    is_here = spec.mode == "pull" and (spec.activation == "scheduled" or spec.runtime.target == "local")
    return subscription if is_here else None


def _next_ms(subscription: Subscription) -> int:
    at = Cron.parse(subscription.spec.cadence).next_after(datetime.now(UTC))
    assert at is not None
    return int(at.timestamp() * 1_000)
