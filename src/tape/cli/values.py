"""`tape values`: read, write, watch and delete values."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.text import Text

from tape.cli.options import DEFAULT_URL, Output, OutputOption, UrlOption, run
from tape.cli.output import as_dict, checked_json, console, moment, print_json
from tape.client import AsyncTapeClient
from tape.errors import NotFound
from tape.proto import tape_pb2 as pb

app = typer.Typer(help="Read, write, watch and delete values.", no_args_is_help=True)

NamespaceArgument = Annotated[str, typer.Argument(help="Namespace, for example treasury.")]
KeyArgument = Annotated[str, typer.Argument(help="Key in the namespace.")]


@app.command("get")
def get_value(
    namespace: NamespaceArgument, key: KeyArgument, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.text
) -> None:
    """Print a value. Exits with 1 if it does not exist."""
    answer = run(_get(url, namespace, key))
    if not answer.found:
        gone = f" It was deleted at version {answer.value.version}." if answer.value.deleted else ""
        raise NotFound(f"no value {namespace}/{key}.{gone}")
    if output is Output.json:
        print_json(as_dict(answer.value))
    else:
        typer.echo(answer.value.value_json)


@app.command("set")
def set_value(
    namespace: NamespaceArgument,
    key: KeyArgument,
    value: Annotated[str, typer.Argument(help="Value as JSON; - reads standard input.")],
    if_version: Annotated[
        int, typer.Option(help="Write only if this is the current version; 0: only if it does not exist, -1: always.")
    ] = -1,
    writer: Annotated[str, typer.Option(help="Name of the writer.")] = "",
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Write a value and print its new version."""
    text = sys.stdin.read().strip() if value == "-" else value
    written = run(_set(url, namespace, key, checked_json("the value", text), if_version, writer))
    if output is Output.json:
        print_json(as_dict(written))
    else:
        typer.echo(f"{namespace}/{key} has version {written.version}")


@app.command("delete")
def delete_value(
    namespace: NamespaceArgument, key: KeyArgument, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.text
) -> None:
    """Delete a value. Its version increases, so that --if-version with an old version fails."""
    answer = run(_delete(url, namespace, key))
    if not answer.deleted:
        raise NotFound(f"no value {namespace}/{key}: it was never written.")
    if output is Output.json:
        print_json(as_dict(answer))
    else:
        typer.echo(f"{namespace}/{key} is deleted at version {answer.version}")


@app.command("watch")
def watch_value(
    namespace: NamespaceArgument,
    key: KeyArgument,
    from_version: Annotated[int, typer.Option(min=0, help="Only versions above this one.")] = 0,
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, help="Exit after this many versions; 0 is no limit.")
    ] = 0,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Print every version that the journal still has, in order, then each new one."""
    run(_watch(url, namespace, key, from_version, count, output))


async def _get(url: str, namespace: str, key: str) -> pb.GetValueResponse:
    async with AsyncTapeClient(url) as client:
        return await client.get_value(namespace=namespace, key=key)


async def _set(url: str, namespace: str, key: str, text: str, if_version: int, writer: str) -> pb.ValueRecord:
    async with AsyncTapeClient(url) as client:
        return await client.write_value(
            namespace=namespace, key=key, value_json=text, if_version=if_version, writer=writer
        )


async def _delete(url: str, namespace: str, key: str) -> pb.DeleteValueResponse:
    async with AsyncTapeClient(url) as client:
        return await client.delete_value(namespace=namespace, key=key)


async def _watch(url: str, namespace: str, key: str, from_version: int, count: int, output: Output) -> None:
    page = console()
    shown = 0
    async with AsyncTapeClient(url) as client:
        async for event in client.watch_value(namespace=namespace, key=key, from_version=from_version):
            if output is Output.json:
                print_json(as_dict(event))
            else:
                page.print(_line(event))
            sys.stdout.flush()
            shown += 1
            if shown == count:
                return


def _line(event: pb.ValueEvent) -> Text:
    value = event.value
    line = Text.assemble((f"{value.version:>6} ", "bold"), (f"{moment(value.ts_ms)[11:]} ", "dim"))
    line.append("deleted" if value.deleted else value.value_json, "red" if value.deleted else "")
    if event.prev_version:
        line.append(f"  was {event.prev_value_json}" if event.prev_value_json else "  was deleted", "dim")
    if value.writer:
        line.append(f"  by {value.writer}", "dim")
    return line
