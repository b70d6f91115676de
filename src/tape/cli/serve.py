"""`tape serve`: run a server until it is stopped."""

# Without `from __future__ import annotations`: typer would evaluate the texts of sixty annotations four times.

import asyncio
import contextlib
import logging
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tape import __version__
from tape.base.config import Settings, load_settings
from tape.base.extras import require_server_libraries
from tape.base.garbage import collection_paused
from tape.base.process import stop_on_signal
from tape.base.telemetry.export import start_export
from tape.base.url_mask import mask_urls
from tape.cli.database import announce_creation
from tape.cli.options import run
from tape.cli.telemetry import set_logging
from tape.cli.user_code import import_modules

# The writer thread and the event loop switch many times per batch. With Python's default switch
# interval of 5 ms a busy event loop would delay the writer by 5 ms each time.
SWITCH_INTERVAL_S = 0.0002


def serve(
    store: Annotated[
        str | None,
        typer.Option(help="Database: sqlite:<path>, memory, postgres://… or alloydb://… [default: sqlite:tape.db]"),
    ] = None,
    db: Annotated[str | None, typer.Option(hidden=True)] = None,
    listen: Annotated[str | None, typer.Option(help="gRPC address to listen on. [default: 127.0.0.1:7878]")] = None,
    http_listen: Annotated[
        str | None, typer.Option(help="HTTP address to listen on; empty disables HTTP. [default: 127.0.0.1:7879]")
    ] = None,
    healthz_listen: Annotated[str | None, typer.Option(hidden=True)] = None,
    max_payload_bytes: Annotated[
        int | None, typer.Option(help="Largest accepted payload in bytes. [default: 1048576]")
    ] = None,
    queue_operations: Annotated[
        int | None, typer.Option(help="Writes that may wait in the queue. [default: 20000]")
    ] = None,
    queue_bytes: Annotated[
        int | None, typer.Option(help="Bytes that may wait in the queue. [default: 67108864]")
    ] = None,
    readers: Annotated[int | None, typer.Option(help="Database connections for reading. [default: 4]")] = None,
    sqlite_wal_bytes: Annotated[
        int | None,
        typer.Option(help="Size that the write-ahead log of a SQLite store is kept below. [default: 33554432]"),
    ] = None,
    sqlite_cache_bytes: Annotated[
        int | None,
        typer.Option(help="Page caches of all connections to a SQLite store together. [default: 67108864]"),
    ] = None,
    server_id: Annotated[
        str | None,
        typer.Option(
            help="Name of this server among those of its database. A restarted server takes over the leases of its"
            " former process at once. [default: <host>/<listen>]"
        ),
    ] = None,
    shutdown_grace_s: Annotated[
        float | None, typer.Option(help="Seconds that open requests get to finish on stop. [default: 5]")
    ] = None,
    match_reactions: Annotated[
        bool | None,
        typer.Option(help="Match reactions in this server. [default: match-reactions]"),
    ] = None,
    mcp: Annotated[
        bool | None,
        typer.Option("--mcp", help="Serve the journal to MCP clients at /mcp of the HTTP address. [default: off]"),
    ] = None,
    keep_tasks_h: Annotated[
        int | None, typer.Option(help="Hours for which done and dropped tasks are kept. [default: 168]")
    ] = None,
    scrub_entries_per_s: Annotated[
        float | None,
        typer.Option(help="Entries of the journal and archive that are verified per second; 0 is off. [default: 1000]"),
    ] = None,
    scrub_interval_h: Annotated[
        float | None, typer.Option(help="Hours from one verification of everything to the next. [default: 24]")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(help="Log level: debug, info, warning or error. [default: info]")
    ] = None,
    auth_jwks: Annotated[
        str | None, typer.Option(help="Require tokens, verified with this JWKS file or URL. [default: none]")
    ] = None,
    auth_issuer: Annotated[str | None, typer.Option(help="Accept only tokens of this issuer. [default: any]")] = None,
    auth_audience: Annotated[
        str | None, typer.Option(help="Accept only tokens for this audience. [default: any]")
    ] = None,
    auth_refresh_s: Annotated[
        float | None, typer.Option(help="Seconds between two fetches of the JWKS. [default: 300]")
    ] = None,
    auth_max_stale_s: Annotated[
        float | None, typer.Option(help="Reject tokens when the JWKS is older than this, in seconds. [default: 3600]")
    ] = None,
    auth_max_lifetime_s: Annotated[
        float | None, typer.Option(help="Reject tokens that expire later than this, in seconds. [default: 86400]")
    ] = None,
    require_keys: Annotated[
        bool | None,
        typer.Option(help="Require a service key (tape keys) or a token for every call. [default: no-require-keys]"),
    ] = None,
    anonymous: Annotated[
        str | None,
        typer.Option(
            help="Without --auth-jwks: accept clients of this host (loopback) or of the network. [default: loopback]"
        ),
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option(help="Use TLS: PEM file of the certificate chain of this server. [default: none]")
    ] = None,
    tls_key: Annotated[str | None, typer.Option(help="PEM file of the key of the certificate. [default: none]")] = None,
    tls_client_ca: Annotated[
        str | None,
        typer.Option(help="Verify client certificates with the authorities in this PEM file. [default: none]"),
    ] = None,
    tls_client_listen: Annotated[
        str | None,
        typer.Option(help="gRPC address for clients with certificates; --listen then demands none. [default: it does]"),
    ] = None,
    insecure: Annotated[
        bool | None,
        typer.Option("--insecure", help="Accept clients of other machines without TLS. [default: refuse to start]"),
    ] = None,
    cors_origins: Annotated[
        str | None, typer.Option(help="CORS origins that may read, separated by commas. [default: none]")
    ] = None,
    http_allow: Annotated[
        str | None, typer.Option(help="Private hosts and networks that HTTP requests may reach. [default: none]")
    ] = None,
    subscriber_buffer_size: Annotated[
        int | None, typer.Option(help="Events buffered per HTTP stream before the oldest are dropped. [default: 256]")
    ] = None,
    max_subscribers_per_session: Annotated[
        int | None, typer.Option(help="Open HTTP streams per session. [default: 16]")
    ] = None,
    idle_timeout_s: Annotated[
        float | None, typer.Option(help="Seconds without progress after which an HTTP stream is closed. [default: 60]")
    ] = None,
    drop_window_s: Annotated[
        float | None, typer.Option(help="Seconds between two drop reports on a slow HTTP stream. [default: 1]")
    ] = None,
    keepalive_s: Annotated[
        float | None, typer.Option(help="Seconds between keep-alives on HTTP streams. [default: 15]")
    ] = None,
    imports: Annotated[
        str | None, typer.Option(help="Modules with custom sources, imported at start: a.b,c.d. [default: none]")
    ] = None,
    safe_types: Annotated[
        str | None, typer.Option(help="Event types stored without redaction, e.g. order.paid,metric.*. [default: none]")
    ] = None,
    artifacts: Annotated[
        str | None,
        typer.Option(help="Store of large fields: folder, s3://, gs:// or az://. [default: beside the database file]"),
    ] = None,
    artifact_threshold_bytes: Annotated[
        int | None, typer.Option(help="Bytes from which a field is stored as an artifact. [default: 32768]")
    ] = None,
    epoch_margin: Annotated[
        int | None,
        typer.Option(
            help="Numbers left out above the last known one after the database lost entries. [default: 1000000]"
        ),
    ] = None,
    predicate_cpu_ms_per_s: Annotated[
        float | None,
        typer.Option(help="CPU milliseconds per second that a tenant's predicates may use; 0: no limit. [default: 50]"),
    ] = None,
    grpc_max_message_bytes: Annotated[
        int | None, typer.Option(help="Largest accepted gRPC message in bytes. [default: 4194304]")
    ] = None,
    grpc_max_concurrent_calls: Annotated[
        int | None, typer.Option(help="gRPC calls in progress, streams not counted. [default: 1024]")
    ] = None,
    tenant_max_calls: Annotated[
        int | None, typer.Option(help="Calls of one tenant in progress, 0 for any number. [default: 512]")
    ] = None,
    tenant_max_bytes_in_flight: Annotated[
        int | None, typer.Option(help="Bytes of one tenant's requests in progress, 0 for any. [default: 67108864]")
    ] = None,
    tenant_max_streams: Annotated[
        int | None, typer.Option(help="Open streams of one tenant, 0 for any number. [default: 1000]")
    ] = None,
    user_max_streams: Annotated[
        int | None, typer.Option(help="Open streams of one user, 0 for any number. [default: 100]")
    ] = None,
    tenant_appends_per_s: Annotated[
        float | None, typer.Option(help="Entries that one tenant may append in a second, 0 for any. [default: 0]")
    ] = None,
    tenant_bytes_per_s: Annotated[
        float | None, typer.Option(help="Bytes of requests of one tenant in a second, 0 for any. [default: 0]")
    ] = None,
    http_max_header_bytes: Annotated[
        int | None, typer.Option(help="Bytes that the headers of an HTTP request may have. [default: 65536]")
    ] = None,
    http_max_url_bytes: Annotated[
        int | None, typer.Option(help="Bytes that the URL of an HTTP request may have. [default: 16384]")
    ] = None,
    http_header_timeout_s: Annotated[
        float | None, typer.Option(help="Seconds within which the headers of a request must arrive. [default: 10]")
    ] = None,
    http_body_timeout_s: Annotated[
        float | None, typer.Option(help="Seconds without a byte of a body after which it is refused. [default: 30]")
    ] = None,
    http_max_connections: Annotated[
        int | None, typer.Option(help="Open HTTP connections, streams included. [default: 2000]")
    ] = None,
    ingress_body_timeout_s: Annotated[
        float | None, typer.Option(help="Seconds within which the body of a delivery must arrive. [default: 10]")
    ] = None,
    wallet_key: Annotated[
        str | None,
        typer.Option(help="Master key of the wallet: a file or gcp-kms://… [default: beside the database file]"),
    ] = None,
    witness: Annotated[
        str | None,
        typer.Option(help="Where the last entry is recorded besides: a file, s3://…, or off. [default: a file]"),
    ] = None,
    accept_loss: Annotated[
        bool | None,
        typer.Option("--accept-loss", help="Go on without entries that the database lost. [default: refuse to start]"),
    ] = None,
    lake: Annotated[
        str | None,
        typer.Option(
            "--archive",
            "--lake",
            help="Archive to read pruned entries from: a folder, s3://… or gs://… [default: none]",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(envvar="TAPE_CONFIG", help="Settings file. [default: tape.toml]")
    ] = None,
) -> None:
    """Run a server: the journal with its gRPC and HTTP endpoints.

    Every option is also a TAPE_* variable and a key of tape.toml. Options override variables, variables the file.
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
        "sqlite_wal_bytes": sqlite_wal_bytes,
        "sqlite_cache_bytes": sqlite_cache_bytes,
        "server_id": server_id,
        "shutdown_grace_s": shutdown_grace_s,
        "match_reactions": match_reactions,
        "mcp": mcp,
        "keep_tasks_h": keep_tasks_h,
        "scrub_entries_per_s": scrub_entries_per_s,
        "scrub_interval_h": scrub_interval_h,
        "log_level": log_level,
        "auth_jwks": auth_jwks,
        "auth_issuer": auth_issuer,
        "auth_audience": auth_audience,
        "auth_refresh_s": auth_refresh_s,
        "auth_max_stale_s": auth_max_stale_s,
        "auth_max_lifetime_s": auth_max_lifetime_s,
        "require_keys": require_keys,
        "anonymous": anonymous,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "tls_client_ca": tls_client_ca,
        "tls_client_listen": tls_client_listen,
        "insecure": insecure,
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
        "epoch_margin": epoch_margin,
        "predicate_cpu_ms_per_s": predicate_cpu_ms_per_s,
        "grpc_max_message_bytes": grpc_max_message_bytes,
        "grpc_max_concurrent_calls": grpc_max_concurrent_calls,
        "tenant_max_calls": tenant_max_calls,
        "tenant_max_bytes_in_flight": tenant_max_bytes_in_flight,
        "tenant_max_streams": tenant_max_streams,
        "user_max_streams": user_max_streams,
        "tenant_appends_per_s": tenant_appends_per_s,
        "tenant_bytes_per_s": tenant_bytes_per_s,
        "http_max_header_bytes": http_max_header_bytes,
        "http_max_url_bytes": http_max_url_bytes,
        "http_header_timeout_s": http_header_timeout_s,
        "http_body_timeout_s": http_body_timeout_s,
        "http_max_connections": http_max_connections,
        "ingress_body_timeout_s": ingress_body_timeout_s,
        "wallet_key": wallet_key,
        "witness": witness,
        "accept_loss": accept_loss,
        "lake": lake,
    }
    settings = load_settings(flags, file=config)
    set_logging(settings.log_level)
    logging.getLogger("uvicorn").setLevel(
        "WARNING"
    )  # uvicorn logs start and stop at INFO; this command prints them itself
    import_modules([name for name in map(str.strip, settings.imports.split(",")) if name])
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    start_export("tape-server")
    run(_serve(settings))


async def _serve(settings: Settings) -> None:
    stop = asyncio.Event()
    with stop_on_signal(stop.set, interrupts=False):
        async with contextlib.AsyncExitStack() as stack:
            with collection_paused():
                from tape.server.server import Server  # `tape serve --help` does without it

                server = Server(settings, _mcp_mount() if settings.mcp else None)
                announce_creation(server.database)
                await stack.enter_async_context(server)
            _greet(settings, server.grpc_address, server.http_address, server.grpc_client_address, len(server.keys))
            await stop.wait()
            typer.echo("Stopping: finishing commits and ending streams.")
    typer.echo("Stopped.")


def _mcp_mount() -> Any:
    from tape.mcp import require_mcp

    require_mcp("tape serve --mcp")
    from tape.mcp.mount import McpMount  # the library of MCP

    return McpMount


def _greet(
    settings: Settings, grpc_address: str, http_address: str, grpc_client_address: str = "", key_count: int = 0
) -> None:
    command = "tape" if shutil.which("tape") else sys.argv[0]
    secure = "s" if settings.tls.is_on else ""
    grpc_url = f"tape{secure}://{grpc_address}"
    # A certificate is for names, and none is for the address that stands for all.
    shown_url = grpc_url.replace("//0.0.0.0:", "//localhost:").replace("//[::]:", "//localhost:")
    address = "" if grpc_url.endswith(":7878") and not secure else f" --url {shown_url}"
    mcp = " /mcp" if settings.mcp else ""
    http = f"http{secure}://{http_address}   (/v1/events /api /ingress{mcp} /healthz /readyz /metrics)"
    certificates = (
        f"  gRPC   tapes://{grpc_client_address}   (with client certificates)\n" if grpc_client_address else ""
    )
    typer.echo(
        f"Tape {__version__} is running.\n"
        f"  store  {mask_urls(settings.store)}\n"
        f"  gRPC   {grpc_url}\n"
        f"{certificates}"
        f"  HTTP   {http if http_address else 'off'}\n"
        f"  access {_access(settings, command, key_count)}\n"
        f"{_tls(settings)}"
        f"{f'  lake   {mask_urls(settings.lake)}' + chr(10) if settings.lake else ''}"
        "\n"
        "Try it in another terminal:\n"
        f"  {command} tail{address}\n"
        f'  {command} append{address} /tape/greeting/sent/world \'{{"text": "hello"}}\'\n'
        "\n"
        "Ctrl-C stops it."
    )
    sys.stdout.flush()


def _access(settings: Settings, command: str, key_count: int) -> str:
    keys = f"service keys ({key_count} valid)"
    if settings.auth_jwks:
        return f"tokens verified with {mask_urls(settings.auth_jwks)} (for development: {command} token), and {keys}"
    if settings.tls_clients:
        return f"client certificates by {len(settings.tls_clients)} rows of tls_clients, and {keys}"
    if settings.require_keys and not key_count:
        store = mask_urls(settings.store)
        create = f"{command} keys create NAME --tenant TENANT --scope admin --store {store}"
        return f"service keys only, and there is none yet; to make one: {create}"
    if settings.require_keys:
        return f"service keys only ({key_count} valid; {command} keys list)"
    if settings.anonymous == "network":
        return "open to every client that can reach these addresses (--anonymous network)"
    return (
        f"open to clients of this host, which see everything; to use tokens: {command} token, then --auth-jwks;"
        f" to use keys: {command} keys, then --require-keys"
    )


def _tls(settings: Settings) -> str:
    if settings.unencrypted:
        return "  TLS    off: tokens and entries cross the network in plain text (--insecure)\n"
    if not settings.tls.is_on:
        return ""
    clients = f", client certificates signed by {settings.tls_client_ca}" if settings.tls_client_ca else ""
    return f"  TLS    {settings.tls_cert}{clients}; reloaded when the files change\n"
