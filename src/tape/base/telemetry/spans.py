"""Spans of our own work, as children of what caused it.

With OpenTelemetry installed they are its spans: recorded and exported if its SDK is set up. Without it, the
work still continues the trace: what it appends names the trace, a span of its own, and its parent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from tape.base.telemetry.tracing import NO_TRACE, Trace, current_span


def are_recorded() -> bool:
    """Whether this process has set up OpenTelemetry's SDK, so that spans go somewhere."""
    sdk, api = (sys.modules.get(name) for name in ("opentelemetry.sdk.trace", "opentelemetry.trace"))
    return sdk is not None and api is not None and isinstance(api.get_tracer_provider(), sdk.TracerProvider)


@contextmanager
def child_span(
    name: str, trace_id: str, parent_span_id: str, attributes: Mapping[str, Any], kind: str = "CONSUMER"
) -> Iterator[None]:
    """Be in a span whose parent is the given one; a new trace if there is none. An error inside is recorded."""
    trace = _opentelemetry()
    if trace is None or not (trace_id or are_recorded()):  # a span that belongs to nothing and goes nowhere
        with _plain_span(trace_id, parent_span_id):
            yield
        return
    context = None
    if trace_id and parent_span_id:
        parent = trace.SpanContext(
            int(trace_id, 16), int(parent_span_id, 16), is_remote=True, trace_flags=trace.TraceFlags(1)
        )
        context = trace.set_span_in_context(trace.NonRecordingSpan(parent))
    tracer = trace.get_tracer("tape")
    with tracer.start_as_current_span(name, context, kind=trace.SpanKind[kind], attributes=attributes):
        yield


@cache
def _opentelemetry() -> Any:
    """OpenTelemetry's API, or None. Python looks for a missing module anew each time; once is enough."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace


@contextmanager
def _plain_span(trace_id: str, parent_span_id: str) -> Iterator[None]:
    span = Trace(trace_id, os.urandom(8).hex(), parent_span_id) if trace_id else NO_TRACE
    token = current_span.set(span)
    try:
        yield
    finally:
        current_span.reset(token)
