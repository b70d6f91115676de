"""Recovery workers whose reports also have the keys `status`, `key`, `resolved`, `compactor` and `already_compacted`.

Every other name is that of `tape.reactors`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from tape.compat.bus.rpc_errors import raising_rpc_errors

Report = dict[str, Any]
# What became of an effect that was reconciled; any other outcome leaves it open.
_OPEN = frozenset({"pending", "unknown", "error"})
_ONCE = frozenset(
    {
        "compact_once",
        "compensate_once",
        "fire_due_timers_once",
        "outbox_dispatch_once",
        "reconcile_once",
        "recover_once",
    }
)
_ONE = frozenset({"compensate_one", "compensate_run", "dispatch_one"})
_LOOPS = frozenset({"run_compactor", "run_compensations_event_driven", "run_outbox_dispatcher", "run_reactors"})


def with_keys(report: Report, worker: str = "") -> Report:
    """The report with the keys that programs of the event bus SDK read. Those that it has stay."""
    added: Report = {}
    outcome = report.get("outcome")
    if outcome is not None:
        added["status"] = outcome
    for name in ("effect_key", "idempotency_key"):
        if name in report:
            added["key"] = report[name]
    if worker == "reconcile":
        added["resolved"] = "" if outcome in _OPEN else outcome
    if worker == "compact":
        added["already_compacted"] = outcome == "already"
    if "steps" in report:
        added["steps"] = [with_keys(step) for step in report["steps"]]
        return report | added
    return added | report


def _with_all_keys(reports: Any, worker: str) -> Any:
    return [with_keys(report, worker) for report in reports] if isinstance(reports, list) else reports


def tick_with_keys(tick: Any) -> Any:
    """What `on_tick` gets, with those keys; the reports of compaction are also under `compactor`."""
    if isinstance(tick, list):
        return _with_all_keys(tick, "")
    if "compacted" in tick and "runs" in tick:  # the totals of run_compactor
        reports = _with_all_keys(tick["runs"], "compact")
        return tick | {"runs": reports, "compactor": reports}
    if "outcome" in tick:
        return with_keys(tick)
    found = {name: _with_all_keys(reports, name) for name, reports in tick.items()}
    return found | ({"compactor": found["compact"]} if "compact" in found else {})


def __getattr__(name: str) -> Any:
    if name == "outbox":
        return importlib.import_module(__name__)
    found = getattr(importlib.import_module("tape.reactors"), name)
    if name in _ONCE or name in _ONE:
        return _reporting(found, name.removesuffix("_once"))
    if name in _LOOPS:
        return _ticking(found)
    return raising_rpc_errors(found) if callable(found) else found


def _reporting(fn: Callable[..., Any], worker: str) -> Callable[..., Any]:
    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        answer = raising_rpc_errors(fn)(*args, **kwargs)
        return with_keys(answer) if isinstance(answer, dict) else _with_all_keys(answer, worker)

    return call


def _ticking(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        for name in ("on_tick", "on_event"):
            if (given := kwargs.get(name)) is not None:
                kwargs[name] = lambda tick, given=given: given(tick_with_keys(tick))
        return raising_rpc_errors(fn)(*args, **kwargs)

    return run
