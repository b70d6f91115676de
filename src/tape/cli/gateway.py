"""`tape gateway`: receive webhooks at the edge, for a server that is not reachable from outside."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tape.base.config import load_tls
from tape.base.extras import require_server_libraries
from tape.base.process import stop_on_signal
from tape.cli.options import HttpAllowOption, LogLevelOption, ServerOption, run
from tape.cli.telemetry import set_logging
from tape.subscriptions.api_client import token_of_environment

if TYPE_CHECKING:
    from tape.server.gateway import Gateway


def gateway(
    server: ServerOption,
    listen: Annotated[str, typer.Option(help="HTTP address to listen on for senders.")] = "127.0.0.1:7880",
    remember_s: Annotated[float, typer.Option(min=0, help="Seconds for which a listener is cached.")] = 30.0,
    body_timeout_s: Annotated[
        float, typer.Option(min=0.1, help="Seconds within which the body of a delivery must arrive.")
    ] = 10.0,
    tls_cert: Annotated[
        str | None,
        typer.Option(envvar="TAPE_TLS_CERT", help="Use TLS: PEM file of the certificate chain. [default: none]"),
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(envvar="TAPE_TLS_KEY", help="PEM file of the key of the certificate. [default: none]")
    ] = None,
    tls_client_ca: Annotated[
        str | None,
        typer.Option(
            envvar="TAPE_TLS_CLIENT_CA",
            help="Accept deliveries only with a certificate of an authority in this PEM file. [default: none]",
        ),
    ] = None,
    insecure: Annotated[
        bool | None,
        typer.Option(
            "--insecure",
            envvar="TAPE_INSECURE",
            help="Accept senders on other machines without TLS. [default: refuse to start]",
        ),
    ] = None,
    http_allow: HttpAllowOption = None,
    log_level: LogLevelOption = "info",
) -> None:
    """Receive webhooks and Pub/Sub pushes, verify them and forward them to a server, which starts their executions.

    Needs no database. A service key with the scopes gateway and runtime is read from TAPE_TOKEN, or the internal token
    of the server from TAPE_INTERNAL_API_TOKEN, never from an argument: other users of the host can read arguments. The
    TLS options are also keys of tape.toml.
    """
    require_server_libraries("tape gateway")
    set_logging(log_level)
    logging.getLogger("uvicorn").setLevel("WARNING")
    tls, is_insecure = load_tls(
        {"tls_cert": tls_cert, "tls_key": tls_key, "tls_client_ca": tls_client_ca, "insecure": insecure}
    )
    options = {"fresh_s": remember_s, "body_timeout_s": body_timeout_s, "tls": tls, "insecure": is_insecure}
    run(_serve(server, listen, options))


async def _serve(server: str, listen: str, options: dict[str, Any]) -> None:
    from tape.server.gateway import Gateway

    stop = asyncio.Event()
    token = token_of_environment()
    with stop_on_signal(stop.set, interrupts=False):
        async with Gateway(server, token, listen, **options) as gateway:
            scheme = "https" if options["tls"].is_on else "http"
            typer.echo(
                f"The gateway receives deliveries at {scheme}://{gateway.address}/ingress/<listener>"
                f"   (/healthz /readyz /metrics)\n  for  {server}\n{_warning(gateway)}\nCtrl-C stops it."
            )
            sys.stdout.flush()
            await stop.wait()
            typer.echo("Stopping: answering open requests.")
    typer.echo("Stopped.")


def _warning(gateway: Gateway) -> str:
    return "  TLS is off: deliveries cross the network in plain text (--insecure)\n" if gateway.is_exposed else ""
