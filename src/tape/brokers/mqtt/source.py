"""An MQTT topic filter as a source: QoS 1, acknowledged by hand, in a persistent session."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Sequence
from typing import Any

from tape.base.clock import now_ms
from tape.brokers.inbox import Inbox
from tape.brokers.mqtt.connection import MqttConnection
from tape.brokers.mqtt.topics import filter_problem
from tape.brokers.settings import SourceSettings
from tape.brokers.source import UNLIMITED_REDELIVERY, Delivery, RedeliveryLimits, Source
from tape.errors import SourceError, SourceMissing, SourceUnavailable

log = logging.getLogger(__name__)

# Properties of a message (MQTT 5) that are shown as metadata.
_SHOWN = {
    "ContentType": "content_type",
    "ResponseTopic": "response_topic",
    "CorrelationData": "correlation_data",
    "MessageExpiryInterval": "message_expiry_secs",
}
_SETTLED_KEPT = 10_000


class MqttSource(Source):
    """Reads the `topic` filter in the session of `client_id`; the broker queues messages while nothing is connected.

    Messages are delivered with QoS 1, also those published with QoS 2: a receiver of QoS 2 confirms a message before
    its run could be durable. The broker cannot delay a redelivery, so `nack` redelivers from memory. A message has no
    id in MQTT: it gets one that holds until its acknowledgement within this process. Needs `pip install 'tape[mqtt]'`.
    """

    settles_elsewhere = False  # vocabulary: public attribute of sources

    def __init__(self, settings: SourceSettings) -> None:
        self._connection = MqttConnection(settings)
        self.topic = settings.required("topic", ", a topic filter like sensors/+/temperature")
        if problem := filter_problem(self.topic):
            raise settings.wrong(f"'topic' {problem}")
        self._where = f"MQTT at {self._connection.address.shown}"
        self._inbox = Inbox()
        # Unsettled messages of an earlier connection by packet id, and receipts settled before their redelivery.
        self._earlier: dict[int, Delivery] = {}
        self._settled_early: dict[str, None] = {}
        self._had_session = False
        self._is_qos_0_reported = False

    async def open(self) -> None:
        """Connect to the session, and subscribe."""
        self._earlier |= {each.metadata["packet_id"]: each for each in self._inbox.clear() if each.metadata["qos"]}
        has_session = await self._connection.open(self._take, self._inbox.wake)
        if not has_session:
            self._earlier.clear()
            self._settled_early.clear()
            if self._had_session:
                log.warning(
                    "%s: the broker has lost the session of client_id %r: messages published during the outage are"
                    " missing, and unacknowledged ones are not redelivered",
                    self._where,
                    self._connection.client_id,
                )
        try:
            # MQTT 3.1.1 sends retained messages for every subscribe.
            if not (has_session and self._had_session and not self._connection.is_version_5):
                self._check_granted(await self._connection.subscribe(self.topic))
        except SourceError:
            await self._connection.close()
            raise
        self._had_session = True

    async def poll(self, limit: int, wait_s: float) -> list[Delivery]:
        found = await self._inbox.take(limit, wait_s, lambda: bool(self._connection.lost))
        if not found and self._connection.lost:
            raise SourceUnavailable(f"{self._where}: {self._connection.lost}.")
        return found

    async def ack(self, receipts: Sequence[str]) -> None:
        for receipt in receipts:
            self._check_receipt(receipt)
            if (found := self._inbox.settle(receipt)) is None:
                self._settle_early(receipt)
            elif found.metadata["qos"]:
                try:
                    self._connection.acknowledge(found.metadata["packet_id"])
                except SourceUnavailable:
                    self._earlier[found.metadata["packet_id"]] = found
                    self._settle_early(receipt)
                    raise

    async def nack(self, receipts: Sequence[str], delay_s: float = 0.0) -> None:
        for receipt in receipts:
            self._check_receipt(receipt)
        self._inbox.redeliver(list(receipts), delay_s)

    def will_redeliver(self, receipt: str) -> bool:
        """Whether it was put back with an earlier message of the same topic."""
        return self._inbox.is_put_back(receipt)

    async def close(self) -> None:
        await self._connection.close()
        self._inbox.clear()

    def _settle_early(self, receipt: str) -> None:
        """Note a message of an earlier connection: it is acknowledged when the broker redelivers it."""
        self._settled_early[receipt] = None
        if len(self._settled_early) > _SETTLED_KEPT:
            del self._settled_early[next(iter(self._settled_early))]

    def _take(self, message: Any) -> None:
        found = self._delivery(message)
        earlier = self._earlier.pop(found.metadata["packet_id"], None) if found.metadata["qos"] else None
        if (
            earlier is not None
            and message.dup
            and (earlier.body, earlier.ordering_key)
            == (
                found.body,
                found.ordering_key,
            )
        ):
            if earlier.receipt in self._settled_early:
                del self._settled_early[earlier.receipt]
                with contextlib.suppress(SourceUnavailable):  # lost meanwhile: the next poll reports it
                    self._connection.acknowledge(message.mid)
                return
            found = Delivery(
                earlier.message_id,
                found.body,
                earlier.receipt,
                found.headers,
                found.metadata,
                found.ordering_key,
                earlier.deliveries + 1,
                found.redelivery,
            )
        if not message.qos and not self._is_qos_0_reported:
            self._is_qos_0_reported = True
            log.warning(
                "%s: messages on %r are published with QoS 0, which the broker does not redeliver: they are lost if"
                " this process ends before their runs are durable",
                self._where,
                found.ordering_key,
            )
        self._inbox.put(found)

    def _delivery(self, message: Any) -> Delivery:
        properties = getattr(message, "properties", None)
        metadata: dict[str, Any] = {
            "topic": _topic(message),
            "qos": message.qos,
            "retain": bool(message.retain),
            "duplicate": bool(message.dup),
            "packet_id": message.mid,
        }
        for name, shown in _SHOWN.items():
            if (value := getattr(properties, name, None)) is not None:
                metadata[shown] = value.decode(errors="replace") if isinstance(value, bytes) else value
        expiry_s = metadata.get("message_expiry_secs")
        unique = uuid.uuid4().hex
        return Delivery(
            message_id=unique,
            body=bytes(message.payload),
            receipt=unique,
            headers=tuple(getattr(properties, "UserProperty", None) or ()),
            metadata=metadata,
            ordering_key=metadata["topic"],
            deliveries=2 if message.dup else 1,
            redelivery=UNLIMITED_REDELIVERY
            if expiry_s is None
            else RedeliveryLimits(expires_at_ms=now_ms() + expiry_s * 1_000),
        )

    def _check_granted(self, codes: list[Any]) -> None:
        code = codes[0]
        if code.is_failure:
            raise SourceUnavailable(f"{self._where} refuses the subscription to {self.topic!r}: {code}.")
        if code.value == 0:
            raise SourceMissing(
                f"subscription[mqtt]: {self._where} grants only QoS 0 for {self.topic!r}, so messages could be lost."
                " Allow QoS 1 at the broker."
            )

    def _check_receipt(self, receipt: str) -> None:
        if len(receipt) != 32:
            raise SourceMissing(f"subscription[mqtt]: {receipt!r} is not a receipt of topic {self.topic!r}.")


def _topic(message: Any) -> str:
    try:
        return str(message.topic)
    except UnicodeDecodeError:
        return "\N{REPLACEMENT CHARACTER}"
