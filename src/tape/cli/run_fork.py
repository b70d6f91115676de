"""`tape runs fork`: begin a run that shares what another one has recorded before a point."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from tape.cli.options import DEFAULT_URL, Output, OutputOption, UrlOption
from tape.cli.output import as_dict, print_json
from tape.client.sync import TapeClient
from tape.errors import InvalidInput
from tape.model.payload import to_json


def fork_run(
    run_id: Annotated[str, typer.Argument(help="Run id, as shown by `tape runs list`.")],
    at: Annotated[
        int | None,
        typer.Option("--at", min=0, help="Share the steps before this decision; the one after the last shares all."),
    ] = None,
    at_seq: Annotated[int, typer.Option("--at-seq", min=0, help="Instead: share the steps before this entry.")] = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="JSON|FIELD=VALUE",
            help="What the decision is in the fork: all of it as JSON, or one field of it; repeatable."
            " [default: the fork decides anew]",
        ),
    ] = None,
    invocation_id: Annotated[str, typer.Option("--invocation", help="Invocation id of the fork. [default: new]")] = "",
    reason: Annotated[str, typer.Option(help="Why, for the journal of the fork.")] = "",
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Begin a run that shares the history of another one up to a decision, and goes on from there.

    Recorded decisions and results are reused and effects are not repeated. The fork owes nothing for them, and its own
    effects get idempotency keys of their own. Recovery workers carry it out, or `tape.durable_run` with its ids.
    """
    if (at is None) == (at_seq == 0):
        raise InvalidInput("Say where to fork: --at DECISION, or --at-seq SEQ.")
    with TapeClient(url) as client:
        decision_json = _changed(client, run_id, at or 0, set_) if set_ else ""
        answer = client.fork_run(
            run_id,
            at_decision=at or 0,
            at_seq=at_seq,
            decision_json=decision_json,
            invocation_id=invocation_id,
            reason=reason,
        )
    if output is Output.json:
        print_json({"run": as_dict(answer.run), "steps": answer.steps, "gates": answer.gates})
        return
    shared = f"{answer.steps} step{'' if answer.steps == 1 else 's'}"
    shared += f" and {answer.gates} answered gate{'' if answer.gates == 1 else 's'}" if answer.gates else ""
    typer.echo(f"{answer.run.run_id} shares {shared} of {run_id}.")


def _changed(client: TapeClient, run_id: str, index: int, settings: list[str]) -> str:
    """The response of the decision with what `--set` says."""
    found = client.get_decision(run_id=run_id, decision_index=index)
    if not found.found:
        raise InvalidInput(f"--set: the run {run_id!r} has no decision {index} that could be changed.")
    try:
        recorded = msgspec.json.decode(found.decision.response_json or "null")
    except msgspec.DecodeError:
        recorded = None
    # `run.decide` records what it got under this name; other clients record their responses as they are.
    is_wrapped = isinstance(recorded, dict) and set(recorded) == {"decision"}
    value: Any = recorded["decision"] if is_wrapped and isinstance(recorded, dict) else recorded
    for setting in settings:
        value = _set(value, setting)
    return to_json({"decision": value}) if is_wrapped else "null" if value is None else to_json(value)


def _set(value: Any, setting: str) -> Any:
    try:
        return msgspec.json.decode(setting)
    except msgspec.DecodeError:
        pass
    path, equals, text = setting.partition("=")
    if not equals or not path:
        raise InvalidInput(f"--set {setting!r} is neither JSON nor FIELD=VALUE; a text is written '\"…\"'.")
    try:
        new = msgspec.json.decode(text)
    except msgspec.DecodeError:
        new = text
    *outer, last = path.split(".")
    if not isinstance(value, dict):
        raise InvalidInput(f"--set {setting!r}: the decision is {to_json(value)[:80]}, which has no fields.")
    copy = msgspec.json.decode(msgspec.json.encode(value))
    inner = copy
    for name in outer:
        inner = inner.setdefault(name, {}) if isinstance(inner, dict) else None
    if not isinstance(inner, dict):
        raise InvalidInput(f"--set {setting!r}: {'.'.join(outer)} of the decision has no fields.")
    inner[last] = new
    return copy
