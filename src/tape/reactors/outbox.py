"""The outbox dispatcher: sends the outbox effects of runs through the connectors of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tape.base.owner import new_owner
from tape.base.process import stop_event
from tape.client.channel import DEFAULT_URL
from tape.client.sync import TapeClient
from tape.connectors.base import all_registered, get
from tape.connectors.effect_dispatcher import DEFAULT_ATTEMPTS, DEFAULT_LEASE_MS, EffectDispatcher, report
from tape.proto import tape_pb2 as pb
from tape.reactors.connection import Report, connected, for_each
from tape.reactors.journal_feed import JournalFeed
from tape.reactors.loop import repeat

__all__ = ["dispatch_one", "outbox_dispatch_once", "run_outbox_dispatcher"]

BEGUN = f'kind == "effect" && payload.dispatch_mode == {pb.EFFECT_DISPATCH_MODE_OUTBOX}'


def dispatch_one(
    eff: Any,
    *,
    client: TapeClient,
    claimer: str,
    dispatch_max_attempts: int = DEFAULT_ATTEMPTS,
    lease_ttl_ms: int = DEFAULT_LEASE_MS,
) -> dict[str, Any]:
    """Send one effect of the outbox, if this process has its connector and no other dispatcher has claimed it.

    `outcome` is `confirmed`, `failed`, `retry`, `unknown`, `held` (another dispatcher has it), `lost` (the claim
    expired), or `unregistered`. If an earlier dispatcher died with a non-idempotent effect, the connector first looks
    for it at the other side; it is sent only if it is `absent` there.
    """
    connector = get(eff.connector)
    if connector is None:
        return report(eff, "unregistered", f"no connector {eff.connector!r} in this process")
    return EffectDispatcher(client, claimer, dispatch_max_attempts, lease_ttl_ms).send(eff, connector)


def outbox_dispatch_once(
    url: str = DEFAULT_URL,
    *,
    connector: str = "",
    limit: int = 200,
    claimer: str = "",
    dispatch_max_attempts: int = DEFAULT_ATTEMPTS,
    client: TapeClient | None = None,
    lease_ttl_ms: int = DEFAULT_LEASE_MS,
    concurrency: int = 1,
    stop: threading.Event | None = None,
) -> list[dict[str, Any]]:
    """Send up to `limit` effects that are due, through one connector or all of this process; a report on each.

    `concurrency` effects are sent at the same time; connectors must be thread-safe then.
    """
    name = claimer or new_owner()
    with connected(url, client) as connection:

        def send(effect: pb.EffectRecord) -> Report:
            return dispatch_one(
                effect,
                client=connection,
                claimer=name,
                dispatch_max_attempts=dispatch_max_attempts,
                lease_ttl_ms=lease_ttl_ms,
            )

        return for_each(_due(connection, connector, limit), send, concurrency=concurrency, stop=stop)


def _due(client: TapeClient, connector: str, limit: int) -> list[pb.EffectRecord]:
    """Effects to send, the longest due first; effects of other processes' connectors do not crowd out ours."""
    found = list(client.list_effects_to_dispatch(connector=connector, limit=limit).effects)
    if connector or len(found) < limit or all(get(each.connector) for each in found):
        return found
    ours = [
        each
        for name in all_registered()
        for each in client.list_effects_to_dispatch(connector=name, limit=limit).effects
    ]
    return sorted(ours, key=lambda each: each.next_dispatch_at_ms)[:limit]


def run_outbox_dispatcher(
    url: str = DEFAULT_URL,
    *,
    connector: str = "",
    interval_s: float = 1.0,
    claimer: str = "",
    dispatch_max_attempts: int = DEFAULT_ATTEMPTS,
    once: bool = False,
    on_tick: Callable[[list[dict[str, Any]]], None] | None = None,
    lease_ttl_ms: int = DEFAULT_LEASE_MS,
    concurrency: int = 1,
    stop: threading.Event | None = None,
) -> None:
    """Send due effects until stopped; `on_tick` gets the reports of each pass.

    A new outbox effect on the journal wakes it; every `interval_s` it looks for effects to retry.
    """
    name = claimer or new_owner()
    with TapeClient(url) as client, stop_event(stop) as event:

        def work() -> list[dict[str, Any]]:
            return outbox_dispatch_once(
                connector=connector,
                claimer=name,
                dispatch_max_attempts=dispatch_max_attempts,
                client=client,
                lease_ttl_ms=lease_ttl_ms,
                concurrency=concurrency,
                stop=event,
            )

        options: dict[str, Any] = {"name": "the outbox", "interval_s": interval_s, "stop": event, "on_result": on_tick}
        if once:
            repeat(work, **options, once=True)
            return
        wake = threading.Event()
        with JournalFeed(url, lambda _: wake.set(), pattern="/tape/effect/pending/**", where=BEGUN):
            repeat(work, **options, wake=wake)
