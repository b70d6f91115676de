"""The plugin for google-adk with the environment names of the event bus SDK: `AIPLEX_…` and `TAPE_LEASE_MS`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tape.compat.bus.identity import RunIdentity, lease_ttl_ms

if TYPE_CHECKING:
    from tape.adk.plugin import TapePlugin as Plugin


def TapePlugin(*args: Any, **options: Any) -> Plugin:  # noqa: N802  (the name of a class)
    """The plugin of `tape.adk.plugin`; without `lease_ttl_ms` and `identity`, those of the environment."""
    if options.get("lease_ttl_ms") is None:
        options["lease_ttl_ms"] = lease_ttl_ms()
    if options.get("identity") is None:
        options["identity"] = RunIdentity.from_env()
    made: Plugin = importlib.import_module("tape.adk.plugin").TapePlugin(*args, **options)
    return made


def durable_app(**options: Any) -> tuple[Any, Any]:
    """The app and runner of `tape.adk.durable`; without `identity`, that of the environment."""
    if options.get("identity") is None:
        options["identity"] = RunIdentity.from_env()
    made: tuple[Any, Any] = importlib.import_module("tape.adk.durable").durable_app(**options)
    return made


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("tape.adk"), name)
