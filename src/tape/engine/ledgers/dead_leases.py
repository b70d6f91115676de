"""Leases of processes that have ended, found without waiting for their expiry where one process has the whole store."""

from __future__ import annotations

import os
import re
import socket

from tape.base.clock import now_ms
from tape.model.ledger_states import RunStatus
from tape.store import Transaction


def expire_dead_leases(tx: Transaction) -> list[str]:
    """Expire the leases on runs of earlier processes of this host; returns their owners.

    Call it before this process has a client: a lease of its own pid is then that of an earlier process, too, as in a
    container, where every process has the same pid. Another host's leases expire at their time.
    """
    now = now_ms()
    owners = tx.query(
        "SELECT DISTINCT lease_owner FROM tape_runs WHERE status = ? AND lease_expires_at_ms > ?",
        RunStatus.RUNNING,
        now,
    )
    dead = [owner for (owner,) in owners if _has_ended(owner)]
    for owner in dead:
        tx.execute(
            "UPDATE tape_runs SET lease_expires_at_ms = ? WHERE status = ? AND lease_owner = ?",
            now - 1,
            RunStatus.RUNNING,
            owner,
        )
    return dead


def _has_ended(owner: str) -> bool:
    """Whether an owner as `new_owner` names it belongs to a process of this host that no longer runs."""
    found = re.fullmatch(re.escape(socket.gethostname()) + r"-(\d{1,10})-[^-]+", owner)
    if found is None:
        return False
    if (pid := int(found[1])) == os.getpid():
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
