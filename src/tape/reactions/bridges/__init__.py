"""Bridges: publish reactions are served by sending each entry to a broker, at least once.

The target of a reaction chooses the broker: `pubsub://project/topic`, `nats://host:port/subject` or
`kafka://broker:port/topic`. A message has the same body, ordering key and headers as one of a sink, among them
`tape-event-id` (`<run_id>/<seq>`), on which a receiver deduplicates, and `tape-reaction-id`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading

from tape.base.process import run_async, stop_on_event, stop_on_signal
from tape.base.telemetry.export import start_export
from tape.client import DEFAULT_URL, AsyncTapeClient
from tape.model.message import BodyFormat
from tape.reactions.bridges.bridge import TargetSelector, by_target, serve_bridges, to_topic
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
    body: BodyFormat = "standard",
) -> None:
    """Serve the publish reactions of a server, each with a publisher for its own target.

    Serves one reaction, or all that are registered, also those registered later. `body` is `standard`, `expanded` or
    `cloudevents`. A message that the broker will never accept becomes a dead letter without a retry. The other options
    are those of `run_dispatcher`.
    """
    start_export("tape-bridge")
    work = _bridge(
        url,
        by_target(reaction_id),
        body,
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
    body: BodyFormat = "standard",
) -> None:
    """Serve a publish reaction, or every one with a `pubsub://` target, by publishing to one Pub/Sub topic.

    The topic given here is used whatever the targets are; `run_bridge` uses the targets. `body` is `standard`,
    `expanded` or `cloudevents`.
    """
    start_export("tape-bridge")
    work = _bridge(
        url,
        to_topic(project, topic, reaction_id),
        body,
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
    url: str,
    select: TargetSelector,
    body: BodyFormat,
    once: bool,
    stop: threading.Event | None,
    options: dict[str, object],
) -> None:
    async with AsyncTapeClient(url) as client:
        dispatcher = Dispatcher(client, once=once, **options)  # type: ignore[arg-type]
        async with serve_bridges(client, dispatcher, select, body):
            with stop_on_signal(dispatcher.stop), stop_on_event(dispatcher.stop, stop):
                await dispatcher.run(idles=not once)
