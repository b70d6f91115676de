"""`tape runs`: which runs there are, and what one of them did."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from tape.base.clock import now_ms
from tape.cli.options import DEFAULT_URL, Output, OutputOption, UrlOption, run
from tape.cli.output import age, as_dict, console, print_json, print_table, state, state_of
from tape.cli.run_story import RunStory, load
from tape.cli.run_tree import headline, lease, timeline, tree
from tape.client import AsyncTapeClient
from tape.model.ledger_states import RunStatus
from tape.proto import tape_pb2 as pb

app = typer.Typer(help="List runs, and show what one of them did.", no_args_is_help=True)


class RunStatusOption(StrEnum):
    """Where a run stands, as the journal calls it."""

    runnable = "runnable"
    running = "running"
    waiting = "waiting"
    terminal = "terminal"
    failed = "failed"
    compensating = "compensating"
    stuck = "stuck"
    cancelled = "cancelled"


class RunView(StrEnum):
    """How a run's journal is drawn."""

    tree = "tree"
    timeline = "timeline"


@app.command("list")
def list_runs(
    status: Annotated[RunStatusOption | None, typer.Option(help="Only in this state.")] = None,
    app_name: Annotated[str, typer.Option("--app", help="Only of this app.")] = "",
    user_id: Annotated[str, typer.Option("--user", help="Only of this user; needs --app.")] = "",
    session_id: Annotated[str, typer.Option("--session", help="Only of this session; needs --user.")] = "",
    before: Annotated[str, typer.Option(help="Only runs older than this one: the next page.", metavar="RUN_ID")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="At most so many.")] = 20,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """List runs, the newest first."""
    number = RunStatus[status.upper()] if status else 0
    place = {"app_name": app_name, "user_id": user_id, "session_id": session_id}
    found = run(_list(url, place, int(number), before, limit))
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
        nothing="No such runs.",
    )
    if len(found) == limit:
        typer.echo(f"There may be more: --before {found[-1].run_id}", err=True)


async def _list(url: str, place: dict[str, str], status: int, before: str, limit: int) -> list[pb.RunState]:
    async with AsyncTapeClient(url) as client:
        started_at_ms = (await client.get_run(before)).started_at_ms if before else 0
        answer = await client.list_runs(
            app_name=place["app_name"],
            user_id=place["user_id"],
            session_id=place["session_id"],
            status=status,
            before_started_at_ms=started_at_ms,
            before_run_id=before,
            limit=limit,
        )
    return list(answer.runs)


@app.command("show")
def show_run(
    run_id: Annotated[str, typer.Argument(help="The run, as `tape runs list` names it.")],
    view: Annotated[RunView, typer.Option("--as", help="How its journal is drawn.")] = RunView.tree,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Show a run: its state and budget, and its decisions, effects, obligations and gates as they happened."""
    told = run(_load(url, run_id))
    if output is Output.json:
        print_json(told.as_json())
        return
    page = console()
    page.print(headline(told, now_ms()))
    if told.run.seq_cursor > len(told.entries):
        page.print(f"The journal has {len(told.entries)} of its {told.run.seq_cursor} entries; the rest was pruned.")
    page.print()
    page.print(tree(told) if view is RunView.tree else timeline(told))


async def _load(url: str, run_id: str) -> RunStory:
    async with AsyncTapeClient(url) as client:
        return await load(client, run_id)
