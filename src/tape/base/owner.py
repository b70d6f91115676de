"""Names of processes, under which they own leases and sign events."""

from __future__ import annotations

import os
import socket

from tape.base.ids import new_suffix


def process_name() -> str:
    """Return `<host>-<pid>`: the same for the whole life of a process."""
    return f"{socket.gethostname()}-{os.getpid()}"


def new_owner() -> str:
    """Return a unique lease owner, `<host>-<pid>-<random>`."""
    return f"{process_name()}-{new_suffix()}"


def server_owner(server_id: str) -> str:
    """Return the unique lease owner of one process of a server, `<server id>#<random>`."""
    return f"{server_id}#{new_suffix()}"


def server_prefix(owner: str) -> str:
    """Return what the owners of all processes of a server begin with; empty if the owner is not one of them."""
    server_id, mark, _ = owner.rpartition("#")
    return server_id + mark


def claim_owner(worker: str = "") -> str:
    """Return a unique owner for one claim of a worker, `<worker>#<random>`; without a worker's name, `new_owner()`."""
    return f"{worker}#{new_suffix()}" if worker else new_owner()
