"""The registry of sources."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tape.brokers.settings import SourceSettings
from tape.brokers.source import Source
from tape.errors import SourceMisconfigured

S = TypeVar("S", bound=type[Source])

# Module and class; the client library of a broker is imported when a source is created.
_KNOWN: dict[str, str | type[Source]] = {
    "nats": "tape.brokers.nats.source:NatsSource",
    "kafka": "tape.brokers.kafka.source:KafkaSource",
    "pubsub": "tape.brokers.pubsub.source:PubSubSource",
    "mqtt": "tape.brokers.mqtt.source:MqttSource",
    "sqs": "tape.brokers.sqs.source:SqsSource",
    "amqp": "tape.brokers.amqp.source:AmqpSource",
}


def source(name: str) -> Callable[[S], S]:
    """Register a class as a source: `spec.source` may name it in every process that imports it."""

    def register(cls: S) -> S:
        if name in _KNOWN and _KNOWN[name] is not cls:
            raise SourceMisconfigured(f"There is a source {name!r} already; choose another name.")
        _KNOWN[name] = cls
        return cls

    return register


def known_sources() -> tuple[str, ...]:
    """The names that `spec.source` may have with `mode: pull`."""
    return tuple(_KNOWN)


def own_sources() -> tuple[str, ...]:
    """The names of the sources that were registered in this process."""
    return tuple(name for name, factory in _KNOWN.items() if not isinstance(factory, str))


def open_source(name: str, spec: Mapping[str, Any], credential: Mapping[str, Any] | str | None = None) -> Source:
    """A source, not connected yet. Its settings are the keys of the spec; the credential has defaults for them."""
    factory = _KNOWN.get(name)
    if factory is None:
        raise SourceMisconfigured(
            f"Unknown or unavailable subscription source {name!r}. Available: {', '.join(known_sources())}."
        )
    if isinstance(factory, str):
        module, _, attribute = factory.partition(":")
        factory = getattr(importlib.import_module(module), attribute)
    else:
        # The spec has no other keys for a registered source.
        spec = {**spec, **spec.get("options", {})}
    return factory(SourceSettings(name, spec, credential))  # type: ignore[call-arg]  # sources are made from settings
