"""A subscription on Spark and the server that steers it: its document, where it stands, and what is told about it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlencode

from tape.base.retry import RetryPolicy
from tape.errors import ApiRefused, InvalidConfig, PlaybookNotFound, ServerUnreachable, TapeError
from tape.pipeline.job_context import Running
from tape.subscriptions.api_client import Control
from tape.subscriptions.document.spec import Subscription, SubscriptionSpec
from tape.subscriptions.document.validator import parse_subscription
from tape.subscriptions.events import SubscriptionEvent, SubscriptionRef, stamped, subscription_ref
from tape.subscriptions.runtime.assembly import connection_of, secrets_of

log = logging.getLogger(__name__)

T = TypeVar("T")

STATE_S = 2.0
MAX_UNTOLD = 1_000
PATIENCE = RetryPolicy(max_attempts=1_000_000, initial_interval_s=0.5, max_interval_s=10.0)


class Steering:
    """Knows where a subscription stands, and asks again every two seconds while it is watched.

    Set to drain or deactivated, the job is told to stop. A server that is away is waited for if the job `follows`.
    """

    def __init__(self, control: Control, path: str, running: Running, *, worker_id: str, follows: bool) -> None:
        self.path = path
        self.state = ""
        self.about: SubscriptionRef = subscription_ref(path)
        self._control = control
        self._running = running
        self._worker_id = worker_id
        self._follows = follows
        self._untold: list[SubscriptionEvent] = []
        self._turn = threading.Lock()
        self._over = threading.Event()
        self._watching: threading.Thread | None = None

    def begin(self) -> Subscription:
        """Register and activate the subscription; its document. Raises InvalidConfig if it does not run on Spark."""
        subscription = parse_subscription(self.patiently(lambda: self._control.document(self.path)))
        if subscription.spec.runtime.target != "spark":
            raise InvalidConfig(
                f"{self.path} has the runtime.target {subscription.spec.runtime.target!r}; this job runs those with"
                f" 'spark'. Run it with: tape subscription run {self.path}"
            )
        self._expect_playbook(subscription.spec.dispatch.playbook)
        status = self.patiently(lambda: self._control.register(self.path))
        self.about = subscription_ref(self.path, int(status["subscription_id"]))
        if status["state"] == "REGISTERED":
            status = self.patiently(lambda: self._control.act(self.about.subscription_id, "activate"))
        self._moved(status["state"])
        self._watching = threading.Thread(target=self._watch, name="tape-state", daemon=True)
        self._watching.start()
        return subscription

    def _expect_playbook(self, path: str) -> None:
        """Raise PlaybookNotFound before anything is read: otherwise the whole topic would become dead letters."""
        try:
            self.patiently(lambda: self._control.document(path))
        except ApiRefused as error:
            if error.http_status != 404:
                raise
            raise PlaybookNotFound(
                f"Playbook not found: {path}, the dispatch.playbook of {self.path}."
                " Register it with: tape playbooks register FILE"
            ) from error

    def taken(self) -> dict[str, int]:
        """Of each part that something was taken of, the first offset that was not."""
        address = f"/api/taken?{urlencode({'subscription': self.path})}"
        parts: dict[str, list[list[int]]] = self.patiently(lambda: self._control.call("GET", address))["parts"]
        return {part: stretches[0][1] for part, stretches in parts.items()}

    def options(self, spec: SubscriptionSpec) -> dict[str, Any]:
        """The connection of a spec, and apart from it everything in it that is secret."""
        secrets, credential = asyncio.run(secrets_of(spec, self._reveal))
        held = {"token": credential} if isinstance(credential, str) else dict(credential or {})
        connection = {name: value for name, value in connection_of(spec).items() if name not in secrets}
        return {"connection": connection, "secrets": held | secrets}

    def tell(self, events: Sequence[SubscriptionEvent]) -> None:
        """Put events on the journal; while the server is away they wait, the oldest of too many are let go."""
        with self._turn:
            self._untold += [stamped(event, self._worker_id) for event in events]
            try:
                self._control.post_events(self._untold)
                self._untold.clear()
            except TapeError as error:
                log.warning("%s: %d events wait to be told: %s", self.path, len(self._untold), error)
                if len(self._untold) > MAX_UNTOLD:
                    log.error("%s: %d events are let go", self.path, len(self._untold) - MAX_UNTOLD)
                    del self._untold[:-MAX_UNTOLD]

    def end(self) -> None:
        """Stop watching; one that was set to drain has come to its end."""
        self._over.set()
        if self._watching is not None:
            self._watching.join(STATE_S)
        if self._untold:
            self.tell([])
        if self.state == "DRAINING":
            try:
                self._control.act(self.about.subscription_id, "deactivate")
            except TapeError as error:
                log.warning("%s: not deactivated: %s", self.path, error)

    def patiently(self, call: Callable[[], T]) -> T:
        """What a call gives; a job that follows waits for a server that is away."""
        attempt = 0
        while True:
            try:
                return call()
            except ServerUnreachable as error:
                attempt += 1
                if not self._follows or self._running.is_stopping:
                    raise
                self._running.noted("waiting for the server", 1, str(error))
                self._running.wait(PATIENCE.delay(attempt))

    def _watch(self) -> None:
        while not self._over.wait(STATE_S):
            try:
                self._moved(self._control.status(self.about.subscription_id)["state"])
                if self._untold:
                    self.tell([])
            except TapeError as error:
                log.warning("%s: where it stands cannot be asked, going on: %s", self.path, error)

    def _moved(self, state: str) -> None:
        self.state = state
        if state in ("DRAINING", "DEACTIVATED"):
            self._running.stop()

    async def _reveal(self, alias: str) -> Any:
        return self.patiently(lambda: self._control.credential(alias))
