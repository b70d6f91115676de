"""Where messages come from: one port, and a class per broker."""

from tape.subscriptions.sources.registry import known_sources, open_source, source
from tape.subscriptions.sources.settings import Settings
from tape.subscriptions.sources.source import Delivery, Source

__all__ = ["Delivery", "Settings", "Source", "known_sources", "open_source", "source"]
