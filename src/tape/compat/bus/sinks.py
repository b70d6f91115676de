"""The AIPlex sink with its environment names; every other sink is that of `tape.sinks`."""

from __future__ import annotations

import importlib
import os
from typing import Any

from tape.sinks import aiplex

_VARIABLES = {
    "url": "AIPLEX_URL",
    "token": "AIPLEX_TOKEN",
    "tenant_id": "AIPLEX_TENANT_ID",
    "agent_id": "AIPLEX_AGENT_ID",
    "plane": "AIPLEX_PLANE",
    "actor": "AIPLEX_ACTOR",
    "subject": "AIPLEX_SUBJECT",
    "aiplex_instance_id": "AIPLEX_INSTANCE_ID",
}


class AIPlexSink(aiplex.AIPlexSink):
    """POSTs entries with the identity of their agent; what is not given is read from `AIPLEX_URL`, `AIPLEX_TOKEN`, …"""

    def __init__(self, **options: Any) -> None:
        for name, variable in _VARIABLES.items():
            options[name] = options.get(name) or os.environ.get(variable, "")
        super().__init__(**options)


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("tape.sinks"), name)
