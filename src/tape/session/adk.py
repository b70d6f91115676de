"""Plugins of google-adk where that is installed, and plain objects where it is not."""

from __future__ import annotations

import importlib
import importlib.util

_classes: dict[type, type] = {}


def as_adk_plugin(cls: type) -> type:
    """The class with google-adk's plugin as its last base, or as it is."""
    if cls in _classes.values():
        return cls
    if cls not in _classes:
        base = _base_plugin()
        _classes[cls] = cls if base is None else type(cls.__name__, (cls, base), {"__module__": cls.__module__})
    return _classes[cls]


def _base_plugin() -> type | None:
    try:
        if importlib.util.find_spec("google.adk.plugins.base_plugin") is None:
            return None
        found: type = importlib.import_module("google.adk.plugins.base_plugin").BasePlugin
    except ImportError:
        return None
    return found
