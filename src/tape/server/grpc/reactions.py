"""The RPCs of reactions: registry, statistics, explanation and dry run."""

from __future__ import annotations

import asyncio

import msgspec

from tape.engine.predicate_budget import QUERY, PredicateBudget
from tape.engine.reactions import registry
from tape.engine.reactions.dry_run import dry_run_reaction
from tape.engine.reactions.explanation import ReactionExplanation, explain
from tape.engine.reactions.reaction import Reaction, check_reaction
from tape.engine.reactions.statistics import read_statistics
from tape.errors import InvalidReaction
from tape.journal.journal import Journal
from tape.model.ledger_states import parse
from tape.model.principal import current_principal
from tape.model.reaction_states import HandlerKind
from tape.proto import tape_pb2 as pb
from tape.server.grpc.frames import encode_event, to_gap
from tape.server.grpc.messages import to_message
from tape.server.grpc.methods import Context
from tape.server.grpc.tasks import displayed, task_message
from tape.store import Reader


class ReactionsService:
    """RPCs of the registry of reactions."""

    def __init__(self, journal: Journal, predicate_budget: PredicateBudget) -> None:
        self._database = journal.database
        self._predicate_budget = predicate_budget

    async def register_reaction(self, request: pb.Reaction, context: Context) -> pb.Reaction:
        """Register, update or re-register a reaction."""
        if not request.handler_kind:
            known = ", ".join(f"{kind.name} ({kind.value})" for kind in HandlerKind)
            raise InvalidReaction(f"handler_kind is not given; use one of {known}.")
        wanted = await asyncio.to_thread(
            check_reaction,
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
            ),
        )
        reaction = await self._database.write(
            lambda tx: registry.register(
                tx, wanted, from_global_seq=request.from_global_seq, backfill=request.backfill
            ),
            size=request.ByteSize() + 512,
        )
        return reaction_message(reaction)

    async def deregister_reaction(
        self, request: pb.DeregisterReactionRequest, context: Context
    ) -> pb.DeregisterReactionResponse:
        """Remove a reaction."""
        removed = await self._database.write(
            lambda tx: registry.deregister(tx, registry.resolve(tx, request.reaction_id))
        )
        return pb.DeregisterReactionResponse(deregistered=removed)

    async def list_reactions(self, request: pb.ListReactionsRequest, context: Context) -> pb.ListReactionsResponse:
        """The reactions that are registered."""
        found = await self._database.read(lambda reader: registry.list_registered(reader, request.subject_pattern))
        return pb.ListReactionsResponse(reactions=map(reaction_message, found))

    async def get_reaction_stats(
        self, request: pb.GetReactionStatsRequest, context: Context
    ) -> pb.GetReactionStatsResponse:
        """Lag, tasks and predicate errors of reactions."""
        found, head = await self._database.read(
            lambda reader: read_statistics(reader, registry.resolve(reader, request.reaction_id))
        )
        stats = (to_message(pb.ReactionStats, displayed(each)) for each in found)
        return pb.GetReactionStatsResponse(stats=stats, head=head)

    async def explain_reaction(
        self, request: pb.ExplainReactionRequest, context: Context
    ) -> pb.ExplainReactionResponse:
        """Why a reaction did or did not fire on an entry."""
        what = f"explanation of reaction {request.reaction_id[:200]!r}"
        budget = self._predicate_budget.open(QUERY, current_principal().tenant, what)
        await budget.wait()
        evaluations = self._predicate_budget.evaluations(QUERY)

        def explain_it(reader: Reader) -> ReactionExplanation:
            return explain(reader, registry.resolve(reader, request.reaction_id), request.global_seq)

        account = await self._database.read(lambda reader: evaluations.run(budget, lambda: explain_it(reader)))
        evaluations.close()
        trace = account.predicate
        return pb.ExplainReactionResponse(
            matched=account.matched,
            verdict=account.verdict,
            decided_by=account.decided_by,
            predicate_trace_json=msgspec.json.encode(trace.to_json()).decode() if trace else "",
            predicate_trace=trace.render() if trace else "",
            outcome=account.outcome,
            task=task_message(account.task) if account.task else None,
            run_id=account.run_id,
            entry=pb.EventEntry.FromString(encode_event(account.entry)),
            reaction=reaction_message(account.reaction),
        )

    async def test_reaction(self, request: pb.TestReactionRequest, context: Context) -> pb.TestReactionResponse:
        """Dry run: which entries a pattern and a predicate would have matched. Writes nothing."""
        dry_run = await dry_run_reaction(
            self._database,
            self._predicate_budget,
            request.subject_pattern,
            request.predicate_cel,
            from_global_seq=request.from_global_seq,
            to_global_seq=request.to_global_seq,
            samples=request.samples,
            bucket_ms=request.bucket_ms,
        )
        return pb.TestReactionResponse(
            examined=dry_run.examined,
            matched=dry_run.matched,
            errors=dry_run.errors,
            last_error=dry_run.last_error,
            buckets=(pb.TestBucket(start_ms=at, matched=count) for at, count in sorted(dry_run.buckets.items())),
            samples=(pb.EventEntry.FromString(encode_event(entry)) for entry in dry_run.samples),
            from_global_seq=dry_run.from_global_seq,
            to_global_seq=dry_run.to_global_seq,
            gaps=map(to_gap, dry_run.gaps),
        )


def reaction_message(reaction: Reaction) -> pb.Reaction:
    """A reaction on the wire."""
    return to_message(pb.Reaction, displayed(reaction))
