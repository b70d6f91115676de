"""Public names for sources of your own: the port and its registry."""

from tape.brokers import Delivery, Source, SourceSettings, known_sources, open_source, source

Settings = SourceSettings

__all__ = ["Delivery", "Settings", "Source", "known_sources", "open_source", "source"]
