"""One trace, followed from a caller's span through an entry, a task and what its handler did."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from tape.client import TapeClient
from tests.forked import Forked
from tests.services import ServerProcess, wait_for

TRACE, SPAN = "0" * 29 + "abc", "0" * 13 + "def"
CALLER = SpanContext(int(TRACE, 16), int(SPAN, 16), is_remote=False, trace_flags=TraceFlags(1))

HANDLERS = """
import os
import tape

@tape.on("/tape/order/paid/**", reaction_id="ship")
def ship(envelope):
    with tape.TapeClient(os.environ["SERVER"]) as client:
        client.append("/tape/order/shipped/1", {"of": envelope.global_seq})
        client.write_value(namespace="orders", key="1", value_json='"shipped"')
"""


class Collector:
    """An OTLP collector that keeps what it gets."""

    def __enter__(self) -> Collector:
        self.spans: list[tuple[str, Any]] = []
        spans = self.spans

        class Receive(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    import gzip

                    body = gzip.decompress(body)
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    names = {each.key: each.value.string_value for each in resource.resource.attributes}
                    for scope in resource.scope_spans:
                        spans.extend((names["service.name"], span) for span in scope.spans)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Receive)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def named(self, service: str, name: str) -> list[Any]:
        return [span for owner, span in self.spans if owner == service and name in span.name and span.trace_id]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        yield found


def test_a_trace_goes_from_the_caller_through_entry_and_task_to_what_the_handler_did(
    store_url: str, tmp_path: Path, collector: Collector
) -> None:
    (tmp_path / "handlers.py").write_text(HANDLERS)
    with ServerProcess(store_url) as server, TapeClient(server.url) as client:
        dispatcher = Forked(
            ["dispatch", "handlers", "--url", server.url], cwd=tmp_path, env=os.environ | {"SERVER": server.url}
        )
        try:
            wait_for(lambda: client.list_reactions().reactions, "registration")
            with trace.use_span(NonRecordingSpan(CALLER)):
                client.append("/tape/order/paid/1", {})
            wait_for(lambda: client.get_value(namespace="orders", key="1").found, "the handler")
            wait_for(lambda: collector.named("tape-dispatcher", "tape task ship"), "the span of the task")
            wait_for(lambda: collector.named("tape-server", "WriteValue"), "the span of the server")
        finally:
            dispatcher.kill()

        found = {}
        for entry in client.follow():
            found[entry.type] = entry
            if entry.kind == "value":
                break
        (task,) = client.list_tasks(reaction_id="ship").tasks
        (handling,) = collector.named("tape-dispatcher", "tape task ship")
        (writing,) = collector.named("tape-server", "WriteValue")

        # the caller's span is on the entry, and is the parent of the task
        assert (found["order.paid"].trace_id, found["order.paid"].span_id) == (TRACE, SPAN)
        assert (task.trace_id, task.parent_span_id) == (TRACE, SPAN)
        # the handler ran in a span below it
        assert (handling.trace_id.hex(), handling.parent_span_id.hex()) == (TRACE, SPAN)
        handled = handling.span_id.hex()
        # what it appended, and what it called, belong to that span
        shipped = found["order.shipped"]
        assert (shipped.trace_id, shipped.span_id, shipped.parent_span_id) == (TRACE, handled, SPAN)
        assert (found["value.changed"].trace_id, found["value.changed"].span_id) == (TRACE, handled)
        assert (writing.trace_id.hex(), writing.parent_span_id.hex()) == (TRACE, handled)


def test_without_opentelemetry_the_trace_goes_on_all_the_same(store_url: str, tmp_path: Path) -> None:
    (tmp_path / "handlers.py").write_text(HANDLERS)
    # As if it was not installed: an import fails.
    hide = "import sys; sys.modules['opentelemetry'] = None; from tape.cli import main; main()"
    with ServerProcess(store_url) as server, TapeClient(server.url) as client:
        with trace.use_span(NonRecordingSpan(CALLER)):
            client.append("/tape/order/other/1", {})
        dispatcher = subprocess.Popen(
            [sys.executable, "-c", hide, "dispatch", "handlers", "--url", server.url],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"SERVER": server.url},
        )
        try:
            wait_for(lambda: client.list_reactions().reactions, "registration")
            with trace.use_span(NonRecordingSpan(CALLER)):
                client.append("/tape/order/paid/1", {})
            wait_for(lambda: client.get_value(namespace="orders", key="1").found, "the handler")
        finally:
            dispatcher.kill()
            dispatcher.wait()
        shipped = next(iter(client.follow("/tape/order/shipped/**")))
        assert (shipped.trace_id, shipped.parent_span_id) == (TRACE, SPAN)
        assert shipped.span_id not in ("", SPAN)
