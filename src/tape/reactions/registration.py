"""Registration of declared reactions with a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tape.client import DEFAULT_URL, AsyncTapeClient, TapeClient
from tape.proto import tape_pb2 as pb
from tape.reactions.decorators import ReactionDef, get_registry, stable_id


def register_all(url: str = DEFAULT_URL, *, prefix: str = "") -> list[pb.Reaction]:
    """Register every declared reaction; the registered reactions.

    `prefix` is prepended to each id: the same code can be registered several times, for example once per tenant.
    """
    with TapeClient(url) as client:
        return [_keep(known, client.register_reaction(**fields(known, prefix))) for known in get_registry()]


async def register(client: AsyncTapeClient, known: Sequence[ReactionDef], prefix: str = "") -> list[pb.Reaction]:
    """Register these reactions."""
    return [_keep(each, await client.register_reaction(**fields(each, prefix))) for each in known]


def fields(known: ReactionDef, prefix: str = "") -> dict[str, Any]:
    """The fields of the registration request of a declared reaction."""
    return {
        "reaction_id": prefix + id_of(known),
        "name": known.name,
        "subject_pattern": known.subject_pattern,
        "predicate_cel": known.predicate_cel,
        "handler_kind": known.handler_kind,
        "agent_app": known.agent_app,
        "publish_target": known.publish_target,
        "max_concurrency": known.max_concurrency,
        "rate_limit_per_s": known.rate_limit_per_s,
        "debounce_ms": known.debounce_ms,
        "retry_max": known.retry_max,
        "retry_backoff_ms": known.retry_backoff_ms,
        "dlq_after_n": known.dlq_after_n,
        "num_shards": known.num_shards,
        "from_global_seq": known.from_global_seq,
        "backfill": known.backfill,
        "allow_self": known.allow_self,
        "strict_order": known.strict_order,
    }


def id_of(known: ReactionDef) -> str:
    """The id of a reaction, given or derived from its handler; without both, the server assigns one."""
    if known.reaction_id or known.handler is None:
        return known.reaction_id
    return stable_id(known.handler, known.subject_pattern)


def _keep(known: ReactionDef, reaction: pb.Reaction) -> pb.Reaction:
    known.server_reaction_id = reaction.reaction_id
    return reaction
