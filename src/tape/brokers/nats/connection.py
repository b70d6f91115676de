"""Connections to NATS: options, credentials, and errors of the client."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
from collections.abc import Sequence
from typing import Any

from tape.brokers.settings import SourceSettings
from tape.brokers.tls import tls_of
from tape.errors import MissingExtra

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 1.0


def import_nats(purpose: str) -> Any:
    """The module `nats` with its submodules. Raises MissingExtra if it is not installed."""
    try:
        nats = importlib.import_module("nats")
        for submodule in ("nats.aio.client", "nats.errors", "nats.js.errors"):
            importlib.import_module(submodule)
    except ImportError as error:
        raise MissingExtra(purpose, "nats") from error
    return nats


async def connect(servers: str | Sequence[str], client: Any = None, **options: Any) -> Any:
    """A connection of nats-py, within twice `connect_timeout` (5 s).

    It does not reconnect unless `options` say so: a client that reconnects on its own hides an outage from the caller,
    which retries anyway.
    """
    connection = client if client is not None else import_nats("NATS").aio.client.Client()
    merged = {
        "allow_reconnect": False,
        "max_reconnect_attempts": 1,
        "reconnect_time_wait": 0,
        "connect_timeout": CONNECT_TIMEOUT_S,
        "error_cb": log_error,
        **options,
    }
    targets = servers if isinstance(servers, str) else list(servers)
    await asyncio.wait_for(connection.connect(targets, **merged), 2 * merged["connect_timeout"])
    return connection


async def disconnect(connection: Any) -> None:
    """Close a connection in any state; errors are ignored, because nothing depends on an orderly close."""
    if connection is not None and not connection.is_closed:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(connection.close(), CLOSE_TIMEOUT_S)


async def log_error(error: Exception) -> None:
    """The client's errors in the background, for debugging; each call reports its own."""
    log.debug("NATS: %r", error)


def addresses_of(servers: str | Sequence[str]) -> str:
    """The addresses of servers for messages, without the password that a URL may contain."""
    urls = servers.split(",") if isinstance(servers, str) else servers
    return ", ".join(url.rpartition("@")[2].removeprefix("nats://").strip() for url in urls)


def login_options(settings: SourceSettings) -> dict[str, Any]:
    """Credentials of a source: `creds`, else `nkey`, else `token`, else `user` and `password`; and `tls`."""
    options: dict[str, Any] = {}
    if (tls := tls_of(settings)) is not None:
        options["tls"] = tls.context()
    if creds := settings.text("creds"):
        is_inline = "-----BEGIN" in creds
        options["user_credentials"] = import_nats("NATS").aio.client.RawCredentials(creds) if is_inline else creds
    elif nkey := settings.text("nkey"):
        options["nkeys_seed_str"] = nkey
    elif token := settings.text("token"):
        options["token"] = token
    elif user := settings.text("user"):
        options |= {"user": user, "password": settings.text("password")}
    return options


class _Headers(dict[str, str]):
    """Headers as nats-py parses them, and every pair that was sent."""

    pairs: tuple[tuple[str, str], ...] = ()


def new_client(nats: Any) -> Any:
    """A client that keeps all values of a repeated header; nats-py keeps one."""

    class Client(nats.aio.client.Client):  # type: ignore[misc]  # the class is an optional dependency's
        async def _process_headers(self, headers: bytes) -> Any:
            found = await super()._process_headers(headers)
            if found is None:
                return None
            kept = _Headers(found)
            lines = bytes(headers).split(b"\r\n")[1:]
            pairs = (line.decode(errors="replace").partition(":") for line in lines if line)
            kept.pairs = tuple((name, value.strip()) for name, colon, value in pairs if colon)
            return kept

    return Client()


def header_pairs(message: Any) -> tuple[tuple[str, str], ...]:
    """The headers of a message, every pair that was sent."""
    headers = message.headers or {}
    return getattr(headers, "pairs", None) or tuple(headers.items())
