"""`tape execute`: start a playbook of the catalog."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from tape.cli.options import DEFAULT_URL, Output, OutputOption, UrlOption, run
from tape.cli.output import print_json, state_of
from tape.client import AsyncTapeClient
from tape.client.aio import to_entry
from tape.errors import InvalidInput
from tape.proto import tape_pb2 as pb

PayloadOption = Annotated[
    str, typer.Option("--payload", "-p", help="Payload: a JSON object, @file, or - for standard input.", metavar="JSON")
]

_ENDS = {"terminal", "failed", "cancelled", "stuck"}


def execute(
    path: Annotated[str, typer.Argument(help="Path of the playbook in the catalog.")],
    payload: PayloadOption = "{}",
    pool: Annotated[str, typer.Option(help="Execution pool. [default: that of the playbook]")] = "",
    dedup_key: Annotated[str, typer.Option(help="Deduplication key: the same key returns the same execution.")] = "",
    dedup_window: Annotated[int, typer.Option(min=1, help="Seconds for which the deduplication key is kept.")] = 300,
    ordering_key: Annotated[str, typer.Option(help="Ordering key: executions of one key take turns.")] = "",
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Wait until the execution ends, and print its output.")
    ] = False,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Start a playbook and print the execution id. With --wait, exits with 1 if the execution failed."""
    wanted = {
        "pool": pool,
        "dedup_key": dedup_key,
        "dedup_window_secs": dedup_window if dedup_key else 0,
        "ordering_key": ordering_key,
    }
    result, ended = run(_execute(url, path, read_payload(payload), wanted, wait=wait))
    if ended is None:
        if output is Output.json:
            print_json({"execution_id": result.execution_id, "status": result.status})
        else:
            typer.echo(result.execution_id)
        return
    detail: dict[str, Any] = msgspec.json.decode(ended.detail_json) if ended.detail_json else {}
    status = state_of(pb.RunStatus, ended.status)
    if output is Output.json:
        print_json({"execution_id": ended.run_id, "status": status, **detail})
    elif status == "terminal":
        typer.echo(json.dumps(detail.get("output"), ensure_ascii=False))
    else:
        error = detail.get("error", {})
        where = f"step {error['step']}: " if error.get("step") else ""
        typer.echo(f"{ended.run_id} is {status}. {where}{error.get('type', '')}: {error.get('message', '')}", err=True)
    if status != "terminal":
        raise typer.Exit(1)


def read_payload(given: str) -> dict[str, Any]:
    """The payload that the option names."""
    if given == "-":
        given = sys.stdin.read()
    elif given.startswith("@"):
        try:
            given = Path(given[1:]).read_text(encoding="utf-8")
        except OSError as error:
            raise InvalidInput(f"--payload {given}: {error.strerror}.") from error
    try:
        return msgspec.json.decode(given, type=dict)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"--payload {given[:80]!r} is not a JSON object: {error}.") from error


async def _execute(
    url: str, path: str, payload: dict[str, Any], wanted: dict[str, Any], *, wait: bool
) -> tuple[pb.ExecutionResult, pb.RunState | None]:
    async with AsyncTapeClient(url) as client:
        result = await client.execute(path, payload, **wanted)
        if not wait:
            return result, None
        stream = client.follow_batches("/tape/run/**", run_id=result.execution_id, skip_gaps=True)
        async for batch in stream:
            if any(to_entry(event).type.removeprefix("run.") in _ENDS for event in batch.entries):
                break
            if batch.gaps and (run := await client.get_run(result.execution_id)).ended_at_ms:  # its end is damaged
                return result, run
        return result, await client.get_run(result.execution_id)
