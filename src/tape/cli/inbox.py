"""`tape inbox`: gates that wait for a person, and their answers."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tape.base.clock import now_ms
from tape.cli.options import DEFAULT_URL, Output, OutputOption, UrlOption, run
from tape.cli.output import (
    age,
    as_dict,
    checked_json,
    cut,
    moment,
    parse_age,
    print_facts,
    print_json,
    print_table,
    state,
    state_of,
)
from tape.client import AsyncTapeClient
from tape.errors import InvalidInput, NotFound
from tape.model.payload import to_json
from tape.proto import tape_pb2 as pb


class InboxGroup(TyperGroup):
    """The commands; `tape inbox` and `tape inbox --app …` list."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command; without one it is `list`."""
        if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=InboxGroup, help="List gates that wait for a person, show one, and answer it.")


class GateStateOption(StrEnum):
    """State of a gate."""

    waiting = "waiting"
    answered = "answered"
    timed_out = "timed_out"
    closed = "closed"
    every = "all"


@app.command("list")
def list_gates(
    app_name: Annotated[str, typer.Option("--app", help="Only gates of runs of this app.")] = "",
    gate: Annotated[str, typer.Option("--gate", help="Only gates of this name.")] = "",
    risk: Annotated[str, typer.Option("--risk", help="Only gates of this risk.")] = "",
    due_within: Annotated[
        str, typer.Option("--due-within", help="Only gates whose deadline is closer than this: 30m, 2h, 7d.")
    ] = "",
    wanted: Annotated[
        GateStateOption, typer.Option("--state", help="Only gates in this state.")
    ] = GateStateOption.waiting,
    cursor: Annotated[str, typer.Option("--cursor", help="Cursor of the page before.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000, help="Maximum number of gates.")] = 50,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """List gates: waiting ones oldest first, others newest first."""
    now = now_ms()
    request = pb.ListGatesRequest(
        state="GATE_STATE_UNSPECIFIED" if wanted is GateStateOption.every else f"GATE_STATE_{wanted.name.upper()}",
        app_name=app_name,
        gate_name=gate,
        risk=risk,
        deadline_before_ms=now + parse_age("--due-within", due_within) if due_within else 0,
        limit=limit,
        cursor=cursor,
    )
    page = run(_list(url, request))
    if output is Output.json:
        print_json({"gates": [as_dict(each) for each in page.gates], "cursor": page.cursor})
        return
    print_table(
        ("run", "gate", "state", "risk", "since", "deadline", "app", "asks", "answer"),
        (
            (
                each.run_id,
                each.gate_name,
                state(state_of(pb.GateState, each.state)),
                each.risk,
                f"{age(now - each.created_at_ms)} ago",
                _deadline(each, now),
                each.app_name,
                cut(each.payload_json),
                cut(_answer(each)),
            )
            for each in page.gates
        ),
        nothing="No gates wait for an answer." if wanted is GateStateOption.waiting else "No gates found.",
    )
    if page.cursor:
        typer.echo(f"More gates follow: --cursor '{page.cursor}'", err=True)


@app.command("show")
def show_gate(
    run_id: Annotated[str, typer.Argument(help="Run id, as shown by `tape inbox`.")],
    gate: Annotated[str, typer.Argument(help="Name of the gate. [default: the one that the run waits at]")] = "",
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Show a gate with its whole payload."""
    found = run(_find(url, run_id, gate))
    if output is Output.json:
        print_json(as_dict(found))
    else:
        _print_gate(found)


@app.command("answer")
def answer_gate(
    run_id: Annotated[str, typer.Argument(help="Run id, as shown by `tape inbox`.")],
    gate: Annotated[str, typer.Argument(help="Name of the gate. [default: the one that the run waits at]")] = "",
    approve: Annotated[bool, typer.Option("--approve", help='Answer {"approved": true}.')] = False,
    reject: Annotated[bool, typer.Option("--reject", help='Answer {"approved": false}.')] = False,
    reason: Annotated[str, typer.Option("--reason", help="Reason, with --approve or --reject.")] = "",
    answer: Annotated[str, typer.Option("--answer", "-a", help="Answer as JSON.", metavar="JSON")] = "",
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Answer a gate. Without an answer on a terminal: shows the gate and asks.

    The first answer stays: a different one is refused, and the error shows the answer, its author and its time.
    """
    if sum((approve, reject, bool(answer))) > 1 or (reason and answer):
        raise InvalidInput("Use one of --approve, --reject and --answer; --reason goes with the first two.")
    is_decided = approve or reject or bool(answer)
    if not is_decided and not (sys.stdin.isatty() and output is Output.text):
        raise InvalidInput("Say the answer: --approve, --reject or --answer JSON.")
    if not gate or not is_decided:
        found = run(_find(url, run_id, gate))
        gate = found.gate_name
        if not is_decided:
            _print_gate(found)
            approve = typer.confirm("Approve?")
            reason = reason or typer.prompt("Reason", default="", show_default=False)
    if answer:
        text = checked_json("--answer", answer)
    else:
        text = to_json({"approved": approve} | ({"reason": reason} if reason else {}))
    sent = run(_send(url, run_id, gate, text))
    if output is Output.json:
        print_json(as_dict(sent))
    elif sent.repeated:
        typer.echo(f"The gate {gate!r} of run {run_id} has this answer already.")
    elif sent.run_status == pb.RUN_STATUS_RUNNABLE:
        typer.echo(f"Answered. Run {run_id} waited at {gate!r} and is runnable now.")
    else:
        typer.echo(f"Answered. Run {run_id} does not wait at {gate!r} now; it gets the answer when it does.")


async def _list(url: str, request: pb.ListGatesRequest) -> pb.ListGatesResponse:
    async with AsyncTapeClient(url) as client:
        return await client.list_gates(
            state=request.state,
            app_name=request.app_name,
            risk=request.risk,
            gate_name=request.gate_name,
            deadline_before_ms=request.deadline_before_ms,
            limit=request.limit,
            cursor=request.cursor,
        )


async def _find(url: str, run_id: str, gate: str) -> pb.GateRecord:
    async with AsyncTapeClient(url) as client:
        if not gate:
            gate = (await client.get_run(run_id)).waiting_on_gate
            if not gate:
                raise NotFound(f"The run {run_id!r} waits at no gate; name the gate.")
        found = (await client.list_gates(run_id=run_id, gate_name=gate, limit=1)).gates
    if not found:
        raise NotFound(f"The run {run_id!r} has no gate {gate!r}.")
    return found[0]


async def _send(url: str, run_id: str, gate: str, resolution_json: str) -> pb.SendSignalResponse:
    async with AsyncTapeClient(url) as client:
        return await client.send_signal(run_id=run_id, gate_name=gate, resolution_json=resolution_json)


def _print_gate(gate: pb.GateRecord) -> None:
    now = now_ms()
    facts = {
        "run": gate.run_id,
        "gate": gate.gate_name,
        "state": state_of(pb.GateState, gate.state),
        "risk": gate.risk,
        "of": " / ".join((gate.app_name, gate.user_id, gate.session_id)),
        "asks": gate.payload_json,
        "since": f"{moment(gate.created_at_ms)}, {age(now - gate.created_at_ms)} ago",
        "deadline": f"{moment(gate.deadline_ms)}, {_deadline(gate, now)}" if gate.deadline_ms else "",
        "on time-out": gate.on_timeout_json,
        "reminded": moment(gate.reminded_at_ms) if gate.reminded_at_ms else "",
        "escalated": moment(gate.escalated_at_ms) if gate.escalated_at_ms else "",
        "answer": gate.answer_json,
        "answered": f"{moment(gate.answered_at_ms)} by {gate.answered_by}" if gate.answered_at_ms else "",
    }
    print_facts({name: fact for name, fact in facts.items() if fact})


def _deadline(gate: pb.GateRecord, now: int) -> str:
    if not gate.deadline_ms:
        return ""
    left = gate.deadline_ms - now
    return f"in {age(left)}" if left > 0 else f"{age(-left)} ago"


def _answer(gate: pb.GateRecord) -> str:
    return f"{gate.answered_by}: {gate.answer_json}" if gate.answered_by else gate.answer_json
