"""Where messages come from: one port, and a class per broker."""

from tape.brokers.registry import known_sources, open_source, source
from tape.brokers.settings import Settings
from tape.brokers.source import Delivery, Source

__all__ = ["Delivery", "Settings", "Source", "known_sources", "open_source", "source"]
