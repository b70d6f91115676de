"""`tape runs result`: what a run gave, or why it has no result."""

from __future__ import annotations

from typing import Annotated

import typer

from tape.base.retry import retry_async
from tape.cli.options import DEFAULT_URL, Output, OutputOption, UrlOption, run
from tape.cli.output import print_json
from tape.client import AsyncTapeClient
from tape.durable.results import RESULT_POLL, result_of
from tape.errors import RunFailed
from tape.proto import tape_pb2 as pb


def show_result(
    run_id: Annotated[str, typer.Argument(help="Run id, as shown by `tape runs list`.")],
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end of the run.")] = False,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", min=0, help="With --wait: seconds to wait at most. [default: no limit]")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Print the result of a finished run as JSON.

    Exits with 1 and the error if the run failed, was cancelled, is stuck (TAPE-2424) or has not ended (TAPE-2425).
    """
    try:
        state, result = run(_result(url, run_id, wait, timeout_s))
    except RunFailed as failure:
        if output is Output.text:
            raise
        error = {"type": failure.error_type, "message": failure.error_message}
        print_json({"run_id": run_id, "status": failure.ended_as, "error": error})
        raise typer.Exit(1) from failure
    if output is Output.json:
        print_json({"run_id": run_id, "status": "TERMINAL", "result": result})
    else:
        typer.echo(state.result_json or "null")


async def _result(url: str, run_id: str, wait: bool, timeout_s: float | None) -> tuple[pb.RunState, object]:
    async with AsyncTapeClient(url) as client:

        async def ask() -> tuple[pb.RunState, object]:
            state = await client.get_run(run_id)
            return state, result_of(state)

        return await (retry_async(ask, RESULT_POLL, deadline_s=timeout_s) if wait else ask())
