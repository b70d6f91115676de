"""The reference server of Durable Streams, on Node: streams in files, each append on disk before it is answered."""

from __future__ import annotations

import contextlib
import http.client
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from bench.peers.servers import CLIENTS, NotInstalled, free_port, running

MODULE = CLIENTS.parent / "node_modules" / "@durable-streams" / "server" / "dist" / "index.js"
SERVER = """
import {{ DurableStreamTestServer }} from "{module}"
await new DurableStreamTestServer({{ port: {port}, host: "127.0.0.1", dataDir: "{folder}" }}).start()
"""
WRITERS = 16


class DurableStreams(NamedTuple):
    """A server: its port and its process."""

    port: int
    pid: int

    def fill(self, name: str, messages: Sequence[str], each_post: int) -> None:
        """Make a stream of JSON messages, so many in each POST."""
        self._send([("PUT", name, "")])
        bodies = [f"[{','.join(messages[at : at + each_post])}]" for at in range(0, len(messages), each_post)]
        calls = [("POST", name, body) for body in bodies]
        with ThreadPoolExecutor(WRITERS) as writers:
            list(writers.map(self._send, [calls[start::WRITERS] for start in range(WRITERS)]))

    def _send(self, calls: Sequence[tuple[str, str, str]]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        with contextlib.closing(connection):
            for method, name, body in calls:
                connection.request(method, path_of(name), body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                if response.status not in (201, 204):
                    raise RuntimeError(f"{method} {name}: {response.status} {response.read()!r}")
                response.read()


@contextlib.contextmanager
def durable_streams(folder: Path) -> Iterator[DurableStreams]:
    """The server, with its streams in a folder."""
    node = shutil.which("node")
    if node is None or not MODULE.exists():
        raise NotInstalled("not installed: needs Node 18 or newer, then make .venv/.bench")
    port = free_port()
    script = SERVER.format(module=MODULE, port=port, folder=folder)
    with running([node, "--input-type=module", "-e", script], node, port) as pid:
        yield DurableStreams(port, pid)


def path_of(name: str) -> str:
    """The path of a stream."""
    return f"/v1/stream/{name}"
