"""Recovery workers: complete runs whose process died, compensate failed runs, fire timers, send the outbox.

Each `*_once` makes one pass and returns a report on each item; each `run_*` runs until SIGTERM, SIGINT or its `stop`
event. Any number of processes may run them: claims and leases keep two of them from processing the same item.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tape.reactors.compaction import compact_once, run_compactor
from tape.reactors.compensation import compensate_once, compensate_run, run_compensations_event_driven
from tape.reactors.compensator import compensate_one
from tape.reactors.outbox import dispatch_one, outbox_dispatch_once, run_outbox_dispatcher
from tape.reactors.reconciliation import reconcile_once
from tape.reactors.recovery import recover_once, resume
from tape.reactors.supervisor import run_reactors
from tape.reactors.timers import fire_due_timers_once

if TYPE_CHECKING:
    outbox_relay_tick: Any
    run_event_fanout: Any
    run_outbox_relay: Any

__all__ = [
    "compact_once",
    "compensate_once",
    "compensate_one",
    "compensate_run",
    "dispatch_one",
    "fire_due_timers_once",
    "outbox_dispatch_once",
    "outbox_relay_tick",
    "reconcile_once",
    "recover_once",
    "resume",
    "run_compactor",
    "run_compensations_event_driven",
    "run_event_fanout",
    "run_outbox_dispatcher",
    "run_outbox_relay",
    "run_reactors",
]

_RELAY = ("outbox_relay_tick", "run_event_fanout", "run_outbox_relay")


def __getattr__(name: str) -> Any:
    if name in _RELAY:  # imported when used: most recovery workers need no sinks
        return getattr(importlib.import_module("tape.sinks.relay"), name)
    raise AttributeError(f"module 'tape.reactors' has no attribute {name!r}")
