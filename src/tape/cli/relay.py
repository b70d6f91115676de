"""`tape relay`: hand the journal to a sink."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tape.base.process import stop_event
from tape.cel import compile_predicate
from tape.cli.options import DEFAULT_URL, HttpAllowOption, UrlOption
from tape.errors import InvalidInput
from tape.sinks.metrics import RelayMetrics, RelayStatus
from tape.sinks.names import open_sink
from tape.sinks.policy import Policy
from tape.sinks.relay import run_outbox_relay

EVERY_LINE_S = 10


def relay(
    sink: Annotated[
        str,
        typer.Option(
            "--sink",
            help="Where to: log, log:FILE, webhook:URL, nats:URL[#SUBJECT], kafka:SERVERS/TOPIC, pubsub:PROJECT/TOPIC.",
        ),
    ],
    cursor: Annotated[str, typer.Option("--cursor", help="File that keeps the position over a restart.")] = "",
    subject: Annotated[str, typer.Option("--subject", "-s", help="Only subjects that fit, e.g. /tape/effect/**")] = "",
    where: Annotated[str, typer.Option("--where", "-w", help="Only entries that this CEL text is true of.")] = "",
    run_id: Annotated[str, typer.Option("--run", help="Only this run.")] = "",
    kind: Annotated[str, typer.Option(help="Only this kind.")] = "",
    policy: Annotated[
        str, typer.Option(help="What to do with an entry that is never taken: block, skip or dead_letter.")
    ] = "block",
    dead_letter: Annotated[str, typer.Option(help="File or subject for such entries.")] = "",
    shard: Annotated[str, typer.Option(help="Only the runs of one shard of several, e.g. 0/4.")] = "0/1",
    header: Annotated[list[str] | None, typer.Option("--header", help="For webhooks: 'Name: value'.")] = None,
    secret: Annotated[
        str, typer.Option(envvar="TAPE_WEBHOOK_SECRET", help="For webhooks: sign bodies (whsec_<base64>).")
    ] = "",
    allow_private: Annotated[bool, typer.Option(help="For webhooks: allow addresses of your own network.")] = False,
    concurrency: Annotated[int, typer.Option(help="For webhooks: how many runs at once.")] = 1,
    once: Annotated[bool, typer.Option(help="Stop at the entries that are there now.")] = False,
    metrics_listen: Annotated[str, typer.Option(help="Serve Prometheus metrics here, e.g. 127.0.0.1:9464.")] = "",
    http_allow: HttpAllowOption = None,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Hand every entry to a sink, at least once and in the order of each run. Ctrl-C ends it; it knows its place."""
    compile_predicate(where)  # a text that does not compile is told before anybody is asked
    number, shards = _shard(shard)
    target = open_sink(sink, headers=header or [], secret=secret, allow_private=allow_private, concurrency=concurrency)
    metrics, line = RelayMetrics(), _StatusLine()
    try:
        if metrics_listen:
            _serve(metrics, metrics_listen)
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


class _StatusLine:
    """One line that is written over on a terminal, and a line now and then elsewhere."""

    def __init__(self) -> None:
        self._calls = 0

    def show(self, status: RelayStatus) -> None:
        """Show how it does."""
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{status}"[:200])
        elif self._calls % EVERY_LINE_S == 0:
            sys.stderr.write(f"{status}\n")
        sys.stderr.flush()
        self._calls += 1

    def end(self, status: RelayStatus) -> None:
        """Leave the last word standing."""
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


def _serve(metrics: RelayMetrics, listen: str) -> None:
    from prometheus_client import start_http_server

    host, _, port = listen.rpartition(":")
    if not port.isdecimal():
        raise InvalidInput(f"--metrics-listen {listen!r} must look like 127.0.0.1:9464.")
    start_http_server(int(port), host or "127.0.0.1", registry=metrics.registry)
