"""Sinks, and the relay that publishes every entry of the journal to one.

from tape.sinks import WebhookSink
from tape.sinks.relay import run_outbox_relay

run_outbox_relay("tape://localhost:7878", sink=WebhookSink(url="https://…"), cursor_path="cursor.json")
"""

from tape.sinks.aiplex import AIPlexSink
from tape.sinks.function import FnSink
from tape.sinks.kafka import KafkaSink
from tape.sinks.log import LogSink
from tape.sinks.nats import NatsSink
from tape.sinks.pubsub import PubSubSink
from tape.sinks.sink import BatchSink, Sink
from tape.sinks.webhook import WebhookSink

__all__ = [
    "AIPlexSink",
    "BatchSink",
    "FnSink",
    "KafkaSink",
    "LogSink",
    "NatsSink",
    "PubSubSink",
    "Sink",
    "WebhookSink",
]
