"""An outage in a minute: messages are sent all the time, and the service that their runs need is down for 10 s.

At the end the service shows what it received: every message once, and in order for each key.

make outage-demo
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.server
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import nats
from rich.console import Console

from tape import TapeClient
from tape.cli.outages import read_outages, show_outage
from tape.subscriptions.api_client import Control
from tape.subscriptions.outages import Outage

BIN = Path(sys.executable).parent
TOKEN = "demo-token"
PATH = "subscriptions/orders"
PLAYBOOK = """
kind: Playbook
metadata: {path: domain/order}
workflow:
  - step: order
    tool: {kind: http, method: POST, url: "TARGET/orders", json: "{{ message.data }}"}
"""
SUBSCRIPTION = """
kind: Subscription
metadata: {{path: subscriptions/orders}}
spec:
  source: nats
  mode: pull
  url: {nats}
  stream: ORDERS
  consumer: orders
  create: true
  runtime: {{target: local, timeout_ms: 200}}
  dispatch: {{playbook: domain/order, execution_pool: orders}}
  spool:
    mode: buffer_and_ack
    backend: local_disk
    path: {folder}
    ordering: per_key
    ordering_key: device_id
    circuit:
      downstream: [{{name: orders, type: tcp, target: "{target}"}}]
"""
KEYS = 5

console = Console()


class Warehouse:
    """The service that the runs need. It can be switched off and on at the same address."""

    def __init__(self) -> None:
        self._server: http.server.ThreadingHTTPServer | None = None
        self.port = 0
        self.received: dict[str, int] = {}  # the numbers of the messages by idempotency key, in the order of arrival

    def start(self) -> None:
        warehouse = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                warehouse.received.setdefault(self.headers["Idempotency-Key"], body["n"])
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                """Log nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class Stage:
    """The processes of the demonstration."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self.warehouse = Warehouse()
        self.warehouse.start()
        stack.callback(self.warehouse.stop)
        self.nats_url = f"nats://{self._nats()}"
        self.url, self.http_url = self._server()
        self.client = stack.enter_context(TapeClient(self.url))
        self._start("worker", "--pool", "orders", "--url", self.url)
        self.spool = folder / "spool"
        control = Control(self.http_url, TOKEN)
        asyncio.run(self._stream())
        target = f"127.0.0.1:{self.warehouse.port}"
        control.register_document(PLAYBOOK.replace("TARGET", f"http://{target}"))
        control.register_document(SUBSCRIPTION.format(nats=self.nats_url, folder=self.spool, target=target))
        control.act(control.register(PATH)["subscription_id"], "activate")

    def waiting(self) -> int:
        return sum(1 for _ in self.spool.glob("*.json"))

    def outages(self) -> list[Outage]:
        """The outages in the journal."""
        return read_outages(self.client, PATH)

    async def _stream(self) -> None:
        connection = await nats.connect(self.nats_url)
        await connection.jetstream().add_stream(name="ORDERS", subjects=["orders"])
        await connection.close()

    def _nats(self) -> str:
        log = self._folder / "nats.log"
        command = [BIN / "nats-server", "-js", "-a", "127.0.0.1", "-p", "-1", "-sd", self._folder / "nats", "-l", log]
        self._keep(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        until(lambda: log.exists() and "Server is ready" in log.read_text(), "NATS")
        return re.findall(r"Listening for client connections on (\S+)", log.read_text())[0]

    def _server(self) -> tuple[str, str]:
        store = f"sqlite:{self._folder / 'tape.db'}"
        listen = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
        process = self._start("serve", "--store", store, *listen)
        greeting = ""
        assert process.stdout is not None
        while "Ctrl-C" not in greeting:
            greeting += process.stdout.readline()
        return re.findall(r"tape://\S+", greeting)[0], re.findall(r"http://\S+", greeting)[0]

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        environment = os.environ | {
            "TAPE_INTERNAL_API_TOKEN": TOKEN,
            "TAPE_WALLET_KEY": str(self._folder / "key"),
            "TAPE_HTTP_ALLOW": "127.0.0.1",  # for the server's probe, and for the worker's step
        }
        command = [BIN / "tape", *arguments, "--log-level", "error"]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, cwd=self._folder
        )
        self._keep(process)
        return process

    def _keep(self, process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
        def end() -> None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

        self._stack.callback(end)


def until(condition: Callable[[], object], what: str, seconds: float = 120) -> None:
    """Wait for something to be so."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"{what} did not come within {seconds:.0f} s.")
        time.sleep(0.05)


