"""Connections to MQTT brokers: versions, persistent sessions, login and TLS."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import Any

from tape.brokers.addresses import BrokerAddress, broker_address
from tape.brokers.settings import SourceSettings
from tape.brokers.tls import TlsCertificates, tls_of
from tape.errors import MissingExtra, SourceUnavailable

PROTOCOLS = ("mqtt5", "mqtt3.1.1")
SESSION_EXPIRY_SECS = 7 * 24 * 3_600
CONNECT_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 2.0
# An idle connection whose broker does not answer is lost after one and a half times this.
KEEPALIVE_S = 20
# Unacknowledged messages that the broker may send (MQTT 5), unless the document has a limit.
WINDOW = 1_000
MAX_WINDOW = 65_535


def import_mqtt(purpose: str) -> Any:
    """The module `paho.mqtt.client`. Raises MissingExtra if it is not installed."""
    try:
        for submodule in ("paho.mqtt.properties", "paho.mqtt.packettypes", "paho.mqtt.subscribeoptions"):
            importlib.import_module(submodule)
        return importlib.import_module("paho.mqtt.client")
    except ImportError as error:
        raise MissingExtra(purpose, "mqtt") from error


class MqttConnection:
    """A connection of paho with a persistent session. Its network thread calls back on the event loop.

    The client acknowledges nothing on its own and does not reconnect: the caller does both.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._mqtt = import_mqtt("subscriptions to MQTT")
        self.address: BrokerAddress = broker_address(settings)
        self.client_id = settings.required("client_id", ", which names the session that keeps its messages")
        self.protocol = settings.text("protocol") or PROTOCOLS[0]
        if self.protocol not in PROTOCOLS:
            raise settings.wrong(f"'protocol' is {self.protocol!r}; use one of {', '.join(PROTOCOLS)}")
        self.session_expiry_secs = settings.whole("session_expiry_secs", SESSION_EXPIRY_SECS, 1, 0xFFFF_FFFF)
        self._window = min(settings.whole("max_in_flight", WINDOW, 1), MAX_WINDOW)
        self._tls = tls_of(settings) or (TlsCertificates() if self.address.is_encrypted else None)
        if self._tls is not None and not self.address.is_encrypted:
            raise settings.wrong("has 'tls', and the address mqtt:// does not encrypt; use mqtts://")
        self._client: Any = None
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.lost = "not connected"

    @property
    def is_version_5(self) -> bool:
        """Whether the protocol is MQTT 5."""
        return self.protocol == PROTOCOLS[0]

    async def open(self, on_message: Callable[[Any], None], on_lost: Callable[[], None]) -> bool:
        """Connect; whether the broker has kept the session. Raises SourceUnavailable."""
        await self.close()
        loop = asyncio.get_running_loop()
        welcomed: asyncio.Future[tuple[str, bool]] = loop.create_future()
        client = self._new_client()

        def call(function: Callable[..., None], *arguments: Any) -> None:
            try:
                loop.call_soon_threadsafe(self._called, client, function, *arguments)
            except RuntimeError:
                pass  # the event loop has ended, and the source with it

        def welcome(refusal: str, has_session: bool) -> None:
            if not welcomed.done():
                welcomed.set_result((refusal, has_session))

        def lose(reason: str) -> None:
            welcome(reason, False)
            self.lost = self.lost or reason or "the connection was lost"
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(ConnectionError(self.lost))
            on_lost()

        client.on_connect = lambda _, __, flags, code, ___: call(
            welcome, str(code) if code.is_failure else "", bool(flags.session_present)
        )
        client.on_disconnect = lambda _, __, ___, code, ____: call(lose, str(code))
        client.on_message = lambda _, __, message: call(on_message, message)
        client.on_subscribe = lambda _, __, mid, codes, ___: call(self._answer, mid, list(codes))
        self._client, self.lost = client, ""
        try:
            connecting = asyncio.to_thread(client.connect, self.address.host, self.address.port, **self._greeting())
            await asyncio.wait_for(connecting, 2 * CONNECT_TIMEOUT_S)
            client.loop_start()
            refusal, has_session = await asyncio.wait_for(welcomed, CONNECT_TIMEOUT_S)
        except (OSError, ValueError, TimeoutError) as error:
            await self.close()
            raise SourceUnavailable(
                f"MQTT at {self.address.shown} cannot be reached: {str(error) or type(error).__name__}."
            ) from error
        if refusal:
            await self.close()
            raise SourceUnavailable(f"MQTT at {self.address.shown} refuses the connection: {refusal}.")
        return has_session

    async def subscribe(self, topic: str) -> list[Any]:
        """Subscribe with QoS 1; the answer of the broker for the topic."""
        options: dict[str, Any] = {"qos": 1}
        if self.is_version_5:
            kind = importlib.import_module("paho.mqtt.subscribeoptions").SubscribeOptions
            # Retained messages are sent for a new subscription, not again after each reconnect.
            options = {"options": kind(qos=1, retainHandling=kind.RETAIN_SEND_IF_NEW_SUB)}
        try:
            code, mid = self._ready.subscribe(topic, **options)
            if code != self._mqtt.MQTT_ERR_SUCCESS:
                raise ConnectionError(self._mqtt.error_string(code))
            answer = self._answers.setdefault(mid, asyncio.get_running_loop().create_future())
            return list(await asyncio.wait_for(answer, CONNECT_TIMEOUT_S))
        except (OSError, TimeoutError) as error:
            raise SourceUnavailable(
                f"MQTT at {self.address.shown} does not answer a subscribe: {str(error) or type(error).__name__}."
            ) from error

    def acknowledge(self, packet_id: int) -> None:
        """Send a PUBACK. Raises SourceUnavailable without a connection."""
        code = self._ready.ack(packet_id, 1)
        if code != self._mqtt.MQTT_ERR_SUCCESS:
            raise SourceUnavailable(f"MQTT at {self.address.shown}: {self._mqtt.error_string(code)}")

    async def close(self) -> None:
        """Disconnect in any state. The broker keeps the session and its unacknowledged messages."""
        client, self._client = self._client, None
        self.lost = self.lost or "not connected"
        self._answers.clear()
        if client is not None:
            client.disconnect()  # after the acknowledgements that are queued
            try:
                await asyncio.wait_for(asyncio.to_thread(client.loop_stop), CLOSE_TIMEOUT_S)
            except TimeoutError:
                pass  # the thread ends with its socket

    @property
    def _ready(self) -> Any:
        if self._client is None or self.lost:
            raise SourceUnavailable(f"MQTT at {self.address.shown}: {self.lost}.")
        return self._client

    def _called(self, client: Any, function: Callable[..., None], *arguments: Any) -> None:
        if client is self._client:  # not an earlier connection's
            function(*arguments)

    def _answer(self, mid: int, codes: list[Any]) -> None:
        answer = self._answers.setdefault(mid, asyncio.get_running_loop().create_future())
        if not answer.done():
            answer.set_result(codes)

    def _new_client(self) -> Any:
        mqtt = self._mqtt
        client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2,
            client_id=self.client_id,
            clean_session=None if self.is_version_5 else False,
            protocol=mqtt.MQTTv5 if self.is_version_5 else mqtt.MQTTv311,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.connect_timeout = CONNECT_TIMEOUT_S
        if self.address.user:
            client.username_pw_set(self.address.user, self.address.password or None)
        if self._tls is not None:
            client.tls_set_context(self._tls.context())
        return client

    def _greeting(self) -> dict[str, Any]:
        if not self.is_version_5:
            return {"keepalive": KEEPALIVE_S}
        kinds = importlib.import_module("paho.mqtt.packettypes").PacketTypes
        properties = importlib.import_module("paho.mqtt.properties").Properties(kinds.CONNECT)
        properties.SessionExpiryInterval = self.session_expiry_secs
        properties.ReceiveMaximum = self._window
        return {"keepalive": KEEPALIVE_S, "clean_start": False, "properties": properties}
