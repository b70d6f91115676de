"""Sources that are logs: read by offset, as often as one likes, by many processes at once."""

from tape.subscriptions.logs.log import Extent, Log, Placed, open_log

__all__ = ["Extent", "Log", "Placed", "open_log"]
