"""Sinks by the names that commands give them."""

from __future__ import annotations

from typing import Any

from tape.errors import InvalidInput


def open_sink(text: str, *, headers: list[str], secret: str, allow_private: bool, concurrency: int) -> Any:
    """The sink that `kind:place` names."""
    from tape.sinks import KafkaSink, LogSink, NatsSink, PubSubSink, WebhookSink

    kind, _, place = text.partition(":")
    if kind != "webhook" and (headers or secret or allow_private or concurrency != 1):
        raise InvalidInput("--header, --secret, --allow-private and --concurrency are for --sink webhook:URL.")
    if kind == "log":
        return LogSink(place or ":stdout")
    if kind == "webhook":
        pairs = dict(_header(each) for each in headers)
        return WebhookSink(place, pairs, secret=secret, allow_private=allow_private, concurrency=concurrency)
    if kind == "nats":
        servers, _, subject = place.partition("#")
        return NatsSink(servers or "nats://127.0.0.1:4222", subject)
    if kind in ("kafka", "pubsub"):
        first, _, topic = place.rpartition("/")
        return KafkaSink(first, topic) if kind == "kafka" else PubSubSink(first, topic)
    raise InvalidInput(
        f"--sink {text!r} must be log, log:FILE, webhook:URL, nats:URL[#SUBJECT], kafka:SERVERS/TOPIC or"
        " pubsub:PROJECT/TOPIC."
    )


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise InvalidInput(f"--header {text!r} must look like 'Name: value'.")
    return name.strip(), value.strip()
