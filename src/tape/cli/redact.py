"""`tape redact`: show what redaction would hide, without a server."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tape.base.config import load_redaction
from tape.base.extras import require_server_libraries
from tape.cli.options import Output, OutputOption
from tape.cli.output import print_json, print_table
from tape.errors import InvalidInput, InvalidJson, RedactionFailed

app = typer.Typer(help="Show what redaction hides in payloads.", no_args_is_help=True)


class HiddenSpan(msgspec.Struct, frozen=True):
    """A secret that would be hidden: the path of keys to it, the rule, and its size in characters."""

    path: str
    rule: str
    chars: int


class LineResult(msgspec.Struct, frozen=True):
    """One line: what would be hidden, and the payload that would be stored."""

    line: int
    hidden: list[HiddenSpan]
    payload: str = ""
    error: str = ""


@app.callback()
def _group() -> None:
    """Show what redaction hides in payloads."""


@app.command("test")
def show_hidden(
    file: Annotated[str, typer.Argument(help="File with one JSON payload on each line; - reads standard input.")],
    tenant: Annotated[str, typer.Option(help="Apply the policy of this tenant, from [redaction] of tape.toml.")] = "",
    config: Annotated[Path | None, typer.Option(help="Configuration file.", show_default="tape.toml")] = None,
    output: OutputOption = Output.text,
) -> None:
    """Show which values of payloads would be hidden, and by which rule. Exits with 1 if a payload would be rejected."""
    require_server_libraries("tape redact")
    results = list(_results(_lines(file), tenant, config))
    if output is Output.json:
        for result in results:
            print_json(result)
    else:
        rows = [
            *((str(each.line), found.path, found.rule, str(found.chars)) for each in results for found in each.hidden),
            *((str(each.line), "", f"rejected: {each.error}", "") for each in results if each.error),
        ]
        print_table(("line", "path", "rule", "chars"), rows, "Nothing would be hidden.")
        touched = sum(bool(each.hidden) for each in results)
        typer.echo(f"{touched} of {len(results)} payloads would be changed.")
    if any(each.error for each in results):
        raise typer.Exit(1)


def _lines(file: str) -> list[str]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}.") from error
    return text.split("\n")


def _results(lines: Iterable[str], tenant: str, config: Path | None) -> Iterator[LineResult]:
    from tape.engine.security.redaction import TenantRedactors, replace_spans

    policies, key = load_redaction(file=config)
    redactor = TenantRedactors((), policies, key).of(tenant)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            msgspec.json.decode(line)
            found = redactor.find(line)
        except (RedactionFailed, InvalidJson, msgspec.DecodeError) as error:
            yield LineResult(number, [], error=str(error))
            continue
        hidden = [HiddenSpan(each.path, each.rule, each.end - each.start) for each in found]
        yield LineResult(number, hidden, payload=replace_spans(line, found))
