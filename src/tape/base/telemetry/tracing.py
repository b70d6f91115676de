"""W3C trace context of calls and entries."""

from __future__ import annotations

import re
import sys
from contextvars import ContextVar
from typing import NamedTuple

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")


class Trace(NamedTuple):
    """The span that caused an entry (hex ids) and the reaction that it belongs to; empty where unknown."""

    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str = ""
    cause: str = ""


NO_TRACE = Trace()

# The reaction whose handler is at work. Calls of the clients carry it, so that a reaction does not fire
# on what its own work writes.
current_cause: ContextVar[str] = ContextVar("tape_cause", default="")
# The span that the work at hand belongs to where OpenTelemetry is not in use.
current_span: ContextVar[Trace] = ContextVar("tape_span", default=NO_TRACE)


def current_trace() -> Trace:
    """The span that the caller is in, OpenTelemetry's or the one of a task, and the reaction it works for."""
    cause = current_cause.get()
    opentelemetry = sys.modules.get("opentelemetry.trace")
    if opentelemetry is not None:
        current = opentelemetry.get_current_span()
        span = current.get_span_context()
        if span.is_valid:
            parent = getattr(current, "parent", None)
            above = f"{parent.span_id:016x}" if parent is not None else ""
            return Trace(f"{span.trace_id:032x}", f"{span.span_id:016x}", above, cause)
    trace = current_span.get()
    return trace._replace(cause=cause) if cause else trace


def to_traceparent(trace: Trace) -> str:
    """The `traceparent` header for a span."""
    return f"00-{trace.trace_id}-{trace.span_id}-01"


def parse_traceparent(header: str) -> Trace:
    """The caller's span from a `traceparent` header; a malformed one counts as none, as W3C says."""
    match = _TRACEPARENT.fullmatch(header.strip())
    if match is None or set(match[1]) == {"0"} or set(match[2]) == {"0"}:
        return NO_TRACE
    return Trace(match[1], match[2])
