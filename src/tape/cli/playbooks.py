"""`tape playbooks`: validate, run, register, list and show playbooks."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tape.base.clock import now_ms
from tape.cli.execute import PayloadOption, read_payload
from tape.cli.options import DEFAULT_URL, HttpAllowOption, Output, OutputOption, UrlOption, run
from tape.cli.output import age, print_json, print_table
from tape.cli.user_code import import_modules
from tape.client import AsyncTapeClient
from tape.errors import InvalidDocument, StepFailed, TapeError
from tape.proto import tape_pb2 as pb

app = typer.Typer(help="Validate, run, register, list and show playbooks.", no_args_is_help=True)

FilesArgument = Annotated[list[Path], typer.Argument(help="YAML files.", metavar="FILE…")]
ImportOption = Annotated[
    list[str],
    typer.Option("--import", "-i", help="Module with @tape.playbook or @tape.function; repeatable."),
]


@app.command()
def validate(files: FilesArgument) -> None:
    """Validate files without a server and list all problems with their lines. Exits with 1 if there are any."""
    from tape.playbooks.files import load_file

    wrong = 0
    for file in files:
        try:
            playbook = load_file(file)
        except InvalidDocument as error:
            wrong += len(error.problems)
            for problem in str(error).splitlines():
                typer.echo(f"{file}: {problem}")
        else:
            steps = f"{len(playbook.steps)} steps" if len(playbook.steps) != 1 else "1 step"
            typer.echo(f"{file}: {playbook.path} is valid ({playbook.python or steps}).")
    if wrong:
        raise typer.Exit(1)


@app.command("run")
def run_file(
    file: Annotated[Path, typer.Argument(help="YAML file.")],
    payload: PayloadOption = "{}",
    modules: ImportOption = [],  # noqa: B006 - typer reads it, never mutated
    http_allow: HttpAllowOption = None,
) -> None:
    """Run a file in this process without a server, and print its output.

    Playbooks that it calls are read from the same folder; events that it publishes are printed, not stored.
    """
    from tape.model.execution_ids import new_id
    from tape.playbooks.files import from_folder, load_file
    from tape.playbooks.host import LocalHost, RunInfo
    from tape.playbooks.runner import run_playbook

    async def publish(subject: str, event: Any) -> None:
        typer.echo(f"{subject} {json.dumps(event, ensure_ascii=False)}", err=True)

    import_modules(modules)
    playbook = load_file(file)
    host = LocalHost(load=from_folder(file.parent), publish=publish)
    info = RunInfo(id=str(new_id()), path=playbook.path, pool="local")
    try:
        result = asyncio.run(run_playbook(playbook, read_payload(payload), info, host))
    except TapeError:
        raise
    except Exception as error:  # an error of a tool or a function fails the playbook
        raise StepFailed(playbook.path, type(error).__name__, str(error)) from error
    typer.echo(json.dumps(result, ensure_ascii=False))


@app.command()
def register(files: FilesArgument, url: UrlOption = DEFAULT_URL) -> None:
    """Register files in the catalog, each as the next version of its path; an unchanged file adds no version."""
    from tape.playbooks.files import read_file

    async def send() -> None:
        async with AsyncTapeClient(url) as client:
            for file in files:
                resource = await client.register_resource(read_file(file), if_changed=True)
                typer.echo(f"{resource.path} is version {resource.version}.")

    run(send())


@app.command("list")
def list_playbooks(url: UrlOption = DEFAULT_URL, output: OutputOption = Output.text) -> None:
    """List the playbooks of the catalog."""

    async def fetch() -> list[pb.Resource]:
        found: list[pb.Resource] = []
        async with AsyncTapeClient(url) as client:
            while page := (
                await client.list_resources("playbook", after_path=found[-1].path if found else "")
            ).resources:
                found += page
        return found

    resources = run(fetch())
    if output is Output.json:
        print_json([_summary(each) for each in resources])
        return
    now = now_ms()
    print_table(
        ("path", "version", "registered"),
        ((each.path, str(each.version), f"{age(now - each.ts_ms)} ago") for each in resources),
        nothing="No playbooks. Register one: tape playbooks register FILE",
    )


@app.command()
def show(
    path: Annotated[str, typer.Argument(help="Path of the playbook.")],
    version: Annotated[int, typer.Option(min=0, help="Version; 0 is the latest.")] = 0,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Print the content of a registered playbook."""

    async def fetch() -> pb.Resource:
        async with AsyncTapeClient(url) as client:
            return await client.get_resource(path, version=version)

    resource = run(fetch())
    if output is Output.json:
        print_json({**_summary(resource), "content": resource.content})
    else:
        typer.echo(resource.content.rstrip("\n"))


def _summary(resource: pb.Resource) -> dict[str, Any]:
    return {
        "path": resource.path,
        "version": resource.version,
        "catalog_id": resource.catalog_id,
        "labels": json.loads(resource.labels_json or "{}"),
        "ts_ms": resource.ts_ms,
    }
