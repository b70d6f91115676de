"""One client per server for code that makes a call now and then."""

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
    place = (os.getpid(), url)  # a fork needs a connection of its own
    with _lock:
        client = _clients.get(place)
        if client is None:
            client = _clients[place] = TapeClient(url)
        return client


@atexit.register
def _close_all() -> None:
    for (pid, _), client in _clients.items():
        if pid == os.getpid():
            client.close()
