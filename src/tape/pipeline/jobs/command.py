"""The jobs as commands of `tape pipeline run`, and of each job's module under spark-submit."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tape.base.config import find_store, load_pipeline_settings, load_redaction
from tape.errors import MissingExtra, PipelineInput, TapeError
from tape.pipeline.jobs.backtest_output import ReactionOptions, select_reaction, show_backtests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tape.engine.reactions.reaction import Reaction
    from tape.pipeline.jobs.backtest import Backtest

app = typer.Typer(no_args_is_help=True, help="Run one job on Spark.")


@app.callback()
def check_installed() -> None:
    """Run a job on Spark."""
    if any(find_spec(name) is None for name in ("pyspark", "pyarrow", "deltalake")):
        raise MissingExtra("The data pipeline", "spark")


def _found_store(given: str) -> str:
    from tape.pipeline.options import journal_database

    store = find_store(given)
    journal_database(store)  # an error that names the setting, before Spark starts
    return str(store)


Store = Annotated[
    str,
    typer.Option(
        callback=_found_store,
        show_default=False,
        help="Database: sqlite:<path>, a path, postgres://… or alloydb://…"
        " [default: TAPE_STORE, else store of tape.toml, else sqlite:tape.db]",
    ),
]
Master = Annotated[str, typer.Option(envvar="TAPE_SPARK_MASTER", help="Spark master URL. [default: local[*]]")]
Conf = Annotated[list[str] | None, typer.Option(help="Spark setting as name=value; repeatable.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not print progress.")]
MetricsListen = Annotated[str, typer.Option(help="Serve Prometheus metrics at this host:port.")]

# The callback of the option then finds the store.
DEFAULT_STORE = ""
# The setting of tape.toml, else local[*].
DEFAULT_MASTER = ""


@app.command()
def archive(
    lake: Annotated[str, typer.Option(envvar="TAPE_LAKE", help="The archive: a folder, s3://… or gs://…")] = "",
    store: Store = DEFAULT_STORE,
    follow: Annotated[bool, typer.Option(help="Continue with new data until SIGTERM.")] = False,
    round_entries: Annotated[int, typer.Option(min=1, help="Entries per commit of the archive.")] = 500_000,
    compact: Annotated[bool, typer.Option(help="Compact small files into larger ones afterwards.")] = False,
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
    quiet: Quiet = False,
    metrics_listen: MetricsListen = "",
) -> None:
    """Copy the journal into an archive of Parquet files (a Delta table), each entry once."""
    from tape.archive import compaction
    from tape.archive.location import resolve_url
    from tape.archive.table import ArchiveTable
    from tape.pipeline.job_context import open_job_context
    from tape.pipeline.jobs import archive as job

    configured = load_pipeline_settings()
    lake, options = resolve_url(lake or configured.lake), dict(configured.lake_options)
    with (
        session("archive", master, conf) as spark,
        open_job_context("archive", quiet=quiet, metrics_listen=metrics_listen) as context,
    ):
        count = job.archive(spark, store, lake, context, follow=follow, round_entries=round_entries, options=options)
    archived = ArchiveTable.open(lake, options)
    if compact:
        compaction.compact(archived)
        archived.vacuum()
    typer.echo(f"Archived {count:,} entries; {archived.url} has {archived.begin} to {archived.until}.")


@app.command()
def rollup(
    store: Store = DEFAULT_STORE,
    lake: Annotated[str, typer.Option(help="Archive to read pruned entries from.")] = "",
    follow: Annotated[bool, typer.Option(help="Continue with new data until SIGTERM.")] = False,
    round_entries: Annotated[int, typer.Option(min=1, help="Entries per transaction.")] = 1_000_000,
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
    quiet: Quiet = False,
    metrics_listen: MetricsListen = "",
) -> None:
    """Aggregate the journal per minute, hour and day into the store, each entry once.

    Entries and bytes by tenant, type and tool; outcomes and durations (with percentiles) of effects, from pending to
    settled, by tool, and of runs, from start to end. POST /v1/events/aggregate answers from them.
    """
    from tape.engine.ledgers.rollups import read_position
    from tape.pipeline.job_context import open_job_context
    from tape.pipeline.jobs import rollup as job
    from tape.pipeline.journal_reader import query_store

    with (
        session("rollup", master, conf) as spark,
        open_job_context("rollup", quiet=quiet, metrics_listen=metrics_listen) as context,
    ):
        count = job.rollup(spark, store, context, lake=lake, follow=follow, round_entries=round_entries)
    late = query_store(store, read_position).late
    typer.echo(f"Counted {count:,} entries." + (f" {late:,} of all have come late." if late else ""))


Since = Annotated[str, typer.Option("--from", help="Start: earliest, a global_seq to start after, or a time.")]


@app.command()
def report(
    page: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("tape-report.html"),
    store: Store = DEFAULT_STORE,
    lake: Annotated[str, typer.Option(help="Archive to read pruned entries from.")] = "",
    since: Annotated[str, typer.Option(help="Start: an age before the end (90m, 24h, 7d), or a time.")] = "24h",
    until: Annotated[str, typer.Option(help="End: now, an age, or a time.")] = "now",
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
) -> None:
    """Write an HTML report about a time window: volume, latency, failures, slowest runs, dead letters, lag."""
    from tape.pipeline.jobs import report as job

    with session("report", master, conf) as spark:
        facts = job.report(spark, store, page, lake=lake, since=since, until=until)
    typer.echo(f"{page.resolve()} covers {facts.entries:,} entries.")
    if show:
        typer.launch(str(page.resolve()))


@app.command()
def backtest(
    where: Annotated[str, typer.Option(help="The reaction's CEL predicate.")] = "",
    subject: Annotated[str, typer.Option(help="The reaction's subject pattern.")] = "/tape/**",
    debounce_ms: Annotated[int, typer.Option(min=0, help="The reaction's debounce.")] = 0,
    rate_limit_per_s: Annotated[int, typer.Option(min=0, help="The reaction's rate; 0 for none.")] = 0,
    reaction: Annotated[str, typer.Option(help="Instead, a registered reaction, by id or name.")] = "",
    store: Store = DEFAULT_STORE,
    since: Since = "earliest",
    until: Annotated[str, typer.Option("--to", help="End: latest, a global_seq or a time.")] = "latest",
    lake: Annotated[str, typer.Option(help="Archive to read pruned entries from.")] = "",
    samples: Annotated[int, typer.Option(min=0, help="Number of sample entries to show.")] = 5,
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
    output: Annotated[str, typer.Option("--output", "-o", help="text or json.")] = "text",
) -> None:
    """Show how often a reaction would have fired over history, per hour and tenant. Creates nothing."""
    wanted = select_reaction(reaction, store, ReactionOptions(subject, where, debounce_ms, rate_limit_per_s))
    (result,) = run_backtests([wanted], store, since, until, lake, samples, master, conf)
    show_backtests([("", result)], output)


@app.command()
def replay(
    agent: Annotated[str, typer.Option("--with", metavar="MODULE:FUNCTION", help="Function of a RunState.")],
    app_name: Annotated[str, typer.Option("--app", help="Only runs of this app.")] = "",
    store: Store = DEFAULT_STORE,
    since: Since = "earliest",
    until: Annotated[str, typer.Option("--to", help="End: latest, a global_seq or a time.")] = "latest",
    lake: Annotated[str, typer.Option(help="Archive to read pruned entries from.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Maximum number of runs; 0 for all.")] = 0,
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
    output: Annotated[str, typer.Option("--output", "-o", help="text or json.")] = "text",
) -> None:
    """Execute today's code of recorded runs, answered from the record, and report divergences. Performs nothing.

    Exits with 1 if a run diverges.
    """
    from tape.pipeline.jobs import replay as job

    with session("replay", master, conf) as spark:
        report = job.replay_history(
            spark, store, agent, app_name=app_name, since=since, until=until, lake=lake, limit=limit
        )
    if output == "json":
        typer.echo(msgspec.json.encode(report).decode())
    else:
        for each in report.divergences:
            found = each["divergence"]
            where = f" at {found['file']}:{found['line']}" if found["file"] else ""
            typer.echo(f"{each['run_id']} diverged after {each['replayed']} of {each['steps']} steps{where}")
            for line in (found["message"], *found["difference"].splitlines()):
                typer.echo(f"  {line}")
        skipped = "".join(f"\n  skipped {count}: {reason}" for reason, count in report.reasons.items())
        counts = f"{report.same} the same, {report.diverged} diverged, {report.skipped} skipped"
        typer.echo(f"{report.runs} runs: {counts}.{skipped}")
    if report.diverged:
        raise typer.Exit(1)


def run_backtests(
    reactions: Sequence[Reaction],
    store: str,
    since: str,
    until: str,
    lake: str,
    samples: int,
    master: str,
    conf: Sequence[str] | None,
) -> list[Backtest]:
    """Run the backtests of several reactions in one Spark session."""
    from tape.pipeline.jobs import backtest as job

    with session("backtest", master, conf) as spark:
        return [
            job.backtest(spark, store, wanted, since=since, until=until, lake=lake, samples=samples)
            for wanted in reactions
        ]


@app.command()
def match(
    reaction: Annotated[str, typer.Option(help="The registered reaction, by id or name.")],
    store: Store = DEFAULT_STORE,
    since: Since = "earliest",
    until: Annotated[str, typer.Option("--to", help="End. [default: where servers began to match]")] = "",
    lake: Annotated[str, typer.Option(help="Archive to read pruned entries from.")] = "",
    name: Annotated[str, typer.Option(help="Name of the checkpoint. [default: the reaction's id]")] = "",
    round_entries: Annotated[int, typer.Option(min=1, help="Entries per round.")] = 200_000,
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
    quiet: Quiet = False,
    metrics_listen: MetricsListen = "",
) -> None:
    """Create the tasks of a reaction for entries that are older than its registration, each once."""
    from tape.pipeline.job_context import open_job_context
    from tape.pipeline.jobs import match as job

    with (
        session("match", master, conf) as spark,
        open_job_context("match", quiet=quiet, metrics_listen=metrics_listen) as context,
    ):
        done = job.match(
            spark,
            store,
            reaction,
            context,
            since=since,
            until=until,
            lake=lake,
            checkpoint=name,
            round_entries=round_entries,
        )
    typer.echo(
        f"Matched entries {done.after + 1:,} to {done.seen:,} of {done.until:,}: {done.tasks:,} tasks,"
        f" {done.runs:,} runs;"
        f" {done.debounced:,} debounced, {done.known:,} existing, {done.own_work:,} self-caused,"
        f" {done.errors:,} errors."
    )
    if done.last_error:
        typer.echo(f"Last predicate error: {done.last_error}")


@app.command()
def fanout(
    sink: Annotated[str, typer.Option(help="Sink URL as for tape relay: webhook:URL, kafka:SERVERS/TOPIC, …")],
    name: Annotated[str, typer.Option(help="Name of the checkpoint.")],
    store: Store = DEFAULT_STORE,
    subject: Annotated[str, typer.Option(help="Only entries whose subject matches this pattern.")] = "",
    where: Annotated[str, typer.Option(help="Only entries that match this CEL predicate.")] = "",
    policy: Annotated[str, typer.Option(help="For rejected entries: block, skip or dead_letter.")] = "block",
    dead_letter: Annotated[str, typer.Option(help="File or subject for dead letters.")] = "",
    header: Annotated[list[str] | None, typer.Option(help="For webhooks: 'Name: value'.")] = None,
    secret: Annotated[str, typer.Option(envvar="TAPE_WEBHOOK_SECRET", help="For webhooks: sign bodies.")] = "",
    allow_private: Annotated[bool, typer.Option(help="For webhooks: allow private addresses.")] = False,
    from_now: Annotated[bool, typer.Option(help="A new name starts at the head, not at the oldest entry.")] = False,
    tenant_ids: Annotated[
        bool, typer.Option(help="Event ids <tenant>:<run_id>/<seq>: for a store with several tenants.")
    ] = False,
    follow: Annotated[bool, typer.Option(help="Continue with new data until SIGTERM.")] = False,
    round_entries: Annotated[int, typer.Option(min=1, help="Entries per round.")] = 100_000,
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
    quiet: Quiet = False,
    metrics_listen: MetricsListen = "",
) -> None:
    """Publish entries to a sink from many tasks, at least once, each run in order."""
    from tape.pipeline.job_context import open_job_context
    from tape.pipeline.jobs import fanout as job

    # Validates the URL and the policy before Spark starts.
    target = job.sink_opener(sink, headers=header or [], secret=secret, allow_private=allow_private)
    target().close()
    checked = job.checked_policy(policy, dead_letter, subject)
    with (
        session("fanout", master, conf) as spark,
        open_job_context("fanout", quiet=quiet, metrics_listen=metrics_listen) as context,
    ):
        done = job.fanout(
            spark,
            store,
            name,
            target,
            context,
            target=sink,
            subject=subject,
            where=where,
            policy=checked,
            dead_letter=dead_letter,
            from_now=from_now,
            tenant_ids=tenant_ids,
            follow=follow,
            round_entries=round_entries,
        )
    typer.echo(
        f"Published {done.entries:,} entries under {name!r}, {done.skipped:,} skipped,"
        f" {done.dead_letters:,} dead letters, {done.retries:,} retries."
    )


@app.command()
def ingest(
    path: Annotated[str, typer.Argument(help="Files or a folder; empty for a format without a path.")],
    mapped: Annotated[list[str] | None, typer.Option("--map", help="field=SQL expression over the columns.")] = None,
    template: Annotated[list[str] | None, typer.Option(help="field=text with {column} in it.")] = None,
    mapping: Annotated[str, typer.Option(help="A TOML or JSON file with the tables map and template.")] = "",
    store: Store = DEFAULT_STORE,
    source: Annotated[str, typer.Option("--format", help="json (lines), parquet, csv, delta, kafka, …")] = "json",
    option: Annotated[list[str] | None, typer.Option(help="Option of the format, as name=value.")] = None,
    schema: Annotated[str, typer.Option(help="Columns, such as id long, name string. [default: inferred]")] = "",
    unique: Annotated[str, typer.Option(help="Column of unique ids: duplicate rows are dropped.")] = "",
    unique_days: Annotated[int, typer.Option(help="Days after which ids expire; 0: never.", min=0)] = 0,
    producer: Annotated[str, typer.Option(help="Name of this input, for ids and batches.")] = "ingest",
    batch_id: Annotated[str, typer.Option(help="A batch is appended once. [default: the path]")] = "",
    rejects: Annotated[str, typer.Option(help="Folder or URL for rejected rows. [default: rejects-<producer>]")] = "",
    redact: Annotated[bool, typer.Option(help="Redact secrets in payloads.")] = True,
    safe_type: Annotated[list[str] | None, typer.Option(help="Event type whose payloads are not redacted.")] = None,
    stream: Annotated[bool, typer.Option(help="Read as a stream with a checkpoint.")] = False,
    checkpoint: Annotated[str, typer.Option(help="For a stream: checkpoint folder.")] = "",
    watermark: Annotated[str, typer.Option(help="For a stream: column=delay, such as at=10 minutes.")] = "",
    follow: Annotated[bool, typer.Option(help="For a stream: continue with new data until SIGTERM.")] = False,
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
    quiet: Quiet = False,
    metrics_listen: MetricsListen = "",
) -> None:
    """Append the rows of files or any other source of Spark to the journal, once."""
    from tape.pipeline.job_context import open_job_context
    from tape.pipeline.jobs import ingest as job
    from tape.pipeline.row_mapping import FieldMapping, read_mapping

    if (watermark or follow or checkpoint) and not stream:
        raise PipelineInput("--watermark, --follow and --checkpoint are for --stream.")
    if stream and (batch_id or not checkpoint):
        raise PipelineInput("--stream needs a --checkpoint, which numbers its batches, and has no --batch-id.")
    if unique_days and not unique:
        raise PipelineInput(f"--unique-days {unique_days} needs --unique: the column of ids to remember that long.")
    given = FieldMapping(
        dict(pair_of("--map", text) for text in mapped or ()),
        dict(pair_of("--template", text) for text in template or ()),
    )
    fields = read_mapping(mapping).both(given) if mapping else given
    safe = job.names_of(safe_type or ())
    wanted = job.IngestJob(store, fields, producer, unique, rejects, redact, safe, unique_days, *load_redaction())
    options = dict(pair_of("--option", text) for text in option or ())
    with (
        session("ingest", master, conf) as spark,
        open_job_context("ingest", quiet=quiet, metrics_listen=metrics_listen) as context,
    ):
        if stream:
            from tape.pipeline.jobs.ingest_stream import StreamInput, ingest_stream

            stream_input = StreamInput(source, schema, options, watermark, follow)
            done = ingest_stream(spark, wanted, path, checkpoint, context, stream_input)
        else:
            done = job.ingest(spark, wanted, path, source=source, schema=schema, options=options, batch_id=batch_id)
    typer.echo(
        f"{done.rows:,} rows of {path or source}: {done.entries:,} appended, {done.duplicates:,} duplicates,"
        f" {done.rejected:,} rejected."
    )
    if done.forgotten:
        typer.echo(f"{done.forgotten:,} ids are older than {unique_days} days and have expired.")
    if done.rejected:
        typer.echo(f"Rejected rows are in {wanted.resolved().rejects}; last reason: {done.reason}", err=True)


@app.command()
def subscription(
    path: Annotated[str, typer.Argument(help="The subscription's path in the catalog.")],
    server: Annotated[str, typer.Option(envvar="TAPE_SERVER_URL", help="The HTTP address of the server.")] = (
        "http://127.0.0.1:7879"
    ),
    token: Annotated[
        str,
        typer.Option(
            envvar=["TAPE_TOKEN", "TAPE_INTERNAL_API_TOKEN"],
            help="Service key, or the server's internal token.",
            show_default=False,
        ),
    ] = "",
    store: Annotated[
        str, typer.Option(help="Store into which executors write directly instead of through the server.")
    ] = "",
    checkpoint: Annotated[str, typer.Option(help="Checkpoint folder. [default: tape-checkpoint-<path>]")] = "",
    follow: Annotated[bool, typer.Option(help="Continue with new data until SIGTERM.")] = False,
    batch_messages: Annotated[int, typer.Option(min=1, help="Maximum number of messages per micro-batch.")] = 50_000,
    skip_lost: Annotated[bool, typer.Option(help="Continue if the source deleted unread messages.")] = False,
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
    quiet: Quiet = False,
    metrics_listen: MetricsListen = "",
) -> None:
    """Start one execution for each message of a subscription with `runtime.target: spark`.

    The subscription must be in the server's catalog. The job follows its state: paused, draining, deactivated.
    """
    from tape.pipeline.job_context import open_job_context
    from tape.pipeline.jobs import subscription as job

    folder = checkpoint or f"tape-checkpoint-{path.replace('/', '-')}"
    options = job.StreamOptions(folder, follow, store, batch_messages, skip_lost)
    with (
        session("subscription", master, conf) as spark,
        open_job_context("subscription", quiet=quiet, metrics_listen=metrics_listen) as context,
    ):
        done = job.run_subscription(spark, server, token, path, context, options)
    typer.echo(
        f"{done.received:,} messages of {path}: {done.started:,} executions started, {done.duplicates:,} duplicates,"
        f" {done.known:,} written before, {done.dead:,} dead letters."
    )


def main(job: str, arguments: Sequence[str] | None = None) -> None:
    """Run one job from its own module; print a TapeError as one line."""
    try:
        app([job, *(sys.argv[1:] if arguments is None else arguments)])
    except TapeError as error:
        typer.echo(f"error {error.code}: {error}", err=True)
        sys.exit(1)


@contextlib.contextmanager
def session(job: str, master: str, conf: Sequence[str] | None) -> Iterator[SparkSession]:
    """Open a Spark session: options win over spark-submit, which wins over tape.toml."""
    from tape.pipeline.session import DEFAULT_MASTER as ALL_CORES
    from tape.pipeline.session import open_session, submitted

    configured = load_pipeline_settings()
    given = dict(pair_of("--conf", text) for text in conf or ())
    chosen = master or submitted().get("spark.master") or configured.master or ALL_CORES
    spark = open_session(job, chosen, dict(configured.spark) | given)
    try:
        yield spark
    finally:
        spark.stop()


def pair_of(option: str, text: str) -> tuple[str, str]:
    """Split name=value. Raises PipelineInput."""
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise PipelineInput(f"{option} {text!r} must be written as name=value.")
    return name.strip(), value.strip()
