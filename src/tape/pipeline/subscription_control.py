"""The connection of a subscription on Spark to its server: document, lifecycle state, offsets, and events."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlencode

from tape.base.retry import UNLIMITED, Backoff, RetryPolicy, retry
from tape.errors import ApiRefused, InvalidConfig, PlaybookNotFound, ServerUnreachable, TapeError
from tape.model.tenant_names import name_within, tenant_of
from tape.pipeline.job_context import JobContext
from tape.subscriptions.api_client import Control
from tape.subscriptions.dispatch.holds import HOLD_RETRY
from tape.subscriptions.document.spec import Subscription, SubscriptionSpec
from tape.subscriptions.document.validator import parse_subscription
from tape.subscriptions.events import SubscriptionEvent, SubscriptionRef, stamped, subscription_ref
from tape.subscriptions.runtime.assembly import connection_of, secrets_of
from tape.subscriptions.secrets import reveal_within

log = logging.getLogger(__name__)

T = TypeVar("T")

POLL_INTERVAL_S = 2.0
MAX_UNSENT_EVENTS = 1_000
SERVER_RETRY = RetryPolicy(
    max_attempts=UNLIMITED, initial_interval_s=0.5, max_interval_s=10.0, retry_on=(ServerUnreachable,)
)


class SubscriptionControl:
    """Follows the state of a subscription, which it polls every 2 s, and emits the subscription's events.

    The job stops when the subscription is draining or deactivated. While the server is unavailable, calls are retried
    if the job `is_following`, and fail otherwise.
    """

    def __init__(self, api: Control, path: str, context: JobContext, *, worker_id: str, is_following: bool) -> None:
        self.path = path
        self.state = ""
        self.ref: SubscriptionRef = subscription_ref(path)
        self._api = api
        self._context = context
        self._worker_id = worker_id
        self._is_following = is_following
        self._unsent: list[SubscriptionEvent] = []
        self._held: tuple[str, ...] | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._watcher: threading.Thread | None = None

    def start(self) -> Subscription:
        """Register and activate the subscription and return it. Raises InvalidConfig unless its target is Spark."""
        subscription = parse_subscription(self.call_with_retry(lambda: self._api.document(self.path)), self.path)
        if subscription.spec.runtime.target != "spark":
            raise InvalidConfig(
                f"{self.path} has the runtime.target {subscription.spec.runtime.target!r}; this job runs those with"
                f" 'spark'. Run it with: tape subscription run {self.path}"
            )
        if not self._is_following:
            self._expect_playbook(subscription.spec.dispatch.playbook)
        status = self.call_with_retry(lambda: self._api.register(self.path))
        self.ref = subscription_ref(self.path, int(status["subscription_id"]))
        if status["state"] == "REGISTERED":
            status = self.call_with_retry(lambda: self._api.act(self.ref.subscription_id, "activate", force=True))
        self._wait_for_playbook(subscription.spec.dispatch.playbook)
        self._set_state(status["state"])
        self._watcher = threading.Thread(target=self._watch, name="tape-state", daemon=True)
        self._watcher.start()
        return subscription

    def _expect_playbook(self, path: str) -> None:
        """Raise PlaybookNotFound before anything is read; otherwise every message would become a dead letter."""
        try:
            self.call_with_retry(lambda: self._api.document(name_within(tenant_of(self.path), path)))
        except ApiRefused as error:
            if error.http_status != 404:
                raise
            raise PlaybookNotFound(
                f"Playbook not found: {path}, the dispatch.playbook of {self.path}."
                " Register it with: tape playbooks register FILE"
            ) from error

    def _wait_for_playbook(self, path: str) -> None:
        """Hold the subscription until its playbook is registered, or the job is stopped."""
        backoff = Backoff(HOLD_RETRY)
        while not self._context.is_stopping:
            try:
                self._expect_playbook(path)
            except PlaybookNotFound as error:
                if not self._is_following:
                    raise
                self._context.report_count("waits", 1, str(error))
                self.hold([str(error)])
                backoff.wait(stop=self._context)
            else:
                self.hold([])
                return

    def hold(self, reasons: Sequence[str]) -> None:
        """Record why the subscription is held, or that it is held no longer; what is known already is not sent."""
        if (held := tuple(reasons)) == self._held:
            return
        if reasons:
            log.warning("%s is held, its messages wait: %s", self.path, " ".join(reasons))
        try:
            about = {"subscription_id": str(self.ref.subscription_id), "reasons": list(reasons)}
            self._api.call("POST", "/api/holds", about)
            self._held = held
        except TapeError as error:
            log.debug("%s: the hold is not recorded yet: %s", self.path, error)

    def next_offsets(self) -> dict[str, int]:
        """Return the first offset that has no execution yet, for each partition that has executions."""
        address = f"/api/taken?{urlencode({'subscription': self.path})}"
        parts: dict[str, list[list[int]]] = self.call_with_retry(lambda: self._api.call("GET", address))["parts"]
        return {part: ranges[0][1] for part, ranges in parts.items()}

    def connection_options(self, spec: SubscriptionSpec) -> dict[str, Any]:
        """Return the connection settings of a spec, and apart from them its secrets."""
        secrets, credential = asyncio.run(secrets_of(spec, reveal_within(self.path, self._reveal)))
        held = {"token": credential} if isinstance(credential, str) else dict(credential or {})
        connection = {name: value for name, value in connection_of(spec).items() if name not in secrets}
        return {"connection": connection, "secrets": held | secrets}

    def emit(self, events: Sequence[SubscriptionEvent]) -> None:
        """Emit events to the journal; while the server is unavailable, the newest 1,000 are buffered."""
        with self._lock:
            self._unsent += [stamped(event, self._worker_id) for event in events]
            try:
                self._api.post_events(self._unsent)
                self._unsent.clear()
            except TapeError as error:
                log.warning("%s: %d events not sent yet, will retry: %s", self.path, len(self._unsent), error)
                if len(self._unsent) > MAX_UNSENT_EVENTS:
                    log.error("%s: dropped the %d oldest events", self.path, len(self._unsent) - MAX_UNSENT_EVENTS)
                    del self._unsent[:-MAX_UNSENT_EVENTS]

    def close(self) -> None:
        """Stop polling, send buffered events, and deactivate a subscription that was draining."""
        self._closed.set()
        if self._watcher is not None:
            self._watcher.join(POLL_INTERVAL_S)
        if self._unsent:
            self.emit([])
        if self.state == "DRAINING":
            try:
                self._api.act(self.ref.subscription_id, "deactivate")
            except TapeError as error:
                log.warning("%s: not deactivated: %s", self.path, error)

    def call_with_retry(self, call: Callable[[], T]) -> T:
        """Call the server; a job that follows retries while the server is unavailable."""
        return retry(
            call,
            SERVER_RETRY,
            can_retry=lambda error: self._is_following,
            stop=self._context,
            on_retry=lambda error, attempt, delay_s: self._context.report_count(
                "waiting for the server", 1, str(error)
            ),
        )

    def _watch(self) -> None:
        while not self._closed.wait(POLL_INTERVAL_S):
            try:
                self._set_state(self._api.status(self.ref.subscription_id)["state"])
                if self._unsent:
                    self.emit([])
            except TapeError as error:
                log.warning("%s: state unknown, continuing: %s", self.path, error)

    def _set_state(self, state: str) -> None:
        self.state = state
        if state in ("DRAINING", "DEACTIVATED"):
            self._context.stop()

    async def _reveal(self, alias: str, hosts: Sequence[str]) -> Any:
        return self.call_with_retry(lambda: self._api.credential(alias, hosts))
