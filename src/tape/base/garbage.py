"""Garbage collection while a program is loaded."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Collect no garbage while the block loads modules and makes what lives as long as the process.

    A collection would visit all of it and free nothing. What exists at the end of the block is frozen: later
    collections, the one at the exit of the process included, do not visit it.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
