"""An outage in a minute: messages flow, what they need goes away, they wait, it comes back, they leave in order.

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
  - step: keep
    tool: {kind: value, value: "{{ input.n }}"}
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
    ordering: global
    circuit:
      trip_after: 2
      probe_after_ms: 60000
      probe_interval_ms: 300
      downstream: [{{name: orders, type: http, target: "{target}"}}]
"""

console = Console()


class Warehouse:
    """What the runs depend on. It can be switched off and on at the same address."""

    def __init__(self) -> None:
        self._server: http.server.ThreadingHTTPServer | None = None
        self.port = 0

    def start(self) -> None:
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), _Answer)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class _Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""


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
        control.register_document(PLAYBOOK)
        target = f"http://127.0.0.1:{self.warehouse.port}/"
        control.register_document(SUBSCRIPTION.format(nats=self.nats_url, folder=self.spool, target=target))
        control.act(control.register(PATH)["subscription_id"], "activate")

    def waiting(self) -> int:
        return sum(1 for _ in self.spool.glob("*.json"))

    def begun(self) -> list[int]:
        """The numbers of the messages that became runs, in the order of the journal."""
        head = self.client.head().global_seq
        found: list[int] = []
        for batch in self.client.follow_batches(subject_pattern="/tape/command/**"):
            found += [json.loads(entry.payload_json)["payload"]["n"] for entry in batch.entries]
            if batch.position >= head:
                break
        return found

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
        process = self._start("serve", "--store", store, *listen, "--http-allow", "127.0.0.1")
        greeting = ""
        assert process.stdout is not None
        while "Ctrl-C" not in greeting:
            greeting += process.stdout.readline()
        return re.findall(r"tape://\S+", greeting)[0], re.findall(r"http://\S+", greeting)[0]

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        environment = os.environ | {"TAPE_INTERNAL_API_TOKEN": TOKEN, "TAPE_WALLET_KEY": str(self._folder / "key")}
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


async def publish(stage: Stage, some: list[int]) -> None:
    connection = await nats.connect(stage.nats_url)
    stream = connection.jetstream()
    with console.status("") as status:
        for done, number in enumerate(some, 1):
            await stream.publish("orders", json.dumps({"n": number}).encode())
            status.update(f"{done} of {len(some)} sent, {stage.waiting()} wait in the spool")
            await asyncio.sleep(0.01)
    await connection.close()


def main() -> None:
    """Play it."""
    parser = argparse.ArgumentParser(description="An outage in a minute.")
    parser.add_argument("--messages", type=int, default=100, help="in each of the three parts")
    count = parser.parse_args().messages
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tape-outage-")))
        with console.status("Starting NATS, a server, a worker and a warehouse that runs depend on"):
            stage = Stage(folder, stack)
        parts = [list(range(part * count, (part + 1) * count)) for part in range(3)]

        console.print("[bold]1. All is well.[/bold]")
        asyncio.run(publish(stage, parts[0]))
        until(lambda: len(stage.begun()) >= count, "the first runs")
        console.print(f"   {count} messages became {len(stage.begun())} runs.")

        console.print("[bold red]2. The warehouse is switched off.[/bold red]")
        stage.warehouse.stop()
        until(lambda: any(not each.ended_ms for each in stage.outages()), "the circuit to open")
        asyncio.run(publish(stage, parts[1]))
        until(lambda: stage.waiting() >= count, "the messages to be buffered")
        console.print(f"   {stage.waiting()} messages wait in the spool, acknowledged to NATS; no run was begun.")

        console.print("[bold green]3. It comes back.[/bold green]")
        stage.warehouse.start()
        asyncio.run(publish(stage, parts[2]))
        until(lambda: len(stage.begun()) >= 3 * count and stage.waiting() == 0, "the spool to be drained")
        begun = stage.begun()
        is_whole = begun == list(range(3 * count))
        console.print(
            f"   {3 * count} sent, {len(begun)} runs, {'in order, each once' if is_whole else 'NOT as sent'}.\n"
        )
        until(lambda: all(each.ended_ms for each in stage.outages()), "the end of the outages in the journal")

        console.print("[bold]The outages in the journal[/bold] (tape subscriptions outage subscriptions/orders):\n")
        for each in stage.outages():
            show_outage(each)
        if not is_whole:
            sys.exit(1)


if __name__ == "__main__":
    main()
