"""`tape gateway`: take deliveries at the edge, for a server that nobody outside can reach."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Annotated

import typer

from tape.base.extras import require_server_libraries
from tape.base.process import stop_on_signal
from tape.cli.options import HttpAllowOption, run
from tape.errors import InvalidInput

TOKEN = "TAPE_INTERNAL_API_TOKEN"  # noqa: S105 - the name of a variable


def gateway(
    server: Annotated[str, typer.Option(envvar="TAPE_SERVER_URL", help="HTTP address of the server.")],
    listen: Annotated[str, typer.Option(help="Where senders reach it.")] = "127.0.0.1:7880",
    remember_s: Annotated[
        float, typer.Option(min=0, help="Seconds for which a listener is not asked for again.")
    ] = 30.0,
    body_timeout_s: Annotated[float, typer.Option(min=0.1, help="Seconds that a body has to arrive in.")] = 10.0,
    http_allow: HttpAllowOption = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Take webhooks and Pub/Sub pushes, verify them, and have a server begin their runs.

    It holds no database connection. The server's internal token is read from TAPE_INTERNAL_API_TOKEN, never from an
    argument, which others on the machine could see.
    """
    require_server_libraries("tape gateway")
    if log_level.upper() not in logging.getLevelNamesMapping():
        raise InvalidInput(f"--log-level {log_level!r} must be debug, info, warning or error.")
    logging.basicConfig(
        level=log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )
    logging.getLogger("uvicorn").setLevel("WARNING")
    run(_serve(server, listen, remember_s, body_timeout_s))


async def _serve(server: str, listen: str, remember_s: float, body_timeout_s: float) -> None:
    from tape.server.gateway import Gateway

    stop = asyncio.Event()
    token = os.environ.get(TOKEN, "")
    with stop_on_signal(stop.set, interrupts=False):
        async with Gateway(server, token, listen, fresh_s=remember_s, body_timeout_s=body_timeout_s) as gateway:
            typer.echo(
                f"The gateway takes deliveries at http://{gateway.address}/ingress/<listener>"
                f"   (/healthz /readyz /metrics)\n  for  {server}\n\nCtrl-C stops it."
            )
            sys.stdout.flush()
            await stop.wait()
            typer.echo("Stopping: answering what is on its way.")
    typer.echo("Stopped.")
