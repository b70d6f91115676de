"""Compensation of failed and cancelled runs: their obligations are compensated, the newest first."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from tape.base.clock import now_ms
from tape.base.owner import new_owner
from tape.base.process import stop_event
from tape.client.channel import DEFAULT_URL
from tape.client.sync import TapeClient
from tape.errors import IllegalTransition
from tape.model.entry import Entry
from tape.model.ledger_states import Owed
from tape.proto import tape_pb2 as pb
from tape.reactors.compensator import compensate_one
from tape.reactors.connection import Report, connected, for_each, pages
from tape.reactors.journal_feed import JournalFeed
from tape.reactors.loop import repeat

SETTLED = ("compensated", "skipped")
COMPENSATED_STATUSES = (
    pb.RUN_STATUS_FAILED,
    pb.RUN_STATUS_CANCELLED,
    pb.RUN_STATUS_COMPENSATING,
    pb.RUN_STATUS_STUCK,
)
# Events after which an obligation may be owed: a run ended, or an obligation was registered or settled.
EVENTS = 'kind == "run" || kind == "obligation"'


def compensate_once(
    url: str = DEFAULT_URL,
    *,
    claimer: str = "",
    limit: int = 200,
    include_committed_expired: bool = True,
    client: TapeClient | None = None,
    stop: threading.Event | None = None,
) -> list[Report]:
    """Compensate up to `limit` owed obligations of all runs; a report on each.

    Within a run the newest comes first, and an older one only after it. `include_committed_expired` also takes over
    obligations whose claim has expired.
    """
    name = claimer or new_owner()
    reports: list[Report] = []
    seen: set[tuple[str, int]] = set()
    with connected(url, client) as connection:

        def fetch(size: int) -> list[pb.ObligationRecord]:
            found = connection.list_unresolved_obligations(only_owed=True, limit=size).obligations
            if include_committed_expired:
                return list(found)
            return [each for each in found if each.status == pb.OBLIGATION_STATUS_PENDING]

        def compensate(obligation: pb.ObligationRecord) -> Report:
            return compensate_one(obligation, client=connection, claimer=name)

        before = 0

        def has_progressed() -> bool:
            return any(report["outcome"] in SETTLED for report in reports[before:])

        while len(reports) < limit:
            before = len(reports)
            for page in pages(fetch, limit, is_enough=has_progressed):
                fresh = [each for each in page if (each.run_id, each.seq) not in seen]
                seen |= {(each.run_id, each.seq) for each in fresh}
                reports.extend(for_each(fresh[: limit - len(reports)], compensate, stop=stop))
            if not has_progressed() or (stop is not None and stop.is_set()):
                break  # otherwise older obligations are due now
    return reports


def compensate_run(
    run_id: str,
    *,
    url: str = DEFAULT_URL,
    claimer: str = "",
    max_passes: int = 32,
    client: TapeClient | None = None,
    stop: threading.Event | None = None,
) -> dict[str, Any]:
    """Compensate all obligations of one run, waiting between attempts; returns counts and the run's status.

    It ends when no obligation is left, one is stuck, or this process has no compensator for one. A run that has not
    ended becomes COMPENSATING. Raises IllegalTransition for a TERMINAL run: a run that succeeded is not compensated.
    """
    name = claimer or new_owner()
    steps: list[Report] = []
    with connected(url, client) as connection:
        run = connection.get_run(run_id)
        if run.status == pb.RUN_STATUS_TERMINAL:
            raise IllegalTransition(f"The run {run_id!r} is TERMINAL: it succeeded and is not compensated.")
        if run.status not in COMPENSATED_STATUSES:
            connection.end_run(run_id=run_id, status=pb.RUN_STATUS_COMPENSATING)
        for _ in range(max_passes):
            due = due_obligations(connection, run_id)
            done = for_each(due, lambda each: compensate_one(each, client=connection, claimer=name), stop=stop)
            steps += done
            if not due or not _can_continue(done, stop):
                break
        left = connection.list_obligations(run_id=run_id).obligations
        run = connection.get_run(run_id)
    outcomes = [step["outcome"] for step in steps]
    return {
        "run_id": run_id,
        "status": pb.RunStatus.Name(run.status).removeprefix("RUN_STATUS_"),
        "compensated": outcomes.count("compensated"),
        "skipped": outcomes.count("skipped"),
        "stuck": sum(each.status == pb.OBLIGATION_STATUS_STUCK for each in left),
        "open": len(left),
        "steps": steps,
    }


def due_obligations(client: TapeClient, run_id: str) -> list[pb.ObligationRecord]:
    """The obligations of a run to compensate next: the newest that is owed, and duplicates."""
    owed = [each for each in client.list_obligations(run_id=run_id).obligations if each.owed]
    newest = [each for each in owed if each.owed == Owed.BECAUSE_RUN_FAILED][:1]
    open_ones = newest + [each for each in owed if each.owed == Owed.ALWAYS]
    return [each for each in open_ones if each.status != pb.OBLIGATION_STATUS_STUCK]


def _can_continue(done: list[Report], stop: threading.Event | None) -> bool:
    """Whether another pass can make progress; waits until it can."""
    if any(report["outcome"] in SETTLED for report in done):
        return True
    if not any(report["outcome"] in ("retry", "waiting", "held") for report in done):
        return False
    due = min((report["next_attempt_at_ms"] for report in done if report.get("next_attempt_at_ms")), default=0)
    pause = max(due - now_ms(), 0) / 1000 if due else 0.5
    if stop is not None:
        return not stop.wait(pause)
    time.sleep(pause)
    return True


def run_compensations_event_driven(
    url: str = DEFAULT_URL,
    *,
    claimer: str = "",
    from_ts_ms: int = 0,
    idle_window_s: float = 0.5,
    catchup: bool = True,
    on_event: Callable[[dict[str, Any]], None] | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Compensate obligations within milliseconds of becoming owed, until stopped; `on_event` gets a report on each.

    New journal entries wake it, and every `idle_window_s` it looks for obligations to retry. With `catchup` it starts
    with all that are owed; without, it handles only runs with journal entries since `from_ts_ms` (0: since now).
    """
    name = claimer or new_owner()
    wake = threading.Event()
    noticed = _NoticedRuns()

    def on_entry(entry: Entry) -> None:
        if not catchup:
            noticed.add(entry.run_id)
        wake.set()

    where = f"({EVENTS}) && ts_ms >= {from_ts_ms}" if from_ts_ms else EVENTS
    with TapeClient(url) as client, stop_event(stop) as event:

        def work() -> list[Report]:
            if catchup:
                return compensate_once(client=client, claimer=name, stop=event)
            reports: list[Report] = []
            for run_id, times in noticed.runs().items():
                due = due_obligations(client, run_id)
                if not due:
                    noticed.forget(run_id, times)
                reports += for_each(due, lambda each: compensate_one(each, client=client, claimer=name), stop=event)
            return reports

        def report_all(reports: list[Report]) -> None:
            for report in reports:
                if on_event is not None:
                    on_event(report)
            if any(report["outcome"] in SETTLED for report in reports):
                wake.set()  # the next older obligation is due now

        with JournalFeed(url, on_entry, where=where, is_new=not from_ts_ms or catchup):
            repeat(work, name="compensation", interval_s=idle_window_s, stop=event, on_result=report_all, wake=wake)


class _NoticedRuns:
    """Runs with new journal entries, until none of their obligations is due."""

    def __init__(self) -> None:
        self._runs: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, run_id: str) -> None:
        with self._lock:
            self._runs[run_id] += 1

    def runs(self) -> dict[str, int]:
        with self._lock:
            return dict(self._runs)

    def forget(self, run_id: str, times: int) -> None:
        """Forget a run, unless it has had another entry since."""
        with self._lock:
            if self._runs[run_id] == times:
                del self._runs[run_id]
