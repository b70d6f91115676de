"""Replay as a test: executes today's code of a run with every decision, effect and gate answered from the record.

Nothing is performed and nothing is written. The first divergence is reported: what was recorded, what the code asks
for, and the line of the call.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from tape.base.coroutines import run_to_end
from tape.client.channel import DEFAULT_URL
from tape.client.shared import shared_client
from tape.durable.call_site import is_user_code
from tape.durable.callback_arguments import call_offering, name_of
from tape.durable.history import RunHistory, fetch_history
from tape.durable.recorded_client import RecordedClient, current_recording
from tape.errors import InvalidInput, ReplayDiverged, ReplayEnded, RunChanged, RunInterrupted
from tape.proto import tape_pb2 as pb

SAME, DIVERGED, SKIPPED = "same", "diverged", "skipped"
# Runs of this app are carried out by their tasks, not by code that could be called.
PLAYBOOKS = "playbooks"
PAGE = 200


@dataclass(frozen=True)
class ReplayDivergence:
    """The first difference of today's code from the record of a run."""

    message: str
    recorded: str = ""
    asked: str = ""
    difference: str = ""
    file: str = ""
    line: int = 0


@dataclass(frozen=True)
class ReplayResult:
    """The replay of one run: `same`, `diverged` or `skipped`, and how many of its steps were replayed."""

    run_id: str
    app_name: str
    outcome: str
    replayed: int = 0
    steps: int = 0
    divergence: ReplayDivergence | None = None
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The result as plain values."""
        return asdict(self)

    def check(self) -> ReplayResult:
        """The result itself; raises ReplayDiverged if the run diverged: for tests."""
        if self.divergence is None:
            return self
        found = self.divergence
        facts = [f"recorded: {found.recorded}"] if found.recorded else []
        facts += [f"now:      {found.asked}"] if found.asked else []
        facts += found.difference.splitlines()
        facts += [f"at {found.file}:{found.line}"] if found.file else []
        lines = "".join(f"\n  {fact}" for fact in facts)
        raise ReplayDiverged(f"The run {self.run_id!r} diverges after {self.replayed} steps: {found.message}{lines}")


def replay(
    run: str | RunHistory, agent: Callable[..., Any], *, url: str = DEFAULT_URL, client: Any = None
) -> ReplayResult:
    """Execute `agent(run_state)` against the record of a run, by id or as a history; returns what came of it.

    The agent has the shape of a recovery function: it gets the RunState, and enters `tape.continue_run(run_state)` or
    `tape.durable_run(…)`. An agent without a parameter is called without one. Effects are never performed; what the
    agent does outside of effects and decisions it does.
    """
    history = run if isinstance(run, RunHistory) else fetch_history(client or shared_client(url), run)
    steps = len(history.decisions) + len(history.effects)
    about: dict[str, Any] = {"run_id": history.run.run_id, "app_name": history.run.app_name, "steps": steps}
    if reason := _why_not(history):
        return ReplayResult(**about, outcome=SKIPPED, reason=reason)
    recorded = RecordedClient(history)
    divergence = _execute(recorded, agent)
    if not recorded.is_begun and divergence is None:
        raise InvalidInput(
            f"{name_of(agent)} has not begun the run {history.run.run_id!r}: let it take the run and enter"
            " `with tape.continue_run(run) as …`, or tape.durable_run."
        )
    outcome = SAME if divergence is None else DIVERGED
    return ReplayResult(**about, outcome=outcome, replayed=recorded.replayed, divergence=divergence)


def replay_window(
    agent: Callable[..., Any],
    *,
    app_name: str = "",
    since_ms: int = 0,
    until_ms: int = 0,
    limit: int = 100,
    url: str = DEFAULT_URL,
    client: Any = None,
) -> Iterator[ReplayResult]:
    """Replay the runs that began in a window, newest first, at most `limit`: a regression test against history."""
    connection = client or shared_client(url)
    for run in find_runs(connection, app_name=app_name, since_ms=since_ms, until_ms=until_ms, limit=limit):
        yield replay(run.run_id, agent, client=connection)


def find_runs(client: Any, *, app_name: str, since_ms: int, until_ms: int, limit: int) -> Iterator[pb.RunState]:
    """The runs that began in a window, newest first."""
    before: tuple[int, str] = (until_ms, "") if until_ms else (0, "")
    found = 0
    while found < limit:
        page = client.list_runs(
            app_name=app_name, before_started_at_ms=before[0], before_run_id=before[1], limit=min(PAGE, limit)
        ).runs
        for run in page:
            if run.started_at_ms < since_ms or found >= limit:
                return
            found += 1
            yield run
        if not page:
            return
        before = (page[-1].started_at_ms, page[-1].run_id)


def _why_not(history: RunHistory) -> str:
    if history.run.app_name == PLAYBOOKS:
        return "an execution of a playbook"
    is_blank = any(not each.response_json for each in history.decisions.values()) or any(
        each.status == pb.EFFECT_STATUS_CONFIRMED and not each.response_json for each in history.effects.values()
    )
    return "compacted: its responses are no longer there" if is_blank else ""


def _execute(recorded: RecordedClient, agent: Callable[..., Any]) -> ReplayDivergence | None:
    state = recorded.get_run()
    token = current_recording.set(recorded)
    try:
        run_to_end(call_offering(agent, {"run": state}, state), on="agents")
    except ReplayEnded:
        pass
    except RunChanged as change:
        # Of an exception that ended the run, the line where it was raised.
        cause = change.__context__ if isinstance(change.__context__, Exception) else change
        return _divergence(recorded.divergence or change, cause.__traceback__)
    except RunInterrupted as error:
        return ReplayDivergence(f"It is interrupted: {type(error).__name__}: {error}", **_site(error.__traceback__))
    except Exception as error:
        if recorded.divergence is None and not _is_recorded_failure(recorded.history.run, error):
            return ReplayDivergence(f"It raises {type(error).__name__}: {error}", **_site(error.__traceback__))
    finally:
        current_recording.reset(token)
    # An interruption that the agent has swallowed counts.
    return None if recorded.divergence is None else _divergence(recorded.divergence, None)


def _is_recorded_failure(run: pb.RunState, error: Exception) -> bool:
    was = run.former_status or run.status
    return was == pb.RUN_STATUS_FAILED and f'"{type(error).__name__}"' in run.detail_json


def _divergence(change: RunChanged, found: TracebackType | None) -> ReplayDivergence:
    site: dict[str, Any] = {"file": change.file, "line": change.line} if change.file else _site(found)
    message = str(change.args[0]) if change.args else str(change)
    return ReplayDivergence(message, change.recorded, change.asked, change.difference, **site)


def _site(found: TracebackType | None) -> dict[str, Any]:
    """The newest line of the user's code in a traceback."""
    lines = [(frame.f_code.co_filename, number) for frame, number in traceback.walk_tb(found)]
    for file, line in reversed(lines):
        if is_user_code(file):
            return {"file": file, "line": line}
    return {}
