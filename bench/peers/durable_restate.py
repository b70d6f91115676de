"""Restate: steps of a service's handler, recorded by its server; runs in the peers' environment."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config

from bench.workflow_load import load_of, report

START_S = 30
service = restate.Service("bench")


@service.handler()
async def flow(ctx: restate.Context, steps: int) -> list[float]:
    """A handler of so many steps."""
    waits = []
    for number in range(steps):

        async def act(number: int = number) -> dict[str, int]:
            return {"n": number}

        began = time.perf_counter()
        await ctx.run_typed("act", act)
        waits.append(time.perf_counter() - began)
    return waits


def free_port() -> int:
    """A free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def post(url: str, body: object) -> object:
    """The answer to a request."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read() or b"null")


def serve_handlers(port: int) -> None:
    """Serve the handlers for good, on a loop of their own."""
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.loglevel = "ERROR"
    forever = asyncio.Event()
    asyncio.run(serve(restate.app([service]), config, shutdown_trigger=forever.wait))


def main(binary: str, folder: str, *arguments: str) -> None:
    """Start the server in a folder, register the handlers, measure."""
    node, ingress, admin, handlers = (free_port() for _ in range(4))
    settings = {
        "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node}",
        "RESTATE_ADVERTISED_ADDRESS": f"http://127.0.0.1:{node}",
        "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
        "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
        "DO_NOT_TRACK": "1",
    }
    command = [binary, "--base-dir", folder, "--node-name", "bench"]
    threading.Thread(target=serve_handlers, args=(handlers,), daemon=True).start()
    quiet = subprocess.DEVNULL
    load = load_of(list(arguments))
    with subprocess.Popen(command, env=os.environ | settings, stdout=quiet, stderr=quiet) as server:
        try:
            register(admin, handlers)
            with ThreadPoolExecutor(load.workflows) as callers:
                url = f"http://127.0.0.1:{ingress}/bench/flow"
                report(load, lambda flows, steps: list(callers.map(lambda _: post(url, steps), range(flows))))
        finally:
            server.terminate()


def register(admin: int, handlers: int) -> None:
    """Make the handlers known to the server, which may still be starting."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            post(f"http://127.0.0.1:{admin}/deployments", {"uri": f"http://127.0.0.1:{handlers}"})
            return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
