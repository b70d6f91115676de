"""A function as a sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class FnSink:
    """Calls a function with every entry."""

    def __init__(self, fn: Callable[[Any], object]) -> None:
        self._fn = fn

    def publish(self, entry: Any) -> None:
        """Call the function."""
        self._fn(entry)

    def close(self) -> None:
        """Do nothing."""
