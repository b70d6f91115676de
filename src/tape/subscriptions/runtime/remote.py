"""The remote runtime: a process that reaches the server over HTTP and needs no database."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from tape.base.retry import UNLIMITED, Backoff, RetryPolicy, retry_async
from tape.base.telemetry.metrics import Metrics
from tape.errors import ApiRefused, DrainedByServer, InvalidConfig, PayloadTooLarge, ServerUnreachable, TapeError
from tape.subscriptions.api_client import Control
from tape.subscriptions.dispatch.holds import HOLD_RETRY, is_missing_secret
from tape.subscriptions.dispatch.http import ServerDispatch, ServerDownstreams, ServerOutcomes, ServerReadiness
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.document.validator import parse_subscription
from tape.subscriptions.event_reporter import EventReporter
from tape.subscriptions.events import SubscriptionEvent, subscription_ref
from tape.subscriptions.runtime.assembly import assemble
from tape.subscriptions.runtime.health import RuntimeHealth
from tape.subscriptions.runtime.runtime import Counts, Runtime
from tape.subscriptions.secrets import reveal_within

log = logging.getLogger(__name__)

T = TypeVar("T")

STATE_S = 2.0
SERVER_RETRY = RetryPolicy(
    max_attempts=UNLIMITED, initial_interval_s=0.5, max_interval_s=10.0, retry_on=(ServerUnreachable,)
)


class RemoteRuntime:
    """Runs one subscription of a server's catalog, and waits while the server is unavailable.

    On stop it finishes the fetched messages, then drains and deactivates the subscription; the next start activates it.
    With `keeps_active` the subscription stays active for other processes. A paused subscription stays paused; one that
    an operator set to drain is deactivated at the end.

    With `once` it ends when its source is empty. A scheduled subscription runs only so, and without being activated:
    an active one is drained by the server on its cadence.
    """

    def __init__(
        self,
        path: str,
        control: Control,
        worker_id: str,
        *,
        metrics: Metrics | None = None,
        keeps_active: bool = False,
        once: bool = False,
    ) -> None:
        self.path = path
        self.metrics = metrics or Metrics()
        self.health = RuntimeHealth()
        self.runtime: Runtime | None = None
        self._once = once
        self._control = control
        self._worker_id = worker_id
        self._keeps_active = keeps_active
        self._state = "ACTIVE"
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Finish the fetched messages, then end."""
        self._stopping.set()
        self.health.is_stopping = True
        if self.runtime is not None:
            self.runtime.stop()

    async def run(self) -> Counts:
        """Run until `stop`, or with `once` until the source is empty. Returns the counts."""
        beating = asyncio.create_task(self.health.beat(), name="tape-heartbeat")
        try:
            return await self._run()
        finally:
            beating.cancel()

    async def _run(self) -> Counts:
        subscription = await self._load()
        if subscription is None:
            return Counts()
        is_scheduled = subscription.spec.activation == "scheduled"
        status = await self._call_until_reachable(lambda: self._control.register(self.path))
        subscription_id = int(status["subscription_id"])
        if is_scheduled and status["state"] == "ACTIVE":
            raise DrainedByServer(
                f"{self.path} is scheduled and active: the server drains it on its cadence. To drain it here instead,"
                f" end that with `tape subscriptions deactivate {self.path}`; the next start with --once registers it"
                " again and does not activate it."
            )
        if status["state"] == "REGISTERED" and not is_scheduled:
            status = await self._call_until_reachable(lambda: self._activate(subscription_id))
        self._state = status["state"]
        if self._once and self._state == "PAUSED":
            log.warning("%s is paused: nothing is drained", self.path)
            return Counts()
        ref, spec = subscription_ref(self.path, subscription_id), subscription.spec
        dispatch = ServerDispatch(
            self._control,
            ref,
            batch_max=spec.dispatch_batch,
            concurrency=spec.runtime.concurrency,
            worker_id=self._worker_id,
        )
        readiness = ServerReadiness(self._control, subscription_id)
        self.runtime = await self._until_secrets_are_set(
            readiness,
            lambda: assemble(
                subscription,
                ref,
                dispatch,
                reveal=reveal_within(self.path, self._reveal),
                reporter=EventReporter(self._write, self._worker_id),
                metrics=self.metrics,
                downstreams=ServerDownstreams(self._control, self.path),
                outcomes=ServerOutcomes(self._control, self.path),
                readiness=readiness,
                state=lambda: self._state,
                until_empty=self._once,
            ),
        )
        if self.runtime is None:
            return Counts()
        self.health.runtime, self.health.configuration_problem = self.runtime, ""
        watching = asyncio.create_task(self._watch(subscription_id), name="tape-state")
        try:
            if self._stopping.is_set():
                self.runtime.stop()
            counts = await self.runtime.run()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        await self._end(subscription_id)
        return counts

    async def _load(self) -> Subscription | None:
        content = await self._call_until_reachable(lambda: self._control.document(self.path))
        if self._stopping.is_set():
            return None
        subscription = parse_subscription(content, self.path)
        if subscription.spec.mode != "pull":
            raise InvalidConfig(
                f"{self.path} is a push subscription; the server or a `tape gateway` receives its deliveries."
            )
        if subscription.spec.activation == "scheduled" and not self._once:
            raise InvalidConfig(
                f"{self.path} is scheduled: the server drains it on its cadence, once it is activated. To let another"
                " scheduler do that, start it with --once."
            )
        if subscription.spec.runtime.target == "spark":
            raise InvalidConfig(
                f"{self.path} runs on Spark, where its source is read by offset. Start it with: tape pipeline run"
                f" subscription {self.path} --server {self._control.url} --follow"
            )
        return subscription

    def _activate(self, subscription_id: int) -> dict[str, Any]:
        # This runtime holds the messages of a subscription that cannot start runs yet.
        return self._control.act(subscription_id, "activate", force=True)

    async def _until_secrets_are_set(
        self, readiness: ServerReadiness, build: Callable[[], Awaitable[Runtime]]
    ) -> Runtime | None:
        """The runtime, once the secrets that it connects with are set; None after `stop`."""
        backoff, known = Backoff(HOLD_RETRY), ""
        while not self._stopping.is_set():
            try:
                return await build()
            except TapeError as error:
                if not is_missing_secret(error):
                    raise
                if str(error) != known:
                    known = str(error)
                    self.health.configuration_problem = known
                    log.warning("%s is held: %s", self.path, known)
                    self.metrics.held.labels(self.path).set(1)
                    await readiness.report([known])
            await backoff.wait_async(stop=self._stopping)
        return None

    async def _watch(self, subscription_id: int) -> None:
        while True:
            await asyncio.sleep(STATE_S)
            try:
                status = await asyncio.to_thread(self._control.status, subscription_id)
            except TapeError as error:
                self.health.server_failed(error)
                log.warning("%s: state cannot be read, continuing: %s", self.path, error)
                continue
            self.health.server_answered()
            if status["state"] != self._state:
                log.info("%s is %s", self.path, status["state"])
            self._state = status["state"]

    async def _end(self, subscription_id: int) -> None:
        try:
            if self._state == "ACTIVE" and not self._keeps_active:
                self._state = (await asyncio.to_thread(self._control.act, subscription_id, "drain"))["state"]
            if self._state == "DRAINING":
                await asyncio.to_thread(self._control.act, subscription_id, "deactivate")
        except TapeError as error:
            log.warning("%s: not deactivated: %s", self.path, error)

    async def _reveal(self, alias: str, hosts: Sequence[str]) -> Any:
        return await self._call_until_reachable(lambda: self._control.credential(alias, hosts))

    async def _write(self, events: Sequence[SubscriptionEvent]) -> None:
        try:
            await asyncio.to_thread(self._control.post_events, events)
        except ApiRefused as error:
            if error.http_status in (400, 413, 422):
                raise PayloadTooLarge(f"the server rejects the events: {error}") from error
            raise

    async def _call_until_reachable(self, call: Callable[[], T]) -> T:
        """Return what a call returns, retried while the server is unreachable and until `stop` is called."""

        def log_retry(error: Exception, attempt: int, delay_s: float) -> None:
            self.health.server_failed(error)
            log.warning("%s: server unreachable, retrying in %.1f s: %s", self.path, delay_s, error)

        answer = await retry_async(
            lambda: asyncio.to_thread(call), SERVER_RETRY, stop=self._stopping, on_retry=log_retry
        )
        self.health.server_answered()
        return answer
