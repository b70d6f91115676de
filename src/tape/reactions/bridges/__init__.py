"""Bridges: publish reactions are served by sending each entry to a broker, at least once.

The target of a reaction chooses the broker: `pubsub://project/topic`, `nats://host:port/subject` or
`kafka://broker:port/topic`. A message carries the entry as JSON, its run as the ordering key, and `tape-event-id`
(`<run_id>/<seq>`), by which a receiver knows what it has seen already.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading

from tape.base.process import run_async, stop_on_event, stop_on_signal
from tape.base.telemetry.export import start_export
from tape.client import DEFAULT_URL, AsyncTapeClient
from tape.reactions.bridges.bridge import Choice, bridging, by_target, to_topic
from tape.reactions.counters import Tally
from tape.reactions.dispatcher import DRAIN_S, Dispatcher

__all__ = ["run_bridge", "run_pubsub_bridge"]


def run_bridge(
    url: str = DEFAULT_URL,
    *,
    reaction_id: str = "",
    owner: str = "",
    once: bool = False,
    poll_interval_s: float = 0.5,
    claim_max: int = 32,
    lease_ms: int = 60000,
    drain_s: float = DRAIN_S,
    stop: threading.Event | None = None,
    tally: Tally | None = None,
) -> None:
    """Publish what the registered publish reactions want published, each to its own target.

    Serves one reaction, or all that are registered, also those that come later. The other options are those of
    `run_dispatcher`.
    """
    start_export("tape-bridge")
    work = _bridge(
        url,
        by_target(reaction_id),
        once,
        stop,
        {
            "owner": owner,
            "poll_interval_s": poll_interval_s,
            "claim_max": claim_max,
            "lease_ms": lease_ms,
            "drain_s": drain_s,
            "tally": tally,
        },
    )
    with contextlib.suppress(asyncio.CancelledError):  # interrupted by a second signal
        run_async(work)


def run_pubsub_bridge(
    url: str = DEFAULT_URL,
    *,
    project: str,
    topic: str,
    reaction_id: str = "",
    owner: str = "",
    once: bool = False,
    poll_interval_s: float = 0.5,
    claim_max: int = 32,
    lease_ms: int = 60000,
    stop: threading.Event | None = None,
    tally: Tally | None = None,
) -> None:
    """Publish to one Pub/Sub topic what a publish reaction, or every one with a `pubsub://` target, wants published.

    The topic given here is the one that is used, whatever the targets say; `run_bridge` follows the targets.
    """
    start_export("tape-bridge")
    work = _bridge(
        url,
        to_topic(project, topic, reaction_id),
        once,
        stop,
        {
            "owner": owner,
            "poll_interval_s": poll_interval_s,
            "claim_max": claim_max,
            "lease_ms": lease_ms,
            "tally": tally,
        },
    )
    with contextlib.suppress(asyncio.CancelledError):  # interrupted by a second signal
        run_async(work)


async def _bridge(
    url: str, choose: Choice, once: bool, stop: threading.Event | None, options: dict[str, object]
) -> None:
    async with AsyncTapeClient(url) as client:
        dispatcher = Dispatcher(client, once=once, **options)  # type: ignore[arg-type]
        async with bridging(client, dispatcher, choose):
            with stop_on_signal(dispatcher.stop), stop_on_event(dispatcher.stop, stop):
                await dispatcher.run(idles=not once)
