"""The jobs as commands: of `tape pipeline run`, and of each job's module under spark-submit."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tape.base.config import load_pipeline_settings
from tape.errors import MissingExtra, PipelineInput, TapeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tape.engine.reactions.reaction import Reaction
    from tape.pipeline.jobs.backtest import Backtest

app = typer.Typer(no_args_is_help=True, help="Run one job on Spark.")


@app.callback()
def check_installed() -> None:
    """Jobs on Spark, one command each."""
    if any(find_spec(name) is None for name in ("pyspark", "pyarrow", "deltalake")):
        raise MissingExtra("The data pipeline", "spark")


Store = Annotated[str, typer.Option(envvar="TAPE_STORE", help="The journal: sqlite:<path>, postgres://…")]
Master = Annotated[str, typer.Option(envvar="TAPE_SPARK_MASTER", help="Where Spark runs. [default: local[*]]")]
Conf = Annotated[list[str] | None, typer.Option(help="A setting of Spark, as name=value; may be repeated.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on the terminal.")]
MetricsListen = Annotated[str, typer.Option(help="Serve Prometheus metrics at this host:port.")]

DEFAULT_STORE = "sqlite:tape.db"
# What tape.toml says, else local[*].
DEFAULT_MASTER = ""


@app.command()
def archive(
    lake: Annotated[str, typer.Option(envvar="TAPE_LAKE", help="The archive: a folder, s3://… or gs://…")] = "",
    store: Store = DEFAULT_STORE,
    follow: Annotated[bool, typer.Option(help="Go on with what comes, until SIGTERM.")] = False,
    round_entries: Annotated[int, typer.Option(min=1, help="Entries per commit of the archive.")] = 500_000,
    compact: Annotated[bool, typer.Option(help="Rewrite small files into larger ones afterwards.")] = False,
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
    quiet: Quiet = False,
    metrics_listen: MetricsListen = "",
) -> None:
    """Copy the journal into an archive of Parquet files (a Delta table), each entry once."""
    from tape.archive import compaction
    from tape.archive.location import resolve_url
    from tape.archive.table import ArchiveTable
    from tape.pipeline.job_context import running
    from tape.pipeline.jobs import archive as job

    configured = load_pipeline_settings()
    lake, options = resolve_url(lake or configured.lake), dict(configured.lake_options)
    with (
        session("archive", master, conf) as spark,
        running("archive", quiet=quiet, metrics_listen=metrics_listen) as now,
    ):
        count = job.archive(spark, store, lake, now, follow=follow, round_entries=round_entries, options=options)
    archived = ArchiveTable.open(lake, options)
    if compact:
        compaction.compact(archived)
        archived.vacuum()
    typer.echo(f"Archived {count:,} entries; {archived.url} has {archived.begin} to {archived.until}.")


@app.command()
def rollup(
    store: Store = DEFAULT_STORE,
    lake: Annotated[str, typer.Option(help="An archive, for what was pruned before it was counted.")] = "",
    follow: Annotated[bool, typer.Option(help="Go on with what comes, until SIGTERM.")] = False,
    round_entries: Annotated[int, typer.Option(min=1, help="Entries per transaction.")] = 1_000_000,
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
    quiet: Quiet = False,
    metrics_listen: MetricsListen = "",
) -> None:
    """Sum up the journal per minute, hour and day into the store, each entry once.

    Entries and bytes by tenant, type and tool; outcomes and durations (with percentiles) of effects, from pending to
    settled, by tool, and of runs, from start to end. POST /v1/events/aggregate answers from them.
    """
    from tape.engine.ledgers.rollups import read_position
    from tape.pipeline.job_context import running
    from tape.pipeline.jobs import rollup as job
    from tape.pipeline.journal_batches import ask_patiently

    with (
        session("rollup", master, conf) as spark,
        running("rollup", quiet=quiet, metrics_listen=metrics_listen) as now,
    ):
        count = job.rollup(spark, store, now, lake=lake, follow=follow, round_entries=round_entries)
    late = ask_patiently(store, read_position).late
    typer.echo(f"Counted {count:,} entries." + (f" {late:,} of all have come late." if late else ""))


Since = Annotated[str, typer.Option("--from", help="earliest, a global_seq to begin after, or a time.")]


@app.command()
def report(
    page: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("tape-report.html"),
    store: Store = DEFAULT_STORE,
    lake: Annotated[str, typer.Option(help="An archive, for what was pruned.")] = "",
    since: Annotated[str, typer.Option(help="So long before the end (90m, 24h, 7d), or a time.")] = "24h",
    until: Annotated[str, typer.Option(help="now, so long ago, or a time.")] = "now",
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
) -> None:
    """Write a page with plots about a window: volume, latency, failures, slowest runs, dead letters, lag."""
    from tape.pipeline.jobs import report as job

    with session("report", master, conf) as spark:
        facts = job.report(spark, store, page, lake=lake, since=since, until=until)
    typer.echo(f"{page.resolve()} is about {facts.entries:,} entries.")
    if show:
        typer.launch(str(page.resolve()))


@app.command()
def backtest(
    where: Annotated[str, typer.Option(help="The reaction's CEL predicate.")] = "",
    subject: Annotated[str, typer.Option(help="The reaction's subject pattern.")] = "/tape/**",
    debounce_ms: Annotated[int, typer.Option(min=0, help="The reaction's debounce.")] = 0,
    rate_limit_per_s: Annotated[int, typer.Option(min=0, help="The reaction's rate; 0 for none.")] = 0,
    reaction: Annotated[str, typer.Option(help="A registered reaction instead, by id or name.")] = "",
    store: Store = DEFAULT_STORE,
    since: Since = "earliest",
    until: Annotated[str, typer.Option("--to", help="latest, a global_seq or a time.")] = "latest",
    lake: Annotated[str, typer.Option(help="An archive, for what was pruned.")] = "",
    samples: Annotated[int, typer.Option(min=0, help="Entries to show that would have fired.")] = 5,
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
    output: Annotated[str, typer.Option("--output", "-o", help="text or json.")] = "text",
) -> None:
    """Say how often a reaction would have fired over history, per hour and tenant. Creates nothing."""
    wanted = planned(reaction, store, Described(subject, where, debounce_ms, rate_limit_per_s))
    (told,) = rehearsed([wanted], store, since, until, lake, samples, master, conf)
    show_backtests([("", told)], output)


class Described(msgspec.Struct, frozen=True):
    """A reaction as options describe it."""

    subject_pattern: str = "/tape/**"
    predicate_cel: str = ""
    debounce_ms: int = 0
    rate_limit_per_s: int = 0


def planned(registered: str, store: str, given: Described) -> Reaction:
    """The reaction to try out: one that is registered, or one that is described."""
    from tape.pipeline.jobs.backtest import imagined

    if registered:
        from tape.engine.reactions.backfill import named
        from tape.pipeline.journal_batches import ask_patiently
        from tape.pipeline.options import resolve_store

        if given != Described():
            raise PipelineInput("--reaction says what to match; leave out --subject, --where and the limits, or it.")
        return ask_patiently(resolve_store(store), lambda reader: named(reader, registered))
    return imagined(*msgspec.structs.astuple(given))


def rehearsed(
    reactions: Sequence[Reaction],
    store: str,
    since: str,
    until: str,
    lake: str,
    samples: int,
    master: str,
    conf: Sequence[str] | None,
) -> list[Backtest]:
    """What reactions would have done, in one session of Spark."""
    from tape.pipeline.jobs import backtest as job

    with session("backtest", master, conf) as spark:
        return [
            job.backtest(spark, store, wanted, since=since, until=until, lake=lake, samples=samples)
            for wanted in reactions
        ]


def show_backtests(told: Sequence[tuple[str, Backtest]], output: str) -> None:
    """Print outcomes, each under its reaction's name if there are several."""
    if output not in ("text", "json"):
        raise PipelineInput(f"--output {output!r} must be text or json.")
    for name, result in told:
        if output == "json":
            extra = {"reaction": name} if name else {}
            typer.echo(msgspec.json.encode(extra | msgspec.to_builtins(result) | {"tenants": result.tenants}).decode())
            continue
        typer.echo(
            f"{name + ': ' if name else ''}Would have fired {result.fired:,} times on {result.entries:,} entries."
        )
        if result.debounced:
            typer.echo(f"  debounced: {result.debounced:,} matches went into a later one of their subject")
        if (queue := result.queue).waited:
            typer.echo(
                f"  rate limited: {queue.waited:,} would have waited, up to {queue.longest_wait_ms / 1000:,.1f} s;"
                f" the queue would have grown to {queue.longest:,}"
            )
        if result.errors:
            typer.echo(f"  the predicate failed on {result.errors:,} entries, for example: {result.last_error}")
        for hour in result.hours:
            typer.echo(f"  {hour.hour}  {hour.tenant or '-':<20} {hour.fired:>10,}")
        for tenant, fired in result.tenants.items() if len(result.tenants) > 1 else ():
            typer.echo(f"  in all             {tenant or '-':<20} {fired:>10,}")
        for sample in result.samples:
            typer.echo(f"  e.g. {sample.global_seq} {sample.subject} {sample.payload_json}")


