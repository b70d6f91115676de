"""Finding the reactions that publish, and serving each with a broker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from tape.client import AsyncTapeClient
from tape.errors import InvalidTarget, TapeError
from tape.proto import tape_pb2 as pb
from tape.reactions.bridges.broker import Broker, open_broker
from tape.reactions.bridges.message import message_of
from tape.reactions.bridges.target import Target, parse_target
from tape.reactions.dispatcher import Dispatcher
from tape.reactions.envelope import Envelope
from tape.reactions.feeds import is_passing
from tape.reactions.invocation import Handler

log = logging.getLogger(__name__)

# How soon a reaction is served that is registered while the bridge runs.
LOOK_S = 2.0

Choice = Callable[[pb.Reaction], Target | None]


def by_target(reaction_id: str = "") -> Choice:
    """Each publish reaction, or one, to its own target."""

    def choose(reaction: pb.Reaction) -> Target | None:
        if reaction.handler_kind != pb.HANDLER_KIND_PUBLISH or reaction_id not in ("", reaction.reaction_id):
            return None
        return parse_target(reaction.publish_target)

    return choose


def to_topic(project: str, topic: str, reaction_id: str = "") -> Choice:
    """Every publish reaction with a Pub/Sub target, or one of any, to this topic."""
    target = parse_target(f"pubsub://{project}/{topic}")

    def choose(reaction: pb.Reaction) -> Target | None:
        if reaction.handler_kind != pb.HANDLER_KIND_PUBLISH:
            return None
        wanted = reaction.reaction_id == reaction_id if reaction_id else reaction.publish_target.startswith("pubsub://")
        return target if wanted else None

    return choose


@contextlib.asynccontextmanager
async def bridging(client: AsyncTapeClient, dispatcher: Dispatcher, choose: Choice) -> AsyncIterator[None]:
    """Let a dispatcher serve the publish reactions as well, those of now and those that come."""
    brokers: dict[tuple[str, str], Broker] = {}
    refused: set[str] = set()

    async def look() -> None:
        for reaction in (await client.list_reactions()).reactions:
            try:
                target = choose(reaction)
            except InvalidTarget as error:
                if reaction.reaction_id not in refused:
                    refused.add(reaction.reaction_id)
                    log.error("the reaction %s cannot be served: %s", reaction.reaction_id, error)
                continue
            if target is None or reaction.reaction_id in dispatcher.lines:
                continue
            place = (target.scheme, "" if target.scheme == "pubsub" else target.broker)
            if place not in brokers:
                brokers[place] = open_broker(target)
            log.info("the reaction %s is published to %s", reaction.reaction_id, target)
            dispatcher.add(
                reaction.reaction_id,
                _publishing(brokers[place], target),
                name=f"publish {target.scheme}",
                max_concurrency=reaction.max_concurrency,
                rate_limit_per_s=reaction.rate_limit_per_s,
            )

    async def keep_looking() -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await look()
            except TapeError as error:
                if not is_passing(error):
                    log.error("looking for publish reactions failed: %s", error)

    await look()
    looking = asyncio.create_task(keep_looking())
    try:
        yield
    finally:
        looking.cancel()
        for broker in brokers.values():
            await broker.close()


def _publishing(broker: Broker, target: Target) -> Handler:
    async def publish(envelope: Envelope) -> None:
        await broker.publish(target, message_of(envelope))

    return publish
