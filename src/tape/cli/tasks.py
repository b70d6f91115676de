"""`tape tasks`: list and show tasks; redrive and drop dead letters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.text import Text

from tape.base.clock import now_ms
from tape.cli.options import DEFAULT_URL, Output, OutputOption, UrlOption, run
from tape.cli.output import age, as_dict, console, cut, moment, parse_age, print_json, print_table, state, state_of
from tape.client import AsyncTapeClient
from tape.errors import InvalidInput
from tape.model.reaction_states import TaskStatus
from tape.proto import tape_pb2 as pb

app = typer.Typer(help="List and show tasks; redrive and drop dead letters.", no_args_is_help=True)


class TaskStatusOption(StrEnum):
    """Status of a task."""

    pending = "pending"
    claimed = "claimed"
    done = "done"
    failed = "failed"
    dlq = "dlq"


IdsArgument = Annotated[list[str] | None, typer.Argument(help="Ids of dead letters.", metavar="[TASK]...")]
ReactionOption = Annotated[str, typer.Option("--reaction", "-r", help="Only tasks of this reaction.")]
ErrorOption = Annotated[str, typer.Option("--error", help="Only tasks whose last error contains this text.")]
SubjectOption = Annotated[str, typer.Option("--subject", "-s", help="Only subjects that match this pattern.")]
OlderOption = Annotated[str, typer.Option("--older-than", help="Only tasks created longer ago than 90s, 10m, 2h, 7d.")]
AllOption = Annotated[bool, typer.Option("--all", help="All dead letters.")]


@app.command("list")
def list_tasks(
    reaction_id: Annotated[str, typer.Argument(help="Id of the reaction; optional for status claimed and dlq.")] = "",
    status: Annotated[
        TaskStatusOption | None,
        typer.Option(help="Only tasks with this status. [default: all; without REACTION_ID dlq]"),
    ] = None,
    before: Annotated[int, typer.Option(help="Only tasks of entries before this global_seq (next page).", min=0)] = 0,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="Maximum number of tasks.")] = 20,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """List tasks, newest entry first. Without a reaction: the dead letters of all reactions."""
    wanted = status or (None if reaction_id else TaskStatusOption.dlq)
    number = int(TaskStatus[wanted.upper()]) if wanted else 0
    found = run(_list(url, reaction_id, number, before, limit))
    if output is Output.json:
        print_json([as_dict(each) for each in found])
        return
    now = now_ms()
    print_table(
        ("task", "status", "reaction", "entry", "subject", "created", "attempts", "next", "error"),
        (
            (
                each.task_id,
                state(state_of(pb.TaskStatus, each.status)),
                each.reaction_id,
                str(each.source_global_seq),
                each.subject,
                f"{age(now - each.created_at_ms)} ago",
                str(each.attempts),
                following(each, now),
                cut(each.last_error),
            )
            for each in found
        ),
        nothing="No tasks found.",
    )
    if len(found) == limit:
        typer.echo(f"More tasks may follow: --before {found[-1].source_global_seq}", err=True)


async def _list(url: str, reaction_id: str, status: int, before: int, limit: int) -> list[pb.Task]:
    async with AsyncTapeClient(url) as client:
        answer = await client.list_tasks(reaction_id=reaction_id, status=status, before_global_seq=before, limit=limit)
    return list(answer.tasks)


@app.command("show")
def show_task(
    task_id: Annotated[str, typer.Argument(help="Id of the task.", metavar="TASK")],
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Show one task with its payload."""
    task = run(_show(url, task_id))
    if output is Output.json:
        print_json(as_dict(task))
        return
    now = now_ms()
    merged = (
        f", with {task.coalesced} earlier entries since {task.first_global_seq} coalesced" if task.coalesced else ""
    )
    facts = {
        "task": task.task_id,
        "status": f"{state_of(pb.TaskStatus, task.status)} {following(task, now)}".rstrip(),
        "reaction": f"{task.reaction_id}, shard {task.shard}",
        "entry": f"{task.source_global_seq} of run {task.source_run_id}{merged}",
        "subject": task.subject,
        "created": moment(task.created_at_ms),
        "attempts": f"{task.attempts}{f', redriven {task.redriven} times' if task.redriven else ''}",
        "trace": f"{task.trace_id} {task.parent_span_id}".strip() or "none",
        "error": task.last_error or "none",
        "payload": task.payload_json,
    }
    page = console()
    for name, fact in facts.items():
        page.print(Text.assemble((f"{name:<9}", "dim"), fact))


