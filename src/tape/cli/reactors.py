"""`tape reactors`: what brings runs to their end, as a process."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.status import Status

from tape.base.process import stop_event
from tape.cli.options import DEFAULT_URL, HttpAllowOption, Output, OutputOption, UrlOption
from tape.cli.output import console, print_json, state
from tape.cli.user_code import import_modules, load_object
from tape.connectors import all_registered
from tape.errors import InvalidInput
from tape.reactors import run_outbox_dispatcher, run_reactors

ImportOption = Annotated[
    list[str],
    typer.Option(
        "--import", "-i", help="A module to import for the compensators, checks and connectors in it; repeat."
    ),
]
ConcurrencyOption = Annotated[int, typer.Option("--concurrency", min=1, max=256, help="So many at the same time.")]
IntervalOption = Annotated[float, typer.Option("--interval", min=0.01, help="Seconds between two looks.")]
OnceOption = Annotated[bool, typer.Option("--once", help="Make one pass and end.")]
ClaimerOption = Annotated[str, typer.Option("--claimer", help="The name on what this process claims.")]

# What is the same in every pass is told once.
_UNCHANGED = ("unregistered", "unknown", "pending", "held", "refused", "waiting")
_REMEMBERED = 10_000


def reactors(
    modules: ImportOption = [],  # noqa: B006 - typer reads it, nobody changes it
    redrive: Annotated[str, typer.Option(help="module:function that carries a run on; it gets the RunState.")] = "",
    runner: Annotated[str, typer.Option(help="module:object, a google-adk Runner that carries runs on.")] = "",
    app_name: Annotated[str, typer.Option("--app", help="Carry on only runs of this app.")] = "",
    outbox: Annotated[bool, typer.Option(help="Send what is in the outbox, too.")] = True,
    compact: Annotated[bool, typer.Option(help="Compact runs a day after they ended, too.")] = False,
    interval: IntervalOption = 2.0,
    concurrency: ConcurrencyOption = 1,
    claimer: ClaimerOption = "",
    once: OnceOption = False,
    http_allow: HttpAllowOption = None,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Carry runs on, undo what failed ones did, find out what is unknown, fire timers, send the outbox."""
    import_modules(modules)
    if redrive and runner:
        raise InvalidInput("Use one of --redrive and --runner.")
    driving: dict[str, Any] = {
        "redrive_fn": load_object("--redrive", redrive) if redrive else None,
        "runner": load_object("--runner", runner) if runner else None,
    }
    teller = ReportPrinter(output)
    common: dict[str, Any] = {"claimer": claimer, "once": once, "concurrency": concurrency}

    def react(stop: threading.Event) -> None:
        run_reactors(
            url=url, **driving, **common, app_name=app_name, compact=compact, interval_s=interval, stop=stop,
            on_tick=teller.tell,
        )  # fmt: skip

    def send(stop: threading.Event) -> None:
        run_outbox_dispatcher(
            url, **common, interval_s=interval, stop=stop, on_tick=lambda done: teller.tell({"outbox": done})
        )

    resting = "" if any(driving.values()) else "; runs are not carried on without --redrive or --runner"
    with teller.live(f"Reacting at {url}{_through() if outbox else ''}{resting}"):
        _together([react, send] if outbox else [react], once=once)


