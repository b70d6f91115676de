"""`tape runs diff`: the decisions, effects and results of two runs side by side."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from tape.cli.options import DEFAULT_URL, Output, OutputOption, UrlOption
from tape.cli.output import cut, print_json, print_table
from tape.client.sync import TapeClient
from tape.durable.history import fetch_history
from tape.durable.run_difference import StepDifference, compare_runs
from tape.model.payload import to_json


def diff_runs(
    left: Annotated[str, typer.Argument(help="Run id.")],
    right: Annotated[str, typer.Argument(help="Run id to compare it with.")],
    only_differences: Annotated[bool, typer.Option("--changed", help="Leave out steps that are the same.")] = False,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Compare two runs step by step: decisions, effects, gates and how they ended. Exits with 1 if they differ.

    Idempotency keys are compared without the id of their run.
    """
    with TapeClient(url) as client:
        steps = compare_runs(fetch_history(client, left), fetch_history(client, right))
    differing = [step for step in steps if step.differs]
    shown = differing if only_differences else steps
    if output is Output.json:
        print_json({"left": left, "right": right, "same": not differing, "steps": [asdict(each) for each in shown]})
    else:
        rows = ((_mark(step), step.step, _side(step.left), _side(step.right), step.detail) for step in shown)
        print_table(("", "step", "left", "right", "difference"), rows, nothing="The runs are the same.")
    if differing:
        raise typer.Exit(1)


def _mark(step: StepDifference) -> str:
    if step.left is None:
        return "+"
    if step.right is None:
        return "-"
    return "~" if step.differs else "="


def _side(side: dict[str, Any] | None) -> str:
    if side is None:
        return ""
    texts = [str(side["status"]).lower()] if "status" in side else []
    texts += [to_json(side[name]) for name in ("response", "error") if name in side]
    return cut(" ".join(texts))
