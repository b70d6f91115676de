"""Which sources there are, and how a new one is added."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tape.brokers.settings import Settings
from tape.brokers.source import Source
from tape.errors import SourceMisconfigured

S = TypeVar("S", bound=type[Source])

# Where the class is; its broker's client is imported when one is made.
_KNOWN: dict[str, str | type[Source]] = {
    "nats": "tape.brokers.nats.source:NatsSource",
    "kafka": "tape.brokers.kafka.source:KafkaSource",
    "pubsub": "tape.brokers.pubsub.source:PubSubSource",
}


def source(name: str) -> Callable[[S], S]:
    """Make a class of yours a source: `spec.source` may name it from now on, in every process that imports it."""

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
    """The names of sources that were added to this process."""
    return tuple(name for name, place in _KNOWN.items() if not isinstance(place, str))


def open_source(name: str, spec: Mapping[str, Any], credential: Mapping[str, Any] | str | None = None) -> Source:
    """A source, not connected yet: its settings are the keys of the spec, and behind them the credential's."""
    place = _KNOWN.get(name)
    if place is None:
        raise SourceMisconfigured(
            f"Unknown or unavailable subscription source {name!r}. Available: {', '.join(known_sources())}."
        )
    if isinstance(place, str):
        module, _, attribute = place.partition(":")
        place = getattr(importlib.import_module(module), attribute)
    else:
        # A source of somebody's own has no keys in the spec but these.
        spec = {**spec, **spec.get("options", {})}
    return place(Settings(name, spec, credential))  # type: ignore[call-arg]  # sources are made from settings
