"""`tape effects`: effects without a known outcome."""

from __future__ import annotations

from typing import Annotated

import typer

from tape.base.clock import now_ms
from tape.cli.options import DEFAULT_URL, Output, OutputOption, UrlOption, run
from tape.cli.output import age, as_dict, cut, parse_age, print_json, print_table, state, state_of
from tape.client import AsyncTapeClient
from tape.proto import tape_pb2 as pb


def effects(
    pending: Annotated[bool, typer.Option("--pending", help="Only effects that were begun and not settled.")] = False,
    unknown: Annotated[bool, typer.Option("--unknown", help="Only effects whose outcome is unknown.")] = False,
    older_than: Annotated[
        str, typer.Option(help="Only pending effects unchanged for this long: 90s, 10m, 2h, 7d.")
    ] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="Maximum number of effects.")] = 200,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """List open effects, oldest first. Default: pending and unknown."""
    now = now_ms()
    before_ms = now - parse_age("--older-than", older_than) if older_than else 0
    found = run(_list(url, pending, unknown, before_ms, limit))
    if output is Output.json:
        print_json([as_dict(effect) | {"age_ms": now - effect.ts_ms} for effect in found])
        return
    print_table(
        ("for", "status", "tool", "dispatch", "run", "key"),
        (
            (
                age(now - effect.ts_ms),
                state(state_of(pb.EffectStatus, effect.status)),
                effect.tool_name,
                dispatch(effect, now),
                effect.run_id,
                effect.idempotency_key.removeprefix(f"{effect.run_id}/"),
            )
            for effect in found
        ),
        nothing="No open effects.",
    )


async def _list(url: str, pending: bool, unknown: bool, before_ms: int, limit: int) -> list[pb.EffectRecord]:
    async with AsyncTapeClient(url) as client:
        answer = await client.list_pending_effects(
            older_than_ms=before_ms, include_pending=pending, include_unknown=unknown, limit=limit
        )
    return list(answer.effects)


def dispatch(effect: pb.EffectRecord, now_ms: int) -> str:
    """How an effect is dispatched, and the state of the dispatch."""
    if effect.dispatch_mode != pb.EFFECT_DISPATCH_MODE_OUTBOX:
        return "inline"
    parts = [f"outbox {effect.connector}".rstrip()]
    if effect.dispatch_claim_expires_at_ms > now_ms:
        parts.append(f"claimed by {effect.dispatch_claimed_by} for {age(effect.dispatch_claim_expires_at_ms - now_ms)}")
    elif effect.status == pb.EFFECT_STATUS_PENDING:
        late = now_ms - effect.next_dispatch_at_ms
        parts.append(f"due for {age(late)}" if late >= 0 else f"due in {age(-late)}")
    if effect.dispatch_attempts:
        parts.append(f"attempts {effect.dispatch_attempts}")
    if effect.last_dispatch_error:
        parts.append(cut(effect.last_dispatch_error))
    return ", ".join(parts)
