"""Connectors of the outbox, one object per target system.

A connector sends an effect (`dispatch`), reads its outcome (`observe`), and undoes it (`compensate`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tape.connectors.base import (
    CompensationResult,
    DispatchResult,
    EffectConnector,
    ObservationResult,
    all_registered,
    call_compensate,
    call_dispatch,
    call_observe,
    clear,
    get,
    register,
)

if TYPE_CHECKING:
    from tape.connectors.http import HttpConnector
    from tape.connectors.local import LocalConnector
    from tape.connectors.pubsub import PubSubConnector, PubSubSubscriber

__all__ = [
    "CompensationResult",
    "DispatchResult",
    "EffectConnector",
    "HttpConnector",
    "LocalConnector",
    "ObservationResult",
    "PubSubConnector",
    "PubSubSubscriber",
    "all_registered",
    "call_compensate",
    "call_dispatch",
    "call_observe",
    "clear",
    "get",
    "register",
]

# Loaded when first used: each needs a client of its own.
_HOMES = {
    "HttpConnector": "tape.connectors.http",
    "LocalConnector": "tape.connectors.local",
    "PubSubConnector": "tape.connectors.pubsub",
    "PubSubSubscriber": "tape.connectors.pubsub",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tape.connectors' has no attribute {name!r}")