async def _show(url: str, task_id: str) -> pb.Task:
    async with AsyncTapeClient(url) as client:
        return await client.get_task(task_id)


@app.command("redrive")
def redrive_tasks(
    task_ids: IdsArgument = None,
    reaction_id: ReactionOption = "",
    error: ErrorOption = "",
    subject: SubjectOption = "",
    older_than: OlderOption = "",
    everything: AllOption = False,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Make dead letters pending again, with attempts reset to 0.

    They are claimed after tasks that are already due; with strict order they keep their position and block later tasks.
    """
    wanted = _wanted(task_ids, reaction_id, error, subject, older_than, everything)

    async def step(client: AsyncTapeClient) -> tuple[int, bool]:
        answer = await client.redrive_tasks(**wanted)
        return answer.redriven, answer.more

    _print_count(run(_repeat(url, step)), "redriven", output)


@app.command("drop")
def drop_tasks(
    task_ids: IdsArgument = None,
    reaction_id: ReactionOption = "",
    error: ErrorOption = "",
    subject: SubjectOption = "",
    older_than: OlderOption = "",
    everything: AllOption = False,
    reason: Annotated[str, typer.Option(help="Reason; stored with the tasks.")] = "",
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Drop dead letters: their status becomes failed, with the reason."""
    wanted = _wanted(task_ids, reaction_id, error, subject, older_than, everything)

    async def step(client: AsyncTapeClient) -> tuple[int, bool]:
        answer = await client.drop_tasks(**wanted, reason=reason)
        return answer.dropped, answer.more

    _print_count(run(_repeat(url, step)), "dropped", output)


async def _repeat(url: str, step: Callable[[AsyncTapeClient], Awaitable[tuple[int, bool]]]) -> int:
    """Repeat until done: the server processes 1,000 tasks per request, so that other writes do not wait."""
    total = 0
    async with AsyncTapeClient(url) as client:
        while True:
            count, more = await step(client)
            total += count
            if not more:
                return total


def _wanted(
    task_ids: list[str] | None, reaction_id: str, error: str, subject: str, older_than: str, everything: bool
) -> dict[str, Any]:
    filtered = pb.TaskFilter(
        reaction_id=reaction_id,
        error_contains=error,
        subject_pattern=subject,
        created_before_ms=now_ms() - parse_age("--older-than", older_than) if older_than else 0,
    )
    if sum((bool(task_ids), filtered.ByteSize() > 0, everything)) != 1:
        raise InvalidInput(
            "Name the dead letters: by id, by --reaction, --error, --subject or --older-than, or with --all."
        )
    return {"task_ids": task_ids or [], "filter": filtered, "everything": everything}


def _print_count(count: int, what: str, output: Output) -> None:
    if output is Output.json:
        print_json({what: count})
    else:
        typer.echo(f"{count} {'task' if count == 1 else 'tasks'} {what}.")


def following(task: pb.Task, now_ms: int) -> str:
    """The next step of a task, and its time."""
    match task.status:
        case pb.TASK_STATUS_PENDING:
            late = now_ms - task.next_attempt_at_ms
            return f"due for {age(late)}" if late >= 0 else f"due in {age(-late)}"
        case pb.TASK_STATUS_CLAIMED:
            left = task.lease_expires_at_ms - now_ms
            return (
                f"{task.lease_owner}, lease expires in {age(left)}"
                if left > 0
                else f"{task.lease_owner}, lease expired {age(-left)} ago"
            )
        case _:
            return ""
