"""The reaction of a backtest from command options, and the results as text or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import typer

from tape.errors import PipelineInput

if TYPE_CHECKING:
    from tape.engine.reactions.reaction import Reaction
    from tape.pipeline.jobs.backtest import Backtest


class ReactionOptions(msgspec.Struct, frozen=True):
    """A reaction that is described by command options."""

    subject_pattern: str = "/tape/**"
    predicate_cel: str = ""
    debounce_ms: int = 0
    rate_limit_per_s: int = 0


def select_reaction(registered: str, store: str, given: ReactionOptions) -> Reaction:
    """Return the reaction to simulate: a registered one, or the one that the options describe."""
    from tape.pipeline.jobs.backtest import unregistered_reaction

    if registered:
        from tape.engine.reactions.backfill import find_by_name
        from tape.pipeline.journal_reader import query_store
        from tape.pipeline.options import resolve_store

        if given != ReactionOptions():
            raise PipelineInput("--reaction defines what to match: omit it, or --subject, --where and the limits.")
        return query_store(resolve_store(store), lambda reader: find_by_name(reader, registered))
    return unregistered_reaction(*msgspec.structs.astuple(given))


def show_backtests(results: Sequence[tuple[str, Backtest]], output: str) -> None:
    """Print results, each with the name of its reaction if there are several."""
    if output not in ("text", "json"):
        raise PipelineInput(f"--output {output!r} must be text or json.")
    for name, result in results:
        if output == "json":
            extra = {"reaction": name} if name else {}
            typer.echo(msgspec.json.encode(extra | msgspec.to_builtins(result) | {"tenants": result.tenants}).decode())
            continue
        typer.echo(
            f"{name + ': ' if name else ''}Would have fired {result.fired:,} times on {result.entries:,} entries."
        )
        if result.debounced:
            typer.echo(f"  debounced: {result.debounced:,} matches were merged into a later match of their subject")
        if (queue := result.queue).waited:
            typer.echo(
                f"  rate limited: {queue.waited:,} would have waited, up to {queue.longest_wait_ms / 1000:,.1f} s;"
                f" the queue would have grown to {queue.longest:,}"
            )
        if result.errors:
            typer.echo(f"  the predicate raised an error on {result.errors:,} entries, such as: {result.last_error}")
        for hour in result.hours:
            typer.echo(f"  {hour.hour}  {hour.tenant or '-':<20} {hour.fired:>10,}")
        for tenant, fired in result.tenants.items() if len(result.tenants) > 1 else ():
            typer.echo(f"  total              {tenant or '-':<20} {fired:>10,}")
        for sample in result.samples:
            typer.echo(f"  e.g. {sample.global_seq} {sample.subject} {sample.payload_json}")
