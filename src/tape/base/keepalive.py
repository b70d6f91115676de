"""TCP keepalive: the system notices that the other end of an idle connection is gone."""

from __future__ import annotations

import socket

# Seconds without a byte until the first probe, between probes, and how many may stay unanswered.
IDLE_S, INTERVAL_S, PROBES = 60, 10, 3
# Milliseconds for which written bytes may stay unacknowledged.
USER_TIMEOUT_MS = 20_000


def keep_alive(connection: socket.socket | None) -> None:
    """Let the system probe a connection; what it does not know is left out. None is a transport without a socket."""
    if connection is None:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", IDLE_S),
        ("TCP_KEEPINTVL", INTERVAL_S),
        ("TCP_KEEPCNT", PROBES),
        ("TCP_USER_TIMEOUT", USER_TIMEOUT_MS),
    ):
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
