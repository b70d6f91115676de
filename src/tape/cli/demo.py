"""`tape demo`: things go wrong before your eyes, and come out right."""

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
from tape.demo.stage import Stage, open_stage
from tape.reactors import reconcile_once

app = typer.Typer(
    no_args_is_help=True,
    help="Show a failure and how Tape deals with it, with real processes on a server of their own.",
)


@app.callback()
def demo() -> None:
    """Show a failure and how Tape recovers from it, with real processes and a temporary server."""
    require_server_libraries("tape demo")


@app.command("crash-resume")
def crash_resume() -> None:
    """An agent is killed after it moved money and before it could say so; another one finishes, moving none twice."""
    console = Console(highlight=False)
    with open_stage() as stage:
        _title(console, "An agent begins, and is killed (kill -9) in the middle of its second transfer")
        agent = stage.agent("--hang-after", "bonds")
        for line in _lines(agent):
            console.print(f"  {line}")
            if "not told Tape" in line:
                agent.kill()
        console.print(f"  [red]killed[/red] (exit code {agent.wait()})")
        _show_run(console, stage, "What Tape knows: the second transfer is pending, nobody can tell if it happened")

        _title(console, "Another process carries the run on")
        _play(console, stage.agent())
        _show_run(console, stage, "What Tape knows now")
        _show_book(console, stage.bank)
        repeated = len(stage.bank.requests) - len(stage.bank.book)
        console.print(
            f"\nThe model was asked once. The bank was asked {len(stage.bank.requests)} times and moved money"
            f" {len(stage.bank.book)} times: {repeated} request came again with its key, and was recognised."
        )


@app.command("unknown-reconcile")
def unknown_reconcile() -> None:
    """The bank's answer is lost. Nothing is repeated blindly: the bank is asked, and the run goes on from there."""
    console = Console(highlight=False)
    with open_stage() as stage:
        _title(console, "An agent loses the bank's answer to its second transfer")
        _play(console, stage.agent("--lose-answer-of", "bonds"))
        _show_run(console, stage, "What Tape knows: the outcome is unknown")

        _title(console, "A reactor asks the bank, by the transfer's key")
        make_tools(stage.bank)  # its status check is known to this process now
        with TapeClient(stage.url) as client:
            for report in reconcile_once(stage.url, client=client):
                console.print(f"  reactor: {report['tool_name']} is {report['outcome']} ({report['reason']})")
        _show_run(console, stage, "What Tape knows now")

        _title(console, "The agent carries on")
        _play(console, stage.agent())
        _show_book(console, stage.bank)
        console.print(f"\nThe bank was asked to move money {len(stage.bank.requests)} times: nothing was repeated.")


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


def _show_run(console: Console, stage: Stage, title: str) -> None:
    _title(console, title)
    with TapeClient(stage.url) as client:
        [run] = client.list_runs(app_name=APP).runs
    runs.show_run(run.run_id, runs.RunView.tree, stage.url, Output.text)


def _show_book(console: Console, bank: Bank) -> None:
    _title(console, "The bank's book")
    for number, line in enumerate(bank.book, 1):
        console.print(f"  T-{number:03}  {line.amount:>7,}  {line.account}")
    assert [line.account for line in bank.book] == list(PLAN), "money was moved twice, or not at all"
