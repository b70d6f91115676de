"""One client per server and process, shared by code that makes occasional calls."""

from __future__ import annotations

import atexit
import os
import threading

from tape.client.channel import DEFAULT_URL
from tape.client.sync import TapeClient

_clients: dict[tuple[int, str], TapeClient] = {}
_lock = threading.Lock()


def shared_client(url: str = DEFAULT_URL) -> TapeClient:
    """This process's client for a server; it stays connected until the process ends."""
    key = (os.getpid(), url)  # a forked process needs its own connection
    with _lock:
        client = _clients.get(key)
        if client is None:
            client = _clients[key] = TapeClient(url)
        return client


@atexit.register
def _close_all() -> None:
    for (pid, _), client in _clients.items():
        if pid == os.getpid():
            client.close()
