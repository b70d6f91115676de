"""The other side: a bank as a process of its own, which counts what really happened to it.

POST /payments             a payment is made and answered; while held, it is made and not answered
GET  /payments/<key>       200 if it happened, else 404
POST /refunds              one is undone
POST /answer/<status>      the next payments are refused with that status; 200 takes them again
POST /hold, POST /release
GET  /ledger               all that happened, in order
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


class Bank(BaseHTTPRequestHandler):
    """What the bank does with a request."""

    ledger: list[dict[str, Any]] = []  # noqa: RUF012 - one bank per process
    free = threading.Event()
    refusal: tuple[int, dict[str, str]] = (200, {})
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        key = self.headers.get("Idempotency-Key", "")
        match self.path.split("/")[1:]:
            case ["hold"]:
                Bank.free.clear()
            case ["release"]:
                Bank.free.set()
            case ["answer", status]:
                Bank.refusal = int(status), body
            case ["payments" | "refunds" as what]:
                if Bank.refusal[0] != 200:
                    self.answer(Bank.refusal[0], {"error": "no"}, Bank.refusal[1])
                    return
                Bank.ledger.append({"what": what, "key": key, "body": body})
                Bank.free.wait()
                self.answer(200, {"id": f"tx-{len(Bank.ledger)}"})
                return
        self.answer(200, {})

    def do_GET(self) -> None:
        match self.path.split("/")[1:]:
            case ["ledger"]:
                self.answer(200, {"ledger": Bank.ledger})
            case ["payments", key]:
                found = [each for each in Bank.ledger if each["key"] == unquote(key)]
                self.answer(200 if found else 404, {"id": "tx", "times": len(found)})
            case _:
                self.answer(500, {})

    def answer(self, status: int, content: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Receiver:
    """The bank's process, for tests."""

    def __enter__(self) -> Receiver:
        self._process = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def post(self, path: str, **body: str) -> None:
        """Have the bank do something."""
        request = urllib.request.Request(self.url + path, data=json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request):
            pass

    def ledger(self) -> list[dict[str, Any]]:
        """All that really happened."""
        with urllib.request.urlopen(self.url + "/ledger") as answer:
            return json.load(answer)["ledger"]  # type: ignore[no-any-return]


if __name__ == "__main__":
    Bank.free.set()
    bank = ThreadingHTTPServer(("127.0.0.1", 0), Bank)
    sys.stdout.write(f"http://127.0.0.1:{bank.server_port}\n")
    sys.stdout.flush()
    bank.serve_forever()
