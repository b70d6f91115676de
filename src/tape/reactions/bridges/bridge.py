"""Finds the publish reactions of a server and lets a dispatcher serve each with a publisher."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from tape.brokers.publisher import Publisher
from tape.client import AsyncTapeClient
from tape.errors import InvalidTarget, TapeError
from tape.model.message import BodyFormat, check_body_format
from tape.proto import tape_pb2 as pb
from tape.reactions.bridges.message import message_of
from tape.reactions.bridges.publishers import open_publisher, topic_of
from tape.reactions.bridges.target import PublishTarget, parse_target
from tape.reactions.dispatcher import Dispatcher
from tape.reactions.envelope import Envelope
from tape.reactions.feeds import is_transient
from tape.reactions.invocation import Handler

log = logging.getLogger(__name__)

# A reaction that is registered while the bridge runs is served after at most this time.
DISCOVERY_INTERVAL_S = 2.0

TargetSelector = Callable[[pb.Reaction], PublishTarget | None]


def by_target(reaction_id: str = "") -> TargetSelector:
    """Each publish reaction, or one, to its own target."""

    def select(reaction: pb.Reaction) -> PublishTarget | None:
        if reaction.handler_kind != pb.HANDLER_KIND_PUBLISH or reaction_id not in ("", reaction.reaction_id):
            return None
        return parse_target(reaction.publish_target)

    return select


def to_topic(project: str, topic: str, reaction_id: str = "") -> TargetSelector:
    """Every publish reaction with a Pub/Sub target, or the one of that id whatever its target, to this topic."""
    target = parse_target(f"pubsub://{project}/{topic}")

    def select(reaction: pb.Reaction) -> PublishTarget | None:
        if reaction.handler_kind != pb.HANDLER_KIND_PUBLISH:
            return None
        is_selected = (
            reaction.reaction_id == reaction_id if reaction_id else reaction.publish_target.startswith("pubsub://")
        )
        return target if is_selected else None

    return select


@contextlib.asynccontextmanager
async def serve_bridges(
    client: AsyncTapeClient, dispatcher: Dispatcher, select: TargetSelector, body: BodyFormat = "standard"
) -> AsyncIterator[None]:
    """Let a dispatcher serve publish reactions too: the registered ones, and those registered later."""
    body_format = check_body_format(body)
    publishers: dict[tuple[str, str], Publisher] = {}
    rejected: set[str] = set()

    async def discover() -> None:
        for reaction in (await client.list_reactions()).reactions:
            try:
                target = select(reaction)
            except InvalidTarget as error:
                if reaction.reaction_id not in rejected:
                    rejected.add(reaction.reaction_id)
                    log.error("the reaction %s cannot be served: %s", reaction.reaction_id, error)
                continue
            if target is None or reaction.reaction_id in dispatcher.consumers:
                continue
            broker = (target.scheme, "" if target.scheme == "pubsub" else target.broker)
            if broker not in publishers:
                publishers[broker] = open_publisher(target)
            log.info("the reaction %s is published to %s", reaction.reaction_id, target)
            dispatcher.add(
                reaction.reaction_id,
                _publish_handler(publishers[broker], target, body_format),
                name=f"publish {target.scheme}",
                max_concurrency=reaction.max_concurrency,
                rate_limit_per_s=reaction.rate_limit_per_s,
            )

    async def keep_discovering() -> None:
        while True:
            await asyncio.sleep(DISCOVERY_INTERVAL_S)
            try:
                await discover()
            except TapeError as error:
                if not is_transient(error):
                    log.error("listing publish reactions failed: %s", error)

    await discover()
    discovery = asyncio.create_task(keep_discovering())
    try:
        yield
    finally:
        discovery.cancel()
        for publisher in publishers.values():
            await publisher.close()


def _publish_handler(publisher: Publisher, target: PublishTarget, body_format: BodyFormat) -> Handler:
    topic = topic_of(target)

    async def publish(envelope: Envelope) -> None:
        # PublishRejected is a NeverRetry: the consumer reports it as permanent, and the task becomes a dead letter.
        await publisher.publish(topic, message_of(envelope, body_format))

    return publish
