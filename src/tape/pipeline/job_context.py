"""A job while it runs: told to stop by a signal, showing its progress to people and to Prometheus."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from tape.base.config import parse_address
from tape.base.process import stop_on_signal


class Running:
    """What a job asks whether to go on, and tells how far it is. Progress goes to standard error."""

    def __init__(self, job: str, *, quiet: bool = False) -> None:
        self.job = job
        self.registry = registry = CollectorRegistry()
        self._quiet = quiet
        self._stop = threading.Event()
        self._entries = Counter("tape_pipeline_entries", "Entries that jobs have handled", ["job"], registry=registry)
        self._position = Gauge("tape_pipeline_position", "Last global_seq or batch handled", ["job"], registry=registry)
        self._behind = Gauge("tape_pipeline_behind", "Entries still to handle", ["job"], registry=registry)
        self._noted = Counter(
            "tape_pipeline_noted", "What jobs left out or repeated", ["job", "what"], registry=registry
        )
        self._seconds = Gauge("tape_pipeline_round_seconds", "Duration of the last round", ["job"], registry=registry)

    @property
    def is_stopping(self) -> bool:
        """Whether the job was told to stop; what it has begun it finishes."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Let the job end after what it is doing."""
        self._stop.set()

    def wait(self, seconds: float) -> None:
        """Pause, but not beyond a signal to stop."""
        self._stop.wait(seconds)

    def told(self, entries: int, position: int, head: int, seconds: float) -> None:
        """Show one round of the job."""
        self._entries.labels(self.job).inc(entries)
        self._position.labels(self.job).set(position)
        self._behind.labels(self.job).set(max(head - position, 0))
        self._seconds.labels(self.job).set(seconds)
        if not self._quiet:
            rate = entries / seconds if seconds > 0 else 0
            text = f"{time.strftime('%H:%M:%S')} {self.job}: {entries:,} entries to {position:,}"
            sys.stderr.write(f"{text}, {max(head - position, 0):,} behind, {rate:,.0f}/s\n")
            sys.stderr.flush()

    def told_batch(self, rows: int, number: int, seconds: float) -> None:
        """Show one micro-batch of a stream that does not read the journal."""
        self._entries.labels(self.job).inc(rows)
        self._position.labels(self.job).set(number)
        self._seconds.labels(self.job).set(seconds)
        if not self._quiet:
            sys.stderr.write(
                f"{time.strftime('%H:%M:%S')} {self.job}: batch {number:,}, {rows:,} rows in {seconds:.1f} s\n"
            )
            sys.stderr.flush()

    def noted(self, what: str, count: int, detail: str = "") -> None:
        """Show something that was left out, set aside or repeated."""
        if not count:
            return
        self._noted.labels(self.job, what).inc(count)
        if not self._quiet:
            sys.stderr.write(
                f"{time.strftime('%H:%M:%S')} {self.job}: {count:,} {what}{': ' + detail if detail else ''}\n"
            )
            sys.stderr.flush()


@contextlib.contextmanager
def running(job: str, *, quiet: bool = False, metrics_listen: str = "") -> Iterator[Running]:
    """A job in the foreground: SIGTERM and SIGINT end it after the round it is in."""
    work = Running(job, quiet=quiet)

    server = None
    if metrics_listen:
        host, port = parse_address("metrics_listen", metrics_listen)
        server, _ = start_http_server(port, host, work.registry)
    try:
        with stop_on_signal(work.stop, interrupts=False):
            yield work
    finally:
        if server is not None:
            server.shutdown()
            server.server_close()