@app.command()
def match(
    reaction: Annotated[str, typer.Option(help="The registered reaction, by id or name.")],
    store: Store = DEFAULT_STORE,
    since: Since = "earliest",
    until: Annotated[str, typer.Option("--to", help="A place or time; else where servers began to match it.")] = "",
    lake: Annotated[str, typer.Option(help="An archive, for what was pruned.")] = "",
    name: Annotated[str, typer.Option(help="What the position is kept under, if not the reaction's id.")] = "",
    round_entries: Annotated[int, typer.Option(min=1, help="Entries per round.")] = 200_000,
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
    quiet: Quiet = False,
    metrics_listen: MetricsListen = "",
) -> None:
    """Make tasks of what a reaction would have fired on before it was registered, each once."""
    from tape.pipeline.job_context import running
    from tape.pipeline.jobs import match as job

    with (
        session("match", master, conf) as spark,
        running("match", quiet=quiet, metrics_listen=metrics_listen) as now,
    ):
        done = job.match(
            spark,
            store,
            reaction,
            now,
            since=since,
            until=until,
            lake=lake,
            checkpoint=name,
            round_entries=round_entries,
        )
    typer.echo(
        f"Matched entries {done.after + 1:,} to {done.seen:,} of {done.until:,}: {done.tasks:,} tasks,"
        f" {done.runs:,} runs;"
        f" {done.debounced:,} debounced, {done.known:,} had theirs, {done.own_work:,} own work, {done.errors:,} errors."
    )
    if done.last_error:
        typer.echo(f"The last error of the predicate: {done.last_error}")


