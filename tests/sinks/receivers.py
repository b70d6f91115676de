"""Real targets for sinks, each on a free port: an HTTP receiver, NATS, Kafka, Pub/Sub."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.services import free_port, wait_for


@dataclass
class Received:
    """What a target got: the id to deduplicate on, and the body."""

    event_id: str
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes = b""


Answer = tuple[int, dict[str, str]]


class HttpReceiver:
    """Answers 200, or what `answer` says for a request."""

    def __init__(self, port: int = 0) -> None:
        self.received: list[Received] = []
        self.tries: list[Received] = []
        self.connections = 0
        self.body = b""
        self.answer: Callable[[Received], Answer] = lambda request: (200, {})
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1
            disable_nagle_algorithm = True

            def setup(self) -> None:
                receiver.connections += 1
                super().setup()

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                request = Received(self.headers["X-Tape-Event-Id"] or "", json.loads(raw), dict(self.headers), raw)
                receiver.tries.append(request)
                status, headers = receiver.answer(request)
                if status == 0:  # hang up without a word
                    self.close_connection = True
                    return
                if 200 <= status < 300:
                    receiver.received.append(request)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                body = receiver.body if status != 204 else b""
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(OSError):  # who has read enough hangs up
                    self.wfile.write(body)
                    self.wfile.flush()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port or free_port()), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that hang up are no news
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/tape/events"

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Process:
    """A server as a process of its own."""

    def __init__(self, command: list[str], port: int, env: dict[str, str] | None = None) -> None:
        self.port = port
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env, process_group=0
        )
        try:
            wait_for(lambda: is_listening(port), f"{command[0]} to listen", 60)
        except AssertionError:
            self.close()
            raise

    def close(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, 9)
            self._process.wait()


def nats_server(folder: Path, port: int = 0) -> Process:
    """NATS with JetStream."""
    binary = Path(sys.executable).with_name("nats-server")
    if not binary.exists():
        pytest.skip("nats-server is not installed (it is part of the dev lock)")
    port = port or free_port()
    return Process([str(binary), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder)], port)


EMULATOR = "/usr/lib/google-cloud-sdk/platform/pubsub-emulator/bin/cloud-pubsub-emulator"


def pubsub_emulator() -> Process:
    """Google's Pub/Sub emulator, where it is on the machine."""
    if not Path(EMULATOR).exists() or shutil.which("java") is None:
        pytest.skip("Google's Pub/Sub emulator (google-cloud-cli-pubsub-emulator and java) is not on this machine")
    port = free_port()
    return Process([EMULATOR, "--host=127.0.0.1", f"--port={port}"], port)


class KafkaBroker:
    """librdkafka's mock cluster, held by a process of its own."""

    PROGRAM = """
import sys
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": "ignored", "test.mock.num.brokers": 1, "log_level": 0})
brokers = producer.list_topics(timeout=120).brokers.values()
print(",".join(f"{broker.host}:{broker.port}" for broker in brokers), flush=True)
sys.stdin.read()
"""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", self.PROGRAM], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.servers = self._process.stdout.readline().strip()
        assert self.servers, "the mock cluster did not start"

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
