"""Reads outages from the journal and prints them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from tape.cli.output import age, moment, print_table
from tape.client import TapeClient
from tape.subscriptions.outages import Moment, Outage, outages


def read_outages(client: TapeClient, path: str) -> list[Outage]:
    """The outages of a subscription, oldest first."""
    name = path.rpartition("/")[2]
    return list(outages(_entries(client, f"/tape/subscription/*/{name}")))


def _entries(client: TapeClient, pattern: str) -> Iterator[Any]:
    """The matching entries up to the current head."""
    head = client.head().global_seq
    for batch in client.follow_batches(subject_pattern=pattern, from_global_seq=0, skip_gaps=True):
        yield from batch.entries
        if batch.position >= head:
            return


def show_outage(outage: Outage) -> None:
    """Print an outage as a timeline with its totals."""
    ended = f"until {moment(outage.ended_ms)}" if outage.ended_ms else "and still is"
    lasted = f", {age(outage.ended_ms - outage.began_ms)}" if outage.ended_ms else ""
    who = ", ".join(outage.downstreams) or "a downstream"
    typer.echo(f"{who} was unavailable from {moment(outage.began_ms)} {ended}{lasted}\n")
    print_table(("when", "what", "count", ""), map(_row, outage.moments), nothing="")
    typer.echo(
        f"\n{outage.spooled:,} spooled = {outage.replayed:,} replayed + {outage.dead_lettered:,} dead-lettered"
        f" + {outage.quarantined:,} quarantined + {outage.waiting:,} waiting"
        + (f"; {outage.dropped:,} times a message was not spooled and left to its source" if outage.dropped else "")
    )


def _row(each: Moment) -> tuple[str, str, str, str]:
    when = moment(each.ts_ms) + (f" … +{age(each.until_ms - each.ts_ms)}" if each.until_ms > each.ts_ms else "")
    return when, each.what, f"{each.count:,}" if each.count > 1 else "", each.detail
