"""`tape relay`: deliver the journal to a sink."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from tape.base.process import stop_event
from tape.cli.options import DEFAULT_URL, HttpAllowOption, MetricsOption, UrlOption, check_predicate, warn_of_secret
from tape.cli.telemetry import serve_metrics
from tape.errors import InvalidInput
from tape.model.message import check_body_format
from tape.sinks.dead_letters import Policy
from tape.sinks.metrics import RelayMetrics, RelayStatus
from tape.sinks.names import open_sink
from tape.sinks.redrive import redrive_dead_letters
from tape.sinks.relay import run_outbox_relay

EVERY_LINE_S = 10


def relay(
    context: typer.Context,
    sink: Annotated[
        str,
        typer.Option(
            "--sink",
            help="Sink: log, log:FILE, webhook:URL, nats:URL[#SUBJECT], kafka:SERVERS/TOPIC or pubsub:PROJECT/TOPIC.",
        ),
    ],
    cursor: Annotated[str, typer.Option("--cursor", help="File that stores the cursor across restarts.")] = "",
    subject: Annotated[
        str, typer.Option("--subject", "-s", help="Only subjects that match this pattern, e.g. /tape/effect/**")
    ] = "",
    where: Annotated[str, typer.Option("--where", "-w", help="Only entries that match this CEL predicate.")] = "",
    run_id: Annotated[str, typer.Option("--run", help="Only entries of this run.")] = "",
    kind: Annotated[str, typer.Option(help="Only entries of this kind.")] = "",
    policy: Annotated[
        str, typer.Option(help="What to do with an entry that the sink rejects: block, skip or dead_letter.")
    ] = "block",
    dead_letter: Annotated[
        str, typer.Option(help="With --policy dead_letter: file or subject for rejected entries.")
    ] = "",
    shard: Annotated[str, typer.Option(help="Only runs of this shard, e.g. 0/4 for the first of four.")] = "0/1",
    header: Annotated[
        list[str] | None, typer.Option("--header", help="Webhook header, 'Name: value'; repeatable.")
    ] = None,
    secret: Annotated[
        str, typer.Option(envvar="TAPE_WEBHOOK_SECRET", help="Webhook secret to sign bodies with (whsec_<base64>).")
    ] = "",
    allow_private: Annotated[bool, typer.Option(help="Webhooks: allow private and loopback addresses.")] = False,
    concurrency: Annotated[int, typer.Option(help="Webhooks: number of runs delivered concurrently.")] = 1,
    body: Annotated[str, typer.Option(help="Body format: standard, expanded or cloudevents.")] = "standard",
    once: Annotated[bool, typer.Option(help="Exit after the entry that is the head at start.")] = False,
    redrive: Annotated[
        str,
        typer.Option(
            help="Deliver the dead letters of this file or subject to the sink again, then exit. Rejected ones stay."
        ),
    ] = "",
    metrics_listen: MetricsOption = "",
    http_allow: HttpAllowOption = None,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Deliver every entry to a sink, at least once and in order per run. Resumes from its cursor after a restart."""
    warn_of_secret(context, "secret", "set TAPE_WEBHOOK_SECRET")
    check_predicate(where)
    number, shards = _shard(shard)
    target = open_sink(
        sink,
        headers=header or [],
        secret=secret,
        allow_private=allow_private,
        concurrency=concurrency,
        body=check_body_format(body),
    )
    if redrive:
        try:
            _redrive(url, target, redrive)
        finally:
            target.close()
        return
    metrics, line = RelayMetrics(), _StatusLine()
    try:
        if metrics_listen:
            serve_metrics(metrics.registry, metrics_listen)
        with stop_event() as stop:
            run_outbox_relay(
                url,
                target,
                cursor_path=cursor,
                subject_pattern=subject,
                predicate_cel=where,
                run_id=run_id,
                kind=kind,
                policy=_policy(policy),
                dead_letter=dead_letter,
                shard=number,
                shards=shards,
                once=once,
                metrics=metrics,
                on_status=line.show,
                stop=stop,
            )
    finally:
        line.end(metrics.status)
        target.close()


def _redrive(url: str, sink: Any, location: str) -> None:
    """Deliver dead letters again; exits with 1 if some of them stay."""
    done = redrive_dead_letters(url, sink, location)
    typer.echo(f"{done.delivered} delivered, {done.rejected} rejected again, {done.unreadable} not deliverable")
    if done.rejected or done.unreadable:
        raise typer.Exit(1)


class _StatusLine:
    """One line that is overwritten on a terminal; without a terminal a new line every 10 s."""

    def __init__(self) -> None:
        self._calls = 0

    def show(self, status: RelayStatus) -> None:
        """Show the status."""
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{status}"[:200])
        elif self._calls % EVERY_LINE_S == 0:
            sys.stderr.write(f"{status}\n")
        sys.stderr.flush()
        self._calls += 1

    def end(self, status: RelayStatus) -> None:
        """Print the final status."""
        sys.stderr.write(f"\r\x1b[K{status}\n" if sys.stderr.isatty() else f"{status}\n")


def _shard(text: str) -> tuple[int, int]:
    number, slash, shards = text.partition("/")
    if not slash or not number.isdecimal() or not shards.isdecimal():
        raise InvalidInput(f"--shard {text!r} must look like 0/4: the first of four.")
    return int(number), int(shards)


def _policy(text: str) -> Policy:
    if text not in ("block", "skip", "dead_letter"):
        raise InvalidInput(f"--policy {text!r} must be block, skip or dead_letter.")
    return text  # type: ignore[return-value]  # one of the three
