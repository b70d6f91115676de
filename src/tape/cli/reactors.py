"""`tape reactors`, `tape-outbox`, `tape-pubsub-sub`: recovery workers as processes."""

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
from tape.base.url_mask import mask_urls
from tape.cli.options import DEFAULT_URL, HttpAllowOption, Output, OutputOption, UrlOption
from tape.cli.output import console, print_json, state
from tape.cli.user_code import import_modules, load_object
from tape.connectors import all_registered
from tape.errors import InvalidInput
from tape.reactors import run_outbox_dispatcher, run_reactors

ImportOption = Annotated[
    list[str],
    typer.Option("--import", "-i", help="Module with compensators, status checks or connectors; repeatable."),
]
ConcurrencyOption = Annotated[
    int, typer.Option("--concurrency", min=1, max=256, help="Number of items processed concurrently.")
]
IntervalOption = Annotated[float, typer.Option("--interval", min=0.01, help="Seconds between two passes.")]
OnceOption = Annotated[bool, typer.Option("--once", help="Make one pass, then exit.")]
ClaimerOption = Annotated[
    str, typer.Option("--claimer", help="Lease owner of claims. [default: <host>-<pid>-<random>]")
]

# Outcomes that repeat in every pass are printed once.
_UNCHANGED = ("unregistered", "unknown", "pending", "held", "refused", "waiting")
_REMEMBERED = 10_000


