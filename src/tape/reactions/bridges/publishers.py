"""The publishers of a bridge: one for each broker that a reaction publishes to."""

from __future__ import annotations

import json
import os
from typing import Any

from tape.brokers.publisher import Publisher
from tape.errors import InvalidConfig
from tape.reactions.bridges.target import PublishTarget


def open_publisher(target: PublishTarget) -> Publisher:
    """A publisher for targets like this one. The client library is an extra of the package and is imported here.

    `TAPE_NATS_CREDS` names a credentials file for NATS; `TAPE_KAFKA_CONFIG` has more properties of librdkafka as a JSON
    object.
    """
    if target.scheme == "nats":
        from tape.brokers.nats.publisher import NatsPublisher

        # A client that reconnects on its own costs a task no attempt.
        options: dict[str, Any] = {"name": "tape-bridge", "allow_reconnect": True, "max_reconnect_attempts": -1}
        options["reconnect_time_wait"] = 2
        if credentials := os.environ.get("TAPE_NATS_CREDS"):
            options["user_credentials"] = credentials
        return NatsPublisher(f"nats://{target.broker}", options=options)
    if target.scheme == "kafka":
        from tape.brokers.kafka.publisher import KafkaPublisher

        return KafkaPublisher(target.broker, config={"client.id": "tape-bridge", "linger.ms": 1, **_kafka_config()})
    from tape.brokers.pubsub.publisher import PubSubPublisher

    return PubSubPublisher()


def topic_of(target: PublishTarget) -> str:
    """What the publisher of a target calls its subject or topic."""
    if target.scheme == "pubsub":
        from tape.brokers.pubsub.publisher import topic_path

        return topic_path(target.broker, target.name)
    return target.name


def _kafka_config() -> dict[str, Any]:
    text = os.environ.get("TAPE_KAFKA_CONFIG", "")
    try:
        found = json.loads(text) if text else {}
    except ValueError as error:
        raise InvalidConfig(f"TAPE_KAFKA_CONFIG is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise InvalidConfig("TAPE_KAFKA_CONFIG must be a JSON object of librdkafka's properties.")
    return found
