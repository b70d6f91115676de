"""Brokers: connections, publishers, sources and logs, in one folder per broker."""

from tape.brokers.registry import known_sources, open_source, source
from tape.brokers.settings import SourceSettings
from tape.brokers.source import Delivery, Source

__all__ = ["Delivery", "Source", "SourceSettings", "known_sources", "open_source", "source"]
