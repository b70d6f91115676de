"""`tape schedules`: cron expressions that begin runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Annotated, TypeVar

import typer

from tape.base.clock import now_ms
from tape.base.durations import parse_duration_ms
from tape.cli.options import DEFAULT_URL, Output, OutputOption, UrlOption, run
from tape.cli.output import age, as_dict, checked_json, moment, print_facts, print_json, print_table
from tape.client import AsyncTapeClient
from tape.errors import NotFound
from tape.proto import tape_pb2 as pb

app = typer.Typer(help="Create, list, pause, trigger and delete schedules that begin runs.", no_args_is_help=True)

T = TypeVar("T")
NameArgument = Annotated[str, typer.Argument(help="Name of the schedule.")]


class Overlap(StrEnum):
    """What happens while the run before is open."""

    skip = "skip"
    buffer_one = "buffer_one"
    allow = "allow"
    cancel_other = "cancel_other"


@app.command("create")
def create_schedule(
    name: NameArgument,
    cron: Annotated[str, typer.Option(help="Cadence: minute hour day month weekday, or @hourly, @daily, @weekly, …")],
    app_name: Annotated[str, typer.Option("--app", help="Begin runs of this app, which recovery workers resume.")] = "",
    playbook: Annotated[str, typer.Option(help="Begin executions of this playbook.", metavar="PATH")] = "",
    user_id: Annotated[str, typer.Option("--user", help="User of the runs, with --app.")] = "",
    session_id: Annotated[str, typer.Option("--session", help="Session of the runs, with --app.")] = "",
    given: Annotated[
        str, typer.Option("--input", help="Label tape.input of runs, or payload of executions.", metavar="JSON")
    ] = "",
    time_zone: Annotated[str, typer.Option(help="Time zone of the cadence, e.g. Europe/Berlin.")] = "UTC",
    overlap: Annotated[Overlap, typer.Option(help="What happens while the run before is open.")] = Overlap.skip,
    catch_up: Annotated[
        str, typer.Option(help="Make up occurrences that are at most this late: 10m, 1h, 7d; 0 for none.")
    ] = "1h",
    jitter: Annotated[str, typer.Option(help="Begin each run up to this much later, e.g. 30s.")] = "",
    paused: Annotated[bool, typer.Option("--paused", help="Create it paused.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the schedule of that name.")] = False,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Create a schedule. The same one again changes nothing."""
    made = _call(
        url,
        lambda client: client.create_schedule(
            name,
            cron,
            app_name=app_name,
            playbook=playbook,
            user_id=user_id,
            session_id=session_id,
            input_json=checked_json("--input", given) if given else "",
            time_zone=time_zone,
            overlap=overlap.value,
            catch_up_ms=-1 if catch_up == "0" else parse_duration_ms("--catch-up", catch_up),
            jitter_ms=parse_duration_ms("--jitter", jitter) if jitter else 0,
            paused=paused,
            replace=replace,
        ),
    )
    _report(made, output)


@app.command("list")
def list_schedules(
    after: Annotated[str, typer.Option(help="Only names after this one (next page).", metavar="NAME")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000, help="Maximum number of schedules.")] = 100,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """List schedules by name."""
    found = _call(url, lambda client: client.list_schedules(after_name=after, limit=limit)).schedules
    if output is Output.json:
        print_json([as_dict(each) for each in found])
        return
    now = now_ms()
    print_table(
        ("name", "cron", "time zone", "begins", "overlap", "next", "last", "begun", "skipped", "missed", "error"),
        (
            (
                each.name,
                each.cron,
                each.time_zone,
                each.app_name or each.playbook,
                each.overlap,
                "paused" if each.paused else f"in {age(each.next_ms - now)}",
                f"{age(now - each.last_fired_at_ms)} ago" if each.last_fired_at_ms else "",
                str(each.begun),
                str(each.skipped),
                str(each.missed),
                each.last_error,
            )
            for each in found
        ),
        nothing="No schedules found.",
    )
    if len(found) == limit:
        typer.echo(f"More schedules may follow: --after {found[-1].name}", err=True)


@app.command("show")
def show_schedule(name: NameArgument, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.text) -> None:
    """Show a schedule."""
    found = _call(url, lambda client: client.get_schedule(name))
    if output is Output.json:
        print_json(as_dict(found))
        return
    facts = {
        "name": found.name,
        "cron": f"{found.cron} ({found.time_zone})",
        "begins": f"runs of {found.app_name}" if found.app_name else f"executions of {found.playbook}",
        "input": found.input_json,
        "overlap": found.overlap,
        "catch up": age(found.catch_up_ms) if found.catch_up_ms else "none",
        "jitter": age(found.jitter_ms) if found.jitter_ms else "",
        "next": "paused" if found.paused else moment(found.next_ms),
        "last": f"{moment(found.last_fired_at_ms)}, run {found.last_run_id}" if found.last_fired_at_ms else "",
        "counts": f"{found.begun} begun, {found.skipped} skipped, {found.missed} missed",
        "error": found.last_error,
        "created": f"{moment(found.created_at_ms)} by {found.created_by}",
    }
    print_facts({label: fact for label, fact in facts.items() if fact})


@app.command("pause")
def pause_schedule(name: NameArgument, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.text) -> None:
    """Pause a schedule: it begins nothing until it is resumed."""
    _report(_call(url, lambda client: client.pause_schedule(name)), output)


@app.command("resume")
def resume_schedule(name: NameArgument, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.text) -> None:
    """Resume a schedule from now on; what it would have begun meanwhile is not made up."""
    _report(_call(url, lambda client: client.resume_schedule(name)), output)


@app.command("trigger")
def trigger_schedule(name: NameArgument, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.text) -> None:
    """Begin a run of a schedule now, whatever its overlap policy, also if it is paused."""
    begun = _call(url, lambda client: client.trigger_schedule(name))
    if output is Output.json:
        print_json(as_dict(begun))
    else:
        typer.echo(f"Run {begun.run_id} has begun.")


@app.command("delete")
def delete_schedule(name: NameArgument, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.text) -> None:
    """Delete a schedule; runs that it has begun go on."""
    deleted = _call(url, lambda client: client.delete_schedule(name)).deleted
    if output is Output.json:
        print_json({"deleted": deleted})
    elif not deleted:
        raise NotFound(f"no such schedule: {name!r}.")
    else:
        typer.echo(f"The schedule {name!r} is deleted.")


def _report(schedule: pb.Schedule, output: Output) -> None:
    if output is Output.json:
        print_json(as_dict(schedule))
    elif schedule.paused:
        typer.echo(f"The schedule {schedule.name!r} is paused.")
    else:
        typer.echo(f"The schedule {schedule.name!r} begins its next run at {moment(schedule.next_ms)}.")


def _call(url: str, call: Callable[[AsyncTapeClient], Awaitable[T]]) -> T:
    async def connect() -> T:
        async with AsyncTapeClient(url) as client:
            return await call(client)

    return run(connect())
