"""Connections to AMQP 0-9-1 brokers: address, virtual host, login and TLS, and errors of the client."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from tape.brokers.addresses import BrokerAddress, broker_address
from tape.brokers.settings import SourceSettings
from tape.brokers.tls import TlsCertificates, tls_of
from tape.errors import MissingExtra, SourceUnavailable

CONNECT_TIMEOUT_S = 5.0
CALL_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 2.0
# A connection whose broker does not answer is lost after about two of these.
HEARTBEAT_S = 20


def import_amqp(purpose: str) -> Any:
    """The module `aiormq`. Raises MissingExtra if it is not installed."""
    try:
        return importlib.import_module("aiormq")
    except ImportError as error:
        raise MissingExtra(purpose, "amqp") from error


class AmqpConnection:
    """A connection of aiormq with one channel. It does not reconnect: the caller does."""

    def __init__(self, settings: SourceSettings) -> None:
        self.library = import_amqp("subscriptions to AMQP")
        self.address: BrokerAddress = broker_address(settings)
        self.vhost = settings.text("vhost") or "/"
        self.where = f"AMQP at {self.address.shown}"
        self._tls = tls_of(settings) or (TlsCertificates() if self.address.is_encrypted else None)
        if self._tls is not None and not self.address.is_encrypted:
            raise settings.wrong("has 'tls', and the address amqp:// does not encrypt; use amqps://")
        self._connection: Any = None
        self._channel: Any = None

    async def open(self) -> None:
        """Connect and open a channel. Raises SourceUnavailable."""
        await self.close()
        scheme = "amqps" if self.address.is_encrypted else "amqp"
        login = f"{quote(self.address.user, safe='')}:{quote(self.address.password, safe='')}@"
        url = (
            f"{scheme}://{login if self.address.user else ''}{self.address.shown}/{quote(self.vhost, safe='')}"
            f"?heartbeat={HEARTBEAT_S}&name=tape-subscription"
        )
        with self.translate_errors("cannot be reached"):
            context = self._tls.context() if self._tls is not None else None
            self._connection = await asyncio.wait_for(self.library.connect(url, context=context), 2 * CONNECT_TIMEOUT_S)
            await self.new_channel()

    async def new_channel(self) -> Any:
        """Another channel; an error of the broker has closed the one before."""
        self._channel = await asyncio.wait_for(self._connection.channel(publisher_confirms=False), CALL_TIMEOUT_S)
        return self._channel

    @property
    def channel(self) -> Any:
        """The open channel. Raises SourceUnavailable without one."""
        if not self.is_open:
            raise SourceUnavailable(f"{self.where}: the connection was lost.")
        return self._channel

    @property
    def is_open(self) -> bool:
        """Whether connection and channel are open."""
        return (
            self._connection is not None
            and bool(self._connection.is_opened)
            and self._channel is not None
            and not self._channel.is_closed
        )

    async def close(self) -> None:
        """Disconnect in any state; the broker requeues unacknowledged messages."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):  # nothing depends on an orderly close
                await asyncio.wait_for(connection.close(), CLOSE_TIMEOUT_S)

    @contextlib.contextmanager
    def translate_errors(self, what: str) -> Iterator[None]:
        """Translate errors of the client into SourceUnavailable with the address."""
        try:
            yield
        except self.library.ChannelNotFoundEntity:
            raise
        except (self.library.AMQPError, OSError, TimeoutError) as error:
            text = ", ".join(str(each) for each in error.args) or type(error).__name__
            raise SourceUnavailable(f"{self.where} {what}: {text}.") from error
