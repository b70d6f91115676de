"""`tape obligations`: compensations that are due, claimed or stuck."""

from __future__ import annotations

from typing import Annotated

import typer

from tape.base.clock import now_ms
from tape.cli.options import DEFAULT_URL, Output, OutputOption, UrlOption, run
from tape.cli.output import age, as_dict, cut, print_json, print_table, state, state_of
from tape.client import AsyncTapeClient
from tape.errors import InvalidInput
from tape.proto import tape_pb2 as pb

# With this time the server also lists obligations that are not due yet or are claimed.
AT_THE_END_OF_TIME_MS = 1 << 62


def obligations(
    run_id: Annotated[
        str, typer.Option("--run", help="Only obligations of this run, in the order of compensation.")
    ] = "",
    stuck: Annotated[bool, typer.Option("--stuck", help="Only obligations without attempts left.")] = False,
    due: Annotated[bool, typer.Option("--due", help="Only obligations that are due now.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="With --run: also resolved obligations.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=10_000, help="Maximum number of obligations.")
    ] = 200,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """List unresolved obligations: pending, committed (being compensated) or stuck."""
    if sum((stuck, due, everything)) > 1:
        raise InvalidInput("Use one of --stuck, --due and --all.")
    if everything and not run_id:
        raise InvalidInput("--all needs --run: resolved obligations are listed for one run only.")
    if due and run_id:
        raise InvalidInput("--due lists all runs; leave out --run, or use --run alone.")
    found = run(_list(url, run_id, stuck, due, everything, limit))
    if output is Output.json:
        print_json([as_dict(each) for each in found])
        return
    now = now_ms()
    print_table(
        ("for", "status", "kind", "attempts", "next", "run", "seq", "effect", "error"),
        (
            (
                age(now - each.ts_ms),
                state(state_of(pb.ObligationStatus, each.status)),
                each.kind,
                f"{each.attempts} of {each.max_attempts}",
                following(each, now),
                each.run_id,
                str(each.seq),
                each.effect_key.removeprefix(f"{each.run_id}/"),
                cut(each.last_error),
            )
            for each in found
        ),
        nothing="No unresolved obligations." if not everything else "The run has no obligations.",
    )


async def _list(
    url: str, run_id: str, stuck: bool, due: bool, everything: bool, limit: int
) -> list[pb.ObligationRecord]:
    async with AsyncTapeClient(url) as client:
        if run_id:
            await client.get_run(run_id)  # says so if there is no such run
            status = pb.OBLIGATION_STATUS_STUCK if stuck else pb.OBLIGATION_STATUS_UNSPECIFIED
            of_run = await client.list_obligations(run_id=run_id, only_unresolved=not everything, status_filter=status)
            return list(of_run.obligations)[:limit]
        answer = await client.list_unresolved_obligations(
            limit=limit,
            now_ms=0 if due else AT_THE_END_OF_TIME_MS,
            include_pending=not stuck,
            include_stuck=not due,
            include_committed_expired=not stuck,
        )
    return list(answer.obligations)


def following(obligation: pb.ObligationRecord, now_ms: int) -> str:
    """The next step of an obligation, and its time."""
    match obligation.status:
        case pb.OBLIGATION_STATUS_PENDING:
            late = now_ms - obligation.next_attempt_at_ms
            return f"due for {age(late)}" if late >= 0 else f"due in {age(-late)}"
        case pb.OBLIGATION_STATUS_COMMITTED:
            left = obligation.claim_expires_at_ms - now_ms
            owner = obligation.claimed_by
            return f"claimed by {owner} for {age(left)}" if left > 0 else f"claim of {owner} expired {age(-left)} ago"
        case pb.OBLIGATION_STATUS_STUCK:
            return "needs an operator"
        case _:
            return ""
