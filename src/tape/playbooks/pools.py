"""Pools: named groups of workers with their own queue.

A pool is a reaction to the commands that are issued to it; its workers claim the tasks of that reaction.
"""

from __future__ import annotations

import re
from typing import Any

from tape.model.reaction_states import POOL

SHARED = "shared"
# The app name of every execution in the ledgers.
APP = "playbooks"
# For error texts: valid names of pools.
POOL_RULE = "must be lower-case letters, digits, - and _, at most 63 of them"

POOL_PATTERN = r"[a-z0-9][a-z0-9_-]{0,62}"
_POOL = re.compile(POOL_PATTERN)


def is_pool(name: str) -> bool:
    """Whether a text is a valid name of a pool."""
    return bool(_POOL.fullmatch(name))


def default_pool(path: str) -> str:
    """The pool of a playbook that names none: `system` and `subscription` for paths below them, else `shared`."""
    area, slash, _ = path.partition("/")
    return area if slash and area in ("system", "subscription") else SHARED


# A worker that dies counts as an attempt; after ten attempts the command is a dead letter.
MAX_ATTEMPTS = 10
FIRST_PAUSE_MS = 1_000
MAX_CONCURRENCY = 100_000


def reaction_id(pool: str) -> str:
    """The id of a pool's reaction."""
    return f"{POOL}{pool}"


def reaction_fields(pool: str) -> dict[str, Any]:
    """The reaction of a pool. Its workers limit the concurrency."""
    return {
        "reaction_id": reaction_id(pool),
        "name": f"pool {pool}",
        "subject_pattern": f"/tape/command/issued/{pool}/*",
        "predicate_cel": "",
        "max_concurrency": MAX_CONCURRENCY,
        "retry_max": MAX_ATTEMPTS,
        "retry_backoff_ms": FIRST_PAUSE_MS,
        "dlq_after_n": MAX_ATTEMPTS,
        # A playbook may start another one on its own pool.
        "allow_self": True,
    }