class Publisher:
    """Publishes messages at a steady rate until it is stopped."""

    def __init__(self, stage: Stage, per_second: int) -> None:
        self.sent = 0
        self._stage = stage
        self._rest_s = 1 / per_second
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._publish()), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    async def _publish(self) -> None:
        connection = await nats.connect(self._stage.nats_url)
        stream = connection.jetstream()
        while not self._stopping.is_set():
            message = {"n": self.sent, "device_id": f"device-{self.sent % KEYS}"}
            await stream.publish("orders", json.dumps(message).encode())
            self.sent += 1
            await asyncio.sleep(self._rest_s)
        await connection.close()


def show(stage: Stage, publisher: Publisher, what: str) -> None:
    """Show the counts while something is awaited."""
    received, waiting = len(stage.warehouse.received), stage.waiting()
    console.print(f"   {what}: {publisher.sent} sent, {received} at the warehouse, {waiting} wait in the spool.")


def judge(received: list[int], sent: int) -> list[str]:
    """What is wrong with what the warehouse received."""
    found = []
    if missing := sorted(set(range(sent)) - set(received)):
        found.append(f"never received: {missing}")
    if len(received) != len(set(received)):
        found.append(f"{len(received) - len(set(received))} received twice")
    for key in range(KEYS):
        of_key = [number for number in received if number % KEYS == key]
        if of_key != sorted(of_key):
            found.append(f"device-{key} out of order")
    return found


def main() -> None:
    """Play it."""
    parser = argparse.ArgumentParser(description="An outage in a minute.")
    parser.add_argument("--rate", type=int, default=20, help="messages per second, all the time")
    parser.add_argument("--outage-s", type=float, default=10.0, help="seconds that the warehouse is down")
    options = parser.parse_args()
    rate, outage_s = options.rate, options.outage_s
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tape-outage-")))
        with console.status("Starting NATS, a server, a worker and a warehouse that runs need"):
            stage = Stage(folder, stack)
        received = stage.warehouse.received
        publisher = Publisher(stage, rate)
        stack.callback(publisher.stop)

        console.print(f"[bold]1. Messages are sent, {rate} a second, and go on being sent.[/bold]")
        until(lambda: len(received) >= 3 * rate, "the first messages at the warehouse")
        show(stage, publisher, "all is well")

        console.print(f"[bold red]2. The warehouse is down for {outage_s:.0f} s.[/bold red]")
        stage.warehouse.stop()
        down_at, before = time.monotonic(), publisher.sent
        until(lambda: any(not each.ended_ms for each in stage.outages()), "the circuit to open")
        show(stage, publisher, "the circuit is open")
        time.sleep(max(0.0, outage_s - (time.monotonic() - down_at)))
        show(stage, publisher, f"{publisher.sent - before} were sent while it was down")

        console.print("[bold green]3. It comes back.[/bold green]")
        stage.warehouse.start()
        until(lambda: all(each.ended_ms for each in stage.outages()), "the end of the outage")
        publisher.stop()
        until(lambda: len(set(received.values())) >= publisher.sent, "every message at the warehouse")
        show(stage, publisher, "the circuit is closed")
        problems = judge(list(received.values()), publisher.sent)
        verdict = "; ".join(problems) or f"each once, in order for each of the {KEYS} keys"
        count = f"{len(set(received.values()))} of {publisher.sent} messages"
        console.print(f"\n[bold]The warehouse received {count}[/bold]: {verdict}.\n")

        console.print("[bold]The outages in the journal[/bold] (tape subscriptions outage subscriptions/orders):\n")
        for each in stage.outages():
            show_outage(each)
        if problems:
            sys.exit(1)


if __name__ == "__main__":
    main()