def outbox(
    modules: ImportOption = [],  # noqa: B006 - typer reads it, nobody changes it
    connector: Annotated[str, typer.Option(help="Send only through this connector.")] = "",
    interval: IntervalOption = 1.0,
    max_attempts: Annotated[int, typer.Option(min=1, help="Attempts before an effect is given up.")] = 5,
    concurrency: ConcurrencyOption = 1,
    claimer: ClaimerOption = "",
    once: OnceOption = False,
    http_allow: HttpAllowOption = None,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Send what runs have left in the outbox."""
    import_modules(modules)
    teller = ReportPrinter(output)
    with teller.live(f"Sending for {url}{_through()}"):
        run_outbox_dispatcher(
            url,
            connector=connector,
            interval_s=interval,
            claimer=claimer,
            dispatch_max_attempts=max_attempts,
            once=once,
            on_tick=lambda done: teller.tell({"outbox": done}),
            concurrency=concurrency,
        )


def pubsub_worker(
    project: Annotated[str, typer.Option(help="The Google Cloud project.")],
    subscription: Annotated[str, typer.Option(help="The subscription whose messages name effects.")],
    handle: Annotated[str, typer.Option(help="module:function that does the work; it answers a DispatchResult.")],
    claimer: ClaimerOption = "",
    lease_ms: Annotated[int, typer.Option(min=1000, help="For how long a claim lasts; it is renewed.")] = 60_000,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Carry out the effects that messages of Pub/Sub name."""
    from tape.connectors.pubsub import PubSubSubscriber

    worker = PubSubSubscriber(
        project, subscription, url, load_object("--handle", handle), claimer=claimer, lease_ttl_ms=lease_ms
    )
    with stop_event() as stop:
        worker.run(block=False)
        typer.echo(f"Working on messages of {subscription} for {url}. End with Ctrl-C.")
        stop.wait()
        worker.stop()
    typer.echo(f"Ended: {dict(worker.counts) or 'no messages'}.")


def _through() -> str:
    names = ", ".join(sorted(all_registered()))
    return f", sending through {names}" if names else ", sending nothing: no connector was registered (--import)"


def _together(loops: list[Callable[[threading.Event], None]], *, once: bool) -> None:
    """Run loops side by side until one of them or a signal ends all."""
    failures: list[BaseException] = []
    with stop_event() as stop:

        def run(loop: Callable[[threading.Event], None]) -> None:
            try:
                loop(stop)
            except BaseException as error:  # handed to the caller
                failures.append(error)
                stop.set()

        threads = [threading.Thread(target=run, args=(loop,), daemon=True) for loop in loops]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.5)  # so that signals are heard
    if failures:
        raise failures[0]


class ReportPrinter:
    """Tells what the reactors do: a line each, and on a terminal how much of it in a status line."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._counts: Counter[str] = Counter()
        self._told: dict[tuple[str, str], str] = {}
        self._lock = threading.Lock()
        self._status: Status | None = None
        self._title = ""
        self._console = console()

    def live(self, title: str) -> Any:
        """The status line, for as long as a `with` block lasts."""
        self._title = title
        screen = Console(stderr=True, highlight=False)
        if screen.is_terminal:
            self._status = Status(title, console=screen)
            return self._status
        if self._output is Output.text:
            typer.echo(f"{title}.")
        return nullcontext()

    def tell(self, tick: dict[str, list[dict[str, Any]]]) -> None:
        """Tell what a pass has done."""
        with self._lock:
            for reactor, reports in tick.items():
                for report in reports:
                    if self._is_news(reactor, report):
                        self._counts[report["outcome"]] += 1
                        self._show(reactor, report)
            if self._status is not None and self._counts:
                counts = " · ".join(f"{count} {outcome}" for outcome, count in sorted(self._counts.items()))
                self._status.update(f"{self._title} · {counts}")

    def _is_news(self, reactor: str, report: dict[str, Any]) -> bool:
        name = report.get("idempotency_key") or report.get("timer_id") or report.get("obligation_seq", "")
        thing = (reactor, f"{report['run_id']}/{name}")
        is_news = self._told.get(thing) != report["outcome"] or report["outcome"] not in _UNCHANGED
        self._told[thing] = report["outcome"]
        if len(self._told) > _REMEMBERED:
            del self._told[next(iter(self._told))]
        return is_news

    def _show(self, reactor: str, report: dict[str, Any]) -> None:
        if self._output is Output.json:
            print_json({"reactor": reactor, **report})
            return
        what = report.get("kind") or report.get("tool_name") or report.get("app_name") or ""
        outcome = state(report["outcome"])
        outcome.pad_right(max(12 - len(outcome), 0))
        self._console.print(
            time.strftime("%H:%M:%S"), f"{reactor:13}", outcome, what, report["run_id"], report["reason"], sep="  "
        )
