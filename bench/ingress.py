"""How many deliveries a second are verified and durable? Beside an endpoint that does nothing with them.

The client is a small C program (`c/http_load.c`) that sends the same signed request over many connections. The bare
endpoint is the same HTTP stack with nothing behind it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.lab import TAPE, Lab, TapeServer, stop
from bench.options import NAMES, Options
from bench.readers import build
from bench.table import Table, count, milliseconds, ratio
from tape.subscriptions.api_client import Control
from tape.subscriptions.document.validator import KIND

TITLE = "Push: deliveries that are verified and durable, beside a bare endpoint"

CONNECTIONS = 64
TOKEN = "bench-token"
SECRET = "bench-secret"
BODY = json.dumps({"order_id": 4711, "total": 12.5, "lines": [{"sku": "a-1", "n": 2}] * 3, "note": "x" * 100}).encode()
PLAYBOOK = """\
kind: Playbook
metadata: {path: domain/ingest_order}
workflow:
  - step: say
    tool: {kind: value, value: done}
"""
RULES = """\
  headers:
    directives:
      - {header: X-Route, controls: dispatch.playbook, allowed: [domain/ingest_order, domain/other]}
      - {header: X-Pool, controls: dispatch.execution_pool, allowed: [iot, shared]}
      - {header: X-Key, controls: idempotency_key}
    trace: {propagate: w3c}
"""
PUSH = """\
kind: Subscription
metadata: {path: subscriptions/orders}
spec:
  source: webhook
  mode: push
  ingress:
    gateway_path: /ingress/orders
    verify: {type: hmac_sha256, header: X-Signature, secret: orders_secret}
  dispatch: {playbook: domain/ingest_order, execution_pool: subscription}
"""
BARE = """\
import socket, uvicorn, uvloop
from starlette.requests import Request
from starlette.responses import Response
from tape.server.http.protocol import HttpConnection

async def app(scope, receive, send):
    await Request(scope, receive).body()
    await Response(b'{"status":"accepted"}', 202, media_type="application/json")(scope, receive, send)

listening = socket.socket()
listening.bind(("127.0.0.1", 0))
listening.listen(1024)
print(listening.getsockname()[1], flush=True)
quiet = dict(server_header=False, log_config=None, access_log=False, lifespan="off")
config = uvicorn.Config(app, http=HttpConnection, **quiet)
uvloop.run(uvicorn.Server(config).serve([listening]))
"""


def run(options: Options) -> list[Table]:
    """Measure."""
    return [_deliveries(options)]


def _deliveries(options: Options) -> Table:
    load = build(options.lab, "http_load")
    rows: list[tuple[str, Measured]] = []
    with _bare() as (port, pids):
        bare = _measure(options, load, port, pids, _request("/", BODY))
    rows.append(("nothing: read the body, answer 202", bare))
    for store in options.stores:
        name = NAMES[store]
        with _tape(options.lab, store) as server:
            http, pids = int(server.http_url.rpartition(":")[2]), [server.pid]
            headers = {"X-Route": "domain/ingest_order", "X-Pool": "shared", "traceparent": _TRACE}
            forged = _request("/ingress/orders", BODY, {"X-Signature": "00" * 32})
            options.report(f"{name}: begun without verification, then with it")
            rows.append(
                (f"{name}: POST /api/execute, no verification", _measure(options, load, http, pids, _execute()))
            )
            rows.append((f"{name}: POST /ingress, HMAC", _measure(options, load, http, pids, _signed())))
            _register(server, PUSH + RULES)
            directed = _measure(options, load, http, pids, _signed(**headers))
            rows.append((f"{name}: POST /ingress, HMAC and directives", directed))
            rows.append((f"{name}: POST /ingress, forged", _measure(options, load, http, pids, forged)))
            _register(server, PUSH)
            with _gateway(server.http_url) as (port, more):
                options.report(f"{name}: through a gateway")
                rows.append((f"{name}: through a gateway", _measure(options, load, port, [*pids, *more], _signed())))
    return Table(
        TITLE,
        ("", "answers/s", "beside nothing", "CPU µs each", "p50 ms", "p99 ms", "status"),
        [
            (
                label,
                count(found.rate),
                ratio(found.rate, bare.rate),
                count(found.cpu_us),
                milliseconds(found.p50_ms),
                milliseconds(found.p99_ms),
                found.statuses,
            )
            for label, found in rows
        ],
        [
            f"{CONNECTIONS} connections of one C client, bodies of {len(BODY)} bytes; all share this machine.",
            "202 is sent after the run and its command are committed (synchronous=FULL, synchronous_commit=on).",
            "The CPU is that of the server's process, and of the gateway's; other load changes it little.",
        ],
    )


class Measured(NamedTuple):
    """What one load led to."""

    rate: float
    cpu_us: float
    p50_ms: float
    p99_ms: float
    statuses: str


def _measure(options: Options, load: Path, port: int, pids: Sequence[int], request: bytes) -> Measured:
    """The best of some rounds."""
    file = options.lab.fresh_folder() / "request"
    file.write_bytes(request)
    command = [str(load), str(port), str(file), str(CONNECTIONS), "0"]
    subprocess.run([*command, str(options.scaled(1_000, 200))], capture_output=True, check=True)  # to warm up
    rounds = []
    for _ in range(options.scaled(3, 1)):
        before = sum(map(_cpu_s, pids))
        done = subprocess.run([*command, str(options.scaled(3_000, 300))], capture_output=True, text=True, check=True)
        found: dict[str, Any] = json.loads(done.stdout)
        spent = sum(map(_cpu_s, pids)) - before
        answers = max(found["answers"], 1)
        rate = found["answers"] / max(found["seconds"], 1e-9)
        statuses = ", ".join(found["statuses"])
        rounds.append(Measured(rate, spent / answers * 1e6, found["p50_ms"], found["p99_ms"], statuses))
    return max(rounds)


def _cpu_s(pid: int) -> float:
    """What a process has used, in user and kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


_TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def _signature(body: bytes) -> str:
    return "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()


def _signed(**headers: str) -> bytes:
    return _request("/ingress/orders", BODY, {"X-Signature": _signature(BODY), **headers})


def _execute() -> bytes:
    body = json.dumps({"path": "domain/ingest_order", "payload": json.loads(BODY), "execution_pool": "subscription"})
    return _request("/api/execute", body.encode(), {"Authorization": f"Bearer {TOKEN}"})


def _request(path: str, body: bytes, headers: dict[str, str] | None = None) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


@contextmanager
def _tape(lab: Lab, kind: str) -> Iterator[TapeServer]:
    """A server with a playbook, a listener and its secret. It does not match reactions: runs are begun, not run."""
    store, key = lab.fresh_store(kind), str(lab.fresh_folder() / "wallet.key")
    os.environ["TAPE_INTERNAL_API_TOKEN"] = TOKEN
    command = [TAPE, "wallet", "set", "orders_secret", "--store", store, "--wallet-key", key]
    subprocess.run(command, input=SECRET, text=True, check=True, capture_output=True)
    with TapeServer(store, "--wallet-key", key, "--no-match-reactions") as server:
        for document in (PLAYBOOK, PUSH):
            _register(server, document)
        yield server


def _register(server: TapeServer, document: str) -> None:
    control = Control(server.http_url, TOKEN)
    if control.register_document(document)["kind"] == KIND:
        control.act(control.register("subscriptions/orders")["subscription_id"], "activate")
    control.close()
    time.sleep(1.1)  # listeners are looked at once a second


@contextmanager
def _bare() -> Iterator[tuple[int, list[int]]]:
    process = subprocess.Popen([sys.executable, "-c", BARE], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), [process.pid]
    finally:
        stop(process)


@contextmanager
def _gateway(server_url: str) -> Iterator[tuple[int, list[int]]]:
    command = [TAPE, "gateway", "--server", server_url, "--listen", "127.0.0.1:0", "--log-level", "error"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(re.findall(r":(\d+)/ingress", process.stdout.readline())[0]), [process.pid]
    finally:
        stop(process)
