"""`tape obligations`: what is still to be undone."""

from __future__ import annotations

from typing import Annotated

import typer

from tape.base.clock import now_ms
from tape.cli.options import DEFAULT_URL, Output, OutputOption, UrlOption, run
from tape.cli.output import age, as_dict, cut, print_json, print_table, state, state_of
from tape.client import AsyncTapeClient
from tape.errors import InvalidInput
from tape.proto import tape_pb2 as pb

# Asked as if it were then, the server also lists what is not due yet and what somebody is at.
AT_THE_END_OF_TIME_MS = 1 << 62


def obligations(
    run_id: Annotated[str, typer.Option("--run", help="Only of this run, in the order in which they are undone.")] = "",
    stuck: Annotated[bool, typer.Option("--stuck", help="Only those that were given up.")] = False,
    due: Annotated[bool, typer.Option("--due", help="Only those that somebody should see to now.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="With --run: also those that are undone.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="At most so many.")] = 200,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """List obligations that are not resolved: pending, being undone, or stuck."""
    if sum((stuck, due, everything)) > 1:
        raise InvalidInput("Use one of --stuck, --due and --all.")
    if everything and not run_id:
        raise InvalidInput("--all needs --run: only one run's obligations are listed after they are undone.")
    if due and run_id:
        raise InvalidInput("--due is about all runs; leave out --run, or use --run alone.")
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
        nothing="No obligation is open." if not everything else "The run has no obligations.",
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
    """What happens with an obligation next, and when."""
    match obligation.status:
        case pb.OBLIGATION_STATUS_PENDING:
            late = now_ms - obligation.next_attempt_at_ms
            return f"due for {age(late)}" if late >= 0 else f"due in {age(-late)}"
        case pb.OBLIGATION_STATUS_COMMITTED:
            left = obligation.claim_expires_at_ms - now_ms
            holder = obligation.claimed_by
            return f"{holder} is at it, for {age(left)}" if left > 0 else f"{holder} vanished {age(-left)} ago"
        case pb.OBLIGATION_STATUS_STUCK:
            return "somebody has to look"
        case _:
            return ""
