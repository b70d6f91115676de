"""`tape demo`: failures and their recovery, live."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import typer
from rich.console import Console

from tape import TapeClient
from tape.base.extras import require_server_libraries
from tape.cli import runs
from tape.cli.options import Output
from tape.demo.agent import APP, PLAN, make_tools
from tape.demo.bank import Bank
from tape.demo.environment import DemoEnvironment, open_environment
from tape.reactors import reconcile_once

app = typer.Typer(
    no_args_is_help=True,
    help="Show a failure and how Tape recovers from it, with real processes and a temporary server.",
)


@app.callback()
def demo() -> None:
    """Show a failure and how Tape recovers from it, with real processes and a temporary server."""
    require_server_libraries("tape demo")


@app.command("crash-resume")
def crash_resume() -> None:
    """Kill an agent after a transfer and before it is recorded; another process finishes without a second transfer."""
    console = Console(highlight=False)
    with open_environment() as environment:
        _title(console, "An agent starts, and is killed (kill -9) during its second transfer")
        agent = environment.agent("--hang-after", "bonds")
        for line in _lines(agent):
            console.print(f"  {line}")
            if "not confirmed" in line:
                agent.kill()
        console.print(f"  [red]killed[/red] (exit code {agent.wait()})")
        _show_run(console, environment, "The journal: the second transfer is pending, its outcome is not known")

        _title(console, "Another process resumes the run")
        _play(console, environment.agent())
        _show_run(console, environment, "The journal now")
        _show_book(console, environment.bank)
        repeated = len(environment.bank.requests) - len(environment.bank.book)
        console.print(
            f"\nThe model was asked once. The bank was asked {len(environment.bank.requests)} times and moved money"
            f" {len(environment.bank.book)} times: {repeated} request was a duplicate with the same key, and was"
            " recognised."
        )


@app.command("unknown-reconcile")
def unknown_reconcile() -> None:
    """Lose the bank's answer. Nothing is repeated blindly: the bank is queried, and the run resumes from there."""
    console = Console(highlight=False)
    with open_environment() as environment:
        _title(console, "An agent loses the bank's answer to its second transfer")
        _play(console, environment.agent("--lose-answer-of", "bonds"))
        _show_run(console, environment, "The journal: the outcome is unknown")

        _title(console, "A reconciler queries the bank, by the key of the transfer")
        make_tools(environment.bank)  # registers its status check in this process
        with TapeClient(environment.url) as client:
            for report in reconcile_once(environment.url, client=client):
                console.print(f"  reactor: {report['tool_name']} is {report['outcome']} ({report['reason']})")
        _show_run(console, environment, "The journal now")

        _title(console, "The agent resumes")
        _play(console, environment.agent())
        _show_book(console, environment.bank)
        console.print(
            f"\nThe bank was asked to move money {len(environment.bank.requests)} times: nothing was repeated."
        )


def _title(console: Console, text: str) -> None:
    console.print(f"\n[bold]{text}[/bold]")


def _play(console: Console, agent: subprocess.Popen[str]) -> None:
    for line in _lines(agent):
        console.print(f"  {line}")
    agent.wait()


def _lines(agent: subprocess.Popen[str]) -> Iterator[str]:
    assert agent.stdout is not None
    with agent.stdout:
        yield from (line.rstrip("\n") for line in agent.stdout)


def _show_run(console: Console, environment: DemoEnvironment, title: str) -> None:
    _title(console, title)
    with TapeClient(environment.url) as client:
        [run] = client.list_runs(app_name=APP).runs
    runs.show_run(run.run_id, runs.RunView.tree, environment.url, Output.text)


def _show_book(console: Console, bank: Bank) -> None:
    _title(console, "The bank's book")
    for number, line in enumerate(bank.book, 1):
        console.print(f"  T-{number:03}  {line.amount:>7,}  {line.account}")
    assert [line.account for line in bank.book] == list(PLAN), "money was moved twice, or not at all"
