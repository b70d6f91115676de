"""Compaction of ended runs: blanks the payloads of their decisions and effects."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tape.base.clock import now_ms
from tape.base.process import stop_event
from tape.client.channel import DEFAULT_URL
from tape.client.sync import TapeClient
from tape.errors import IllegalTransition
from tape.proto import tape_pb2 as pb
from tape.reactors.connection import Report, connected, pages
from tape.reactors.loop import repeat


def compact_once(
    url: str = DEFAULT_URL,
    *,
    before_ms: int = 0,
    limit: int = 100,
    client: TapeClient | None = None,
    stop: threading.Event | None = None,
) -> list[Report]:
    """Compact up to `limit` runs that ended before a time (0: now), the oldest first; a report on each.

    A run with open obligations or unknown effects is `refused`, and tried again in the next pass.
    """
    reports: list[Report] = []
    seen: set[str] = set()

    def is_enough() -> bool:
        is_stopped = stop is not None and stop.is_set()
        return is_stopped or sum(report["outcome"] == "compacted" for report in reports) >= limit

    with connected(url, client) as connection:

        def fetch(size: int) -> list[pb.RunState]:
            return list(connection.list_compactable_runs(before_ms=before_ms, limit=size).runs)

        for page in pages(fetch, limit, is_enough=is_enough):
            for run in page:
                if run.run_id not in seen and not is_enough():
                    seen.add(run.run_id)
                    reports.append(_compact(connection, run))
    return reports


def _compact(client: TapeClient, run: pb.RunState) -> Report:
    report = {"run_id": run.run_id, "app_name": run.app_name}
    try:
        done = client.compact_run(run.run_id, ignore_unowed=True)
    except IllegalTransition as error:
        return report | {"outcome": "refused", "reason": str(error)}
    if done.already_compacted:
        return report | {"outcome": "already", "reason": "another process was faster"}
    return report | {
        "outcome": "compacted",
        "reason": "",
        "decisions_zeroed": done.decisions_zeroed,
        "effects_zeroed": done.effects_zeroed,
        "bytes_saved": done.bytes_saved,
    }


def run_compactor(
    url: str = DEFAULT_URL,
    *,
    interval_s: float = 300.0,
    hot_window_s: float = 86400.0,
    batch_limit: int = 100,
    once: bool = False,
    on_tick: Callable[[dict[str, Any]], None] | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Compact runs `hot_window_s` after they have ended (a day), every `interval_s` (5 minutes), until stopped."""
    with TapeClient(url) as client, stop_event(stop) as event:

        def tick() -> dict[str, Any]:
            before = now_ms() - int(hot_window_s * 1000)
            return summary(compact_once(before_ms=before, limit=batch_limit, client=client, stop=event))

        repeat(tick, name="the compactor", interval_s=interval_s, stop=event, once=once, on_result=on_tick)


def summary(reports: list[Report]) -> dict[str, Any]:
    """The totals of one pass."""
    done = [report for report in reports if report["outcome"] == "compacted"]
    saved = sum(report["bytes_saved"] for report in done)
    return {"compacted": len(done), "bytes_saved": saved, "refused": len(reports) - len(done), "runs": reports}
