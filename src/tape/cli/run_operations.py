"""`tape runs cancel|retry|resume`: change runs, one by one or all that match filters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import typer

from tape.base.clock import now_ms
from tape.cli.options import DEFAULT_URL, Output, OutputOption, UrlOption, run
from tape.cli.output import age, print_json, print_table, state, state_of
from tape.cli.run_selection import (
    AppOption,
    ChosenRuns,
    DryRunOption,
    LabelOption,
    LimitOption,
    OlderOption,
    ParentOption,
    RunFilter,
    RunIds,
    check_choice,
    select_runs,
)
from tape.client import AsyncTapeClient
from tape.errors import InvalidInput, NotFound, TapeError
from tape.model.payload import to_json
from tape.proto import tape_pb2 as pb

_OPEN = (pb.RUN_STATUS_RUNNABLE, pb.RUN_STATUS_RUNNING, pb.RUN_STATUS_WAITING)
_ENDED_EARLY = (pb.RUN_STATUS_CANCELLED, pb.RUN_STATUS_STUCK)


class RunChange(NamedTuple):
    """A run, and what became of it; a refusal says why nothing did."""

    run: pb.RunState
    outcome: str
    refusal: str = ""


def cancel_runs(
    run_ids: RunIds = None,
    app_name: AppOption = "",
    parent: ParentOption = "",
    label: LabelOption = None,
    older_than: OlderOption = "",
    reason: Annotated[str, typer.Option(help="Why, for the record.")] = "",
    limit: LimitOption = 100,
    dry_run: DryRunOption = False,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Cancel runs that have not ended, and their children. Their processes begin nothing new.

    What the runs did is compensated by recovery workers. Needs the scope operator. Exits with 1 if a run is refused.
    """
    check_choice(run_ids or [], app_name, parent, label or [], older_than)
    wanted = RunFilter.of(app_name, parent, _OPEN, label or [], older_than)
    changes, more = run(_cancel(url, run_ids or [], wanted, limit, reason, dry_run))
    _report(changes, more, dry_run, output, "would be cancelled")


def resume_runs(
    run_ids: RunIds = None,
    app_name: AppOption = "",
    parent: ParentOption = "",
    label: LabelOption = None,
    older_than: OlderOption = "",
    limit: LimitOption = 100,
    dry_run: DryRunOption = False,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Make cancelled and stuck runs runnable again: recovery workers, or their own programs, carry them on.

    A run whose effects are being compensated is refused. Needs the scope operator. Exits with 1 if a run is refused.
    """
    check_choice(run_ids or [], app_name, parent, label or [], older_than)
    wanted = RunFilter.of(app_name, parent, _ENDED_EARLY, label or [], older_than)
    changes, more = run(_begin_again(url, run_ids or [], wanted, limit, dry_run, resume=True))
    _report(changes, more, dry_run, output, "would be runnable")


def retry_filtered(
    url: str,
    app_name: str,
    label: Sequence[str],
    older_than: str,
    limit: int,
    dry_run: bool,
    output: Output,
) -> None:
    """`tape runs retry --failed --app NAME`."""
    wanted = RunFilter.of(app_name, "", (pb.RUN_STATUS_FAILED,), label, older_than)
    changes, more = run(_begin_again(url, [], wanted, limit, dry_run, resume=False))
    _report(changes, more, dry_run, output, "would begin again")


async def _chosen(client: AsyncTapeClient, run_ids: Sequence[str], wanted: RunFilter, limit: int) -> ChosenRuns:
    if not run_ids:
        return await select_runs(client, wanted, limit)
    found = []
    for run_id in dict.fromkeys(run_ids):
        try:
            found.append(await client.get_run(run_id))
        except NotFound:
            found.append(pb.RunState(run_id=run_id))
    return ChosenRuns(found, more=False)


async def _cancel(
    url: str, run_ids: Sequence[str], wanted: RunFilter, limit: int, reason: str, dry_run: bool
) -> tuple[list[RunChange], bool]:
    async with AsyncTapeClient(url) as client:
        chosen = await _chosen(client, run_ids, wanted, limit)
        detail = to_json({"error": "Cancelled", "message": reason}) if reason else ""
        changes = []
        for each in chosen.runs:
            if not each.status:
                changes.append(RunChange(each, "", "there is no such run"))
            elif each.status not in _OPEN:
                changes.append(
                    RunChange(each, "", f"it is {state_of(pb.RunStatus, each.status)} and cannot be cancelled")
                )
            elif dry_run:
                changes.append(RunChange(each, "would be cancelled"))
            else:
                changes.append(await _cancel_one(client, each, detail))
    return changes, chosen.more


async def _cancel_one(client: AsyncTapeClient, each: pb.RunState, detail: str) -> RunChange:
    try:
        ended = await client.end_run(run_id=each.run_id, status=pb.RUN_STATUS_CANCELLED, detail_json=detail)
    except TapeError as error:
        if error.retryable or error.status in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
            raise
        return RunChange(each, "", str(error))
    return RunChange(ended.run, "cancelled")


async def _begin_again(
    url: str, run_ids: Sequence[str], wanted: RunFilter, limit: int, dry_run: bool, *, resume: bool
) -> tuple[list[RunChange], bool]:
    async with AsyncTapeClient(url) as client:
        chosen = await _chosen(client, run_ids, wanted, limit)
        by_id = {each.run_id: each for each in chosen.runs}
        if not by_id:
            return [], False
        answer = await client.retry_runs(run_ids=list(by_id), dry_run=dry_run, resume=resume)
    verb = ("would be runnable" if resume else "would begin again") if dry_run else "runnable"
    return [
        RunChange(by_id[each.run_id], "" if each.refusal else verb, each.refusal) for each in answer.runs
    ], chosen.more


def _report(changes: Sequence[RunChange], more: bool, dry_run: bool, output: Output, verb: str) -> None:
    refused = sum(bool(each.refusal) for each in changes)
    if output is Output.json:
        listed = [
            {"run_id": each.run.run_id, "outcome": each.outcome, "refusal": each.refusal, "app_name": each.run.app_name}
            for each in changes
        ]
        counts = {"changed": 0 if dry_run else len(changes) - refused, "refused": refused}
        print_json({"runs": listed, **counts, "more": more, "dry_run": dry_run})
    else:
        now = now_ms()
        print_table(
            ("run", "status", "app", "invocation", "began", "outcome"),
            (
                (
                    each.run.run_id,
                    state(state_of(pb.RunStatus, each.run.status)) if each.run.status else "",
                    each.run.app_name,
                    each.run.invocation_id,
                    f"{age(now - each.run.started_at_ms)} ago" if each.run.started_at_ms else "",
                    each.refusal or each.outcome,
                )
                for each in changes
            ),
            nothing="No runs match.",
        )
        counted = Counter(each.outcome or "refused" for each in changes)
        if changes:
            typer.echo(", ".join(f"{count} {outcome}" for outcome, count in counted.items()))
        if more:
            typer.echo(f"More runs match: {len(changes)} were taken (--limit). Call again for the next ones.", err=True)
    if refused:
        raise typer.Exit(1)


def check_retry(failed: bool, subscription: str, app_name: str, run_ids: Sequence[str]) -> None:
    """Raise InvalidInput unless the options of `tape runs retry` say which runs."""
    if failed == bool(run_ids) or failed != bool(subscription or app_name) or (subscription and app_name):
        raise InvalidInput(
            "Say which runs: RUN_ID…, --failed --subscription PATH [--since 2h], or --failed --app NAME with filters."
        )
