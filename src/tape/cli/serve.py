"""`tape serve`: run a server until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from tape import __version__
from tape.base.config import Settings, load_settings
from tape.base.extras import require_server_libraries
from tape.base.process import stop_on_signal
from tape.base.telemetry.export import start_export
from tape.cli.options import run
from tape.cli.user_code import import_modules

# The writer's thread and the event loop hand the interpreter to each other many times a batch.
# With Python's default of 5 ms a busy loop would keep the writer waiting that long each time.
SWITCH_INTERVAL_S = 0.0002


def serve(
    store: Annotated[str | None, typer.Option(help="The database. [default: sqlite:tape.db]")] = None,
    db: Annotated[str | None, typer.Option(hidden=True)] = None,
    listen: Annotated[str | None, typer.Option(help="gRPC address. [default: 127.0.0.1:7878]")] = None,
    http_listen: Annotated[
        str | None, typer.Option(help="HTTP address; empty turns it off. [default: 127.0.0.1:7879]")
    ] = None,
    healthz_listen: Annotated[str | None, typer.Option(hidden=True)] = None,
    max_payload_bytes: Annotated[int | None, typer.Option(help="Largest payload taken. [default: 1048576]")] = None,
    queue_operations: Annotated[int | None, typer.Option(help="Writes that may wait. [default: 20000]")] = None,
    queue_bytes: Annotated[int | None, typer.Option(help="Bytes that may wait. [default: 67108864]")] = None,
    readers: Annotated[int | None, typer.Option(help="Connections for reading. [default: 4]")] = None,
    shutdown_grace_s: Annotated[
        float | None, typer.Option(help="Seconds that calls have to finish. [default: 5]")
    ] = None,
    match_reactions: Annotated[
        bool | None,
        typer.Option(help="Whether this server turns entries into tasks and runs. [default: match-reactions]"),
    ] = None,
    keep_tasks_h: Annotated[
        int | None, typer.Option(help="Hours after which done and dropped tasks are removed. [default: 168]")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error. [default: info]")] = None,
    auth_jwks: Annotated[str | None, typer.Option(help="Keys to check tokens with: a JWKS file or URL.")] = None,
    auth_issuer: Annotated[str | None, typer.Option(help="Take tokens of this issuer only.")] = None,
    auth_audience: Annotated[str | None, typer.Option(help="Take tokens for this audience only.")] = None,
    auth_refresh_s: Annotated[
        float | None, typer.Option(help="Seconds between looks at the keys. [default: 300]")
    ] = None,
    auth_max_stale_s: Annotated[
        float | None, typer.Option(help="Refuse tokens when the keys are older. [default: 3600]")
    ] = None,
    anonymous: Annotated[
        str | None, typer.Option(help="Without keys: loopback, or network to let anybody in. [default: loopback]")
    ] = None,
    cors_origins: Annotated[
        str | None, typer.Option(help="Web pages that may read: origins, separated by commas. [default: none]")
    ] = None,
    http_allow: Annotated[
        str | None, typer.Option(help="Private hosts and networks that HTTP requests may reach. [default: none]")
    ] = None,
    subscriber_buffer_size: Annotated[
        int | None, typer.Option(help="Events a slow HTTP stream may be behind before it loses some. [default: 256]")
    ] = None,
    max_subscribers_per_session: Annotated[
        int | None, typer.Option(help="HTTP streams a session may have open. [default: 16]")
    ] = None,
    idle_timeout_s: Annotated[
        float | None, typer.Option(help="End an HTTP stream that has not been read for so long. [default: 60]")
    ] = None,
    drop_window_s: Annotated[
        float | None, typer.Option(help="Tell a slow HTTP stream at most this often what it lost. [default: 1]")
    ] = None,
    keepalive_s: Annotated[
        float | None, typer.Option(help="Seconds between keep-alives on HTTP streams. [default: 15]")
    ] = None,
    imports: Annotated[
        str | None, typer.Option(help="Modules to import first, with sources of your own, a.b,c.d. [default: none]")
    ] = None,
    safe_types: Annotated[
        str | None, typer.Option(help="Event types stored as they are, e.g. order.paid,metric.*. [default: none]")
    ] = None,
    artifacts: Annotated[
        str | None, typer.Option(help="Folder, s3://, gs:// or az:// for large fields. [default: beside the file]")
    ] = None,
    artifact_threshold_bytes: Annotated[
        int | None, typer.Option(help="A field larger than this becomes an artifact. [default: 32768]")
    ] = None,
    ingress_body_timeout_s: Annotated[
        float | None, typer.Option(help="Seconds that the body of a delivery has to arrive in. [default: 10]")
    ] = None,
    wallet_key: Annotated[
        str | None, typer.Option(help="Master key of the wallet: a file or gcp-kms://… [default: beside the file]")
    ] = None,
    lake: Annotated[
        str | None, typer.Option(help="The archive to read pruned entries from: a folder, s3://… or gs://…")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(envvar="TAPE_CONFIG", help="Settings file. [default: tape.toml]")
    ] = None,
) -> None:
    """Run a server: gRPC and HTTP doors on one journal.

    Every option is also a TAPE_* variable and a key of tape.toml; flags win over variables over the file.
    """
    require_server_libraries("tape serve")
    flags = {
        "store": store if store is not None else db,
        "listen": listen,
        "http_listen": http_listen if http_listen is not None else healthz_listen,
        "max_payload_bytes": max_payload_bytes,
        "queue_operations": queue_operations,
        "queue_bytes": queue_bytes,
        "readers": readers,
        "shutdown_grace_s": shutdown_grace_s,
        "match_reactions": match_reactions,
        "keep_tasks_h": keep_tasks_h,
        "log_level": log_level,
        "auth_jwks": auth_jwks,
        "auth_issuer": auth_issuer,
        "auth_audience": auth_audience,
        "auth_refresh_s": auth_refresh_s,
        "auth_max_stale_s": auth_max_stale_s,
        "anonymous": anonymous,
        "cors_origins": cors_origins,
        "http_allow": http_allow,
        "subscriber_buffer_size": subscriber_buffer_size,
        "max_subscribers_per_session": max_subscribers_per_session,
        "idle_timeout_s": idle_timeout_s,
        "drop_window_s": drop_window_s,
        "keepalive_s": keepalive_s,
        "safe_types": safe_types,
        "imports": imports,
        "artifacts": artifacts,
        "artifact_threshold_bytes": artifact_threshold_bytes,
        "ingress_body_timeout_s": ingress_body_timeout_s,
        "wallet_key": wallet_key,
        "lake": lake,
    }
    settings = load_settings(flags, file=config)
    logging.basicConfig(
        level=settings.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
    )
    logging.getLogger("uvicorn").setLevel("WARNING")  # its comings and goings are ours to tell
    import_modules([name for name in map(str.strip, settings.imports.split(",")) if name])
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    start_export("tape-server")
    run(_serve(settings))


async def _serve(settings: Settings) -> None:
    from tape.server.server import Server

    stop = asyncio.Event()
    with stop_on_signal(stop.set, interrupts=False):
        async with Server(settings) as server:
            _greet(settings, server.grpc_address, server.http_address)
            await stop.wait()
            typer.echo("Stopping: finishing commits and ending streams.")
    typer.echo("Stopped.")


def _greet(settings: Settings, grpc_address: str, http_address: str) -> None:
    me = "tape" if shutil.which("tape") else sys.argv[0]
    elsewhere = "" if grpc_address.endswith(":7878") else f" --url tape://{grpc_address}"
    http = f"http://{http_address}   (/v1/events /api /ingress /healthz /readyz /metrics)" if http_address else "off"
    if settings.auth_jwks:
        access = f"tokens of {settings.auth_jwks} (for development: {me} token)"
    elif settings.anonymous == "network":
        access = "anybody who can reach these addresses: anonymous is network"
    else:
        access = f"anybody on this machine, nobody else; for tokens: {me} token, then --auth-jwks"
    typer.echo(
        f"Tape {__version__} is running.\n"
        f"  store  {settings.store}\n"
        f"  gRPC   tape://{grpc_address}\n"
        f"  HTTP   {http}\n"
        f"  open   {access}\n"
        f"{f'  lake   {settings.lake}' + chr(10) if settings.lake else ''}"
        "\n"
        "Try it in another terminal:\n"
        f"  {me} tail{elsewhere}\n"
        f'  {me} append{elsewhere} /tape/greeting/sent/world \'{{"text": "hello"}}\'\n'
        "\n"
        "Ctrl-C stops it."
    )
    sys.stdout.flush()
