"""When a client opens a connection of the call protocol, and when it calls by gRPC."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Literal, cast

from tape.base.retry import UNLIMITED, Backoff, RetryPolicy
from tape.base.tls import load_client_tls
from tape.base.url_mask import mask_urls
from tape.client import rpcs
from tape.client.failures import is_secure
from tape.client.outgoing_calls import OutgoingCalls, open_connection
from tape.errors import InvalidConfig, NotServed, ServerUnreachable
from tape.proto import tape_pb2 as pb
from tape.proto.call_frames import PROTOCOL

log = logging.getLogger(__name__)

Transport = Literal["auto", "grpc"]

VARIABLE = "TAPE_TRANSPORT"
# Variables of gRPC: its HTTP proxy, and the hosts that it reaches without one. The first that is set counts.
PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
WITHOUT_PROXY = ("no_grpc_proxy", "no_proxy")
# Seconds for connecting and the upgrade.
CONNECT_S = 10.0
# A client that makes fewer calls than this never opens a connection: it would cost more than it saves.
FIRST_CALLS = 2
# Between attempts, which are made when there are calls: 0.1 s, 0.2 s, … 60 s, each ± 25 %.
ATTEMPTS = RetryPolicy(max_attempts=UNLIMITED, initial_interval_s=0.1, max_interval_s=60.0, jitter=0.25)


def choose_transport(given: str | None) -> Transport:
    """The transport that a client was given, else that of TAPE_TRANSPORT, else `auto`."""
    name = given or os.environ.get(VARIABLE) or "auto"
    if name in ("auto", "grpc"):
        return cast(Transport, name)
    raise InvalidConfig(f"The transport {name!r} is not known; use auto or grpc (transport=, {VARIABLE}).")


class Upgrade:
    """Opens a connection of the call protocol beside a gRPC channel, and again after it was lost.

    The client asks the server by gRPC for its ports. It connects only if the port in its URL is one of them: behind a
    proxy or a port mapping, the HTTP port could be that of another program.
    """

    def __init__(
        self,
        url: str,
        target: str,
        ask: Callable[[], Awaitable[pb.ServerInfo]],
        token: Callable[[], Awaitable[str]],
        *,
        is_off: bool = False,
    ) -> None:
        self.connection: OutgoingCalls | None = None
        self._url = url
        self._host, self._port = _split(target)
        self._tls = load_client_tls() if is_secure(url) else None
        self._ask = ask
        self._token = token
        self._calls = 0
        self._is_off = is_off or not self._host or _has_proxy(self._host)
        self._backoff = Backoff(ATTEMPTS)
        self._next_at = 0.0
        self._opening: asyncio.Task[None] | None = None

    def note_call(self) -> None:
        """A call is made by gRPC: open a connection for later ones, if it is time to."""
        if self._is_off or self._opening is not None or self.connection is not None:
            return
        self._calls += 1
        if self._calls >= FIRST_CALLS and asyncio.get_running_loop().time() >= self._next_at:
            # In no context: it belongs to no span and no task of the caller.
            self._opening = asyncio.create_task(self._open(), context=Context())

    async def close(self) -> None:
        """Disconnect."""
        self._is_off = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if (connection := self.connection) is not None:
            connection.close()
            await connection.lost.wait()

    async def _open(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                self.connection = await self._connect(await self._ask())
            self._is_off = self.connection is None
            self._backoff.reset()
        except NotServed:
            self._is_off = True
        except Exception as error:
            self._next_at = asyncio.get_running_loop().time() + self._backoff.next_delay(error)
            log.debug("calls go by gRPC: %s", error)
        finally:
            self._opening = None

    async def _connect(self, info: pb.ServerInfo) -> OutgoingCalls | None:
        """A connection on which a call has been answered; None if this server offers none to this client."""
        if self._port not in info.grpc_ports or not info.http_port or PROTOCOL not in info.call_protocols:
            return None
        # Loading the certificates of the system's authorities takes some ms.
        context = None if self._tls is None else await asyncio.to_thread(self._tls.context)
        connection = await open_connection(
            self._url, (self._host, info.http_port), context, info.journal_id, info.max_message_bytes, self._forget
        )
        try:
            await connection.call(rpcs.GET_SERVER_INFO.name, b"", token=await self._token())
        except BaseException:
            connection.close()
            raise
        if not connection.is_open:
            raise ServerUnreachable(f"{mask_urls(self._url)} closed the connection.")
        return connection

    def _forget(self) -> None:
        self.connection = None


def _has_proxy(host: str) -> bool:
    """Whether gRPC reaches the host through an HTTP proxy of the environment."""
    proxies, exceptions = (
        next((value for name in names if (value := os.environ.get(name))), "") for names in (PROXIES, WITHOUT_PROXY)
    )
    # As gRPC does: an exception is the end of a name.
    return bool(proxies) and not any(each and host.endswith(each) for each in map(str.strip, exceptions.split(",")))


def _split(target: str) -> tuple[str, int]:
    """Host and port of a target; an empty host for one that is more than that to gRPC, such as `unix:` or a list."""
    host, _, port = target.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    return "" if any(sign in host for sign in "/,") else host, int(port)
