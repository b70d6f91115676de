"""Pools: groups of workers that share their work with nobody else. A pool is a reaction to commands issued to it."""

from __future__ import annotations

from tape.journal import subject
from tape.reactions import registry
from tape.reactions.reaction import NUMBERS, Reaction, checked
from tape.reactions.states import HandlerKind
from tape.store import Transaction

# A worker that dies takes an attempt with it; what kills ten of them is put aside for somebody to look at.
MAX_ATTEMPTS = 10
FIRST_PAUSE_MS = 1_000


def command_subject(pool: str, run_id: str) -> str:
    """The subject of the command that starts a run on a pool."""
    return subject.build("command", "issued", pool, run_id)


def reaction_id(pool: str) -> str:
    """The reaction whose tasks the workers of a pool take."""
    return f"pool:{pool}"


def reaction_of(pool: str) -> Reaction:
    """The reaction of a pool. How many tasks run at once is what its workers have room for."""
    return checked(
        Reaction(
            reaction_id=reaction_id(pool),
            name=f"pool {pool}",
            subject_pattern=f"/tape/command/issued/{subject.encode(pool)}/*",
            predicate_cel="",
            handler_kind=HandlerKind.TASK,
            max_concurrency=NUMBERS["max_concurrency"][1],
            retry_max=MAX_ATTEMPTS,
            retry_backoff_ms=FIRST_PAUSE_MS,
            dlq_after_n=MAX_ATTEMPTS,
            # A playbook may start another one on its own pool.
            allow_self=True,
        )
    )


def ensure_pool(tx: Transaction, pool: str) -> None:
    """Make sure that a pool is there, before the first command is issued to it."""
    found = registry.find(tx, reaction_id(pool))
    if found is None or found.deleted:
        registry.register(tx, reaction_of(pool))