@app.command()
def fanout(
    sink: Annotated[str, typer.Option(help="Where to, as for tape relay: webhook:URL, kafka:SERVERS/TOPIC, …")],
    name: Annotated[str, typer.Option(help="What the position is kept under.")],
    store: Store = DEFAULT_STORE,
    subject: Annotated[str, typer.Option(help="Only subjects that match.")] = "",
    where: Annotated[str, typer.Option(help="Only entries of which this CEL predicate is true.")] = "",
    policy: Annotated[str, typer.Option(help="For what is never taken: block, skip or dead_letter.")] = "block",
    dead_letter: Annotated[str, typer.Option(help="File or subject for such entries.")] = "",
    header: Annotated[list[str] | None, typer.Option(help="For webhooks: 'Name: value'.")] = None,
    secret: Annotated[str, typer.Option(envvar="TAPE_WEBHOOK_SECRET", help="For webhooks: sign bodies.")] = "",
    allow_private: Annotated[bool, typer.Option(help="For webhooks: allow addresses of your own network.")] = False,
    from_now: Annotated[bool, typer.Option(help="A new name begins with what comes, not with the oldest.")] = False,
    follow: Annotated[bool, typer.Option(help="Go on with what comes, until SIGTERM.")] = False,
    round_entries: Annotated[int, typer.Option(min=1, help="Entries per round.")] = 100_000,
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
    quiet: Quiet = False,
    metrics_listen: MetricsListen = "",
) -> None:
    """Hand entries to a sink from many tasks, at least once, each run in order."""
    from tape.pipeline.job_context import running
    from tape.pipeline.jobs import fanout as job

    # A mistake in the address or the policy is told before Spark is started.
    target = job.sink_named(sink, headers=header or [], secret=secret, allow_private=allow_private)
    target().close()
    checked = job.checked_policy(policy, dead_letter, subject)
    with (
        session("fanout", master, conf) as spark,
        running("fanout", quiet=quiet, metrics_listen=metrics_listen) as now,
    ):
        done = job.fanout(
            spark,
            store,
            name,
            target,
            now,
            target=sink,
            subject=subject,
            where=where,
            policy=checked,
            dead_letter=dead_letter,
            from_now=from_now,
            follow=follow,
            round_entries=round_entries,
        )
    typer.echo(
        f"Handed over {done.entries:,} entries under {name!r}, {done.skipped:,} skipped,"
        f" {done.dead_letters:,} dead letters, {done.retries:,} retries."
    )


