"""`tape runs`: list runs, show one, and begin failed ones again."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

import typer

from tape.base.clock import now_ms
from tape.cli.options import DEFAULT_URL, Output, OutputOption, UrlOption, run
from tape.cli.output import age, as_dict, console, print_json, print_table, state, state_of
from tape.cli.run_diff import diff_runs
from tape.cli.run_fork import fork_run
from tape.cli.run_operations import cancel_runs, check_retry, resume_runs, retry_filtered
from tape.cli.run_replay import replay_runs
from tape.cli.run_result import show_result
from tape.cli.run_selection import LabelOption, OlderOption
from tape.cli.run_story import RunStory, load
from tape.cli.run_tree import headline, lease, timeline, tree
from tape.client import AsyncTapeClient
from tape.errors import InvalidInput
from tape.model.ledger_states import RunStatus
from tape.proto import tape_pb2 as pb

app = typer.Typer(help="List runs, show one and its result, and cancel, retry or resume them.", no_args_is_help=True)
app.command("result")(show_result)
app.command("cancel")(cancel_runs)
app.command("resume")(resume_runs)


class RunStatusOption(StrEnum):
    """Status of a run."""

    runnable = "runnable"
    running = "running"
    waiting = "waiting"
    terminal = "terminal"
    failed = "failed"
    compensating = "compensating"
    stuck = "stuck"
    cancelled = "cancelled"


class RunView(StrEnum):
    """How the history of a run is drawn."""

    tree = "tree"
    timeline = "timeline"


app.command("fork")(fork_run)
app.command("diff")(diff_runs)
app.command("replay")(replay_runs)


@app.command("list")
def list_runs(
    status: Annotated[RunStatusOption | None, typer.Option(help="Only runs with this status.")] = None,
    app_name: Annotated[str, typer.Option("--app", help="Only runs of this app.")] = "",
    user_id: Annotated[str, typer.Option("--user", help="Only runs of this user; needs --app.")] = "",
    session_id: Annotated[str, typer.Option("--session", help="Only runs of this session; needs --user.")] = "",
    parent: Annotated[str, typer.Option("--parent", help="Only children of this run.", metavar="RUN_ID")] = "",
    before: Annotated[str, typer.Option(help="Only runs older than this one (next page).", metavar="RUN_ID")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="Maximum number of runs.")] = 20,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """List runs, newest first."""
    number = RunStatus[status.upper()] if status else 0
    identity = {"app_name": app_name, "user_id": user_id, "session_id": session_id, "parent_run_id": parent}
    found = run(_list(url, identity, int(number), before, limit))
    if output is Output.json:
        print_json([as_dict(each) for each in found])
        return
    now = now_ms()
    print_table(
        ("run", "status", "app", "user", "session", "invocation", "began", "took", "lease"),
        (
            (
                each.run_id,
                state(state_of(pb.RunStatus, each.status)),
                each.app_name,
                each.user_id,
                each.session_id,
                each.invocation_id,
                f"{age(now - each.started_at_ms)} ago",
                age((each.ended_at_ms or now) - each.started_at_ms),
                f"waits at {each.waiting_on_gate}" if each.waiting_on_gate else lease(each, now),
            )
            for each in found
        ),
        nothing="No runs found.",
    )
    if len(found) == limit:
        typer.echo(f"More runs may follow: --before {found[-1].run_id}", err=True)


async def _list(url: str, identity: dict[str, str], status: int, before: str, limit: int) -> list[pb.RunState]:
    async with AsyncTapeClient(url) as client:
        started_at_ms = (await client.get_run(before)).started_at_ms if before else 0
        answer = await client.list_runs(
            app_name=identity["app_name"],
            user_id=identity["user_id"],
            session_id=identity["session_id"],
            parent_run_id=identity["parent_run_id"],
            status=status,
            before_started_at_ms=started_at_ms,
            before_run_id=before,
            limit=limit,
        )
    return list(answer.runs)


@app.command("show")
def show_run(
    run_id: Annotated[str, typer.Argument(help="Run id, as shown by `tape runs list`.")],
    view: Annotated[RunView, typer.Option("--as", help="How the history is drawn.")] = RunView.tree,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Show a run: status, budget, and its decisions, effects, obligations and gates in order."""
    history = run(_load(url, run_id))
    if output is Output.json:
        print_json(history.as_json())
        return
    page = console()
    page.print(headline(history, now_ms()))
    if history.run.seq_cursor > len(history.entries):
        page.print(
            f"The journal has {len(history.entries)} of the {history.run.seq_cursor} entries; the others were pruned."
        )
    page.print()
    page.print(tree(history) if view is RunView.tree else timeline(history))


async def _load(url: str, run_id: str) -> RunStory:
    async with AsyncTapeClient(url) as client:
        return await load(client, run_id)


@app.command("retry")
def retry_runs(
    run_ids: Annotated[list[str] | None, typer.Argument(help="Run ids, as shown by `tape runs list`.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="The failed runs of --subscription or --app.")] = False,
    subscription: Annotated[str, typer.Option(help="Path of the subscription; needs --failed.")] = "",
    app_name: Annotated[str, typer.Option("--app", help="The failed runs of this app; needs --failed.")] = "",
    label: LabelOption = None,
    older_than: OlderOption = "",
    since: Annotated[
        str, typer.Option(help="Only runs that ended within this time: 30s, 15m, 2h, 7d. [default: any time]")
    ] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000, help="Maximum number of runs.")] = 100,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the runs and change nothing.")] = False,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Begin failed runs again under their ids. Steps that are confirmed are not repeated, failed ones are tried again.

    Exits with 1 if a run does not begin again.
    """
    check_retry(failed, subscription, app_name, run_ids or [])
    if (label or older_than) and not app_name:
        raise InvalidInput("--label and --older-than need --app.")
    if app_name:
        if since:
            raise InvalidInput("--since needs --subscription; with --app use --older-than.")
        retry_filtered(url, app_name, label or [], older_than, limit, dry_run, output)
        return
    if since and not failed:
        raise InvalidInput("--since needs --failed: runs that are named begin again whenever they ended.")
    ended_after_ms = now_ms() - _duration_ms(since) if since else 0
    answer = run(_retry(url, run_ids or [], subscription, ended_after_ms, limit, dry_run))
    if output is Output.json:
        print_json({"runs": [as_dict(each) for each in answer.runs], "more": answer.more, "dry_run": dry_run})
    else:
        verb = "would begin again" if dry_run else "begins again"
        print_table(
            ("run", "message", "outcome", "failed with"),
            ((each.run_id, each.message_id, each.refusal or verb, each.error) for each in answer.runs),
            nothing="No failed runs found.",
        )
        if answer.more:
            typer.echo(f"More failed runs follow: only {limit} were taken (--limit).", err=True)
    if any(each.refusal for each in answer.runs):
        raise typer.Exit(1)


_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def _duration_ms(text: str) -> int:
    if (found := re.fullmatch(r"([0-9]{1,6})([smhd])", text)) is None:
        raise InvalidInput(f"--since {text!r} must be a number and a unit: 30s, 15m, 2h or 7d.")
    return int(found[1]) * _UNITS_MS[found[2]]


async def _retry(
    url: str, run_ids: list[str], subscription: str, ended_after_ms: int, limit: int, dry_run: bool
) -> pb.RetryRunsResponse:
    async with AsyncTapeClient(url) as client:
        return await client.retry_runs(
            run_ids=run_ids, subscription=subscription, ended_after_ms=ended_after_ms, limit=limit, dry_run=dry_run
        )
