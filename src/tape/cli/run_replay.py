"""`tape runs replay`: execute today's code against recorded runs, and report the first divergence of each."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from tape.base.clock import now_ms
from tape.cli.options import DEFAULT_URL, Output, OutputOption, UrlOption
from tape.cli.output import parse_age, print_json
from tape.cli.user_code import load_object
from tape.client.sync import TapeClient
from tape.durable.replay import DIVERGED, SAME, SKIPPED, ReplayResult, find_runs, replay
from tape.errors import InvalidInput


def replay_runs(
    agent: Annotated[
        str,
        typer.Option("--with", metavar="MODULE:FUNCTION", help="Function of a RunState, as for `reactors --redrive`."),
    ],
    run_ids: Annotated[list[str] | None, typer.Argument(help="Run ids. Without any: the runs of a window.")] = None,
    app_name: Annotated[str, typer.Option("--app", help="Only runs of this app.")] = "",
    since: Annotated[str, typer.Option(help="Runs that began within this time: 90s, 10m, 2h, 7d.")] = "",
    until: Annotated[str, typer.Option(help="Runs that began before this time ago: 90s, 10m, 2h, 7d.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="Maximum number of runs.")] = 100,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Execute today's code of recorded runs with every decision, effect and gate answered from the record.

    Nothing is performed and nothing is written. Shows the first divergence of each run: what was recorded, what the
    code asks for, file and line. Exits with 1 if a run diverges, or if none was found.
    """
    if bool(run_ids) == bool(app_name or since or until):
        raise InvalidInput("Say which runs: RUN_ID…, or a window with --app, --since or --until.")
    function = load_object("--with", agent)
    counts: Counter[str] = Counter()
    results: list[ReplayResult] = []
    now = now_ms()
    with TapeClient(url) as client:
        if run_ids:
            wanted = iter(run_ids)
        else:
            window = {
                "since_ms": now - parse_age("--since", since) if since else 0,
                "until_ms": now - parse_age("--until", until) if until else 0,
            }
            wanted = (run.run_id for run in find_runs(client, app_name=app_name, limit=limit, **window))
        for run_id in wanted:
            result = replay(run_id, function, client=client)
            counts[result.outcome] += 1
            if output is Output.json:
                results.append(result)
            elif result.outcome != SAME or run_ids:
                typer.echo(_shown(result))
    if output is Output.json:
        print_json({"counts": dict(counts), "runs": [result.as_dict() for result in results]})
    else:
        typer.echo(f"{counts[SAME]} the same, {counts[DIVERGED]} diverged, {counts[SKIPPED]} skipped.")
    if counts[DIVERGED] or not counts:
        raise typer.Exit(1)


def _shown(result: ReplayResult) -> str:
    text = f"{result.run_id} {result.outcome}: {result.replayed} of {result.steps} steps"
    if result.divergence is None:
        return f"{result.run_id} skipped: {result.reason}" if result.outcome == SKIPPED else text
    found = result.divergence
    lines = [found.message]
    lines += [f"recorded: {found.recorded}"] if found.recorded else []
    lines += [f"now:      {found.asked}"] if found.asked else []
    lines += found.difference.splitlines()
    lines += [f"at {found.file}:{found.line}"] if found.file else []
    return "\n  ".join([text, *lines])
