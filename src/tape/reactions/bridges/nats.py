"""NATS: published to JetStream, which answers when the message is stored."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

from tape.errors import MissingExtra, PublishFailed
from tape.reactions.bridges.broker import Broker
from tape.reactions.bridges.message import Message
from tape.reactions.bridges.target import Target

log = logging.getLogger(__name__)

ACK_S = 10.0
CONNECT_S = 5.0


class Nats(Broker):
    """One connection, made when it is first needed. `TAPE_NATS_CREDS` names a credentials file."""

    def __init__(self, broker: str) -> None:
        try:
            import nats
        except ImportError as error:
            raise MissingExtra("publishing to NATS", "nats") from error
        self._module = nats
        self._server = f"nats://{broker}"
        self._connection: Any = None
        self._stream: Any = None
        # Everyone goes through here, one after the other: who waited for the connection is not overtaken.
        self._turn = asyncio.Lock()

    async def publish(self, target: Target, message: Message) -> None:
        """Publish; `Nats-Msg-Id` lets the server drop repeats."""
        stream = await self._connect()
        # The same entry may be published by several reactions into one stream: those are no repeats.
        repeat_id = f"{message.event_id}@{message.headers['tape-reaction-id']}"
        try:
            await stream.publish(
                target.name, message.body, timeout=ACK_S, headers={**message.headers, "Nats-Msg-Id": repeat_id}
            )
        except self._module.js.errors.NoStreamResponseError as error:
            raise PublishFailed(
                f"no JetStream stream has the subject {target.name!r}; create one, so that messages are stored"
            ) from error
        except (self._module.errors.Error, OSError, TimeoutError) as error:
            raise PublishFailed(f"{target}: {type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            await self._connection.close()

    async def _connect(self) -> Any:
        async with self._turn:
            if self._stream is None:
                options = {"user_credentials": os.environ["TAPE_NATS_CREDS"]} if "TAPE_NATS_CREDS" in os.environ else {}
                try:
                    self._connection = await self._module.connect(
                        self._server,
                        name="tape-bridge",
                        connect_timeout=CONNECT_S,
                        allow_reconnect=True,
                        max_reconnect_attempts=-1,
                        error_cb=_tell,
                        **options,
                    )
                except (self._module.errors.Error, OSError, TimeoutError) as error:
                    address = self._server.rpartition("@")[2]
                    raise PublishFailed(f"NATS at {address} cannot be reached: {error!r}") from error
                self._stream = self._connection.jetstream()
            return self._stream


async def _tell(error: Exception) -> None:
    log.warning("NATS: %r", error)
