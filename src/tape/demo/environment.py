"""The processes of a demonstration: a server and agents, in a temporary folder."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tape.demo.bank import Bank
from tape.errors import RpcFailed


class DemoEnvironment:
    """A running server, a bank, and the folder of their files."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.bank = Bank(folder)

    def agent(self, *flags: str) -> subprocess.Popen[str]:
        """Start an agent; its output can be read line by line."""
        command = [sys.executable, "-m", "tape.demo.agent", self.url, str(self.folder), *flags]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own program


@contextmanager
def open_environment() -> Iterator[DemoEnvironment]:
    """Run a server with its own database on a free port while the block runs."""
    with tempfile.TemporaryDirectory(prefix="tape-demo-") as name:
        folder = Path(name)
        command = [sys.executable, "-m", "tape", "serve", "--store", f"sqlite:{folder / 'tape.db'}"]
        ports = ["--listen", "127.0.0.1:0", "--http-listen", "", "--log-level", "warning"]
        server = subprocess.Popen([*command, *ports], stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own program
        try:
            yield DemoEnvironment(folder, _address(server))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()
            assert server.stdout is not None
            server.stdout.close()


def _address(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"tape://\S+", line):
            return found[0]
    raise RpcFailed(f"The server of the demonstration ended at once, with exit code {server.wait()}.")
