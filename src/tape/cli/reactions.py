"""`tape reactions`: list, show, explain, dry-run, backtest and deregister reactions."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any

import typer
from rich.text import Text

from tape.base.clock import now_ms
from tape.cli.options import DEFAULT_URL, Output, OutputOption, UrlOption, check_predicate, run
from tape.cli.output import age, as_dict, console, cut, print_facts, print_json, print_table, state_of
from tape.cli.user_code import import_modules
from tape.client import AsyncTapeClient
from tape.engine.reactions.reaction import Reaction, check_reaction
from tape.errors import InvalidInput, NotFound
from tape.model.pattern import Pattern
from tape.model.reaction_states import HandlerKind
from tape.pipeline.jobs import command
from tape.pipeline.jobs.backtest_output import ReactionOptions, select_reaction, show_backtests
from tape.proto import tape_pb2 as pb
from tape.reactions.decorators import get_registry
from tape.reactions.registration import id_of

app = typer.Typer(help="List, show, explain, test and deregister reactions.", no_args_is_help=True)

BAR = 40
_EIGHTHS = " ▏▎▍▌▋▊▉"

IdArgument = Annotated[str, typer.Argument(help="Id of the reaction.", metavar="REACTION")]


@app.command("list")
def list_reactions(
    pattern: Annotated[
        str, typer.Option("--pattern", "-p", help="Only reactions with exactly this subject pattern.")
    ] = "",
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """List registered reactions with lag, tasks and predicate errors."""
    reactions, stats = run(_load(url, pattern))
    if output is Output.json:
        print_json([_joined(each, stats) for each in reactions])
        return
    now = now_ms()
    print_table(
        ("reaction", "pattern", "kind", "lag", "matched", "pending", "claimed", "dlq", "errors"),
        (
            (
                each.reaction_id,
                each.subject_pattern,
                _kind(each),
                _lag(stats[each.reaction_id]),
                str(stats[each.reaction_id].matched),
                _pending(stats[each.reaction_id], now),
                str(stats[each.reaction_id].claimed),
                _alarming(stats[each.reaction_id].dlq),
                _alarming(stats[each.reaction_id].predicate_errors),
            )
            for each in reactions
        ),
        nothing="No reactions are registered.",
    )


async def _load(url: str, pattern: str) -> tuple[list[pb.Reaction], dict[str, pb.ReactionStats]]:
    async with AsyncTapeClient(url) as client:
        reactions = list((await client.list_reactions(pattern)).reactions)
        stats = {each.reaction_id: each for each in (await client.get_reaction_stats()).stats}
    return [each for each in reactions if each.reaction_id in stats], stats


@app.command("show")
def show_reaction(reaction_id: IdArgument, url: UrlOption = DEFAULT_URL, output: OutputOption = Output.text) -> None:
    """Show one reaction: pattern, predicate, limits and statistics."""
    reactions, stats = run(_load(url, ""))
    found = next((each for each in reactions if each.reaction_id == reaction_id), None)
    if found is None:
        raise NotFound(f"no such reaction: {reaction_id!r}.")
    if output is Output.json:
        print_json(_joined(found, stats))
        return
    mine = stats[reaction_id]
    facts = {
        "reaction": f"{found.reaction_id} {found.name}".rstrip(),
        "pattern": found.subject_pattern,
        "predicate": found.predicate_cel or "always true",
        "handler": _kind(found),
        "concurrency": f"{found.max_concurrency} tasks",
        "rate": f"{found.rate_limit_per_s} a second" if found.rate_limit_per_s else "unlimited",
        "debounce": f"{found.debounce_ms} ms" if found.debounce_ms else "none",
        "attempts": f"{min(found.retry_max + 1, found.dlq_after_n)}, the first retry after {found.retry_backoff_ms} ms",
        "shards": f"{found.num_shards}{', in strict order' if found.strict_order else ''}",
        "matched": f"{mine.matched} entries, up to {mine.position}, lag {_lag(mine)}",
        "own events": f"{mine.suppressed} matches skipped" if not found.allow_self else "also match",
        "tasks": f"{mine.pending} pending, {mine.claimed} claimed, {mine.dlq} dead letters",
        "errors": f"{mine.predicate_errors} predicate errors",
    }
    if mine.last_predicate_error:
        facts["last error"] = f"at entry {mine.last_error_global_seq}: {mine.last_predicate_error}"
    print_facts(facts)


@app.command("explain")
def explain_reaction(
    reaction_id: IdArgument,
    global_seq: Annotated[int, typer.Argument(help="global_seq of the entry.", min=1, metavar="GLOBAL_SEQ")],
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Explain why a reaction matched an entry or did not, and show the resulting task or run."""
    answer = run(_explain(url, reaction_id, global_seq))
    if output is Output.json:
        print_json(as_dict(answer))
        return
    page = console()
    page.print(Text.assemble((f"entry {answer.entry.global_seq}  ", "dim"), answer.entry.subject))
    page.print(Text.assemble(("pattern   ", "dim"), answer.reaction.subject_pattern))
    page.print(Text(answer.verdict, "green" if answer.matched else "yellow"))
    if answer.predicate_trace:
        page.print(Text(answer.predicate_trace))
    if answer.outcome:
        page.print(Text(answer.outcome))
    if answer.HasField("task"):
        page.print(Text(f"task {answer.task.task_id}", "dim"))


