"""Pools by name: groups of workers that share their work with nobody else.

A pool is a reaction to the commands that are issued to it; its tasks are what the workers take.
"""

from __future__ import annotations

import re
from typing import Any

from tape.model.reaction_states import POOL

SHARED = "shared"
# The app of every execution, as the ledgers know it.
APP = "playbooks"
# For messages: what a pool may be called.
POOL_RULE = "must be lower-case letters, digits, - and _, at most 63 of them"

POOL_PATTERN = r"[a-z0-9][a-z0-9_-]{0,62}"
_POOL = re.compile(POOL_PATTERN)


def is_pool(name: str) -> bool:
    """Whether a text can name a pool: it is a segment of a subject and the name of a group of workers."""
    return bool(_POOL.fullmatch(name))


def default_pool(path: str) -> str:
    """The pool of a playbook that names none: `system` and `subscription` for paths below them, else `shared`."""
    area, slash, _ = path.partition("/")
    return area if slash and area in ("system", "subscription") else SHARED


# A worker that dies takes an attempt with it; what kills ten of them is put aside for somebody to look at.
MAX_ATTEMPTS = 10
FIRST_PAUSE_MS = 1_000
MAX_CONCURRENCY = 100_000


def reaction_id(pool: str) -> str:
    """The reaction whose tasks the workers of a pool take."""
    return f"{POOL}{pool}"


def reaction_fields(pool: str) -> dict[str, Any]:
    """The reaction of a pool. How many tasks run at once is what its workers have room for."""
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
