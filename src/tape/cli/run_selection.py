"""Which runs a command is about: those it names, or those that match filters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import typer

from tape.base.clock import now_ms
from tape.base.durations import parse_duration_ms
from tape.client import AsyncTapeClient
from tape.errors import InvalidInput
from tape.proto import tape_pb2 as pb

PAGE = 500
# Runs that are looked at to find those that match.
MAX_SCANNED = 100_000
MAX_RUNS = 1_000

RunIds = Annotated[list[str] | None, typer.Argument(help="Run ids, as shown by `tape runs list`.")]
AppOption = Annotated[str, typer.Option("--app", help="All runs of this app that match.")]
LabelOption = Annotated[
    list[str] | None, typer.Option("--label", help="Only runs with this label; may be repeated.", metavar="NAME=VALUE")
]
OlderOption = Annotated[str, typer.Option("--older-than", help="Only runs that began before this time: 30m, 2h, 7d.")]
ParentOption = Annotated[str, typer.Option("--parent", help="All children of this run that match.", metavar="RUN_ID")]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, max=MAX_RUNS, help="Maximum number of runs.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the runs and change nothing.")]


class ChosenRuns(NamedTuple):
    """The runs that were chosen, and whether more match."""

    runs: list[pb.RunState]
    more: bool


class RunFilter(NamedTuple):
    """What runs have to be like."""

    app_name: str = ""
    parent_run_id: str = ""
    statuses: Sequence[int] = ()
    labels: Sequence[tuple[str, str]] = ()
    started_before_ms: int = 0

    @classmethod
    def of(
        cls, app_name: str, parent: str, statuses: Sequence[int], labels: Sequence[str], older_than: str
    ) -> RunFilter:
        """A filter from options of the command line."""
        pairs = []
        for text in labels:
            name, found, value = text.partition("=")
            if not found or not name:
                raise InvalidInput(f"--label {text!r} must be NAME=VALUE.")
            pairs.append((name, value))
        before = now_ms() - parse_duration_ms("--older-than", older_than) if older_than else 0
        return cls(app_name, parent, statuses, pairs, before)

    def matches(self, run: pb.RunState) -> bool:
        """Whether a run is one of those."""
        return all(run.labels.get(name) == value for name, value in self.labels) and (
            not self.started_before_ms or run.started_at_ms < self.started_before_ms
        )


def check_choice(run_ids: Sequence[str], app_name: str, parent: str, labels: Sequence[str], older_than: str) -> None:
    """Raise InvalidInput unless either runs or a filter with an app or a parent are named."""
    if bool(run_ids) == bool(app_name or parent):
        raise InvalidInput("Say which runs: RUN_ID…, or --app NAME or --parent RUN_ID with filters.")
    if run_ids and (labels or older_than):
        raise InvalidInput(
            "--label and --older-than need --app or --parent: they choose among runs that are not named."
        )
    if len(run_ids) > MAX_RUNS:
        raise InvalidInput(f"{len(run_ids)} runs are named; name {MAX_RUNS} at most.")


async def select_runs(client: AsyncTapeClient, wanted: RunFilter, limit: int) -> ChosenRuns:
    """The runs that match, the newest first of each status; reads pages of 500, and 100,000 runs at most."""
    found: list[pb.RunState] = []
    scanned = 0
    for status in wanted.statuses:
        before = (wanted.started_before_ms, "")
        while True:
            page = (
                await client.list_runs(
                    app_name=wanted.app_name,
                    parent_run_id=wanted.parent_run_id,
                    status=status,
                    before_started_at_ms=before[0],
                    before_run_id=before[1],
                    limit=PAGE,
                )
            ).runs
            found += [run for run in page if wanted.matches(run)]
            scanned += len(page)
            if len(found) > limit or scanned >= MAX_SCANNED:
                return ChosenRuns(found[:limit], more=True)
            if len(page) < PAGE:
                break
            before = (page[-1].started_at_ms, page[-1].run_id)
    return ChosenRuns(found, more=False)