@app.command()
def ingest(
    path: Annotated[str, typer.Argument(help="Files or a folder; empty for a source that is none.")],
    mapped: Annotated[list[str] | None, typer.Option("--map", help="field=SQL expression over the columns.")] = None,
    template: Annotated[list[str] | None, typer.Option(help="field=text with {column} in it.")] = None,
    mapping: Annotated[str, typer.Option(help="A TOML or JSON file with the tables map and template.")] = "",
    store: Store = DEFAULT_STORE,
    source: Annotated[str, typer.Option("--format", help="json (lines), parquet, csv, delta, kafka, …")] = "json",
    option: Annotated[list[str] | None, typer.Option(help="An option of that format, as name=value.")] = None,
    schema: Annotated[str, typer.Option(help="The input's columns, as id long, name string; else looked for.")] = "",
    unique: Annotated[str, typer.Option(help="A column of ids: a row that comes again is dropped.")] = "",
    unique_days: Annotated[int, typer.Option(help="Forget ids after so many days; 0: never.", min=0)] = 0,
    producer: Annotated[str, typer.Option(help="The name of this input, for ids and batches.")] = "ingest",
    batch_id: Annotated[str, typer.Option(help="A repeated batch appends nothing. [default: the path]")] = "",
    rejects: Annotated[str, typer.Option(help="A folder or URL for bad rows. [default: rejects-<producer>]")] = "",
    redact: Annotated[bool, typer.Option(help="Take secrets out of payloads.")] = True,
    safe_type: Annotated[list[str] | None, typer.Option(help="An event type whose payloads stay as they are.")] = None,
    stream: Annotated[bool, typer.Option(help="Read as a stream, and remember what was read.")] = False,
    checkpoint: Annotated[str, typer.Option(help="For a stream: the folder where it remembers.")] = "",
    watermark: Annotated[str, typer.Option(help="For a stream: column=how late it may be, as at=10 minutes.")] = "",
    follow: Annotated[bool, typer.Option(help="For a stream: go on with what comes, until SIGTERM.")] = False,
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
    quiet: Quiet = False,
    metrics_listen: MetricsListen = "",
) -> None:
    """Append the rows of files or any other source to the journal, once."""
    from tape.pipeline.job_context import running
    from tape.pipeline.jobs import ingest as job
    from tape.pipeline.row_mapping import FieldMapping, read_mapping

    if (watermark or follow or checkpoint) and not stream:
        raise PipelineInput("--watermark, --follow and --checkpoint are for --stream.")
    if stream and (batch_id or not checkpoint):
        raise PipelineInput("--stream needs a --checkpoint, which numbers its batches; it takes no --batch-id.")
    if unique_days and not unique:
        raise PipelineInput(f"--unique-days {unique_days} needs --unique: the column of ids to remember that long.")
    given = FieldMapping(
        dict(pair_of("--map", text) for text in mapped or ()),
        dict(pair_of("--template", text) for text in template or ()),
    )
    fields = read_mapping(mapping).both(given) if mapping else given
    safe = job.names_of(safe_type or ())
    wanted = job.Ingesting(store, fields, producer, unique, rejects, redact, safe, unique_days)
    options = dict(pair_of("--option", text) for text in option or ())
    with (
        session("ingest", master, conf) as spark,
        running("ingest", quiet=quiet, metrics_listen=metrics_listen) as now,
    ):
        if stream:
            from tape.pipeline.jobs.ingest_stream import Streaming, ingest_stream

            how = Streaming(source, schema, options, watermark, follow)
            done = ingest_stream(spark, wanted, path, checkpoint, now, how)
        else:
            done = job.ingest(spark, wanted, path, source=source, schema=schema, options=options, batch_id=batch_id)
    typer.echo(
        f"{done.rows:,} rows of {path or source}: {done.entries:,} appended, {done.duplicates:,} were there,"
        f" {done.rejected:,} rejected."
    )
    if done.forgotten:
        typer.echo(f"{done.forgotten:,} ids are older than {unique_days} days and are forgotten.")
    if done.rejected:
        typer.echo(f"Rejected rows are in {wanted.resolved().rejects}; the last: {done.reason}", err=True)


