"""`tape subscriptions`: validate and register documents, show subscriptions and change their state."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tape.cli.manifests import render
from tape.cli.options import (
    DEFAULT_SERVER,
    DEFAULT_URL,
    GrpcUrlOption,
    HttpUrlOption,
    Output,
    OutputOption,
    ServerOption,
    read_document,
)
from tape.cli.output import print_facts, print_json, print_table
from tape.errors import InvalidDocument, UnknownSubscription
from tape.subscriptions.api_client import Control, connect
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.document.validator import parse_subscription

app = typer.Typer(help="Validate, register, show and control subscriptions.", no_args_is_help=True)

FileArgument = Annotated[Path, typer.Argument(help="YAML document of kind Subscription.", metavar="FILE")]
WhichArgument = Annotated[str, typer.Argument(help="Path or id of a subscription.", metavar="PATH|ID")]


@app.command()
def validate(
    files: Annotated[list[Path], typer.Argument(help="YAML documents of kind Subscription.", metavar="FILE…")],
) -> None:
    """Validate documents without a server and list all problems. Exits with 1 if there are any."""
    wrong = 0
    for file in files:
        try:
            subscription = parse_subscription(read_document(file))
        except InvalidDocument as error:
            wrong += 1
            for problem in error.problems:
                typer.echo(f"{file}: {problem}", err=True)
            continue
        typer.echo(f"{file}: {_describe(subscription)}")
    if wrong:
        raise typer.Exit(1)


@app.command()
def register(
    file: FileArgument,
    server: ServerOption = DEFAULT_SERVER,
    output: OutputOption = Output.text,
) -> None:
    """Store a document in the catalog and register its subscription."""
    content = read_document(file)
    subscription = parse_subscription(content)
    control = connect(server)
    document = control.register_document(content)
    status = control.register(subscription.path)
    if output is Output.json:
        print_json(status | {"version": document["version"]})
        return
    typer.echo(f"{status['path']} version {document['version']} is {status['state']}, id {status['subscription_id']}.")
    _warn(status)


@app.command("list")
def list_subscriptions(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also deactivated subscriptions.")] = False,
    server: ServerOption = DEFAULT_SERVER,
    output: OutputOption = Output.text,
) -> None:
    """List registered subscriptions, newest first."""
    found = [each for each in connect(server).list() if everything or each["state"] != "DEACTIVATED"]
    if output is Output.json:
        print_json(found)
        return
    print_table(
        ("id", "path", "state", "last event", "since"),
        (
            (each["subscription_id"], each["path"], _state(each), each["last_event_type"], each["updated_at"])
            for each in found
        ),
        nothing="No subscriptions are registered.",
    )
    for each in found:
        for reason in each.get("held", {}).get("reasons", ()):
            typer.echo(f"{each['path']} is held: {reason}", err=True)


@app.command("show")
def show_subscription(
    which: WhichArgument,
    server: ServerOption = DEFAULT_SERVER,
    output: OutputOption = Output.text,
) -> None:
    """Show one subscription: its state and the settings of its document."""
    control = connect(server)
    status = _find(control, which)
    content = control.document(status["path"])
    if output is Output.json:
        print_json(status | {"content": content})
        return
    print_facts(
        {
            "path": status["path"],
            "id": status["subscription_id"],
            "state": _state(status),
            **{f"held {number}": reason for number, reason in enumerate(status.get("held", {}).get("reasons", ()), 1)},
            "since": f"{status['updated_at']} ({status['last_event_type']})",
            **_facts(parse_subscription(content, status["path"])),
        }
    )


@app.command()
def activate(
    which: WhichArgument,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Activate although a playbook or secret is missing: messages are held until then."
        ),
    ] = False,
    server: ServerOption = DEFAULT_SERVER,
    output: OutputOption = Output.text,
) -> None:
    """Start receiving messages. Refused while a playbook or secret is missing, with everything that is."""
    control = connect(server)
    status = control.act(_find(control, which)["subscription_id"], "activate", force=force)
    _print_state(status, output)
    if output is Output.text:
        _warn(status)


def _add(action: str, sentence: str) -> None:
    def command(
        which: WhichArgument,
        server: ServerOption = DEFAULT_SERVER,
        output: OutputOption = Output.text,
    ) -> None:
        control = connect(server)
        _print_state(control.act(_find(control, which)["subscription_id"], action), output)

    app.command(action, help=sentence)(command)


for _action, _sentence in {
    "pause": "Stop fetching until resumed; new messages wait at the source.",
    "resume": "Resume after a pause.",
    "drain": "Finish fetched messages and fetch no more.",
    "deactivate": "End a subscription; to run it again, register it again.",
}.items():
    _add(_action, _sentence)


def _print_state(status: dict[str, Any], output: Output) -> None:
    if output is Output.json:
        print_json(status)
    else:
        typer.echo(f"{status['path']} is {status['state']}.")


def _state(status: dict[str, Any]) -> str:
    return f"{status['state']}, held" if status.get("held") else str(status["state"])


def _warn(status: dict[str, Any]) -> None:
    """Print what a subscription lacks to start runs, and what only delays them."""
    for text in (*status.get("problems", ()), *status.get("warnings", ())):
        typer.echo(f"warning: {text}", err=True)


@app.command()
def outage(
    which: WhichArgument,
    every: Annotated[bool, typer.Option("--all", "-a", help="Show all outages, not only the last one.")] = False,
    server: HttpUrlOption = DEFAULT_SERVER,
    url: GrpcUrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Show the timeline of a downstream outage, from the journal."""
    from tape.cli.outages import read_outages, show_outage
    from tape.client import TapeClient

    control = connect(server)
    with TapeClient(url) as client:
        found = read_outages(client, _find(control, which)["path"])
    shown = found if every else found[-1:]
    if output is Output.json:
        print_json(shown)
        return
    if not shown:
        typer.echo("The journal has no outage of this subscription.")
    for each in shown:
        show_outage(each)


app.command()(render)


def _find(control: Control, which: str) -> dict[str, Any]:
    """A subscription by its id, or the newest registration of its path."""
    if which.isascii() and which.isdecimal():
        return control.status(which)
    found = control.latest(which)
    if found is None:
        raise UnknownSubscription(f"no subscription {which!r} is registered; see `tape subscriptions list`.")
    return found


def _describe(subscription: Subscription) -> str:
    facts = _facts(subscription)
    return f"{subscription.path} is valid: {facts['source']} to {facts['runs']}."


def _facts(subscription: Subscription) -> dict[str, str]:
    spec = subscription.spec
    how = "push" if spec.mode == "push" else f"{spec.activation} pull"
    limits = (
        f"{spec.max_in_flight} in flight" if spec.max_in_flight else "",
        f"{spec.limits.max_dispatch_per_sec} a second" if spec.limits.max_dispatch_per_sec else "",
    )
    facts = {
        "source": f"{spec.source}, {how}" + (f" ({spec.cadence})" if spec.cadence else ""),
        "endpoint": spec.ingress.gateway_path if spec.ingress else "",
        "runs": f"{spec.dispatch.playbook} on {spec.dispatch.execution_pool or 'the pool of its path'}",
        "headers": ", ".join(f"{rule.header} → {rule.controls}" for rule in spec.headers.directives),
        "dedup": f"{spec.dedup.window_secs} s" if spec.dedup.enabled else "",
        "limits": ", ".join(filter(None, limits)),
        "spool": f"{spec.spool.mode} in {spec.spool.backend}" if spec.spool.mode != "off" else "",
    }
    return {name: fact for name, fact in facts.items() if fact}
