"""Pools in the store: a pool exists if its reaction is registered."""

from __future__ import annotations

from tape.engine.reactions import registry
from tape.engine.reactions.reaction import Reaction, check_reaction
from tape.model import subject
from tape.model.principal import SYSTEM, acting_as
from tape.model.reaction_states import HandlerKind
from tape.playbooks.pools import reaction_fields, reaction_id
from tape.store import Transaction


def command_subject(pool: str, run_id: str) -> str:
    """The subject of the command that starts a run on a pool."""
    return subject.build("command", "issued", pool, run_id)


def ensure_pool(tx: Transaction, pool: str) -> None:
    """Register the reaction of a pool, before the first command is issued to it. All callers share it."""
    with acting_as(SYSTEM):
        found = registry.find(tx, reaction_id(pool))
        if found is None or found.deleted:
            registry.register(tx, check_reaction(Reaction(**reaction_fields(pool), handler_kind=HandlerKind.TASK)))
