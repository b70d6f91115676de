"""The local runtime: a subscription in one process without a server, with its events in a file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tape.base.telemetry.metrics import Metrics
from tape.errors import InvalidConfig, InvalidInput
from tape.model.cron import Cron
from tape.model.execution_ids import new_id
from tape.subscriptions import events
from tape.subscriptions.dispatch.holds import ReadinessCheck
from tape.subscriptions.dispatch.ordered import Dispatch
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.event_reporter import EventReporter
from tape.subscriptions.events import SubscriptionRef
from tape.subscriptions.message import SourceMessage
from tape.subscriptions.runtime.assembly import assemble
from tape.subscriptions.runtime.local_trail import Trail
from tape.subscriptions.runtime.runtime import Counts, Runtime


class LocalRuntime:
    """Runs a subscription in this process. A scheduled one is drained at once, then on its cadence."""

    def __init__(
        self,
        subscription: Subscription,
        trail: Trail,
        *,
        credential: Any = None,
        once: bool = False,
        max_messages: int | None = None,
    ) -> None:
        if subscription.spec.mode != "pull":
            raise InvalidConfig(
                f"{subscription.path} is a push subscription; a server or `tape gateway` receives its deliveries."
            )
        self.subscription = subscription
        self.ref = SubscriptionRef(subscription.name, subscription.path, new_id())
        self.counts = Counts()
        self.pending = 0
        self.runtime: Runtime | None = None
        self._trail = trail
        self._credential = credential
        self._once = once
        self._max_messages = max_messages
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Finish the fetched messages, then end."""
        self._stopping.set()
        if self.runtime is not None:
            self.runtime.stop()

    async def run(self, dispatch: Dispatch, readiness: ReadinessCheck | None = None) -> Counts:
        """Run until `stop`, or until `max_messages`. Returns the counts."""
        await self._emit_lifecycle("registered", "REGISTERED")
        await self._emit_lifecycle("activated", "ACTIVE")
        try:
            while not self._stopping.is_set():
                await self._run_once(dispatch, readiness)
                if self.subscription.spec.activation != "scheduled" or self._once or self._has_enough:
                    break
                await self._wait_for_cadence()
        finally:
            await self._emit_lifecycle("draining", "DRAINING")
            await self._emit_lifecycle("deactivated", "DEACTIVATED")
        return self.counts

    async def _run_once(self, dispatch: Dispatch, readiness: ReadinessCheck | None) -> None:
        self.runtime = runtime = await assemble(
            self.subscription,
            self.ref,
            dispatch,
            reveal=self._reveal,
            reporter=EventReporter(self._trail.write),
            metrics=Metrics(),
            readiness=readiness,
            until_empty=self.subscription.spec.activation == "scheduled",
            once=self._once,
            max_messages=self._max_messages,
            on_messages=self._note,
        )
        runtime.counts = self.counts
        if self._stopping.is_set():
            runtime.stop()
        await runtime.run()
        self.pending = runtime.waiting

    @property
    def _has_enough(self) -> bool:
        return self._max_messages is not None and self.counts.tried >= self._max_messages

    async def _wait_for_cadence(self) -> None:
        now = datetime.now(UTC)
        at = Cron.parse(self.subscription.spec.cadence).next_after(now)
        assert at is not None
        try:
            await asyncio.wait_for(self._stopping.wait(), (at - now).total_seconds())
        except TimeoutError:
            pass

    async def _note(self, messages: Sequence[SourceMessage]) -> None:
        source = self.subscription.spec.source
        to_emit = []
        for each in messages:
            headers = {name: values[0] if len(values) == 1 else list(values) for name, values in each.headers.items()}
            to_emit.append(events.received(self.ref, source, each.message_id, headers))
        await self._trail.write(to_emit)

    async def _reveal(self, alias: str, hosts: Sequence[str]) -> Any:
        if self._credential is None:
            raise InvalidConfig(f"{self.subscription.path} needs the credential {alias!r}: --credential FILE gives it.")
        return self._credential

    async def _emit_lifecycle(self, verb: events.Verb, state: str) -> None:
        await self._trail.write([events.lifecycle(self.ref, verb, state, 0, emitter="subscribe_runtime")])


def read_credential(file: Path) -> Any:
    """The credential in a JSON file: fields, or one text."""
    try:
        credential = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"--credential {file} cannot be read: {error.strerror}.") from error
    except ValueError:
        raise InvalidInput(f"--credential {file} is not JSON.") from None
    if not isinstance(credential, dict | str):
        raise InvalidInput(f"--credential {file} must hold an object or a text.")
    return credential
