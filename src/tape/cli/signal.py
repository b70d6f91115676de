"""`tape signal`: resolve the gate that a run waits at."""

from __future__ import annotations

from typing import Annotated

import typer

from tape.cli.options import DEFAULT_URL, Output, OutputOption, UrlOption, run
from tape.cli.output import as_dict, checked_json, print_json
from tape.client import AsyncTapeClient
from tape.errors import InvalidInput
from tape.proto import tape_pb2 as pb


def signal(
    gate: Annotated[str, typer.Argument(help="Name of the gate, for example approval.")],
    run_id: Annotated[str, typer.Option("--run", help="Run that waits at the gate, or will.")] = "",
    app_name: Annotated[
        str, typer.Option("--app", help="Instead of --run: the newest run of this app, with --user and --session.")
    ] = "",
    user_id: Annotated[str, typer.Option("--user", help="User, with --app.")] = "",
    session_id: Annotated[str, typer.Option("--session", help="Session, with --app.")] = "",
    resolution: Annotated[str, typer.Option("--resolution", "-r", help="Resolution as JSON.", metavar="JSON")] = "",
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Resolve a gate. A run that waits there becomes runnable; otherwise the resolution is kept until it waits."""
    by_session = (app_name, user_id, session_id)
    if bool(run_id) == any(by_session) or (not run_id and not all(by_session)):
        raise InvalidInput("Name the run: either --run, or all of --app, --user and --session.")
    request = {"run_id": run_id, "app_name": app_name, "user_id": user_id, "session_id": session_id}
    answer = run(_send(url, gate, request, checked_json("--resolution", resolution) if resolution else ""))
    if output is Output.json:
        print_json(as_dict(answer))
    elif answer.run_status == pb.RUN_STATUS_RUNNABLE:
        typer.echo(f"Run {answer.run_id} waited at {gate!r} and is runnable now.")
    else:
        typer.echo(f"Run {answer.run_id} does not wait at {gate!r}. It gets the first resolution sent when it does.")


async def _send(url: str, gate: str, request: dict[str, str], resolution_json: str) -> pb.SendSignalResponse:
    async with AsyncTapeClient(url) as client:
        return await client.send_signal(
            run_id=request["run_id"],
            app_name=request["app_name"],
            user_id=request["user_id"],
            session_id=request["session_id"],
            gate_name=gate,
            resolution_json=resolution_json,
        )
