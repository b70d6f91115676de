"""What a reaction makes and where a task stands, numbered as on the wire and in the tables."""

from __future__ import annotations

from enum import IntEnum

# How the id of a reaction begins whose tasks are the commands of a pool.
POOL = "pool:"


class HandlerKind(IntEnum):
    """What a match becomes: a run of an agent, a task for a handler, a task for a broker."""

    AGENT = 1
    TASK = 2
    PUBLISH = 3


class TaskStatus(IntEnum):
    """The status of a task. FAILED is a dead letter that an operator has dropped."""

    PENDING = 1
    CLAIMED = 2
    DONE = 3
    FAILED = 4
    DLQ = 5
