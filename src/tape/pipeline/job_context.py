"""The context of a running job: its stop signal, its progress on the terminal, its Prometheus metrics."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from tape.base.config import parse_address
from tape.base.process import stop_on_signal


class JobContext:
    """Says whether the job should stop, and reports its progress to standard error and Prometheus."""

    def __init__(self, job: str, *, quiet: bool = False) -> None:
        self.job = job
        self.registry = registry = CollectorRegistry()
        self._quiet = quiet
        self._stop = threading.Event()
        self._entries = Counter("tape_pipeline_entries", "Entries that jobs have processed", ["job"], registry=registry)
        self._position = Gauge(
            "tape_pipeline_position", "Last global_seq or batch processed", ["job"], registry=registry
        )
        self._behind = Gauge("tape_pipeline_behind", "Entries still to process", ["job"], registry=registry)
        self._counts = Counter(
            "tape_pipeline_noted", "Entries that jobs skipped, rejected or retried", ["job", "what"], registry=registry
        )
        self._seconds = Gauge("tape_pipeline_round_seconds", "Duration of the last round", ["job"], registry=registry)

    @property
    def is_stopping(self) -> bool:
        """Whether the job should stop after its current round."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Stop the job after its current round."""
        self._stop.set()

    def wait(self, seconds: float, /) -> bool:
        """Wait for some seconds, or until the job is stopped; whether it is."""
        return self._stop.wait(seconds)

    def report_progress(self, entries: int, position: int, head: int, seconds: float) -> None:
        """Report one round of a job that reads the journal."""
        self._entries.labels(self.job).inc(entries)
        self._position.labels(self.job).set(position)
        self._behind.labels(self.job).set(max(head - position, 0))
        self._seconds.labels(self.job).set(seconds)
        rate = entries / seconds if seconds > 0 else 0
        self._print(f"{entries:,} entries to {position:,}, {max(head - position, 0):,} behind, {rate:,.0f}/s")

    def report_batch(self, rows: int, number: int, seconds: float) -> None:
        """Report one micro-batch of a stream that does not read the journal."""
        self._entries.labels(self.job).inc(rows)
        self._position.labels(self.job).set(number)
        self._seconds.labels(self.job).set(seconds)
        self._print(f"batch {number:,}, {rows:,} rows in {seconds:.1f} s")

    def report_count(self, what: str, count: int, detail: str = "") -> None:
        """Report entries that were skipped, rejected or retried, and waits for an unavailable downstream."""
        if not count:
            return
        self._counts.labels(self.job, what).inc(count)
        self._print(f"{count:,} {what}{': ' + detail if detail else ''}")

    def _print(self, text: str) -> None:
        if not self._quiet:
            sys.stderr.write(f"{time.strftime('%H:%M:%S')} {self.job}: {text}\n")
            sys.stderr.flush()


@contextlib.contextmanager
def open_job_context(job: str, *, quiet: bool = False, metrics_listen: str = "") -> Iterator[JobContext]:
    """Run a job in the foreground: SIGTERM and SIGINT stop it after its current round."""
    context = JobContext(job, quiet=quiet)
    server = None
    if metrics_listen:
        host, port = parse_address("metrics_listen", metrics_listen)
        server, _ = start_http_server(port, host, context.registry)
    try:
        with stop_on_signal(context.stop, interrupts=False):
            yield context
    finally:
        if server is not None:
            server.shutdown()
            server.server_close()
