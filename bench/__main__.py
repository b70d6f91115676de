"""`python -m bench [question …]`: one table per question, and the same as Markdown."""

from __future__ import annotations

import argparse
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from rich.console import Console

from bench.lab import Lab
from bench.machine import describe
from bench.options import STORES, Options
from bench.table import Table

# Each is a module of this package with a `TITLE` and a `run`.
QUESTIONS = (
    "append",
    "processes",
    "tls",
    "witness",
    "latency",
    "ledgers",
    "durable",
    "reactions",
    "dispatch",
    "replay",
    "live",
    "stream",
    "subjects",
    "predicate",
    "session",
    "relay",
    "ingress",
    "spool",
    "outage",
    "checks",
    "damage",
    "verify",
    "pipeline",
    "scale",
    "growth",
    "routing",
    "subscriptions",
    "messages",
    "aggregate",
    "pools",
    "weight",
    "startup",
    "beside",
)
# Wide enough for every table where the terminal does not say.
WIDTH = 200
PROGRESS_S = 10.0


class Question(Protocol):
    """What a module of this package offers."""

    TITLE: str

    def run(self, options: Options) -> list[Table]:
        """Measure; the answer as tables."""


def main(argv: list[str] | None = None) -> None:
    """Ask the questions and print what comes out."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measures Tape, side by side with peers.")
    parser.add_argument("question", nargs="*", help=f"{', '.join(QUESTIONS)}; all of them if none is named")
    parser.add_argument("--quick", action="store_true", help="small loads: shows that it works, not how fast")
    parser.add_argument("--store", action="append", choices=STORES, help="only this store (may be repeated)")
    parser.add_argument("--minutes", type=float, help="outage: how long it lasts (10)")
    parser.add_argument("--rate", type=int, help="outage: messages a second (1,000)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the tables there")
    arguments = parser.parse_args(argv)
    if unknown := set(arguments.question) - set(QUESTIONS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(QUESTIONS)}")

    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    stores = tuple(arguments.store or STORES)
    document = []
    with Lab() as lab:
        facts = describe(lab, with_postgres="postgres" in stores)
        console.print(*(f"[bold]{name}[/bold] {fact}" for name, fact in facts.items()), sep="\n", highlight=False)
        for name in arguments.question or QUESTIONS:
            question = cast(Question, import_module(f"bench.{name}"))
            with console.status(question.TITLE) as status:
                options = Options(
                    lab,
                    arguments.quick,
                    stores,
                    report=status.update if console.is_terminal else _ProgressLines().report,
                    minutes=arguments.minutes,
                    rate=arguments.rate,
                )
                tables = question.run(options)
            for table in tables:
                console.print()
                console.print(table.for_terminal())
            document += [table.as_markdown() for table in tables]
    if arguments.markdown:
        arguments.markdown.write_text("\n".join([_machine(facts), *document]))


class _ProgressLines:
    """Progress where there is no terminal: lines on stderr, at most one in 10 seconds."""

    def __init__(self) -> None:
        self._last = float("-inf")

    def report(self, text: str) -> None:
        """Write the line, unless the one before is too new."""
        if time.monotonic() - self._last >= PROGRESS_S:
            self._last = time.monotonic()
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def _machine(facts: dict[str, str]) -> str:
    return "".join(f"- {name}: {fact}\n" for name, fact in facts.items())


if __name__ == "__main__":
    main()