def reactors(
    modules: ImportOption = [],  # noqa: B006 - typer reads it, never mutated
    redrive: Annotated[str, typer.Option(help="module:function that resumes a run; called with its RunState.")] = "",
    runner: Annotated[str, typer.Option(help="module:object, a google-adk Runner that resumes runs.")] = "",
    app_name: Annotated[str, typer.Option("--app", help="Recover only runs of this app.")] = "",
    outbox: Annotated[bool, typer.Option(help="Also dispatch outbox effects.")] = True,
    compact: Annotated[bool, typer.Option(help="Also compact runs, 24 hours after they ended.")] = False,
    interval: IntervalOption = 2.0,
    concurrency: ConcurrencyOption = 1,
    claimer: ClaimerOption = "",
    once: OnceOption = False,
    http_allow: HttpAllowOption = None,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Recover crashed runs, compensate failed ones, reconcile unknown effects, fire timers, dispatch the outbox."""
    import_modules(modules)
    if redrive and runner:
        raise InvalidInput("Use one of --redrive and --runner.")
    driving: dict[str, Any] = {
        "redrive_fn": load_object("--redrive", redrive) if redrive else None,
        "runner": load_object("--runner", runner) if runner else None,
    }
    printer = ReportPrinter(output)
    common: dict[str, Any] = {"claimer": claimer, "once": once, "concurrency": concurrency}

    def react(stop: threading.Event) -> None:
        run_reactors(
            url=url, **driving, **common, app_name=app_name, compact=compact, interval_s=interval, stop=stop,
            on_tick=printer.show,
        )  # fmt: skip

    def send(stop: threading.Event) -> None:
        run_outbox_dispatcher(
            url, **common, interval_s=interval, stop=stop, on_tick=lambda done: printer.show({"outbox": done})
        )

    idle = "" if any(driving.values()) else "; crashed runs are not recovered without --redrive or --runner"
    with printer.live(f"Recovery workers for {mask_urls(url)}{_through() if outbox else ''}{idle}"):
        _together([react, send] if outbox else [react], once=once)


def outbox(
    modules: ImportOption = [],  # noqa: B006 - typer reads it, never mutated
    connector: Annotated[str, typer.Option(help="Dispatch only effects of this connector.")] = "",
    interval: IntervalOption = 1.0,
    max_attempts: Annotated[int, typer.Option(min=1, help="Attempts before an effect is failed.")] = 5,
    concurrency: ConcurrencyOption = 1,
    claimer: ClaimerOption = "",
    once: OnceOption = False,
    http_allow: HttpAllowOption = None,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Dispatch the effects of the outbox."""
    import_modules(modules)
    printer = ReportPrinter(output)
    with printer.live(f"Outbox dispatcher for {mask_urls(url)}{_through()}"):
        run_outbox_dispatcher(
            url,
            connector=connector,
            interval_s=interval,
            claimer=claimer,
            dispatch_max_attempts=max_attempts,
            once=once,
            on_tick=lambda done: printer.show({"outbox": done}),
            concurrency=concurrency,
        )


def pubsub_worker(
    project: Annotated[str, typer.Option(help="Google Cloud project.")],
    subscription: Annotated[str, typer.Option(help="Pub/Sub subscription whose messages name effects.")],
    handle: Annotated[str, typer.Option(help="module:function that performs the effect and returns a DispatchResult.")],
    claimer: ClaimerOption = "",
    lease_ms: Annotated[
        int, typer.Option(min=1000, help="Lease of a claim in milliseconds; renewed while the handler runs.")
    ] = 60_000,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Perform the effects that Pub/Sub messages name."""
    from tape.connectors.pubsub import PubSubSubscriber

    worker = PubSubSubscriber(
        project, subscription, url, load_object("--handle", handle), claimer=claimer, lease_ttl_ms=lease_ms
    )
    with stop_event() as stop:
        worker.run(block=False)
        typer.echo(f"Processing messages of {subscription} for {mask_urls(url)}. Ctrl-C stops it.")
        stop.wait()
        worker.stop()
    typer.echo(f"Stopped: {dict(worker.counts) or 'no messages'}.")


def _through() -> str:
    names = ", ".join(sorted(all_registered()))
    return f", connectors: {names}" if names else ", outbox idle: no connector is registered (--import)"


def _together(loops: list[Callable[[threading.Event], None]], *, once: bool) -> None:
    """Run loops concurrently until one of them ends or a signal arrives."""
    failures: list[BaseException] = []
    with stop_event() as stop:

        def run(loop: Callable[[threading.Event], None]) -> None:
            try:
                loop(stop)
            except BaseException as error:  # raised below
                failures.append(error)
                stop.set()

        threads = [threading.Thread(target=run, args=(loop,), daemon=True) for loop in loops]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.5)  # returns to Python, so that signals are handled
    if failures:
        raise failures[0]


class ReportPrinter:
    """Prints each report of the workers; on a terminal with totals in a status line."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._counts: Counter[str] = Counter()
        self._printed: dict[tuple[str, str], str] = {}
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

    def show(self, tick: dict[str, list[dict[str, Any]]]) -> None:
        """Print the reports of a pass."""
        with self._lock:
            for reactor, reports in tick.items():
                for report in reports:
                    if self._is_new(reactor, report):
                        self._counts[report["outcome"]] += 1
                        self._print(reactor, report)
            if self._status is not None and self._counts:
                counts = " · ".join(f"{count} {outcome}" for outcome, count in sorted(self._counts.items()))
                self._status.update(f"{self._title} · {counts}")

    def _is_new(self, reactor: str, report: dict[str, Any]) -> bool:
        name = report.get("idempotency_key") or report.get("timer_id") or report.get("obligation_seq", "")
        thing = (reactor, f"{report['run_id']}/{name}")
        is_new = self._printed.get(thing) != report["outcome"] or report["outcome"] not in _UNCHANGED
        self._printed[thing] = report["outcome"]
        if len(self._printed) > _REMEMBERED:
            del self._printed[next(iter(self._printed))]
        return is_new

    def _print(self, reactor: str, report: dict[str, Any]) -> None:
        if self._output is Output.json:
            print_json({"reactor": reactor, **report})
            return
        what = report.get("kind") or report.get("tool_name") or report.get("app_name") or ""
        outcome = state(report["outcome"])
        outcome.pad_right(max(12 - len(outcome), 0))
        self._console.print(
            time.strftime("%H:%M:%S"), f"{reactor:13}", outcome, what, report["run_id"], report["reason"], sep="  "
        )
