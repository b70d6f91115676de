"""Deliveries that wait in a spool are replayed by the next process, whatever the spools of others are like."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tape.base.telemetry.metrics import Metrics
from tape.errors import SecretNotFound, ServerUnreachable
from tape.model.dispatch_result import RunDispatchResult
from tape.subscriptions.events import SubscriptionEvent
from tape.subscriptions.ingress import spooling_dispatch
from tape.subscriptions.ingress.ingress import AdmittedMessage
from tape.subscriptions.ingress.listeners import Listener
from tape.subscriptions.ingress.spooling_dispatch import SpoolingDispatch
from tape.subscriptions.message import SourceMessage
from tape.subscriptions.routing import Plan, resolve
from tests.subscriptions.specs import subscription


def listener(name: str, **spool: Any) -> Listener:
    made = subscription(
        f"subscriptions/{name}",
        spool={"mode": "buffer_and_ack", "circuit": {"trip_after": 1, "probe_after_ms": 0}, **spool},
    )
    return Listener(name=name, subscription=made, subscription_id=7)


class Known:
    def __init__(self, *listeners: Listener) -> None:
        self._listeners = {each.name: each for each in listeners}

    async def names(self) -> frozenset[str]:
        return frozenset(self._listeners)

    async def fetch(self, name: str) -> Listener | None:
        return self._listeners.get(name)


class Replays:
    """A dispatch that is unavailable."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener

    async def in_lanes(self, plans: Sequence[Plan], lanes: Sequence[Hashable]) -> list[RunDispatchResult]:
        return [RunDispatchResult("unavailable")] * len(plans)


async def emit(events: Sequence[SubscriptionEvent]) -> None:
    pass


async def test_a_spool_that_cannot_be_opened_keeps_no_other_from_its_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spooling_dispatch, "_RETRY_S", 0.01)
    good = listener("good", backend="local_disk", path=str(tmp_path / "good"))
    broken = listener("broken", backend="local_disk", path=str(tmp_path / "broken"), credential="not_set")
    asked = 0

    async def away(listener: Listener, admitted: AdmittedMessage) -> RunDispatchResult:
        raise ServerUnreachable("nobody is there")

    async def reveal(alias: str, hosts: Sequence[str]) -> Any:
        nonlocal asked
        asked += 1
        raise SecretNotFound(f"The wallet has no secret {alias!r}.")

    before = SpoolingDispatch(away, Replays, emit, reveal, Metrics())
    message = SourceMessage(message_id="m1", source="webhook", body=b"{}")
    kept = await before(good, AdmittedMessage(message, resolve(good.subscription, message)))
    assert (kept.outcome, kept.is_durable) == ("spooled", True)
    await before.close()

    replayed: asyncio.Queue[str] = asyncio.Queue()

    class Replaying(Replays):
        async def in_lanes(self, plans: Sequence[Plan], lanes: Sequence[Hashable]) -> list[RunDispatchResult]:
            for plan in plans:
                replayed.put_nowait(plan.message_id)
            return [RunDispatchResult("started", 8)] * len(plans)

    caplog.set_level(logging.WARNING, "tape.subscriptions.ingress.spooling_dispatch")
    after = SpoolingDispatch(away, Replaying, emit, reveal, Metrics())
    after.recover(Known(broken, good))
    async with asyncio.timeout(120):
        assert await replayed.get() == "m1"
        while asked < 3:
            await asyncio.sleep(0.01)
    await after.close()
    emitted = [record.getMessage() for record in caplog.records if "cannot be opened yet" in record.getMessage()]
    assert emitted == ["The spool of broken cannot be opened yet, retrying: The wallet has no secret 'not_set'."]
