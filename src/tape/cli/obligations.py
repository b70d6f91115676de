"""`tape obligations`: compensations that are due, claimed or stuck, and their resolution by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tape.base.clock import now_ms
from tape.base.durations import parse_duration_ms
from tape.cli.options import DEFAULT_URL, Output, OutputOption, UrlOption, run
from tape.cli.output import age, as_dict, cut, print_json, print_table, state, state_of
from tape.client import AsyncTapeClient
from tape.errors import IllegalTransition, InvalidInput, LeaseHeld
from tape.model.payload import to_json
from tape.proto import tape_pb2 as pb

# With this time the server also lists obligations that are not due yet or are claimed.
AT_THE_END_OF_TIME_MS = 1 << 62


class ObligationsGroup(TyperGroup):
    """The commands; `tape obligations` and `tape obligations --stuck …` list."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command; without one it is `list`."""
        if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=ObligationsGroup, help="List unresolved obligations, and resolve them by hand.")


@app.command("list")
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


@app.command("resolve")
def resolve_obligations(
    run_id: Annotated[str, typer.Argument(help="Run whose obligations are resolved; needed with SEQ.")] = "",
    seqs: Annotated[list[int] | None, typer.Argument(help="Numbers of obligations. [default: all stuck ones]")] = None,
    kind: Annotated[str, typer.Option("--kind", help="All stuck obligations of this kind, of every run.")] = "",
    older_than: Annotated[str, typer.Option("--older-than", help="With --kind: registered before: 30m, 2h, 7d.")] = "",
    again: Annotated[bool, typer.Option("--again", help="Let recovery workers try a stuck one once more.")] = False,
    reason: Annotated[str, typer.Option(help="How it was undone, for the record.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000, help="Maximum number of obligations.")] = 100,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the obligations and change nothing.")] = False,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Resolve obligations that were compensated by hand, or let stuck ones be tried again.

    A run whose last obligation is resolved becomes FAILED or CANCELLED again, as it was before. Exits with 1 if an
    obligation is refused.
    """
    if bool(run_id) == bool(kind) or (older_than and not kind):
        raise InvalidInput("Say which obligations: RUN_ID [SEQ…], or --kind KIND [--older-than 2h].")
    before = now_ms() - parse_duration_ms("--older-than", older_than) if older_than else AT_THE_END_OF_TIME_MS
    resolved, more = run(_resolve(url, run_id, seqs or [], kind, before, again, reason, limit, dry_run))
    refused = [each for each in resolved if each["refusal"]]
    if output is Output.json:
        print_json({"obligations": resolved, "refused": len(refused), "more": more, "dry_run": dry_run})
    else:
        print_table(
            ("run", "seq", "kind", "outcome"),
            ((each["run_id"], str(each["seq"]), each["kind"], each["refusal"] or each["outcome"]) for each in resolved),
            nothing="No obligations match.",
        )
        if resolved:
            typer.echo(f"{len(resolved) - len(refused)} of {len(resolved)} {'would be ' if dry_run else ''}resolved")
        if more:
            typer.echo(f"More obligations match: {limit} were taken (--limit). Call again for the next.", err=True)
    if refused:
        raise typer.Exit(1)


async def _resolve(
    url: str,
    run_id: str,
    seqs: Sequence[int],
    kind: str,
    before_ms: int,
    again: bool,
    reason: str,
    limit: int,
    dry_run: bool,
) -> tuple[list[dict[str, Any]], bool]:
    found = await _list(url, run_id, not seqs, False, False, 10_000)
    if seqs:
        missing = set(seqs) - {each.seq for each in found}
        if missing:
            raise InvalidInput(
                f"The run {run_id!r} has no unresolved obligation {', '.join(map(str, sorted(missing)))}."
            )
        found = [each for each in found if each.seq in seqs]
    matching = [each for each in found if kind in ("", each.kind) and each.ts_ms < before_ms]
    outcome = "pending" if again else "compensated"
    detail = to_json({"resolved": "by hand", "reason": reason})
    reports = []
    async with AsyncTapeClient(url) as client:
        for each in matching[:limit]:
            refusal = ""
            if not dry_run:
                try:
                    await (_retry(client, each) if again else _settle(client, each, detail))
                except (IllegalTransition, LeaseHeld) as error:
                    refusal = str(error)
            report = {"run_id": each.run_id, "seq": each.seq, "kind": each.kind}
            reports.append(report | {"outcome": "" if refusal else outcome, "refusal": refusal})
    return reports, len(matching) > limit


async def _settle(client: AsyncTapeClient, obligation: pb.ObligationRecord, detail: str) -> None:
    await client.resolve_obligation(
        run_id=obligation.run_id,
        obligation_seq=obligation.seq,
        status=pb.OBLIGATION_STATUS_COMPENSATED,
        result_json=detail,
        settle_run=True,
    )


async def _retry(client: AsyncTapeClient, obligation: pb.ObligationRecord) -> None:
    await client.record_obligation_attempt(
        run_id=obligation.run_id,
        obligation_seq=obligation.seq,
        error=obligation.last_error,
        next_attempt_at_ms=now_ms(),
        uncounted=True,
    )


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
