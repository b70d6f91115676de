"""What the runs need: an HTTP service in a process of its own that can be down, slow, broken, or die while it answers.

POST /orders          writes down the idempotency key and the number, then answers 200, late while it is slow; 500 while
                      it is broken; `dying` it ends after writing, without an answer
POST /mode/<mode>     ok, broken, slow or dying
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import urllib3

from tests.faults.story import Received
from tests.services import free_port, wait_for

SLOW_S = 0.4

_http = urllib3.PoolManager(retries=False, timeout=30)


class _Shop(BaseHTTPRequestHandler):
    mode = "ok"
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.startswith("/mode/"):
            _Shop.mode = self.path.removeprefix("/mode/")
            self._answer(200)
            return
        if _Shop.mode != "broken":
            key = self.headers.get("Idempotency-Key", "").encode()
            number = json.loads(body)
            number = number["n"] if isinstance(number, dict) else number
            os.write(1, b"%s %d\n" % (key, number))  # in one piece, and out of our hands at once
        if _Shop.mode == "dying":
            os.kill(os.getpid(), 9)
        self._answer()

    def _answer(self, status: int = 0) -> None:
        if _Shop.mode == "slow" and not status:
            time.sleep(SLOW_S)
        self.send_response(status or (500 if _Shop.mode == "broken" else 200))
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Downstream:
    """The service, always at the same address."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._ledger = folder / "orders"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, in order."""
        if self._process is None or self._process.poll() is not None:
            with self._ledger.open("ab") as ledger:
                command = [sys.executable, "-m", "tests.faults.downstream", str(self.port)]
                self._process = subprocess.Popen(command, stdout=ledger, stderr=subprocess.DEVNULL)
        wait_for(lambda: self.become("ok"), "the downstream")

    def become(self, mode: str) -> bool:
        """Have it be ok, broken, slow or dying; False if it is down."""
        with contextlib.suppress(urllib3.exceptions.HTTPError):
            return _http.request("POST", f"{self.url}/mode/{mode}").status == 200
        return False

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def received(self) -> list[Received]:
        """What it wrote down, in the order of its arrival."""
        lines = self._ledger.read_text().splitlines() if self._ledger.exists() else []
        return [Received(key, int(number)) for key, number in map(str.split, lines)]


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), _Shop).serve_forever()
