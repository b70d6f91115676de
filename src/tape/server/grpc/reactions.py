"""The RPCs of reactions: the registry, and how reactions stand."""

from __future__ import annotations

import msgspec

from tape.errors import InvalidReaction
from tape.journal.journal import Journal
from tape.ledgers.states import parse
from tape.proto import tape_pb2 as pb
from tape.reactions import registry
from tape.reactions.matcher import Matcher
from tape.reactions.reaction import Reaction, checked
from tape.reactions.states import HandlerKind
from tape.reactions.statistics import read_statistics
from tape.server.grpc.binding import Context
from tape.server.grpc.messages import to_message


class ReactionsDoor:
    """Serves the registry of reactions."""

    def __init__(self, journal: Journal, matcher: Matcher) -> None:
        self._database = journal.database
        self._matcher = matcher

    async def register_reaction(self, request: pb.Reaction, context: Context) -> pb.Reaction:
        """Register, change or bring back a reaction."""
        if not request.handler_kind:
            known = ", ".join(f"{kind.name} ({kind.value})" for kind in HandlerKind)
            raise InvalidReaction(f"handler_kind is not given; use one of {known}.")
        wanted = checked(
            Reaction(
                reaction_id=request.reaction_id,
                name=request.name,
                subject_pattern=request.subject_pattern,
                predicate_cel=request.predicate_cel,
                handler_kind=parse(HandlerKind, "handler_kind", request.handler_kind),
                agent_app=request.agent_app,
                publish_target=request.publish_target,
                max_concurrency=request.max_concurrency,
                rate_limit_per_s=request.rate_limit_per_s,
                debounce_ms=request.debounce_ms,
                retry_max=request.retry_max,
                retry_backoff_ms=request.retry_backoff_ms,
                dlq_after_n=request.dlq_after_n,
                num_shards=request.num_shards,
                allow_self=request.allow_self,
                strict_order=request.strict_order,
            )
        )
        reaction = await self._database.write(
            lambda tx: registry.register(
                tx, wanted, from_global_seq=request.from_global_seq, backfill=request.backfill
            ),
            size=request.ByteSize() + 512,
        )
        self._matcher.stir()
        return reaction_message(reaction)

    async def deregister_reaction(
        self, request: pb.DeregisterReactionRequest, context: Context
    ) -> pb.DeregisterReactionResponse:
        """Remove a reaction."""
        removed = await self._database.write(lambda tx: registry.deregister(tx, request.reaction_id))
        self._matcher.stir()
        return pb.DeregisterReactionResponse(deregistered=removed)

    async def list_reactions(self, request: pb.ListReactionsRequest, context: Context) -> pb.ListReactionsResponse:
        """The reactions that are registered."""
        found = await self._database.read(lambda reader: registry.registered(reader, request.subject_pattern))
        return pb.ListReactionsResponse(reactions=map(reaction_message, found))

    async def get_reaction_stats(
        self, request: pb.GetReactionStatsRequest, context: Context
    ) -> pb.GetReactionStatsResponse:
        """How reactions stand."""
        found, head = await self._database.read(lambda reader: read_statistics(reader, request.reaction_id))
        stats = (pb.ReactionStats(**msgspec.structs.asdict(each)) for each in found)
        return pb.GetReactionStatsResponse(stats=stats, head=head)


def reaction_message(reaction: Reaction) -> pb.Reaction:
    """A reaction on the wire."""
    return to_message(pb.Reaction, reaction)