@app.command()
def subscription(
    path: Annotated[str, typer.Argument(help="The subscription's path in the catalog.")],
    server: Annotated[str, typer.Option(envvar="TAPE_SERVER_URL", help="The HTTP address of the server.")] = (
        "http://127.0.0.1:7879"
    ),
    token: Annotated[
        str,
        typer.Option(envvar="TAPE_INTERNAL_API_TOKEN", help="The server's internal token.", show_default=False),
    ] = "",
    store: Annotated[
        str, typer.Option(help="Let executors write runs into this store themselves, not through the server.")
    ] = "",
    checkpoint: Annotated[str, typer.Option(help="The folder where the stream remembers. [default: by its path]")] = "",
    follow: Annotated[bool, typer.Option(help="Go on with what comes, until SIGTERM.")] = False,
    batch_messages: Annotated[int, typer.Option(min=1, help="Messages of one micro-batch at most.")] = 50_000,
    skip_lost: Annotated[bool, typer.Option(help="Go on where messages were removed before they were read.")] = False,
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
    quiet: Quiet = False,
    metrics_listen: MetricsListen = "",
) -> None:
    """Make runs of the messages of a subscription with `runtime.target: spark`, each once.

    The subscription must be in the server's catalog. Pausing, draining and deactivating it there are heeded.
    """
    from tape.pipeline.job_context import running
    from tape.pipeline.jobs import subscription as job

    folder = checkpoint or f"tape-checkpoint-{path.replace('/', '-')}"
    how = job.How(folder, follow, store, batch_messages, skip_lost)
    with (
        session("subscription", master, conf) as spark,
        running("subscription", quiet=quiet, metrics_listen=metrics_listen) as now,
    ):
        done = job.run_subscription(spark, server, token, path, now, how)
    typer.echo(
        f"{done.received:,} messages of {path}: {done.started:,} runs begun, {done.duplicates:,} duplicates,"
        f" {done.known:,} taken before, {done.dead:,} dead letters."
    )


def main(job: str, arguments: Sequence[str] | None = None) -> None:
    """Run one job from its own module; an error of Tape is one sentence."""
    try:
        app([job, *(sys.argv[1:] if arguments is None else arguments)])
    except TapeError as error:
        typer.echo(f"error {error.code}: {error}", err=True)
        sys.exit(1)


@contextlib.contextmanager
def session(job: str, master: str, conf: Sequence[str] | None) -> Iterator[SparkSession]:
    from tape.pipeline.session import DEFAULT_MASTER as EVERYWHERE
    from tape.pipeline.session import open_session, submitted

    configured = load_pipeline_settings()
    given = dict(pair_of("--conf", text) for text in conf or ())
    chosen = master or submitted().get("spark.master") or configured.master or EVERYWHERE
    spark = open_session(job, chosen, dict(configured.spark) | given)
    try:
        yield spark
    finally:
        spark.stop()


def pair_of(option: str, text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise PipelineInput(f"{option} {text!r} must be written as name=value.")
    return name.strip(), value.strip()
