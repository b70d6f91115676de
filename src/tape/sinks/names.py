"""Sinks by the names that commands use."""

from __future__ import annotations

from typing import Any

from tape.errors import InvalidInput
from tape.model.message import BodyFormat


def open_sink(
    text: str,
    *,
    headers: list[str],
    secret: str,
    allow_private: bool,
    concurrency: int,
    body: BodyFormat = "standard",
) -> Any:
    """The sink that `<kind>:<target>` names."""
    from tape.sinks import KafkaSink, LogSink, NatsSink, PubSubSink, WebhookSink

    kind, _, target = text.partition(":")
    if kind != "webhook" and (headers or secret or allow_private or concurrency != 1):
        raise InvalidInput("--header, --secret, --allow-private and --concurrency are for --sink webhook:URL.")
    if kind == "log":
        return LogSink(target or ":stdout", body=body)
    if kind == "webhook":
        pairs = dict(_header(each) for each in headers)
        return WebhookSink(
            target, pairs, secret=secret, allow_private=allow_private, concurrency=concurrency, body=body
        )
    if kind == "nats":
        servers, _, subject = target.partition("#")
        return NatsSink(servers or "nats://127.0.0.1:4222", subject, body=body)
    if kind in ("kafka", "pubsub"):
        first, _, topic = target.rpartition("/")
        return KafkaSink(first, topic, body=body) if kind == "kafka" else PubSubSink(first, topic, body=body)
    raise InvalidInput(
        f"--sink {text!r} must be log, log:FILE, webhook:URL, nats:URL[#SUBJECT], kafka:SERVERS/TOPIC or"
        " pubsub:PROJECT/TOPIC."
    )


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise InvalidInput(f"--header {text!r} must look like 'Name: value'.")
    return name.strip(), value.strip()