async def _explain(url: str, reaction_id: str, global_seq: int) -> pb.ExplainReactionResponse:
    async with AsyncTapeClient(url) as client:
        return await client.explain_reaction(reaction_id, global_seq)


@app.command("test")
def try_reaction(
    pattern: Annotated[str, typer.Option("--pattern", "-p", help="Subject pattern.")],
    where: Annotated[str, typer.Option("--where", "-w", help="CEL predicate. [default: always true]")] = "",
    start: Annotated[
        str, typer.Option("--from", help="Start after this global_seq; 'start' is the oldest entry.")
    ] = "start",
    end: Annotated[str, typer.Option("--to", help="End at this global_seq; 'head' is the newest entry.")] = "head",
    bucket: Annotated[int, typer.Option(help="Minutes per bar of the histogram.", min=1)] = 60,
    samples: Annotated[int, typer.Option(help="Number of matching entries to show.", min=1, max=100)] = 5,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Dry run: show how often a pattern and a predicate would have matched, per hour. Writes nothing."""
    Pattern(pattern)
    check_predicate(where)
    wanted = {
        "subject_pattern": pattern,
        "predicate_cel": where,
        "from_global_seq": _number("--from", start, "start"),
        "to_global_seq": _number("--to", end, "head"),
        "samples": samples,
        "bucket_ms": bucket * 60_000,
    }
    result = run(_test(url, wanted))
    if output is Output.json:
        print_json(as_dict(result))
        return
    page = console()
    page.print(
        f"{result.matched} of {result.examined} entries ({result.from_global_seq + 1} to {result.to_global_seq})"
        " would have matched."
    )
    if result.errors:
        page.print(Text(f"The predicate failed on {result.errors} entries, the last time: {result.last_error}", "red"))
    for gap in result.gaps:
        page.print(Text(f"Entries {gap.first} to {gap.last} were not examined: {gap.reason} ({gap.detail}).", "red"))
    most = max((each.matched for each in result.buckets), default=0)
    for each in result.buckets:
        when = dt.datetime.fromtimestamp(each.start_ms / 1000).astimezone()
        page.print(
            Text.assemble((f"{when:%Y-%m-%d %H:%M} ", "dim"), (_bar(each.matched / most), "cyan"), f" {each.matched}")
        )
    for entry in result.samples:
        page.print(Text.assemble((f"{entry.global_seq:>8} ", "bold"), f"{entry.subject} ", cut(entry.payload_json)))


async def _test(url: str, wanted: dict[str, Any]) -> pb.TestReactionResponse:
    async with AsyncTapeClient(url) as client:
        return await client.test_reaction(**wanted)


@app.command("backtest")
def backtest_reaction(
    where: Annotated[str, typer.Option("--where", "-w", help="CEL predicate. [default: always true]")] = "",
    subject: Annotated[str, typer.Option("--subject", "-s", help="Subject pattern.")] = "/tape/**",
    debounce_ms: Annotated[int, typer.Option(min=0, help="Debounce in milliseconds.")] = 0,
    rate_limit_per_s: Annotated[int, typer.Option(min=0, help="Tasks per second; 0 is unlimited.")] = 0,
    reaction: Annotated[str, typer.Option(help="Backtest a registered reaction instead, by id or name.")] = "",
    code: Annotated[str, typer.Option(help="Backtest every reaction that this module declares instead.")] = "",
    store: command.Store = command.DEFAULT_STORE,
    since: command.Since = "earliest",
    until: Annotated[str, typer.Option("--to", help="End: latest, a global_seq or a time.")] = "latest",
    lake: Annotated[str, typer.Option("--archive", "--lake", help="Archive to read pruned entries from.")] = "",
    samples: Annotated[int, typer.Option(min=0, help="Entries to show that would have matched.")] = 5,
    master: command.Master = command.DEFAULT_MASTER,
    conf: command.Conf = None,
    output: OutputOption = Output.text,
) -> None:
    """Backtest on Spark: how often reactions would have fired, with debounce and rate limit. Writes nothing."""
    command.check_installed()
    given = ReactionOptions(subject, where, debounce_ms, rate_limit_per_s)
    if code:
        if reaction or given != ReactionOptions():
            raise InvalidInput("--code names the reactions; leave out --reaction, --subject, --where and the limits.")
        wanted = declared(code)
    else:
        wanted = {"": select_reaction(reaction, store, given)}
    reports = command.run_backtests(list(wanted.values()), store, since, until, lake, samples, master, conf)
    show_backtests(list(zip(wanted, reports, strict=True)), output.value)


def declared(module: str) -> dict[str, Reaction]:
    """The reactions that the functions of a module declare, by id."""
    import_modules([module])
    found = {}
    for known in get_registry():
        fields = {name: getattr(known, name) for name in Reaction.__struct_fields__ if hasattr(known, name)}
        fields |= {"reaction_id": id_of(known), "handler_kind": HandlerKind(known.handler_kind)}
        wanted = check_reaction(Reaction(**fields))
        found[wanted.reaction_id] = wanted
    if not found:
        raise InvalidInput(
            f"--code {module}: the module declares no reaction; use @tape.on or another @tape.on_… decorator."
        )
    return found


@app.command("deregister")
def deregister_reaction(reaction_id: IdArgument, url: UrlOption = DEFAULT_URL) -> None:
    """Deregister a reaction. Its tasks stay and can still be processed."""
    if not run(_deregister(url, reaction_id)):
        raise NotFound(f"no such reaction: {reaction_id!r}.")
    typer.echo(f"{reaction_id} is deregistered; its tasks stay.")


async def _deregister(url: str, reaction_id: str) -> bool:
    async with AsyncTapeClient(url) as client:
        return await client.deregister_reaction(reaction_id)


def _joined(reaction: pb.Reaction, stats: dict[str, pb.ReactionStats]) -> dict[str, Any]:
    return as_dict(reaction) | {"stats": as_dict(stats[reaction.reaction_id])}


def _kind(reaction: pb.Reaction) -> str:
    kind = state_of(pb.HandlerKind, reaction.handler_kind)
    return f"{kind} {reaction.agent_app or reaction.publish_target}".rstrip()


def _lag(stats: pb.ReactionStats) -> str:
    return f"{stats.lag}{' (catching up)' if stats.is_catching_up else ''}"


def _pending(stats: pb.ReactionStats, now_ms: int) -> str:
    return f"{stats.pending} (for {age(now_ms - stats.oldest_pending_ms)})" if stats.pending else "0"


def _alarming(number: int) -> Text:
    return Text(str(number), "red" if number else "")


def _number(option: str, text: str, word: str) -> int:
    if text == word:
        return 0
    if not text.isdecimal():
        raise InvalidInput(f"{option} {text!r} must be a global_seq or {word!r}.")
    return int(text)


def _bar(share: float) -> str:
    eighths = max(round(share * BAR * 8), 1)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).strip()
