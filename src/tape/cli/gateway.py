"""`tape gateway`: receive webhooks at the edge, for a server that is not reachable from outside."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Annotated

import typer

from tape.base.extras import require_server_libraries
from tape.base.process import stop_on_signal
from tape.cli.options import HttpAllowOption, LogLevelOption, ServerOption, run
from tape.cli.telemetry import set_logging

TOKEN = "TAPE_INTERNAL_API_TOKEN"  # noqa: S105 - the name of a variable


def gateway(
    server: ServerOption,
    listen: Annotated[str, typer.Option(help="HTTP address to listen on for senders.")] = "127.0.0.1:7880",
    remember_s: Annotated[float, typer.Option(min=0, help="Seconds for which a listener is cached.")] = 30.0,
    body_timeout_s: Annotated[
        float, typer.Option(min=0.1, help="Seconds within which the body of a delivery must arrive.")
    ] = 10.0,
    http_allow: HttpAllowOption = None,
    log_level: LogLevelOption = "info",
) -> None:
    """Receive webhooks and Pub/Sub pushes, verify them and forward them to a server, which starts their executions.

    Needs no database. The internal token of the server is read from TAPE_INTERNAL_API_TOKEN, never from an argument,
    because other users of the machine can read arguments.
    """
    require_server_libraries("tape gateway")
    set_logging(log_level)
    logging.getLogger("uvicorn").setLevel("WARNING")
    run(_serve(server, listen, remember_s, body_timeout_s))


async def _serve(server: str, listen: str, remember_s: float, body_timeout_s: float) -> None:
    from tape.server.gateway import Gateway

    stop = asyncio.Event()
    token = os.environ.get(TOKEN, "")
    with stop_on_signal(stop.set, interrupts=False):
        async with Gateway(server, token, listen, fresh_s=remember_s, body_timeout_s=body_timeout_s) as gateway:
            typer.echo(
                f"The gateway receives deliveries at http://{gateway.address}/ingress/<listener>"
                f"   (/healthz /readyz /metrics)\n  for  {server}\n\nCtrl-C stops it."
            )
            sys.stdout.flush()
            await stop.wait()
            typer.echo("Stopping: answering open requests.")
    typer.echo("Stopped.")
